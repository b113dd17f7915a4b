/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Setting a model's quota. The catalog stores "limit used" under meta quota:MODEL. `used` is
 * correct after a clean unmount. After a kill, and for a new quota, a rescan counts it
 * (model_rescan.c); until the rescan ends, `used` is what it has counted so far.
 */
#include "model_quota.h"

#include "account.h"
#include "node.h"
#include "model_rescan.h"

#include <inttypes.h>
#include <string.h>

#define KEY KVC_QUOTA_KEY

int kvc_model_quota_set_both(struct kvc *k, uint64_t model, uint64_t limit)
{
	struct kvc_quota *q = kvc_quota_of_locked(k, model);
	bool made = !q && limit;
	uint64_t before;
	char key[40];
	int err;

	if (!q && !limit)
		return 0;
	if (!limit) {
		snprintf(key, sizeof key, KEY "%" PRIx64, model);
		err = kvc_model_rescan_ask_both(k, model) ?: kvc_meta_del(k->cat, key);
		if (!err)
			kvc_quota_remove_locked(k, q);
		return err;
	}
	if (made && !(q = kvc_quota_add_locked(k, model, limit)))
		return -ENOMEM;
	if (made)
		kvc_model_rescan_count_locked(k, q);
	before = q->limit;
	q->limit = limit;
	/* A needless rescan does no harm; a quota without one would be wrong. */
	err = made ? kvc_model_rescan_ask_both(k, model) : 0;
	err = err ?: kvc_quota_save_both(k, q);
	if (err) {
		q->limit = before;
		if (made)
			kvc_quota_remove_locked(k, q);
		return err;
	}
	kvc_quota_grant_locked(k, q);
	kvc_quota_press_locked(k, q);
	return 0;
}

int kvc_model_quotas_load_both(struct kvc *k, bool clean)
{
	char key[64] = KEY, value[64];
	int err;

	while (!(err = kvc_meta_next(k->cat, KEY, key, value, sizeof value))) {
		uint64_t model = 0, limit = 0, used = 0;
		struct kvc_quota *q;
		struct kvc_row row;

		if (sscanf(key, KEY "%" SCNx64, &model) != 1 ||
		    sscanf(value, "%" SCNu64 " %" SCNu64, &limit, &used) != 2 || !limit)
			err = -ENOENT;
		else
			err = kvc_row_get(k->cat, model, &row);
		if (err == -ENOENT) {
			kvc_meta_del(k->cat, key);
			continue;
		}
		if (err)
			return err;
		if (!(q = kvc_quota_add_locked(k, model, limit)))
			return -ENOMEM;
		q->used = clean ? used : 0;
		if (clean)
			continue;
		kvc_model_rescan_count_locked(k, q);
		if ((err = kvc_model_rescan_ask_both(k, model)))
			return err;
	}
	return err == -ENOENT ? 0 : err;
}

void kvc_model_quotas_save_both(struct kvc *k)
{
	struct kvc_quota *q;

	if (kvc_list_empty(&k->quotas.list))
		return;
	/* A file that was never closed has only the bytes of its row after the next start. */
	kvc_table_each(&k->nodes->table, s) {
		const struct kvc_node *n = kvc_of(s, struct kvc_node, slot);

		if (n->state == KVC_OPEN && (q = kvc_quota_of_locked(k, n->model)))
			q->used -= kvc_account_quota_bytes(n) -
				   (n->commit.lost ? 0 : n->row.blocks * 512);
	}
	kvc_list_each(e, &k->quotas.list)
		kvc_quota_save_both(k, kvc_of(e, struct kvc_quota, link));
}
