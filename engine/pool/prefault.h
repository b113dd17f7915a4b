/* SPDX-License-Identifier: Apache-2.0 */
/* Touching the pool once, ahead of those who use it (prefault.c). */
#ifndef KVC_PREFAULT_H
#define KVC_PREFAULT_H

#include <stdint.h>

struct kvc;

struct kvc_prefaulted {
	uint64_t bytes, total; /* touched so far, and what there is to touch */
	/* of k->reservations.used: touched, kept to the end or until somebody needs it */
	uint64_t held;
	char what[200]; /* what was decided, and why: one line */
};
/* A failure to begin is only told: all works without. */
void kvc_prefault_start(struct kvc *k);
/* After k->stopping is set. Gives back what it holds. */
void kvc_prefault_stop(struct kvc *k);
void kvc_prefault_show_locked(struct kvc *k, struct kvc_prefaulted *p);

#endif
