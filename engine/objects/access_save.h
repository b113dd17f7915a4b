/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Storing accesses: when and how often chunks were used, and what their policies think of them
 * (access_save.c). Accesses are hints. A loss changes which chunk is evicted first and nothing
 * else, so no commit of names waits for them and flash is not worn for their sake.
 */
#ifndef KVC_ACCESS_SAVE_H
#define KVC_ACCESS_SAVE_H

#include "chunk.h"

/* How long the committer may sleep, at most `idle` ns, before accesses can be written. */
uint64_t kvc_access_pause_locked(struct kvc *k, uint64_t idle);
/* Have accesses waited for longer than a second because names are committed all the time? */
bool kvc_access_overdue(struct kvc *k);
/*
 * Writes accesses of a few chunks in a transaction of their own, if the rate allows. Without locks,
 * from the thread that commits. Failures are not reported: the accesses stay and are tried again.
 */
void kvc_access_save_some(struct kvc *k);
/* At the end, when no other thread is left: writes all of them. Without locks. */
void kvc_access_save_all(struct kvc *k);

#endif
