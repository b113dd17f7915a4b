/* SPDX-License-Identifier: Apache-2.0 */
/* The thread that tells other nodes which objects this node has (announce.c). */
#ifndef KVC_ANNOUNCE_H
#define KVC_ANNOUNCE_H

#include <stddef.h>
#include <stdint.h>

struct kvc;

/*
 * Starts the thread, if a tier tells other nodes. Returns 0, or a negative errno if it cannot. stop
 * ends it; it does nothing if no thread runs.
 */
int kvc_announce_start(struct kvc *k);
void kvc_announce_stop(struct kvc *k);
/*
 * Another node has asked for n objects, whose paths follow each other, each with a zero byte at its
 * end, and this node does not have those with a 0 in `bits` (peer_sign.h), or any if that is NULL.
 * So they may have outdated entries, which are removed soon.
 */
void kvc_announce_missing(struct kvc *k, const char *paths, size_t n, const uint8_t *bits);

#endif
