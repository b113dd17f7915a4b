/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The disk tier: all devices of the store, each with its own driver (disk.c). A frame is in one
 * device. `where.at` has the number of the device, from bit KVC_DEVICE_BITS on, and below that
 * bit the offset in the device.
 *
 * devices_enter.c chooses the device for a new frame. It also bounds the threads in one device.
 *
 * If there are several devices, each has a circuit breaker, for its reads and its writes. While the
 * breaker of a device is open, the device gets no new frames, its frames are not read, and the
 * headers of removed frames in it are not cleared (fsck clears them). The caller gets -ENODEV, so
 * that the breaker of the tier does not count these failures. When all devices fail, and in a store
 * with one device, the caller gets the error itself.
 *
 * devices_sync.c syncs the devices.
 *
 * The lock guards the table and the breakers; no I/O is done while it is held. `users` keeps a
 * device open during a call. The tier's workers, the syncer and the threads of jobs/devices.c
 * enter.
 */
#include "devices_priv.h"
#include "disk.h"
#include "label.h"
#include "log.h"
#include "pipeline.h"
#include "registry.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>

#define OFFSET (KVC_DEVICE_MOST - 1)

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
static bool all_fail_locked(const struct kvct_devices *d, enum kvc_call call)
{
	for (unsigned i = 0; i < KVC_DEVICES; i++)
		if (d->dev[i].t && d->dev[i].breaker.of[call].is == KVC_BREAKER_CLOSED)
			return false;
	return true;
}

/* Reads of a device that is being removed are always tried, since frames that fail are dropped. */
int kvct_devices_begin(struct kvct_devices *d, uint64_t nr, enum kvc_call call, struct kvc_tier **t)
{
	struct kvct_devices_one *x = nr < KVC_DEVICES ? &d->dev[nr] : NULL;
	int err = 0;

	pthread_mutex_lock(&d->lock);
	if (!x || !x->t)
		err = -ENOENT;
	else if (d->n > 1 && !(x->leaving && call == KVC_CALL_READ) &&
		 !kvc_breaker_allows(&x->breaker, call, kvc_mono_ns()))
		err = all_fail_locked(d, call) ? x->breaker.of[call].why : -ENODEV;
	if (!err) {
		if (!x->users++)
			x->answered_ns = kvc_mono_ns();
		*t = x->t;
	}
	pthread_mutex_unlock(&d->lock);
	return err;
}

/* Names the device once in the log when it begins to fail, and when it works again. */
static void report(const struct kvct_devices_one *x, enum kvc_call call,
		   enum kvc_breaker_event event, int err)
{
	bool other = kvct_devices_fails(x, call == KVC_CALL_READ ? KVC_CALL_WRITE : KVC_CALL_READ);

	if (other)
		return;
	if (event == KVC_BREAKER_TRIPPED || event == KVC_BREAKER_TRIPPED_ALL)
		kvc_error("disk: the device %s fails (%s): %s. The files that only it has cannot "
			  "be loaded; other devices are not affected",
			  x->path, kvc_breaker_call_words[call], kvc_breaker_reason(err));
	else if (event == KVC_BREAKER_RESTORED)
		kvc_info("disk: the device %s works again", x->path);
}

/* Is the device failing, rather than one frame? */
static bool is_failure(enum kvc_call call, int err)
{
	enum kvc_breaker_says says = kvc_breaker_says(KVC_TIER_BOUNDED | KVC_TIER_MEDIA, call, err);

	return says != KVC_SAYS_ANSWER && says != KVC_SAYS_NOTHING;
}

int kvct_devices_end(struct kvct_devices *d, uint64_t nr, enum kvc_call call, uint64_t at, int err,
		     bool certain)
{
	const unsigned caps = KVC_TIER_BOUNDED | KVC_TIER_MEDIA;
	enum kvc_breaker_event event = KVC_BREAKER_SAME;
	struct kvct_devices_one *x = &d->dev[nr];
	bool failed = is_failure(call, err);

	pthread_mutex_lock(&d->lock);
	x->answered_ns = kvc_mono_ns();
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
	struct kvct_devices *d = kvct_devices_of(t);
	struct kvc_where at = local(w);
	uint64_t nr = w->at >> KVC_DEVICE_BITS;

	if (nr >= KVC_DEVICES || !d->dev[nr].t)
		return -ERANGE;
	return d->dev[nr].t->ops->claim(d->dev[nr].t, &at);
}

static bool is_leaving(struct kvct_devices *d, unsigned nr)
{
	bool leaving;

	pthread_mutex_lock(&d->lock);
	leaving = d->dev[nr].leaving;
	pthread_mutex_unlock(&d->lock);
	return leaving;
}

static uint64_t failed_syncs(struct kvct_devices *d, unsigned nr)
{
	uint64_t failed;

	pthread_mutex_lock(&d->lock);
	failed = d->dev[nr].sync.failed;
	pthread_mutex_unlock(&d->lock);
	return failed;
}

static uint64_t number_of_put(struct kvct_devices *d, unsigned nr, uint64_t failed)
{
	uint64_t number;

	pthread_mutex_lock(&d->lock);
	number = kvct_device_sync_number_locked(&d->dev[nr].sync, failed);
	pthread_mutex_unlock(&d->lock);
	return number;
}

/* The frame's space in a device that fails is not used until the next mount. */
int kvct_devices_remove(struct kvc_tier *t, const struct kvc_where *w)
{
	struct kvct_devices *d = kvct_devices_of(t);
	uint64_t nr = w->at >> KVC_DEVICE_BITS;
	struct kvc_where at = local(w);
	struct kvc_tier *x;
	int err = kvct_devices_begin(d, nr, KVC_CALL_WRITE, &x);

	if (err == -ENOENT)
		return 0; /* the device is no longer part of the store */
	if (!err) {
		err = kvct_devices_end(d, nr, KVC_CALL_WRITE, at.at, x->ops->remove(x, &at), false);
	} else if (err == -ENODEV) {
		pthread_mutex_lock(&d->lock);
		d->dev[nr].uncleared += w->len;
		pthread_mutex_unlock(&d->lock);
	}
	return err == -ENODEV ? 0 : err;
}

/* Stores a frame in this device. *begun: its breaker allowed the call. */
static int put_in(struct kvct_devices *d, unsigned nr, const struct kvc_put *p,
		  struct kvc_where *out, bool *begun)
{
	struct kvc_where w = { .at = 0 };
	struct kvc_tier *x;
	uint64_t failed;
	int err = kvct_devices_begin(d, nr, KVC_CALL_WRITE, &x);

	*begun = !err;
	if (err)
		return err;
	failed = failed_syncs(d, nr);
	err = x->ops->put(x, p, &w);
	if (!err && is_leaving(d, nr)) {
		/* the removal of the device has begun in between and may miss this frame */
		x->ops->remove(x, &w);
		kvct_devices_end(d, nr, KVC_CALL_WRITE, w.at, 0, false);
		return -ENODEV;
	}
	if (!err) {
		*out = global(nr, &w);
		out->write = number_of_put(d, nr, failed);
	}
	err = kvct_devices_end(d, nr, KVC_CALL_WRITE, w.at, err, false);
	return err || !p->sync ? err : kvct_devices_sync_frame(d, out);
}

static int devices_put(struct kvc_tier *t, const struct kvc_put *p, struct kvc_where *out)
{
	struct kvct_devices *d = kvct_devices_of(t);
	unsigned tried = 0, nr;
	int full = 0, err = 0;
	bool begun;

	while ((nr = kvct_devices_enter_some(d, tried)) < KVC_DEVICES) {
		tried |= 1u << nr;
		err = put_in(d, nr, p, out, &begun);
		kvct_devices_leave_one(d, nr);
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
	struct kvct_devices *d = kvct_devices_of(t);
	uint64_t nr = w->at >> KVC_DEVICE_BITS;
	struct kvc_where at = local(w);
	struct kvc_tier *x;
	int err = kvct_devices_begin(d, nr, KVC_CALL_READ, &x);

	if (err)
		return err == -ENOENT ? -EBADMSG : err;
	err = x->ops->get(x, &at, off, iov, n);
	return kvct_devices_end(d, nr, KVC_CALL_READ, at.at, err, false);
}

static int devices_load(struct kvc_tier *t, const struct kvc_where *w, const struct kvc_load *l)
{
	struct kvct_devices *d = kvct_devices_of(t);
	uint64_t nr = w->at >> KVC_DEVICE_BITS;
	struct kvc_where at = local(w);
	struct kvc_tier *x;
	int err = kvct_devices_begin(d, nr, KVC_CALL_READ, &x);

	if (err)
		return err == -ENOENT ? -EBADMSG : err;
	err = x->ops->load(x, &at, l);
	return kvct_devices_end(d, nr, KVC_CALL_READ, at.at, err, false);
}

static int devices_rehead(struct kvc_tier *t, const struct kvc_where *w,
			  const uint8_t page[KVC_FRAME_HEADER])
{
	struct kvct_devices *d = kvct_devices_of(t);
	uint64_t nr = w->at >> KVC_DEVICE_BITS;
	struct kvc_where at = local(w);
	struct kvc_tier *x;
	int err = kvct_devices_begin(d, nr, KVC_CALL_WRITE, &x);

	return err
		       ?: kvct_devices_end(d, nr, KVC_CALL_WRITE, at.at,
					   x->ops->rehead(x, &at, page), false);
}

/* A call of devices_list(): the device that it lists, and its callback. */
struct listing {
	struct kvct_devices *d;
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
	struct kvct_devices *d = kvct_devices_of(t);
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

static void devices_usage(struct kvc_tier *t, struct kvc_tier_usage *u)
{
	struct kvct_devices *d = kvct_devices_of(t);

	memset(u, 0, sizeof *u);
	pthread_mutex_lock(&d->lock);
	for (unsigned i = 0; i < KVC_DEVICES; i++) {
		struct kvct_devices_one *x = &d->dev[i];
		struct kvc_tier_usage one;

		if (!x->t)
			continue;
		x->t->ops->usage(x->t, &one);
		u->stored += one.stored;
		u->uncleared += one.uncleared + x->uncleared;
		if (kvct_devices_fails(x, KVC_CALL_READ) || kvct_devices_fails(x, KVC_CALL_WRITE))
			continue; /* nothing can be stored in its space */
		u->total += x->leaving ? 0 : one.total;
		u->used += one.used; /* frames of a leaving device must fit into the others */
	}
	pthread_mutex_unlock(&d->lock);
}

/* How long have calls to the device been under way without any answer? */
static uint64_t silent_locked(const struct kvct_devices *d, unsigned nr)
{
	uint64_t last = kvc_max(d->dev[nr].answered_ns, kvct_pipeline_moved_ns(d->pipeline, nr)),
		 now = kvc_mono_ns();

	return d->dev[nr].users && now > last ? now - last : 0;
}

static int devices_device(struct kvc_tier *t, unsigned nr, struct kvc_tier_device *out)
{
	struct kvct_devices *d = kvct_devices_of(t);
	struct kvc_tier_usage u;
	const struct kvct_devices_one *x;
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
			.read_fails = kvct_devices_fails(x, KVC_CALL_READ),
			.write_fails = kvct_devices_fails(x, KVC_CALL_WRITE),
			.unsynced = x->sync.unsynced,
			.failed_syncs = x->sync.failed,
			.why = x->breaker
				       .of[kvct_devices_fails(x, KVC_CALL_READ) ? KVC_CALL_READ
										: KVC_CALL_WRITE]
				       .why,
			.silent_ns = silent_locked(d, nr),
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

static int add(struct kvct_devices *d, const struct kvc_store *s, unsigned nr, char *error)
{
	struct kvc_tier *t;
	int err = kvct_disk_open(s, nr, d->pipeline, &t, error);

	if (err)
		return err;
	pthread_mutex_lock(&d->lock);
	d->dev[nr] = (struct kvct_devices_one){
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

static void take_out(struct kvct_devices *d, unsigned nr)
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
	struct kvct_devices *d = kvct_devices_of(t);
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
	int err = kvct_pipeline_start(kvct_devices_of(t)->pipeline);

	if (err)
		kvc_warn("disk: cannot start the threads for large files: %s; copies of large "
			 "files are slower",
			 strerror(-err));
	return 0;
}

static void devices_stop(struct kvc_tier *t)
{
	kvct_pipeline_stop(kvct_devices_of(t)->pipeline);
}

static void devices_close(struct kvc_tier *t)
{
	struct kvct_devices *d = kvct_devices_of(t);

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
	struct kvct_devices *d = kvct_devices_of(t);

	for (unsigned i = 0; i < KVC_DEVICES; i++)
		if (d->dev[i].t)
			kvct_disk_clear(d->dev[i].t);
}

void kvct_devices_unread(struct kvc_tier *t,
			 void (*fn)(void *arg, uint64_t at, uint64_t len, int err), void *arg)
{
	kvct_devices_of(t)->unread = fn;
	kvct_devices_of(t)->unread_arg = arg;
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
	.remove = kvct_devices_remove,
	.list = devices_list,
	.sync = kvct_devices_sync,
	.sync_place = kvct_devices_sync_place,
	.bound = kvct_devices_bound,
	.enter = kvct_devices_enter,
	.leave = kvct_devices_leave,
	.synced = kvct_devices_synced,
	.watch_syncs = kvct_devices_watch_syncs,
	.usage = devices_usage,
	.device = devices_device,
	.change = devices_change,
};

int kvct_devices_open(const struct kvc_store *s, struct kvc_tier **out, char *error)
{
	struct kvct_devices *d = calloc(1, sizeof *d);
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
