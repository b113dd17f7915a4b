/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The syncs that follow a commit, for the fsyncs that waited for it (commit_sync.c). All under
 * k->lock.
 */
#ifndef KVC_COMMIT_SYNC_H
#define KVC_COMMIT_SYNC_H

#include "node.h"

/* kvc_wait.sync_of is the number of the device to sync before the log, or this: only the log. */
#define KVC_COMMIT_SYNC_LOG KVC_DEVICES

struct kvc_commit_sync {
	struct {
		struct kvc_list waits; /* fsyncs that wait for the next sync of the device */
		bool running;          /* a job syncs the device, or is queued */
	} of[KVC_DEVICES];
	struct kvc_list log; /* fsyncs that wait for the next sync of the log */
	bool log_running;    /* a thread syncs the log */
};

/* Initializes the lists. */
void kvc_commit_sync_init(struct kvc_commit_sync *s);
/* Returns the sync that a copy at this place needs. */
unsigned kvc_commit_sync_of_place(unsigned tier, const struct kvc_where *w);
/* Returns the sync that the present copy of the node needs. n may be NULL. */
unsigned kvc_commit_sync_of_locked(const struct kvc *k, const struct kvc_node *n);
/* The commit that these fsyncs waited for has ended. Empties the list; does not block. */
void kvc_commit_sync_queue_locked(struct kvc *k, struct kvc_list *waits);
/*
 * Syncs a device that may have frames to clear, unless a job already does, or the unmount is at a
 * stage at which no more jobs are run. Does not block.
 */
void kvc_commit_sync_device_locked(struct kvc *k, unsigned nr);

#endif
