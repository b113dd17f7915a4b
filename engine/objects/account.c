/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Accounting of a file's bytes, updated when its state or its size in the pool changes:
 * n->acct.reserved in the pool, n->acct.uncopied without a copy, n->acct.charged in its model and
 * in the model's quota. The sums are in k->reservations, in telemetry/model_use.c and in the
 * quotas.
 *
 * A file is charged the bytes of the blocks that stat reports; while it is written, the bytes that
 * are reserved for it; after its last unlink, nothing.
 */
#include "account.h"

#include "user.h"
#include "node.h"
#include "pin.h"
#include "model_use.h"
#include "tier_queue.h"

void kvc_account_set_reserved_locked(struct kvc *k, struct kvc_node *n, uint64_t bytes)
{
	uint64_t old = n->acct.reserved;

	n->acct.reserved = bytes;
	kvc_account_copied_locked(k, n);
	if (bytes > old)
		k->reservations.used += bytes - old;
	else
		kvc_reservation_put_locked(k, old - bytes);
	kvc_chunk_count_locked(k, n);
	kvc_user_share_recount_locked(k, n);
	kvc_model_stats_pool_bytes_locked(k, n);
	kvc_account_uncopied_locked(k, n);
	kvc_account_quota_count_locked(k, n);
}

void kvc_account_granted_locked(struct kvc_node *n, uint64_t bytes)
{
	n->acct.reserved = bytes;
}

void kvc_account_created_locked(struct kvc_node *n, uint64_t bytes)
{
	n->acct.reserved = n->acct.preallocated = bytes;
}

uint64_t kvc_account_removed_locked(struct kvc_node *n)
{
	uint64_t bytes = n->acct.reserved;

	n->acct.reserved = 0;
	return bytes;
}

uint64_t kvc_account_leaving_locked(struct kvc *k, struct kvc_node *n)
{
	uint64_t bytes = kvc_account_removed_locked(n);

	k->reservations.leaving += bytes;
	kvc_account_quota_count_locked(k, n);
	return bytes;
}

void kvc_account_copied_locked(struct kvc *k, struct kvc_node *n)
{
	uint64_t now = n->state == KVC_BOTH ? n->acct.reserved : 0;

	k->reservations.copied += now - n->acct.copied;
	n->acct.copied = now;
}

void kvc_account_request_copy_locked(struct kvc *k, struct kvc_node *n)
{
	kvc_list_del(&n->acct.link);
	n->copy_requested = true;
	k->account->requested += n->acct.uncopied;
}

void kvc_account_recount_locked(struct kvc *k, struct kvc_node *n)
{
	struct stat st;

	if (n->segment.fd >= 0 && !fstat(n->segment.fd, &st))
		kvc_account_set_reserved_locked(k, n, (uint64_t)st.st_blocks * 512);
}

void kvc_account_set_preallocated_locked(struct kvc *k, struct kvc_node *n, uint64_t bytes)
{
	k->reservations.ahead += bytes - n->acct.preallocated;
	n->acct.preallocated = bytes;
}

void kvc_account_uncopied_locked(struct kvc *k, struct kvc_node *n)
{
	uint64_t now = n->state == KVC_RESIDENT && !n->refused ? n->acct.reserved : 0,
		 was = n->acct.uncopied;
	bool hurried = kvc_reservation_hurry_locked(k);

	if (now == was)
		return;
	k->reservations.uncopied += now - was;
	n->acct.uncopied = now;
	if (n->copy_requested)
		k->account->requested += now - was;
	else if (now && kvc_list_empty(&n->acct.link) && k->opt.write == KVC_BACK)
		kvc_list_add_tail(&k->account->uncopied, &n->acct.link);
	if (!now) {
		kvc_list_del(&n->acct.link);
		n->copy_requested = false;
	}
	if (now < was && !n->refused)
		k->account->copied += was - now;
	if (!hurried && kvc_reservation_hurry_locked(k))
		kvc_tiers_wake_locked(k); /* copies that waited for their time are due now */
}

uint64_t kvc_account_quota_bytes(const struct kvc_node *n)
{
	if (n->commit.lost || n->state == KVC_GONE || !S_ISREG(n->row.mode))
		return 0;
	return n->state == KVC_OPEN ? n->acct.reserved : n->row.blocks * 512;
}

/* A file without a name does not count as a file of its model. */
static bool is_file(const struct kvc_node *n)
{
	return S_ISREG(n->row.mode) && !n->commit.lost && n->state != KVC_GONE && !n->unnamed;
}

void kvc_account_quota_count_locked(struct kvc *k, struct kvc_node *n)
{
	struct kvc_quota *q;
	uint64_t now = kvc_account_quota_bytes(n), before = n->acct.charged;
	bool file = is_file(n);

	kvc_pin_count_locked(k, n);
	kvc_model_use_file_locked(k, n, file - n->acct.file, (int64_t)(now - before));
	n->acct.file = file;
	n->acct.charged = now;
	if (now == before || kvc_list_empty(&k->quotas.list))
		return;
	q = kvc_quota_of_locked(k, n->model);
	if (q && kvc_quota_counts(q, n->row.ino))
		kvc_quota_changed_locked(k, q, (int64_t)(now - before));
}

void kvc_account_charged_locked(struct kvc_node *n, uint64_t bytes)
{
	n->acct.charged = bytes;
}

void kvc_account_set_model_locked(struct kvc_node *n, uint64_t model)
{
	n->model = model;
}

void kvc_account_correct_model_locked(struct kvc *k, struct kvc_node *n, uint64_t model)
{
	const struct kvc_model_use u = kvc_model_use_of(k, n);

	kvc_model_use_move_locked(k, n->row.ino, n->model, model, &u);
	n->model = model;
	kvc_model_stats_pool_bytes_locked(k, n);
}

void kvc_account_quota_move_locked(struct kvc *k, struct kvc_node *n, uint64_t model)
{
	const struct kvc_model_use u = kvc_model_use_of(k, n);
	struct kvc_quota *q = kvc_quota_of_locked(k, n->model);

	if (q && kvc_quota_counts(q, n->row.ino))
		kvc_quota_changed_locked(k, q, -(int64_t)n->acct.charged);
	kvc_model_use_move_locked(k, n->row.ino, n->model, model, &u);
	n->model = model;
	q = kvc_quota_of_locked(k, model);
	if (q && kvc_quota_counts(q, n->row.ino))
		kvc_quota_changed_locked(k, q, (int64_t)n->acct.charged);
	kvc_model_stats_pool_bytes_locked(k, n);
	kvc_account_quota_count_locked(k, n);
}
