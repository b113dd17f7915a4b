/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Syncs of the devices of the disk tier: of all, of one, and of a frame that a put has just stored.
 * A device that is suspended is left out. If a sync fails or leaves out a device, device_sync.c
 * records which frames may be lost.
 *
 * No I/O is done while the lock is held. The tier's workers, the threads of the engine's common
 * queue (objects/tier_queue.c) and those of jobs/ enter.
 */
#include "devices_priv.h"

/* A store with one device has no breakers here: the breaker of the tier is its breaker. */
static bool is_single(struct kvct_devices *d)
{
	bool single;

	pthread_mutex_lock(&d->lock);
	single = d->n <= 1;
	pthread_mutex_unlock(&d->lock);
	return single;
}

static void tell_failed(const struct kvct_devices *d)
{
	if (d->sync_failed)
		d->sync_failed(d->sync_failed_arg);
}

/*
 * Notes that a sync of the tier has left out a device, which its breaker suspends. Returns whether
 * the device has writes that are not synced.
 */
static bool skip_sync(struct kvct_devices *d, unsigned nr)
{
	struct kvct_devices_one *x = &d->dev[nr];
	bool unsynced = false;

	pthread_mutex_lock(&d->lock);
	if (x->t) {
		kvct_device_sync_left_out_locked(&x->sync);
		unsynced = x->sync.unsynced;
	}
	pthread_mutex_unlock(&d->lock);
	if (unsynced)
		tell_failed(d);
	return unsynced;
}

/*
 * Syncs one device. A failed sync suspends the device at once, because any of the frames that were
 * written since the last sync may be lost. Returns 0 or the error of the sync; *out is the error
 * that the tier's caller gets. If the device does not accept calls, sets *left_out, and returns the
 * error of kvct_devices_begin(), also in *out.
 */
static int sync_device(struct kvct_devices *d, unsigned nr, int *out, bool *left_out)
{
	struct kvc_tier *x;
	int err;

	if ((*left_out = (*out = kvct_devices_begin(d, nr, KVC_CALL_WRITE, &x))))
		return *out;
	err = kvct_device_sync_run(&d->dev[nr].sync, x, &d->lock, &d->synced, is_single(d));
	if (err) /* before the next device, which may be slow */
		tell_failed(d);
	*out = kvct_devices_end(d, nr, KVC_CALL_WRITE, 0, err, true);
	return err;
}

/*
 * Syncs all devices. A device that is suspended is left out, so that files in the others can be
 * synced; kvct_devices_synced() then says that its frames are not. If no device could be synced,
 * that is an error.
 */
int kvct_devices_sync(struct kvc_tier *t)
{
	struct kvct_devices *d = kvct_devices_of(t);
	int first = 0, left_out = 0;
	bool any = false;

	for (unsigned i = 0; i < KVC_DEVICES; i++) {
		bool probe, left;
		int err, out;

		pthread_mutex_lock(&d->lock);
		probe = kvct_devices_fails(&d->dev[i], KVC_CALL_WRITE);
		pthread_mutex_unlock(&d->lock);
		err = sync_device(d, i, &out, &left);
		if (left) {
			if (skip_sync(d, i))
				left_out = left_out ?: err == -ENODEV ? -EIO : err;
			continue;
		}
		any |= !err;
		/* a probe that fails leaves its device out, too */
		if (probe)
			left_out = left_out ?: err;
		else
			first = first ?: err;
	}
	return first ?: any ? 0 : left_out;
}

int kvct_devices_sync_place(struct kvc_tier *t, const struct kvc_where *w)
{
	struct kvct_devices *d = kvct_devices_of(t);
	uint64_t nr = w->at >> KVC_DEVICE_BITS;
	bool left_out;
	int out;

	if (nr >= KVC_DEVICES)
		return 0; /* kvct_devices_synced() knows that the frame is lost */
	sync_device(d, (unsigned)nr, &out, &left_out);
	if (!left_out)
		return out;
	skip_sync(d, (unsigned)nr);
	return 0;
}

enum kvc_tier_synced kvct_devices_synced(struct kvc_tier *t, const struct kvc_where *w)
{
	struct kvct_devices *d = kvct_devices_of(t);
	uint64_t nr = w->at >> KVC_DEVICE_BITS;
	enum kvc_tier_synced is;
	struct kvct_devices_one *x;

	if (nr >= KVC_DEVICES)
		return KVC_TIER_LOST;
	x = &d->dev[nr];
	pthread_mutex_lock(&d->lock);
	is = x->t ? kvct_device_sync_state_locked(&x->sync, w->write) : KVC_TIER_LOST;
	if (is != KVC_TIER_LOST && kvct_devices_fails(x, KVC_CALL_WRITE))
		is = KVC_TIER_FAILING;
	pthread_mutex_unlock(&d->lock);
	return is;
}

/* Puts a frame that was stored just now on stable storage, or removes it. */
int kvct_devices_sync_frame(struct kvct_devices *d, const struct kvc_where *w)
{
	struct kvc_tier *t = &d->tier;
	int err = kvct_devices_sync_place(t, w);

	if (!err && kvct_devices_synced(t, w) != KVC_TIER_SYNCED)
		err = -ENODEV; /* its device is suspended, or another sync has failed */
	if (err)
		kvct_devices_remove(t, w);
	return err;
}

void kvct_devices_watch_syncs(struct kvc_tier *t, bool unsynced, void (*failed)(void *arg),
			      void *arg)
{
	struct kvct_devices *d = kvct_devices_of(t);

	pthread_mutex_lock(&d->lock);
	d->sync_failed = failed;
	d->sync_failed_arg = arg;
	for (unsigned i = 0; i < KVC_DEVICES && unsynced; i++)
		if (d->dev[i].t)
			kvct_device_sync_distrust_locked(&d->dev[i].sync);
	pthread_mutex_unlock(&d->lock);
}
