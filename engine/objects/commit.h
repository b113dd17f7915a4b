/* SPDX-License-Identifier: Apache-2.0 */
/* The committer (commit.c). What it writes: dirty.h. */
#ifndef KVC_COMMIT_H
#define KVC_COMMIT_H

#include "kvc.h"

/* The thread. */
void *kvc_committer(void *arg);
/*
 * One turn of the committer: writes what is dirty, commits, frees the trash. Used by stop too.
 * Without locks.
 */
int kvc_commit_once(struct kvc *k);

#endif
