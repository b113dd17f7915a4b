/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which chunk a node is in. What a model has set, a policy of its own or a quota, is noted on its
 * chunks.
 */
#include "member.h"

#include "dirty.h"
#include "model.h"
#include "node.h"

/* The class and the quota of a model's chunks. */
static void belongs_both(struct kvc *k, uint64_t model, unsigned *class, uint64_t *quota)
{
	*class = (unsigned)(kvc_model_attr_both(k, model, KVC_MODEL_POLICY) + 1);
	*quota = kvc_quota_of_locked(k, model) ? model : 0;
}

int kvc_chunk_join_both(struct kvc *k, struct kvc_node *n)
{
	struct kvc_chunk *c;
	struct kvc_chunk_row r;
	int err;

	if (n->chunk)
		return 0;
	c = kvc_chunk_find_locked(k, n->row.chunk);
	if (!c) {
		err = kvc_chunk_get(k->cat, n->row.chunk, &r);
		if (err && err != -ENOENT)
			return err;
		c = kvc_chunk_new_locked(k, n->row.chunk, err ? NULL : &r);
		if (!c)
			return -ENOMEM;
		if (err)
			belongs_both(k, n->model, &c->policy, &c->quota);
	}
	if (c->gone) { /* it has files again */
		c->gone = false;
		c->known = false;
		kvc_chunk_dirty_locked(k, c);
	}
	n->chunk = c;
	c->inflight++;
	return 0;
}

int kvc_chunk_moved_both(struct kvc *k, struct kvc_node *n)
{
	struct kvc_chunk *c = kvc_chunk_find_locked(k, n->row.chunk);
	struct kvc_chunk_row r;
	unsigned class;
	uint64_t quota;
	int err;

	belongs_both(k, n->model, &class, &quota);
	if (c) {
		kvc_chunk_set_class_locked(k, c, class, quota);
		return 0;
	}
	err = kvc_chunk_get(k->cat, n->row.chunk, &r);
	if (err)
		return err == -ENOENT ? 0 : err;
	r.policy = class;
	r.quota = quota;
	r.rank = kvc_chunk_rank_row(k, &r);
	return kvc_chunk_put(k->cat, &r);
}

int kvc_chunk_reclass_both(struct kvc *k, uint64_t model)
{
	struct kvc_chunk_row *r = NULL;
	unsigned class;
	uint64_t quota, of;
	size_t n = 0;
	int err;

	belongs_both(k, model, &class, &quota);
	for (size_t i = 0; i < KVC_HASH_SIZE; i++)
		for (struct kvc_chunk *c = k->chunks->hash[i]; c; c = c->hash_next) {
			struct kvc_row row;

			/* A chunk's number is that of its folder or of its only file. */
			if (kvc_row_of_both(k, c->id, &row) ||
			    kvc_model_of_both(k, S_ISDIR(row.mode) ? c->id : row.parent, &of) ||
			    of != model)
				continue;
			kvc_chunk_set_class_locked(k, c, class, quota);
		}
	err = kvc_chunk_below(k->cat, model, &r, &n);
	for (size_t i = 0; i < n && !err; i++) {
		r[i].policy = class;
		r[i].quota = quota;
		r[i].rank = kvc_chunk_rank_row(k, &r[i]);
		err = kvc_chunk_put(k->cat, &r[i]);
	}
	free(r);
	kvc_commit_soon_locked(k, false);
	return err;
}
