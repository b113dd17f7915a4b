/* SPDX-License-Identifier: Apache-2.0 */
/* Touching the pool's memory once, before clients use it (prefault.c). */
#ifndef KVC_PREFAULT_H
#define KVC_PREFAULT_H

#include <stdint.h>

struct kvc;

struct kvc_prefaulted {
	uint64_t bytes, total; /* bytes touched so far, and bytes to touch */
	/* touched bytes in k->reservations.used, held to the end or until others need them */
	uint64_t held;
	char what[200]; /* the decision and its reason, in one line */
};
/* Starts the thread. A failure is only logged, because prefaulting is optional. */
void kvc_prefault_start(struct kvc *k);
/* Stops the thread and releases the bytes that it holds. Call it after k->stopping is set. */
void kvc_prefault_stop(struct kvc *k);
void kvc_prefault_show_locked(struct kvc *k, struct kvc_prefaulted *p);

#endif
