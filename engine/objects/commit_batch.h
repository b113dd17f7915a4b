/* SPDX-License-Identifier: Apache-2.0 */
/* The committer thread (commit_batch.c). committer.h has the lists of changes that it writes. */
#ifndef KVC_COMMIT_BATCH_H
#define KVC_COMMIT_BATCH_H

#include "kvc.h"

/* The thread's main function; arg is the struct kvc. */
void *kvc_commit_thread(void *arg);
/*
 * Writes all dirty nodes and chunks, commits, and releases the deferred frees of that transaction.
 * Called by the committer and at unmount, without locks. Returns 0, or a negative errno; then all
 * changes stay dirty.
 */
int kvc_commit_once(struct kvc *k);
/*
 * Background work that makes thousands of changes (drops, imports) calls this before every few
 * changes. Waits while the next commit has its maximum number of changes
 * (kvc_committer_batch_max_locked), because stores of users in that commit wait for all of them.
 * The wait is bounded, since commits may fail. Called without locks; returns at once before the
 * start and while the daemon stops.
 */
void kvc_commit_gate(struct kvc *k);

#endif
