/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Quotas: limits on the bytes that the files of a model use in memory and in the tiers
 * (user.kvcachefs.quota of its folder).
 *
 * q->used is the sum of the bytes that all files of the model are charged (n->acct.charged,
 * objects/account.c). Bytes are granted before they are written, in the order of the requests.
 * Therefore files of a model with a quota are written by plain requests: the bytes of a passthrough
 * write become known only at the close. If the bytes do not fit, the quota keeper drops whole
 * chunks of the model (evict/quota_keeper.c).
 */
#include "quota.h"

#include "kvc.h"
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#define LOOKS 64u /* number of models that one kvc_quotas_check_locked checks */

struct kvc_quota *kvc_quota_of_locked(struct kvc *k, uint64_t model)
{
	struct kvc_slot *s = k->quotas.table.n ? kvc_table_find(&k->quotas.table, model) : NULL;

	return s ? kvc_of(s, struct kvc_quota, slot) : NULL;
}

void kvc_quota_grant_locked(struct kvc *k, struct kvc_quota *q)
{
	while (!kvc_list_empty(&q->waiters)) {
		struct kvc_wait *w = kvc_of(q->waiters.next, struct kvc_wait, link);

		if (q->used + w->want > q->limit)
			return;
		q->used += w->want;
		w->quota = q->serial;
		w->quota_granted = w->want;
		w->want = 0;
		w->for_quota = false;
		kvc_wait_wake_locked(k, w, 0);
	}
}

uint64_t kvc_quota_wanted(const struct kvc *k, struct kvc_quota *q)
{
	uint64_t want = kvc_reservation_excess(q->used, q->limit, &k->opt, &q->trimming);

	if (!kvc_list_empty(&q->waiters)) {
		uint64_t need = q->used + kvc_of(q->waiters.next, struct kvc_wait, link)->want;

		if (need > q->limit)
			want = kvc_max(want, need - q->limit);
	}
	return want;
}

void kvc_quota_press_locked(struct kvc *k, struct kvc_quota *q)
{
	if (!kvc_quota_wanted(k, q))
		return;
	kvc_list_del(&q->press);
	kvc_list_add_tail(kvc_list_empty(&q->waiters) ? &k->quotas.over : &k->quotas.waiting,
			  &q->press);
	pthread_cond_signal(&k->quotas.pressed);
}

void kvc_quotas_check_locked(struct kvc *k)
{
	struct kvc_list *list = &k->quotas.list;

	for (unsigned i = 0; i < LOOKS && !kvc_list_empty(list); i++) {
		struct kvc_quota *q = kvc_of(list->next, struct kvc_quota, link);

		kvc_list_del(&q->link);
		kvc_list_add_tail(list, &q->link);
		if (kvc_list_empty(&q->press))
			kvc_quota_press_locked(k, q);
	}
}

void kvc_quota_changed_locked(struct kvc *k, struct kvc_quota *q, int64_t by)
{
	q->used = by < 0 && (uint64_t)-by > q->used ? 0 : q->used + (uint64_t)by;
	if (by < 0) {
		q->stuck = 0;
		kvc_quota_grant_locked(k, q);
	} else if (kvc_list_empty(&q->press)) {
		kvc_quota_press_locked(k, q);
	}
}

int kvc_quota_get_locked(struct kvc *k, uint64_t model, uint64_t bytes, struct kvc_wait *w)
{
	struct kvc_quota *q = kvc_list_empty(&k->quotas.list) ? NULL
							      : kvc_quota_of_locked(k, model);

	if (!q || !bytes)
		return 0;
	if (w->quota_granted) {
		if (w->quota == q->serial && w->quota_granted >= bytes)
			return 0;
		kvc_quota_cancel_locked(k, w);
	}
	if (kvc_list_empty(&q->waiters) && q->used + bytes <= q->limit)
		return 0;
	if (bytes > q->limit || k->stopping) {
		kvc_count(&k->stats, quota_refusals);
		return -EDQUOT;
	}
	/* others may use the pool's bytes while this call waits */
	kvc_reservation_cancel_locked(k, w);
	kvc_count(&k->stats, quota_waits);
	w->want = bytes;
	w->for_quota = true;
	w->quota_model = model;
	int err = kvc_wait_park_locked(k, &q->waiters, w);

	if (q->waiters.prev == q->waiters.next) /* w is the first waiter */
		kvc_quota_press_locked(k, q);
	return err;
}

int kvc_quota_allows_locked(struct kvc *k, uint64_t model, uint64_t bytes)
{
	struct kvc_quota *q = kvc_quota_of_locked(k, model);

	return q && q->used + bytes > q->limit ? -EDQUOT : 0;
}

void kvc_quota_reserve_locked(struct kvc *k, uint64_t model, uint64_t bytes, struct kvc_wait *w)
{
	struct kvc_quota *q = kvc_quota_of_locked(k, model);

	if (!q || w->quota_granted)
		return;
	w->quota = q->serial;
	w->quota_model = model;
	w->quota_granted = bytes;
	q->used += bytes;
}

void kvc_quota_cancel_locked(struct kvc *k, struct kvc_wait *w)
{
	uint64_t bytes = w->quota_granted;
	struct kvc_quota *q = bytes ? kvc_quota_of_locked(k, w->quota_model) : NULL;

	w->quota_granted = 0;
	if (q && q->serial == w->quota)
		kvc_quota_changed_locked(k, q, -(int64_t)bytes);
}

struct kvc_quota *kvc_quota_add_locked(struct kvc *k, uint64_t model, uint64_t limit)
{
	struct kvc_quota *q = calloc(1, sizeof *q);

	if (!q)
		return NULL;
	q->model = model;
	q->limit = limit;
	q->serial = ++k->quotas.serial;
	kvc_list_init(&q->waiters);
	kvc_list_init(&q->press);
	kvc_list_add_tail(&k->quotas.list, &q->link);
	q->slot.key = model;
	kvc_table_add(&k->quotas.table, &q->slot);
	return q;
}

void kvc_quota_remove_locked(struct kvc *k, struct kvc_quota *q)
{
	kvc_list_each_safe(e, &q->waiters)
		kvc_of(e, struct kvc_wait, link)->want = 0;
	kvc_wait_wake_all_locked(k, &q->waiters, 0);
	kvc_list_del(&q->link);
	kvc_list_del(&q->press);
	kvc_table_del(&k->quotas.table, &q->slot);
	free(q);
}

int kvc_quota_save_both(struct kvc *k, const struct kvc_quota *q)
{
	char key[40], value[48];

	snprintf(key, sizeof key, KVC_QUOTA_KEY "%" PRIx64, q->model);
	snprintf(value, sizeof value, "%" PRIu64 " %" PRIu64, q->limit, q->used);
	return kvc_meta_set(k->cat, key, value);
}

int kvc_quotas_init(struct kvc_quotas *q)
{
	kvc_list_init(&q->list);
	kvc_list_init(&q->waiting);
	kvc_list_init(&q->over);
	return kvc_table_init(&q->table);
}

void kvc_quotas_free(struct kvc *k)
{
	kvc_list_each_safe(e, &k->quotas.list)
		free(kvc_of(e, struct kvc_quota, link));
	kvc_table_fini(&k->quotas.table);
	kvc_list_init(&k->quotas.list);
}
