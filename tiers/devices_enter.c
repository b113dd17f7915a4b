/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The choice of a device for a new frame, and the bound of threads in one device. A new frame is
 * stored in the device with the largest share of free space, so that equal devices fill and work
 * equally, and a new device catches up.
 *
 * If there are several devices, at most half of the tier's threads are in calls to one of them: a
 * device that hangs without an error does not hold the others. A put chooses another device; jobs
 * about a frame wait in the engine (objects/tier_queue.c).
 *
 * These functions take d->lock, or are called with it. The tier's workers call them; they call
 * `enter` and `leave` while they hold k->lock.
 */
#include "devices_priv.h"

static bool is_full_locked(const struct kvct_devices *d, const struct kvct_devices_one *x)
{
	return d->n > 1 && d->most && x->inside >= d->most;
}

void kvct_devices_bound(struct kvc_tier *t, unsigned most)
{
	struct kvct_devices *d = kvct_devices_of(t);

	pthread_mutex_lock(&d->lock);
	d->most = most;
	pthread_mutex_unlock(&d->lock);
}

bool kvct_devices_enter(struct kvc_tier *t, const struct kvc_where *w, bool removes)
{
	struct kvct_devices *d = kvct_devices_of(t);
	uint64_t nr = w->at >> KVC_DEVICE_BITS;
	struct kvct_devices_one *x = &d->dev[nr < KVC_DEVICES ? nr : 0];
	bool may;

	if (nr >= KVC_DEVICES)
		return true;
	pthread_mutex_lock(&d->lock);
	may = !is_full_locked(d, x) && !(removes && x->removing && d->n > 1);
	x->inside += may;
	x->removing |= may && removes;
	pthread_mutex_unlock(&d->lock);
	return may;
}

static void leave_locked(struct kvct_devices *d, struct kvct_devices_one *x)
{
	x->inside--;
	pthread_cond_broadcast(&d->left);
}

void kvct_devices_leave(struct kvc_tier *t, const struct kvc_where *w, bool removes)
{
	struct kvct_devices *d = kvct_devices_of(t);
	uint64_t nr = w->at >> KVC_DEVICE_BITS;

	if (nr >= KVC_DEVICES)
		return;
	pthread_mutex_lock(&d->lock);
	if (removes)
		d->dev[nr].removing = false;
	leave_locked(d, &d->dev[nr]);
	pthread_mutex_unlock(&d->lock);
}

/*
 * Chooses a device for a frame, but none in the bit mask `tried`. A device whose breaker is due for
 * a probe is chosen first, then the device with the largest share of free space. Devices whose last
 * write failed come last. Returns KVC_DEVICES if no device is left. Sets *full if a device was left
 * out because enough threads are in it.
 */
static unsigned pick_device_locked(struct kvct_devices *d, unsigned tried, bool *full)
{
	unsigned best = KVC_DEVICES;
	double most = -1;

	*full = false;
	for (unsigned i = 0; i < KVC_DEVICES; i++) {
		struct kvct_devices_one *x = &d->dev[i];
		const struct kvc_breaker_class *c = &x->breaker.of[KVC_CALL_WRITE];
		struct kvc_tier_usage u;
		double share;

		if (!x->t || x->leaving || (tried & (1u << i)))
			continue;
		if (d->n > 1 && (kvc_breaker_refuses(&x->breaker, KVC_CALL_WRITE, kvc_mono_ns()) ||
				 kvc_breaker_refuses(&x->breaker, KVC_CALL_READ, kvc_mono_ns())))
			continue;
		if (is_full_locked(d, x)) {
			*full = true;
			continue;
		}
		x->t->ops->usage(x->t, &u);
		share = u.total ? (double)(u.total - u.used) / (double)u.total : 0;
		if (c->is != KVC_BREAKER_CLOSED)
			share = 2; /* the probe */
		else if (c->failures || kvct_devices_fails(x, KVC_CALL_READ))
			share -= 1;
		if (best == KVC_DEVICES || share > most) {
			best = i;
			most = share;
		}
	}
	return best;
}

/*
 * Does the same, and enters the device. If all of them have enough threads, waits until one leaves.
 */
unsigned kvct_devices_enter_some(struct kvct_devices *d, unsigned tried)
{
	unsigned nr;
	bool full;

	pthread_mutex_lock(&d->lock);
	while ((nr = pick_device_locked(d, tried, &full)) == KVC_DEVICES && full)
		pthread_cond_wait(&d->left, &d->lock);
	if (nr < KVC_DEVICES)
		d->dev[nr].inside++;
	pthread_mutex_unlock(&d->lock);
	return nr;
}

void kvct_devices_leave_one(struct kvct_devices *d, unsigned nr)
{
	pthread_mutex_lock(&d->lock);
	leave_locked(d, &d->dev[nr]);
	pthread_mutex_unlock(&d->lock);
}
