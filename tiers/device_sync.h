/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The syncs of one device, and the frames that failed syncs may have lost. Each put has a number in
 * its device. After a failed sync, or one that left the device out, the frames with the numbers
 * since the last good sync count as lost, also after a later sync has succeeded. So does a frame
 * that was being written at that time.
 *
 * All members are guarded by one lock of the caller (devices.c).
 */
#ifndef KVCT_DEVICE_SYNC_H
#define KVCT_DEVICE_SYNC_H

#include "tier.h"

#include <pthread.h>

#define KVCT_DEVICE_SYNC_LOST 16 /* ranges of lost frames; more failures extend the last range */

struct kvct_device_sync {
	/*
	 * Number of the last write, and of the last write before the last good sync. The first
	 * number (1) stands for all writes of earlier mounts.
	 */
	uint64_t writes, synced;
	bool unsynced;   /* the last sync failed, or left the device out although it had writes */
	uint64_t failed; /* syncs that failed or left writes out */
	/* The lost writes: those after `from`, up to `to`. In order, and separate. */
	struct kvct_device_sync_lost {
		uint64_t from, to;
	} lost[KVCT_DEVICE_SYNC_LOST];
	unsigned nlost;
	bool running;      /* a thread syncs the device */
	uint64_t begun;    /* syncs that have begun */
	int result;        /* of the last one that has ended: 0 or a negative errno */
	uint64_t in_row;   /* syncs that have failed since the last good one */
	uint64_t again_ns; /* after a pause: when the next one is tried (kvc_mono_ns) */
};

/*
 * Returns the number of a put that has ended just now; the caller then increments s->writes.
 * failed: s->failed before the put began. If a sync has failed since, parts of the frame may be
 * lost, so it gets a lost number.
 */
uint64_t kvct_device_sync_number_locked(const struct kvct_device_sync *s, uint64_t failed);
/* The writes of earlier mounts may be lost. Called before the first put. */
void kvct_device_sync_distrust_locked(struct kvct_device_sync *s);
/* A sync of the tier has left out the device. */
void kvct_device_sync_left_out_locked(struct kvct_device_sync *s);
/*
 * Syncs the device if it has writes that are not synced. The syncs of a device run one after the
 * other, because the kernel reports an error to only one of them. A thread that has waited takes
 * the result of a sync that began after it was called. Takes the lock; no I/O is done while it is
 * held. pause: if two syncs in a row have failed, further calls get the last error until a pause is
 * over, which grows from 10 ms to 1 s. The writes since the last failure are not lost by such a
 * call: a later sync may still succeed with them. Returns 0 or a negative errno.
 */
int kvct_device_sync_run(struct kvct_device_sync *s, struct kvc_tier *t, pthread_mutex_t *lock,
			 pthread_cond_t *ended, bool pause);
/* Returns the state of the frame with this number; 0: not known. */
enum kvc_tier_synced kvct_device_sync_state_locked(const struct kvct_device_sync *s,
						   uint64_t number);

#endif
