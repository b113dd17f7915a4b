/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The disk tier: all devices of the store, each with its own driver (disk.c). A frame is in one
 * device. `where.at` is the number of the device, from bit KVC_DEVICE_BITS on, and the offset in
 * it.
 *
 * A new frame is stored in one of the devices that have an extent for it: in the one with the
 * largest share of free space. So equal devices fill and work equally, and a new device catches up.
 *
 * If there are several devices, each has a circuit breaker, for its reads and its writes. While the
 * breaker of a device is open, the device gets no new frames, its frames are not read, and the
 * headers of removed frames in it are not cleared (fsck clears them). The caller gets -ENODEV, so
 * that the breaker of the tier does not count these failures. When all devices fail, and in a store
 * with one device, the caller gets the error itself.
 *
 * device_sync.c knows which frames a failed sync may have lost.
 *
 * If there are several devices, at most half of the tier's threads are in calls to one of them: a
 * device that hangs without an error does not hold the others. A put chooses another device; jobs
 * about a frame wait in the engine (objects/tier_queue.c).
 *
 * The lock guards the table and the breakers; no I/O is done while it is held. `users` keeps a
 * device open during a call. The tier's workers, the syncer and the threads of jobs/devices.c
 * enter.
 */
#include "breaker.h"
#include "device_sync.h"
#include "disk.h"
#include "label.h"
#include "log.h"
#include "pipeline.h"
#include "registry.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>

#define OFFSET (KVC_DEVICE_MOST - 1)

struct device {
	struct kvc_tier *t; /* its driver; NULL: the number is not used */
	char path[1280];
	bool file, leaving;
	unsigned users; /* calls that use the driver */
	/* threads in calls that d->most bounds, and whether one of them removes a frame */
	unsigned inside;
	bool removing;
	struct kvc_breaker breaker;
	uint64_t errors;
	struct kvct_device_sync sync;
	uint64_t uncleared; /* bytes of removed frames whose headers were not cleared */
};

struct devices {
	struct kvc_tier tier;
	pthread_mutex_t lock;
	pthread_cond_t idle;   /* a device has no users any more */
	pthread_cond_t synced; /* a thread has ended a sync of a device */
	struct device dev[KVC_DEVICES];
	unsigned n;
	unsigned most;       /* of x->inside, if there are several devices; 0: no bound */
	pthread_cond_t left; /* a thread has left a device */
	struct kvct_pipeline *pipeline; /* large frames of all devices */
	/* see watch_syncs in tier.h; NULL: nobody asked */
	void (*sync_failed)(void *arg);
	void *sync_failed_arg;
	/* for devices_list(), see kvct_devices_unread() */
	void (*unread)(void *arg, uint64_t at, uint64_t len, int err);
	void *unread_arg;
};

static struct devices *devices_of(struct kvc_tier *t)
{
	return kvc_of(t, struct devices, tier);
}

static struct kvc_where global(unsigned nr, const struct kvc_where *w)
{
	return (struct kvc_where){ .at = (uint64_t)nr << KVC_DEVICE_BITS | w->at, .len = w->len };
}

static struct kvc_where local(const struct kvc_where *w)
{
	return (struct kvc_where){ .at = w->at & OFFSET, .len = w->len };
}

/* ---- calls ---- */

/* Are all devices suspended for calls of this class? */
static bool all_fail_locked(const struct devices *d, enum kvc_call call)
{
	for (unsigned i = 0; i < KVC_DEVICES; i++)
		if (d->dev[i].t && d->dev[i].breaker.of[call].is == KVC_BREAKER_CLOSED)
			return false;
	return true;
}

/*
 * Begins a call to the device with this number: sets *t to its driver. Returns 0, and the caller
 * ends the call; -ENOENT (no such device); or an error if its breaker is open. Reads of a device
 * that is being removed are always tried, because what cannot be read then is dropped.
 */
static int begin(struct devices *d, uint64_t nr, enum kvc_call call, struct kvc_tier **t)
{
	struct device *x = nr < KVC_DEVICES ? &d->dev[nr] : NULL;
	int err = 0;

	pthread_mutex_lock(&d->lock);
	if (!x || !x->t)
		err = -ENOENT;
	else if (d->n > 1 && !(x->leaving && call == KVC_CALL_READ) &&
		 !kvc_breaker_allows(&x->breaker, call, kvc_mono_ns()))
		err = all_fail_locked(d, call) ? x->breaker.of[call].why : -ENODEV;
	if (!err) {
		x->users++;
		*t = x->t;
	}
	pthread_mutex_unlock(&d->lock);
	return err;
}

static bool fails(const struct device *x, enum kvc_call call)
{
	return x->breaker.of[call].is != KVC_BREAKER_CLOSED;
}

/* Names the device once in the log when it begins to fail, and when it works again. */
static void report(const struct device *x, enum kvc_call call, enum kvc_breaker_event event,
		   int err)
{
	bool other = fails(x, call == KVC_CALL_READ ? KVC_CALL_WRITE : KVC_CALL_READ);

	if (other)
		return;
	if (event == KVC_BREAKER_TRIPPED || event == KVC_BREAKER_TRIPPED_ALL)
		kvc_error("disk: the device %s fails (%s): %s. The files that only it has cannot "
			  "be loaded; other devices are not affected",
			  x->path, kvc_breaker_call_words[call], kvc_breaker_reason(err));
	else if (event == KVC_BREAKER_RESTORED)
		kvc_info("disk: the device %s works again", x->path);
}

/* A store with one device has no breakers here: the breaker of the tier is its breaker. */
static bool is_single(struct devices *d)
{
	bool single;

	pthread_mutex_lock(&d->lock);
	single = d->n <= 1;
	pthread_mutex_unlock(&d->lock);
	return single;
}

/* Is the device failing, rather than one frame? */
static bool is_failure(enum kvc_call call, int err)
{
	enum kvc_breaker_says says = kvc_breaker_says(KVC_TIER_BOUNDED | KVC_TIER_MEDIA, call, err);

	return says != KVC_SAYS_ANSWER && says != KVC_SAYS_NOTHING;
}

/*
 * Ends a call about a place in the device. Returns the error for the caller. `certain`: the error
 * is known to concern the whole device.
 */
static int end(struct devices *d, uint64_t nr, enum kvc_call call, uint64_t at, int err,
	       bool certain)
{
	const unsigned caps = KVC_TIER_BOUNDED | KVC_TIER_MEDIA;
	enum kvc_breaker_event event = KVC_BREAKER_SAME;
	struct device *x = &d->dev[nr];
	bool failed = is_failure(call, err);

	pthread_mutex_lock(&d->lock);
	x->errors += failed;
	x->sync.writes += call == KVC_CALL_WRITE && !certain;
	for (int i = 0;
	     d->n > 1 && i < (certain && failed ? KVC_FAILURES : 1) && event == KVC_BREAKER_SAME;
	     i++)
		event = kvc_breaker_result(&x->breaker, caps, call, certain ? 0 : at + 1, err,
					   kvc_mono_ns());
	report(x, call, event, err);
	if (failed && d->n > 1 && !all_fail_locked(d, call)) {
		if (event == KVC_BREAKER_SAME && x->breaker.of[call].failures == 1)
			kvc_warn("disk: the device %s, %s at %llu: %s", x->path,
				 kvc_breaker_call_words[call], (unsigned long long)at,
				 strerror(-err));
		err = -ENODEV;
	}
	if (!--x->users)
		pthread_cond_broadcast(&d->idle);
	pthread_mutex_unlock(&d->lock);
	return err;
}

static int devices_claim(struct kvc_tier *t, const struct kvc_where *w)
{
	struct devices *d = devices_of(t);
	struct kvc_where at = local(w);
	uint64_t nr = w->at >> KVC_DEVICE_BITS;

	if (nr >= KVC_DEVICES || !d->dev[nr].t)
		return -ERANGE;
	return d->dev[nr].t->ops->claim(d->dev[nr].t, &at);
}

/* ---- the bound of threads in one device ---- */

static bool is_full_locked(const struct devices *d, const struct device *x)
{
	return d->n > 1 && d->most && x->inside >= d->most;
}

static void devices_bound(struct kvc_tier *t, unsigned most)
{
	struct devices *d = devices_of(t);

	pthread_mutex_lock(&d->lock);
	d->most = most;
	pthread_mutex_unlock(&d->lock);
}

static bool devices_enter(struct kvc_tier *t, const struct kvc_where *w, bool removes)
{
	struct devices *d = devices_of(t);
	uint64_t nr = w->at >> KVC_DEVICE_BITS;
	struct device *x = &d->dev[nr < KVC_DEVICES ? nr : 0];
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

static void leave_locked(struct devices *d, struct device *x)
{
	x->inside--;
	pthread_cond_broadcast(&d->left);
}

static void devices_leave(struct kvc_tier *t, const struct kvc_where *w, bool removes)
{
	struct devices *d = devices_of(t);
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
static unsigned pick_device_locked(struct devices *d, unsigned tried, bool *full)
{
	unsigned best = KVC_DEVICES;
	double most = -1;

	*full = false;
	for (unsigned i = 0; i < KVC_DEVICES; i++) {
		struct device *x = &d->dev[i];
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
		else if (c->failures || fails(x, KVC_CALL_READ))
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
static unsigned enter_some(struct devices *d, unsigned tried)
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

static void leave_device(struct devices *d, unsigned nr)
{
	pthread_mutex_lock(&d->lock);
	leave_locked(d, &d->dev[nr]);
	pthread_mutex_unlock(&d->lock);
}

static bool is_leaving(struct devices *d, unsigned nr)
{
	bool leaving;

	pthread_mutex_lock(&d->lock);
	leaving = d->dev[nr].leaving;
	pthread_mutex_unlock(&d->lock);
	return leaving;
}

static uint64_t failed_syncs(struct devices *d, unsigned nr)
{
	uint64_t failed;

	pthread_mutex_lock(&d->lock);
	failed = d->dev[nr].sync.failed;
	pthread_mutex_unlock(&d->lock);
	return failed;
}

static uint64_t number_of_put(struct devices *d, unsigned nr, uint64_t failed)
{
	uint64_t number;

	pthread_mutex_lock(&d->lock);
	number = kvct_device_sync_number_locked(&d->dev[nr].sync, failed);
	pthread_mutex_unlock(&d->lock);
	return number;
}

/* The frame's space in a device that fails is not used until the next mount. */
static int devices_remove(struct kvc_tier *t, const struct kvc_where *w)
{
	struct devices *d = devices_of(t);
	uint64_t nr = w->at >> KVC_DEVICE_BITS;
	struct kvc_where at = local(w);
	struct kvc_tier *x;
	int err = begin(d, nr, KVC_CALL_WRITE, &x);

	if (err == -ENOENT)
		return 0; /* the device is no longer part of the store */
	if (!err) {
		err = end(d, nr, KVC_CALL_WRITE, at.at, x->ops->remove(x, &at), false);
	} else if (err == -ENODEV) {
		pthread_mutex_lock(&d->lock);
		d->dev[nr].uncleared += w->len;
		pthread_mutex_unlock(&d->lock);
	}
	return err == -ENODEV ? 0 : err;
}

static void tell_failed(const struct devices *d)
{
	if (d->sync_failed)
		d->sync_failed(d->sync_failed_arg);
}

/*
 * Notes that a sync of the tier has left out a device, which its breaker suspends. Returns whether
 * the device has writes that are not synced.
 */
static bool skip_sync(struct devices *d, unsigned nr)
{
	struct device *x = &d->dev[nr];
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
 * written since the last sync may be lost. Returns 0; the error of the sync, and *out, its error
 * for the caller of the tier; or the error of begin(), with *left_out.
 */
static int sync_device(struct devices *d, unsigned nr, int *out, bool *left_out)
{
	struct kvc_tier *x;
	int err;

	if ((*left_out = (*out = begin(d, nr, KVC_CALL_WRITE, &x))))
		return *out;
	err = kvct_device_sync_run(&d->dev[nr].sync, x, &d->lock, &d->synced, is_single(d));
	if (err) /* before the next device, which may be slow */
		tell_failed(d);
	*out = end(d, nr, KVC_CALL_WRITE, 0, err, true);
	return err;
}

static int devices_sync_place(struct kvc_tier *t, const struct kvc_where *w)
{
	struct devices *d = devices_of(t);
	uint64_t nr = w->at >> KVC_DEVICE_BITS;
	bool left_out;
	int out;

	if (nr >= KVC_DEVICES)
		return 0; /* devices_synced() knows that the frame is lost */
	sync_device(d, (unsigned)nr, &out, &left_out);
	if (!left_out)
		return out;
	skip_sync(d, (unsigned)nr);
	return 0;
}

static enum kvc_tier_synced devices_synced(struct kvc_tier *t, const struct kvc_where *w)
{
	struct devices *d = devices_of(t);
	uint64_t nr = w->at >> KVC_DEVICE_BITS;
	enum kvc_tier_synced is;
	struct device *x;

	if (nr >= KVC_DEVICES)
		return KVC_TIER_LOST;
	x = &d->dev[nr];
	pthread_mutex_lock(&d->lock);
	is = x->t ? kvct_device_sync_state_locked(&x->sync, w->write) : KVC_TIER_LOST;
	if (is != KVC_TIER_LOST && fails(x, KVC_CALL_WRITE))
		is = KVC_TIER_FAILING;
	pthread_mutex_unlock(&d->lock);
	return is;
}

/* Puts a frame that was stored just now on stable storage, or removes it. */
static int sync_frame(struct devices *d, const struct kvc_where *w)
{
	struct kvc_tier *t = &d->tier;
	int err = devices_sync_place(t, w);

	if (!err && devices_synced(t, w) != KVC_TIER_SYNCED)
		err = -ENODEV; /* its device is suspended, or another sync has failed */
	if (err)
		devices_remove(t, w);
	return err;
}

/* Stores a frame in this device. *begun: its breaker allowed the call. */
static int put_in(struct devices *d, unsigned nr, const struct kvc_put *p, struct kvc_where *out,
		  bool *begun)
{
	struct kvc_where w = { .at = 0 };
	struct kvc_tier *x;
	uint64_t failed;
	int err = begin(d, nr, KVC_CALL_WRITE, &x);

	*begun = !err;
	if (err)
		return err;
	failed = failed_syncs(d, nr);
	err = x->ops->put(x, p, &w);
	if (!err && is_leaving(d, nr)) {
		/* since then its removal began, which may not see this frame */
		x->ops->remove(x, &w);
		end(d, nr, KVC_CALL_WRITE, w.at, 0, false);
		return -ENODEV;
	}
	if (!err) {
		*out = global(nr, &w);
		out->write = number_of_put(d, nr, failed);
	}
	err = end(d, nr, KVC_CALL_WRITE, w.at, err, false);
	return err || !p->sync ? err : sync_frame(d, out);
}

static int devices_put(struct kvc_tier *t, const struct kvc_put *p, struct kvc_where *out)
{
	struct devices *d = devices_of(t);
	unsigned tried = 0, nr;
	int full = 0, err = 0;
	bool begun;

	while ((nr = enter_some(d, tried)) < KVC_DEVICES) {
		tried |= 1u << nr;
		err = put_in(d, nr, p, out, &begun);
		leave_device(d, nr);
		full = err == -ENOSPC ? err : full;
		/* with ENOSPC nothing of the payload was read */
		if (begun && err != -ENOSPC)
			return err;
	}
	if (full)
		return full;
	/* all devices fail or leave */
	return err && err != -ENODEV ? err : -EIO;
}

static int devices_get(struct kvc_tier *t, const struct kvc_where *w, uint64_t off,
		       const struct iovec *iov, int n)
{
	struct devices *d = devices_of(t);
	uint64_t nr = w->at >> KVC_DEVICE_BITS;
	struct kvc_where at = local(w);
	struct kvc_tier *x;
	int err = begin(d, nr, KVC_CALL_READ, &x);

	if (err)
		return err == -ENOENT ? -EBADMSG : err;
	err = x->ops->get(x, &at, off, iov, n);
	return end(d, nr, KVC_CALL_READ, at.at, err, false);
}

static int devices_load(struct kvc_tier *t, const struct kvc_where *w, uint64_t off, void *to,
			uint64_t len,
			int (*arrived)(void *arg, uint8_t *p, size_t len, uint64_t off), void *arg)
{
	struct devices *d = devices_of(t);
	uint64_t nr = w->at >> KVC_DEVICE_BITS;
	struct kvc_where at = local(w);
	struct kvc_tier *x;
	int err = begin(d, nr, KVC_CALL_READ, &x);

	if (err)
		return err == -ENOENT ? -EBADMSG : err;
	err = x->ops->load(x, &at, off, to, len, arrived, arg);
	return end(d, nr, KVC_CALL_READ, at.at, err, false);
}

static int devices_rehead(struct kvc_tier *t, const struct kvc_where *w,
			  const uint8_t page[KVC_FRAME_HEADER])
{
	struct devices *d = devices_of(t);
	uint64_t nr = w->at >> KVC_DEVICE_BITS;
	struct kvc_where at = local(w);
	struct kvc_tier *x;
	int err = begin(d, nr, KVC_CALL_WRITE, &x);

	return err ?: end(d, nr, KVC_CALL_WRITE, at.at, x->ops->rehead(x, &at, page), false);
}

/* A call of devices_list(): the device that it lists, and its callback. */
struct listing {
	struct devices *d;
	unsigned nr;
	int (*fn)(void *arg, const struct kvc_where *w, const struct kvc_frame *f);
	void *arg;
};

static int list_one(void *arg, const struct kvc_where *w, const struct kvc_frame *f)
{
	const struct listing *l = arg;
	struct kvc_where at;

	if (!w)
		return l->fn(l->arg, NULL, NULL);
	at = global(l->nr, w);
	return l->fn(l->arg, &at, f);
}

static void unread_one(void *arg, uint64_t at, uint64_t len, int err)
{
	const struct listing *l = arg;

	l->d->unread(l->d->unread_arg, (uint64_t)l->nr << KVC_DEVICE_BITS | at, len, err);
}

static int devices_list(struct kvc_tier *t,
			int (*fn)(void *arg, const struct kvc_where *w, const struct kvc_frame *f),
			void *arg)
{
	struct devices *d = devices_of(t);
	struct listing l = { .d = d, .fn = fn, .arg = arg };
	int err = 0;

	for (; l.nr < KVC_DEVICES && !err; l.nr++) {
		struct kvc_tier *x = d->dev[l.nr].t;

		if (!x)
			continue;
		kvct_disk_unread(x, d->unread ? unread_one : NULL, &l);
		err = x->ops->list(x, list_one, &l);
		kvct_disk_unread(x, NULL, NULL);
	}
	return err;
}

/*
 * Syncs all devices. A device that is suspended is left out, so that files in the others can be
 * synced; devices_synced() then says that its frames are not. If no device could be synced, that is
 * an error.
 */
static int devices_sync(struct kvc_tier *t)
{
	struct devices *d = devices_of(t);
	int first = 0, left_out = 0;
	bool any = false;

	for (unsigned i = 0; i < KVC_DEVICES; i++) {
		bool probe, left;
		int err, out;

		pthread_mutex_lock(&d->lock);
		probe = fails(&d->dev[i], KVC_CALL_WRITE);
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

static void devices_watch_syncs(struct kvc_tier *t, bool unsynced, void (*failed)(void *arg),
				void *arg)
{
	struct devices *d = devices_of(t);

	pthread_mutex_lock(&d->lock);
	d->sync_failed = failed;
	d->sync_failed_arg = arg;
	for (unsigned i = 0; i < KVC_DEVICES && unsynced; i++)
		if (d->dev[i].t)
			kvct_device_sync_distrust_locked(&d->dev[i].sync);
	pthread_mutex_unlock(&d->lock);
}

static void devices_usage(struct kvc_tier *t, struct kvc_tier_usage *u)
{
	struct devices *d = devices_of(t);

	memset(u, 0, sizeof *u);
	pthread_mutex_lock(&d->lock);
	for (unsigned i = 0; i < KVC_DEVICES; i++) {
		struct device *x = &d->dev[i];
		struct kvc_tier_usage one;

		if (!x->t)
			continue;
		x->t->ops->usage(x->t, &one);
		u->stored += one.stored;
		u->uncleared += one.uncleared + x->uncleared;
		if (fails(x, KVC_CALL_READ) || fails(x, KVC_CALL_WRITE))
			continue; /* nothing can be stored in its space */
		u->total += x->leaving ? 0 : one.total;
		u->used += one.used; /* frames of a leaving device must fit into the others */
	}
	pthread_mutex_unlock(&d->lock);
}

static int devices_device(struct kvc_tier *t, unsigned nr, struct kvc_tier_device *out)
{
	struct devices *d = devices_of(t);
	struct kvc_tier_usage u;
	const struct device *x;
	int err;

	if (nr >= KVC_DEVICES)
		return -ENOENT;
	x = &d->dev[nr];
	pthread_mutex_lock(&d->lock);
	err = x->t ? 0 : -ENOENT;
	if (!err) {
		*out = (struct kvc_tier_device){
			.file = x->file,
			.leaving = x->leaving,
			.read_fails = fails(x, KVC_CALL_READ),
			.write_fails = fails(x, KVC_CALL_WRITE),
			.unsynced = x->sync.unsynced,
			.failed_syncs = x->sync.failed,
			.why = x->breaker
				       .of[fails(x, KVC_CALL_READ) ? KVC_CALL_READ : KVC_CALL_WRITE]
				       .why,
			.errors = x->errors,
		};
		memcpy(out->path, x->path, sizeof out->path);
		x->t->ops->usage(x->t, &u);
		out->total = u.total;
		out->used = u.used;
		out->uncleared = u.uncleared + x->uncleared;
	}
	pthread_mutex_unlock(&d->lock);
	return err;
}

/* ---- the set of devices ---- */

static int add(struct devices *d, const struct kvc_store *s, unsigned nr, char *error)
{
	struct kvc_tier *t;
	int err = kvct_disk_open(s, nr, d->pipeline, &t, error);

	if (err)
		return err;
	pthread_mutex_lock(&d->lock);
	d->dev[nr] = (struct device){
		.inside = d->dev[nr].inside, /* calls to a former device of this number */
		.removing = d->dev[nr].removing,
		.t = t,
		.file = s->dev[nr].kind != KVC_DEVICE_BLOCK,
		.leaving = s->dev[nr].leaving,
		.sync = { .writes = 1 },
	};
	memcpy(d->dev[nr].path, s->dev[nr].path, sizeof d->dev[nr].path);
	d->n++;
	kvct_pipeline_bound(d->pipeline, d->n > 1 ? KVC_TIER_HELPERS / 2 : KVC_TIER_HELPERS);
	pthread_mutex_unlock(&d->lock);
	return 0;
}

static void take_out(struct devices *d, unsigned nr)
{
	struct kvc_tier *t;

	pthread_mutex_lock(&d->lock);
	t = d->dev[nr].t;
	d->dev[nr].t = NULL;
	d->n -= t != NULL;
	kvct_pipeline_bound(d->pipeline, d->n > 1 ? KVC_TIER_HELPERS / 2 : KVC_TIER_HELPERS);
	for (unsigned i = 0; i < KVC_DEVICES && d->n == 1; i++)
		if (d->dev[i].t) /* the breaker of the tier is its breaker now */
			memset(&d->dev[i].breaker, 0, sizeof d->dev[i].breaker);
	while (d->dev[nr].users)
		pthread_cond_wait(&d->idle, &d->lock);
	pthread_mutex_unlock(&d->lock);
	if (t)
		t->ops->close(t);
}

static int devices_change(struct kvc_tier *t, enum kvc_tier_change change,
			  const struct kvc_store *s, unsigned nr, char *error)
{
	struct devices *d = devices_of(t);
	int err = 0;

	switch (change) {
	case KVC_TIER_ADD: return add(d, s, nr, error);
	case KVC_TIER_GROW:
		err = kvct_disk_grow(d->dev[nr].t, s->dev[nr].size);
		if (err)
			snprintf(error, 512, "%s", kvc_why(-err));
		break;
	case KVC_TIER_LEAVE:
		pthread_mutex_lock(&d->lock);
		d->dev[nr].leaving = s->dev[nr].leaving;
		pthread_mutex_unlock(&d->lock);
		break;
	case KVC_TIER_REMOVE: take_out(d, nr); break;
	}
	return err;
}

static int devices_start(struct kvc_tier *t)
{
	int err = kvct_pipeline_start(devices_of(t)->pipeline);

	if (err)
		kvc_warn("disk: cannot start the threads for large files: %s; copies of large "
			 "files are slower",
			 strerror(-err));
	return 0;
}

static void devices_stop(struct kvc_tier *t)
{
	kvct_pipeline_stop(devices_of(t)->pipeline);
}

static void devices_close(struct kvc_tier *t)
{
	struct devices *d = devices_of(t);

	for (unsigned i = 0; i < KVC_DEVICES; i++)
		take_out(d, i);
	kvct_pipeline_free(d->pipeline);
	pthread_cond_destroy(&d->idle);
	pthread_cond_destroy(&d->synced);
	pthread_cond_destroy(&d->left);
	pthread_mutex_destroy(&d->lock);
	free(d);
}

void kvct_devices_clear(struct kvc_tier *t)
{
	struct devices *d = devices_of(t);

	for (unsigned i = 0; i < KVC_DEVICES; i++)
		if (d->dev[i].t)
			kvct_disk_clear(d->dev[i].t);
}

void kvct_devices_unread(struct kvc_tier *t,
			 void (*fn)(void *arg, uint64_t at, uint64_t len, int err), void *arg)
{
	devices_of(t)->unread = fn;
	devices_of(t)->unread_arg = arg;
}

static const struct kvc_tier_ops devices_ops = {
	.name = "disk",
	.caps = KVC_TIER_DURABLE | KVC_TIER_BOUNDED | KVC_TIER_MEDIA,
	.start = devices_start,
	.stop = devices_stop,
	.close = devices_close,
	.claim = devices_claim,
	.put = devices_put,
	.get = devices_get,
	.load = devices_load,
	.rehead = devices_rehead,
	.remove = devices_remove,
	.list = devices_list,
	.sync = devices_sync,
	.sync_place = devices_sync_place,
	.bound = devices_bound,
	.enter = devices_enter,
	.leave = devices_leave,
	.synced = devices_synced,
	.watch_syncs = devices_watch_syncs,
	.usage = devices_usage,
	.device = devices_device,
	.change = devices_change,
};

int kvct_devices_open(const struct kvc_store *s, struct kvc_tier **out, char *error)
{
	struct devices *d = calloc(1, sizeof *d);
	int err;

	if (!d || !(d->pipeline = kvct_pipeline_new())) {
		free(d);
		snprintf(error, 512, "out of memory");
		return -ENOMEM;
	}
	d->tier.ops = &devices_ops;
	snprintf(d->tier.id, sizeof d->tier.id, "disk");
	pthread_mutex_init(&d->lock, NULL);
	pthread_cond_init(&d->idle, NULL);
	pthread_cond_init(&d->synced, NULL);
	pthread_cond_init(&d->left, NULL);
	err = kvc_label_distinct(s, error);
	for (unsigned i = 0; i < KVC_DEVICES && !err; i++)
		if (s->dev[i].leaving)
			kvc_info("disk: the device %s is being removed and gets no new files; "
				 "kvcachectl remove continues",
				 s->dev[i].path);
	for (unsigned i = 0; i < KVC_DEVICES && !err; i++)
		if (s->dev[i].kind)
			err = add(d, s, i, error);
	if (err)
		devices_close(&d->tier);
	else
		*out = &d->tier;
	return err;
}
