/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Setting a model's bound, and counting what the model holds. The catalog keeps "limit used" under
 * meta quota:MODEL. `used` is true after a clean stop; after a kill it is counted anew.
 */
#include "limit.h"

#include "account.h"
#include "dirty.h"
#include "member.h"
#include "node.h"

#include <inttypes.h>
#include <string.h>

#define KEY "quota:"

static int save(struct kvc *k, const struct kvc_quota *q)
{
	char key[40], value[48];

	snprintf(key, sizeof key, KEY "%" PRIx64, q->model);
	snprintf(value, sizeof value, "%" PRIu64 " %" PRIu64, q->limit, q->used);
	return kvc_meta_set(k->cat, key, value);
}

/*
 * Counts the model from the catalog and what memory knows better. Nodes learn again whose they are:
 * folders may have moved.
 */
static int count_both(struct kvc *k, struct kvc_quota *q)
{
	uint64_t blocks = 0;
	int err = 0;

	kvc_list_each(e, &k->dirty->nodes)
		err = kvc_row_put(k->cat, &kvc_of(e, struct kvc_node, dirty_link)->row) ?: err;
	err = err ?: kvc_blocks_below(k->cat, q->model, &blocks);
	q->used = blocks * 512;
	for (size_t i = 0; i < KVC_HASH_SIZE && !err; i++)
		for (struct kvc_node *n = k->nodes->hash[i]; n; n = n->hash_next) {
			struct kvc_row row;
			uint64_t model, now = kvc_quota_bytes(n);

			if (!S_ISREG(n->row.mode) || n->lost ||
			    kvc_model_of_both(k, n->row.parent, &model))
				continue;
			n->model = model;
			if (model != q->model)
				continue;
			q->used += now -
				   (kvc_row_get(k->cat, n->row.ino, &row) ? 0 : row.blocks * 512);
			n->charged = now;
		}
	return err;
}

int kvc_quota_set_both(struct kvc *k, uint64_t model, uint64_t limit)
{
	struct kvc_quota *q = kvc_quota_of_locked(k, model);
	bool made = !q && limit;
	char key[40];
	int err = 0;

	if (!q && !limit)
		return 0;
	if (!limit) {
		snprintf(key, sizeof key, KEY "%" PRIx64, model);
		kvc_quota_remove_locked(k, q);
		err = kvc_meta_del(k->cat, key);
		return err ?: kvc_chunk_reclass_both(k, model);
	}
	if (made && !(q = kvc_quota_add_locked(k, model, limit)))
		return -ENOMEM;
	q->limit = limit;
	if (made)
		err = count_both(k, q);
	err = err ?: save(k, q);
	if (!err && made)
		err = kvc_chunk_reclass_both(k, model);
	if (err && made) {
		kvc_quota_remove_locked(k, q);
		return err;
	}
	kvc_quota_grant_locked(k, q);
	pthread_cond_signal(&k->quotas.pressed);
	return err;
}

int kvc_quotas_load_both(struct kvc *k, bool clean)
{
	char key[64] = KEY, value[64];
	int err;

	while (!(err = kvc_meta_next(k->cat, KEY, key, value, sizeof value))) {
		uint64_t model = 0, limit = 0, used = 0;
		struct kvc_quota *q;
		struct kvc_row row;

		if (sscanf(key, KEY "%" SCNx64, &model) != 1 ||
		    sscanf(value, "%" SCNu64 " %" SCNu64, &limit, &used) != 2 || !limit ||
		    kvc_row_get(k->cat, model, &row)) {
			kvc_meta_del(k->cat, key);
			continue;
		}
		if (!(q = kvc_quota_add_locked(k, model, limit)))
			return -ENOMEM;
		q->used = used;
		if (!clean && (err = count_both(k, q)))
			return err;
	}
	return err == -ENOENT ? 0 : err;
}

void kvc_quotas_save_both(struct kvc *k)
{
	kvc_list_each(e, &k->quotas.list) {
		struct kvc_quota q = *kvc_of(e, struct kvc_quota, link);

		/* A file that was never closed is not there at the next start. */
		for (size_t i = 0; i < KVC_HASH_SIZE; i++)
			for (struct kvc_node *n = k->nodes->hash[i]; n; n = n->hash_next)
				if (n->model == q.model && n->state == KVC_OPEN)
					q.used -= kvc_quota_bytes(n) -
						  (n->lost ? 0 : n->row.blocks * 512);
		save(k, &q);
	}
}
