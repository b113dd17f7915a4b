/* SPDX-License-Identifier: Apache-2.0 */
/* The committer (commit_batch.c). What it writes: committer.h. */
#ifndef KVC_COMMIT_BATCH_H
#define KVC_COMMIT_BATCH_H

#include "kvc.h"

/* The thread. */
void *kvc_commit_thread(void *arg);
/*
 * One turn of the committer: writes what is dirty, commits, frees the trash. Used by stop too.
 * Without locks.
 */
int kvc_commit_once(struct kvc *k);
/*
 * Work that nobody waits for, and that makes changes by the thousand (drops, imports), calls this
 * before each few: waits while the next commit is long enough already, since the names of stores
 * are part of it. Not for ever: a commit may fail. Without locks; at once before the start and
 * while the daemon stops.
 */
void kvc_commit_gate(struct kvc *k);

#endif
