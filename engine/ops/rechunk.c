/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A file that a rename, link or unlink moves to another folder joins the chunk and the model there.
 * The rows that this needs are read before anything changes, under the same hold of both locks.
 */
#include "account.h"
#include "admission.h"
#include "ops.h"
#include "committer.h"
#include "file.h"
#include "membership.h"
#include "tenant_set.h"
#include "model.h"
#include "buckets.h"
#include "chunking.h"
#include "access.h"

#include <sys/stat.h>

/* Moves the file to another chunk. On error it stays in its old one. */
static int change_chunk_both(struct kvc *k, struct kvc_node *n, uint64_t chunk, uint64_t client)
{
	bool has = kvc_node_has_segment(n), last = n->row.chunk == n->row.ino;
	uint64_t old = n->row.chunk;
	int err;

	if (last && kvc_chunking_part_both(k, n))
		last = false;
	if ((err = kvc_membership_change_both(k, n, chunk, last)))
		return err;
	kvc_membership_ordered_locked(k, n, NULL);
	if (has) {
		kvc_access_moved_locked(k, old, n->chunk, client);
		kvc_chunk_add_locked(k, n);
		kvc_chunk_accessed_locked(k, n->chunk, false);
		kvc_admission_made_locked(k, n);
	} else if (n->object.lower) {
		kvc_chunk_accessed_locked(k, n->chunk, false);
	}
	return 0;
}

void kvc_rechunk_both(struct kvc *k, struct kvc_node *n, struct kvc_node *folder, const char *name,
		      uint64_t client)
{
	uint64_t chunk = 0, model;
	int err = 0;

	if (!S_ISREG(n->row.mode))
		return;
	kvc_chunking_named_both(k, folder, name);
	kvc_buckets_filled_both(k, folder);
	if (n->row.chunk != folder->row.ino) /* otherwise it is a member already */
		err = kvc_chunking_join_both(k, folder, n, name, true, &chunk);
	else if ((err = kvc_chunking_whole_both(k, folder)) == 1)
		chunk = folder->row.ino;
	err = err < 0 ? err : 0;
	chunk = chunk ? chunk : n->row.ino;
	err = err ?: kvc_node_model_both(k, folder->row.ino, &model);
	if (!err && model != n->model) {
		kvc_account_quota_move_locked(k, n, model);
		if (n->row.chunk == chunk)
			err = kvc_membership_moved_both(k, n);
	}
	if (!err && n->row.chunk != chunk)
		err = change_chunk_both(k, n, chunk, client);
	if (err)
		kvc_chunking_keeps_locked(k, n, folder);
	kvc_tenant_placed_both(k, n, name);
}

int kvc_rechunk_prepare_both(struct kvc *k, struct kvc_node *n, struct kvc_node *folder)
{
	struct kvc_row other;
	uint64_t model, ttl_s;
	int err, policy;

	if (!S_ISREG(n->row.mode))
		return 0;
	if ((err = kvc_chunking_known_both(k, folder)) ||
	    (err = kvc_node_model_both(k, folder->row.ino, &model)))
		return err;
	if (n->row.container && n->row.chunk == n->row.ino) {
		err = kvc_node_row_both(k, n->row.container, &other);
		if (err && err != -ENOENT)
			return err;
	}
	/* a chunk that is made there starts with these settings */
	err = kvc_model_attr_both(k, model, KVC_MODEL_POLICY, &policy)
		      ?: kvc_model_ttl_both(k, model, &ttl_s);
	/* an object in memory joins another policy class (base/policy.h) */
	return err ?: model != n->model ? kvc_membership_join_both(k, n) : 0;
}
