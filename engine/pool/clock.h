/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The store's own time: what uses, pins, ttls and deleted names are counted by (clock.c). Set at
 * the start, constant from then on.
 */
#ifndef KVC_CLOCK_H
#define KVC_CLOCK_H

#include "kvc.h"

struct kvc_clock {
	uint64_t base_ns; /* what it showed when the machine's clock of running time showed: */
	uint64_t boot_ns;
	char boot[40]; /* which run of the machine that is */
};

uint64_t kvc_clock_ns(const struct kvc *k);
/* The time since then is one of the histogram's; 0: it is not known. */
static inline void kvc_clock_since(const struct kvc *k, struct kvc_histogram *h, uint64_t then_ns)
{
	uint64_t now = kvc_clock_ns(k);

	if (then_ns)
		kvc_histogram_add(h, KVC_IN_SECONDS, now > then_ns ? now - then_ns : 0);
}
/* Reads what an earlier daemon has left. */
int kvc_clock_start_both(struct kvc *k);
int kvc_clock_save_both(struct kvc *k);

#endif
