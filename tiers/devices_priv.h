/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The devices of the disk tier, for the files that make its calls: devices.c (the calls about a
 * frame, and the set of devices), devices_enter.c (the choice of a device, and the bound of threads
 * in one) and devices_sync.c (syncs of devices).
 */
#ifndef KVCT_DEVICES_PRIV_H
#define KVCT_DEVICES_PRIV_H

#include "breaker.h"
#include "device_sync.h"

#include <pthread.h>

struct kvct_pipeline;

struct kvct_devices_one {
	struct kvc_tier *t; /* its driver; NULL: the number is not used */
	char path[1280];
	bool file, leaving;
	unsigned users;       /* calls that use the driver */
	uint64_t answered_ns; /* when a call has ended, or began while no other was under way */
	/* threads in calls that d->most bounds, and whether one of them removes a frame */
	unsigned inside;
	bool removing;
	struct kvc_breaker breaker;
	uint64_t errors;
	struct kvct_device_sync sync;
	uint64_t uncleared; /* bytes of removed frames whose headers were not cleared */
};

struct kvct_devices {
	struct kvc_tier tier;
	pthread_mutex_t lock;
	pthread_cond_t idle;   /* a device has no users any more */
	pthread_cond_t synced; /* a thread has ended a sync of a device */
	struct kvct_devices_one dev[KVC_DEVICES];
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

static inline struct kvct_devices *kvct_devices_of(struct kvc_tier *t)
{
	return kvc_of(t, struct kvct_devices, tier);
}

/* Are calls of this class to the device suspended? Under d->lock. */
static inline bool kvct_devices_fails(const struct kvct_devices_one *x, enum kvc_call call)
{
	return x->breaker.of[call].is != KVC_BREAKER_CLOSED;
}

/*
 * devices.c: begins a call to the device with this number: sets *t to its driver. Returns 0, and
 * the caller ends the call; -ENOENT (no such device); or an error if its breaker is open. Takes the
 * lock.
 */
int kvct_devices_begin(struct kvct_devices *d, uint64_t nr, enum kvc_call call,
		       struct kvc_tier **t);
/*
 * devices.c: ends a call about a place in the device. Returns the error for the caller. `certain`:
 * the error is known to concern the whole device. Takes the lock.
 */
int kvct_devices_end(struct kvct_devices *d, uint64_t nr, enum kvc_call call, uint64_t at, int err,
		     bool certain);
/* devices.c: removes a frame, as tier.h says. */
int kvct_devices_remove(struct kvc_tier *t, const struct kvc_where *w);

/* devices_enter.c: as tier.h says. */
void kvct_devices_bound(struct kvc_tier *t, unsigned most);
bool kvct_devices_enter(struct kvc_tier *t, const struct kvc_where *w, bool removes);
void kvct_devices_leave(struct kvc_tier *t, const struct kvc_where *w, bool removes);
/*
 * devices_enter.c: chooses a device for a frame, but none in the bit mask `tried`, and enters it.
 * If enough threads are in all of them, waits until one leaves. Returns its number, or KVC_DEVICES
 * if no device is left. kvct_devices_leave_one leaves it. Both take the lock.
 */
unsigned kvct_devices_enter_some(struct kvct_devices *d, unsigned tried);
void kvct_devices_leave_one(struct kvct_devices *d, unsigned nr);

/* devices_sync.c: as tier.h says. */
int kvct_devices_sync(struct kvc_tier *t);
int kvct_devices_sync_place(struct kvc_tier *t, const struct kvc_where *w);
enum kvc_tier_synced kvct_devices_synced(struct kvc_tier *t, const struct kvc_where *w);
void kvct_devices_watch_syncs(struct kvc_tier *t, bool unsynced, void (*failed)(void *arg),
			      void *arg);
/*
 * devices_sync.c: puts a frame that was stored just now on stable storage, or removes it. Returns 0
 * or a negative errno. Takes the lock, and blocks.
 */
int kvct_devices_sync_frame(struct kvct_devices *d, const struct kvc_where *w);

#endif
