/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Names of a lease that do not exist here: they are looked up in the shared tiers, and a lease that
 * waits (until_ns) is parked until they arrive. Its items are waited for in their order, each with
 * one parked call (names/arrival.h), because a prompt can use no chunk behind a missing one. A file
 * that is being written has arrived once it is published.
 *
 * While it waits, the lease asks the shared tiers for all its missing names again, after a time
 * that doubles up to AGAIN_MAX_NS. After each round it loads what they have, layer by layer
 * (lease_order.c).
 *
 * A call waits for CALL_NS at most and then ends with -EINTR, because a process cannot be killed
 * while the kernel waits for an answer. The next call goes on. Between two calls a name may arrive
 * unnoticed, so each call looks for it first.
 */
#include "lease_priv.h"

#include "arrival.h"
#include "notify.h"
#include "remote_batch.h"

#define CALL_NS 1000000000ull
#define AGAIN_NS 100000000ull
#define AGAIN_MAX_NS 1000000000ull
#define LOOK_NS 1000000ull
#define LOOKS 50u
#define PAUSE_TIMES 4u /* a lookup that takes long is repeated after this multiple of its time */

/* ---- names that only other nodes know ---- */

/* May the shared tiers be asked for this item? */
static bool may_seek(const struct kvc_lease *l, const struct kvc_lease_item *it)
{
	return !it->n && it->err == -ENOENT && (l->mode != KVC_LEASE_HINT || l->hint.prefetch);
}

/* Must the lease wait for the item? */
static bool is_awaited(const struct kvc_lease_item *it)
{
	return it->n ? it->n->state == KVC_OPEN : it->err == -ENOENT;
}

bool kvc_lease_has_missing(struct kvc *k, struct kvc_lease *l)
{
	bool waits = false, seeks = false;

	for (size_t i = 0; i < l->n; i++) {
		seeks = seeks || may_seek(l, &l->v[i]);
		waits = waits || (l->until_ns && is_awaited(&l->v[i]));
	}
	l->seeks = seeks && k->shared && !l->here && l->bytes + KVC_LEASE_SEEK_BYTES <= l->most;
	l->sought = l->seeks ? 0 : l->n;
	return l->seeks || waits;
}

/* Gives the item its object, which now exists. */
static void item_found_locked(struct kvc *k, struct kvc_lease *l, struct kvc_lease_item *it,
			      struct kvc_node *n)
{
	it->err = kvc_node_has_segment(n) ? kvc_lease_share_locked(k, l, n, 0) : 0;
	if (it->err) {
		kvc_node_settle_locked(k, n);
		return;
	}
	it->n = n;
	it->model = l->model;
	kvc_lease_add_node_locked(k, l, n);
	l->found = l->found || (l->until_ns && n->state == KVC_LOWER);
	l->unknown = l->unknown || (l->until_ns && k->shared);
}

/*
 * Walks the path of an item again. If a name is still missing on it, adds this name to the batch,
 * unless it was already looked up for this item. Returns 0 or an error.
 */
static int seek_item_both(struct kvc *k, struct kvc_lease *l, struct kvc_lease_item *it)
{
	struct kvc_node *n;
	uint64_t key;
	int err = kvc_lease_walk_both(k, l, it->path, &n);

	if (!err && S_ISREG(n->row.mode)) {
		item_found_locked(k, l, it, n);
		return 0;
	}
	if (!err) { /* a folder, of which no file is known here */
		kvc_node_settle_locked(k, n);
		return 0;
	}
	if (err != -ENOENT || !l->missing_in) {
		it->err = err;
		return err == -ENOMEM ? err : 0;
	}
	it->model = l->model;
	it->dropped = l->dropped;
	key = (kvc_name_hash(l->missing) ^ l->missing_in * 0x9e3779b97f4a7c15ull) | 1;
	if (key == it->asked)
		return 0;
	err = kvc_remote_batch_add_both(k, l->batch, l->missing_in, l->missing);
	if (!err)
		it->asked = key;
	return err;
}

/*
 * Makes a batch of the next names: those of the items before l->sought_to, whose folders may have
 * been found by the batch before, or if there are none, those of the following items.
 */
static int seek_next(struct kvc *k, struct kvc_lease *l)
{
	size_t i = l->sought, end = l->sought_to > i ? l->sought_to : l->n;
	int err = 0;

	kvc_remote_batch_free(k, l->batch);
	l->batch = kvc_remote_batch_new(l->uid, l->again);
	if (!l->batch)
		return -ENOMEM;
	kvc_lock_both(k);
	for (; i < end && !err; i++) {
		if (may_seek(l, &l->v[i]))
			err = seek_item_both(k, l, &l->v[i]);
		if (err == -ENOSPC) /* it is for the batch after this one */
			break;
		kvc_lease_pause_both(k, i + 1);
		err = err ?: kvc_lease_cancelled(l);
	}
	kvc_unlock_both(k);
	l->sought_to = i;
	if (kvc_remote_batch_empty(l->batch))
		l->sought = i;
	return err == -ENOSPC ? 0 : err;
}

/* Looks up all missing names that the call's time allows. */
static int seek(struct kvc *k, struct kvc_lease *l, struct kvc_wait *w)
{
	int err = 0;

	while (!err) {
		if (l->batch && !kvc_remote_batch_empty(l->batch) &&
		    (err = kvc_remote_batch_run(k, l->batch, w)))
			return err;
		if (l->sought == l->n || (w->deadline_ns && kvc_mono_ns() >= w->deadline_ns))
			break;
		err = seek_next(k, l);
	}
	kvc_remote_batch_free(k, l->batch);
	l->batch = NULL;
	w->deadline_ns = 0; /* what follows has its own */
	return err;
}

/* Starts another round of lookups. */
static void seek_again(struct kvc_lease *l)
{
	for (size_t i = 0; i < l->n; i++)
		l->v[i].asked = 0;
	l->sought = l->sought_to = 0;
	l->again = true;
	l->asked_ns = kvc_mono_ns();
	l->next_ns = 0;
}

/* ---- names that arrive ---- */

/*
 * Looks for an item that is waited for. Returns 1 if it has arrived or is not waited for any more,
 * 0 if it has not, or an error.
 */
static int has_arrived_both(struct kvc *k, struct kvc_lease *l, struct kvc_lease_item *it)
{
	struct kvc_node *n;
	int err;

	if (!it->n && it->err == -ENOENT) {
		err = kvc_lease_walk_both(k, l, it->path, &n);
		if (!err && S_ISREG(n->row.mode)) {
			item_found_locked(k, l, it, n);
		} else if (!err) { /* a folder: its files are not known to the lease */
			kvc_node_settle_locked(k, n);
			return 1;
		} else if (err != -ENOENT) {
			it->err = err;
			return err == -ENOMEM ? err : 1;
		}
	}
	return !is_awaited(it);
}

/* Finds the first item that has not arrived. Returns 1 if there is one, 0, or an error. */
static int first_awaited_both(struct kvc *k, struct kvc_lease *l)
{
	int has = 1;

	while (l->arrived < l->n && has > 0) {
		has = has_arrived_both(k, l, &l->v[l->arrived]);
		if (has <= 0) /* no pause, so that no name arrives before the lease is parked */
			break;
		kvc_lease_pause_both(k, ++l->arrived);
		if (kvc_lease_cancelled(l))
			has = -ECANCELED;
	}
	return has < 0 ? has : !has;
}

/*
 * Starts the loads of the objects that were found, while the lease waits for others. Their accesses
 * are recorded later, in the order of the items. The result is that of first_awaited_both.
 */
static int load_found_both(struct kvc *k, struct kvc_lease *l)
{
	int err;

	do {
		err = l->found ? kvc_lease_load_both(k, l) : 0;
		l->found = false;
		err = err ?: first_awaited_both(k, l);
	} while (err == 1 && l->found);
	return err;
}

/* Takes a place for the lease, and checks that the call may wait. */
static bool may_await_locked(struct kvc *k, struct kvc_lease *l, struct kvc_wait *w)
{
	w->patient = true;
	if (!kvc_wait_may_park(w)) {
		kvc_count(&k->stats, arrival_refusals);
		return false;
	}
	l->waits = l->waits || kvc_arrival_begin_locked(k, l->uid);
	return l->waits;
}

static int park_locked(struct kvc *k, struct kvc_lease *l, struct kvc_wait *w, uint64_t now)
{
	struct kvc_lease_item *it = &l->v[l->arrived];

	w->deadline_ns = kvc_min(l->until_ns, w->since_ns + CALL_NS);
	if (l->seeks && !l->next_ns) {
		uint64_t took = l->asked_ns ? now - l->asked_ns : 0;

		l->interval_ns = kvc_min(kvc_max(2 * l->interval_ns, AGAIN_NS), AGAIN_MAX_NS);
		l->next_ns = now + kvc_max(l->interval_ns, PAUSE_TIMES * took);
	}
	if (l->seeks)
		w->deadline_ns = kvc_min(w->deadline_ns, l->next_ns);
	w->ino = 0;
	if (it->n)
		return kvc_node_park_locked(k, it->n, w);
	return kvc_arrival_park_locked(k, l->hidden_in ?: l->missing_in, l->missing, w);
}

/*
 * Returns 0 when all items have arrived or the lease's time is over, -EAGAIN when the shared tiers
 * are to be asked again, KVC_WAIT, -EINTR, or an error.
 */
static int await(struct kvc *k, struct kvc_lease *l, struct kvc_wait *w)
{
	uint64_t now = kvc_mono_ns();
	int err;

	w->since_ns = w->since_ns ?: now;
	kvc_lock_both(k);
	err = k->stopping ? -ESHUTDOWN : load_found_both(k, l);
	kvc_catalog_unlock(k->cat);
	if (err == 1 && now >= l->until_ns)
		err = 0;
	else if (err == 1 && l->seeks && l->next_ns && now >= l->next_ns)
		err = -EAGAIN;
	else if (err == 1 && now >= w->since_ns + CALL_NS)
		err = -EINTR;
	else if (err == 1)
		err = may_await_locked(k, l, w) ? park_locked(k, l, w, now) : 0;
	kvc_unlock(k);
	return err;
}

/*
 * Makes the kernel forget that names are missing, which it remembers for a second, if names have
 * arrived without a request of the kernel. Otherwise the client's open might fail.
 */
static int tell_kernel(struct kvc *k, struct kvc_lease *l, struct kvc_wait *w)
{
	if (!l->unknown)
		return 0;
	l->notice = l->notice ?: kvc_notify(k, KVC_NOTICE_NAME, 0, 0);
	if (!l->notice || kvc_notify_delivered(k, l->notice) || l->looks++ == LOOKS) {
		l->unknown = false;
		return 0;
	}
	w->deadline_ns = kvc_mono_ns() + LOOK_NS;
	kvc_lock(k);
	kvc_wait_park_locked(k, &k->arrivals->telling, w);
	kvc_unlock(k);
	return KVC_WAIT;
}

int kvc_lease_seek(struct kvc *k, struct kvc_lease *l, struct kvc_wait *w)
{
	int err = 0;

	if (w->err == -ESHUTDOWN)
		return w->err;
	while (!l->over) {
		if (!l->next_ns) { /* a round of lookups has not ended */
			w->patient = false;
			if ((err = seek(k, l, w)))
				return err;
		}
		err = l->until_ns ? await(k, l, w) : 0;
		if (err && err != -EAGAIN)
			return err;
		l->over = !err;
		if (err) {
			seek_again(l);
			w->deadline_ns = 0;
		}
	}
	if ((err = tell_kernel(k, l, w)))
		return err;
	w->patient = false; /* the loads have a deadline of their own, from now on */
	w->err = 0;
	w->since_ns = w->deadline_ns = 0;
	kvc_lock(k);
	if (l->waits)
		kvc_arrival_end_locked(k, l->uid);
	l->waits = false;
	kvc_unlock(k);
	return 0;
}

void kvc_lease_seek_end(struct kvc *k, struct kvc_lease *l)
{
	kvc_remote_batch_free(k, l->batch);
	kvc_lock(k);
	if (l->waits)
		kvc_arrival_end_locked(k, l->uid);
	kvc_unlock(k);
}
