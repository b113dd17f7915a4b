/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Writing accesses to the catalog: the time of a chunk's last use, its number of hits, and the
 * state that its policies keep for it (access_save.c). Accesses are hints: losing them changes only
 * the order of eviction. Therefore no commit of names waits for them, and the rate of writing is
 * bounded to spare flash.
 */
#ifndef KVC_ACCESS_SAVE_H
#define KVC_ACCESS_SAVE_H

#include "chunk.h"

/*
 * Returns how long the committer may sleep, in ns, before the next transaction of accesses: at most
 * `idle`.
 */
uint64_t kvc_access_save_pause_locked(struct kvc *k, uint64_t idle);
/*
 * Returns true if accesses have waited too long because commits of names follow each other without
 * a pause: for a second, or for 20 ms if a trimmer needs a row. False while a caller waits for a
 * commit. Takes k->lock.
 */
bool kvc_access_save_overdue(struct kvc *k);
/*
 * Writes the accesses of a few chunks in a transaction of their own, if the rate allows it. Called
 * by the committer thread, without locks. Errors are not reported: the accesses stay queued and are
 * written later.
 */
void kvc_access_save_some(struct kvc *k);
/* Writes the accesses of all chunks. Called at unmount when no other thread runs, without locks. */
void kvc_access_save_all(struct kvc *k);

#endif
