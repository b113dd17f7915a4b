/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The store's clock: the times of accesses, pins, ttls and deleted names (clock.c). The struct is
 * set at the start and constant afterwards.
 */
#ifndef KVC_CLOCK_H
#define KVC_CLOCK_H

#include "kvc.h"

struct kvc_clock {
	uint64_t base_ns; /* the clock's time when CLOCK_BOOTTIME was boot_ns */
	uint64_t boot_ns;
	char boot[40]; /* boot id of the machine */
};

uint64_t kvc_clock_ns(const struct kvc *k);
/* Adds the time since then_ns to the histogram; 0: the time is unknown. */
static inline void kvc_clock_since(const struct kvc *k, struct kvc_histogram *h, uint64_t then_ns)
{
	uint64_t now = kvc_clock_ns(k);

	if (then_ns)
		kvc_histogram_add(h, KVC_IN_SECONDS, now > then_ns ? now - then_ns : 0);
}
/* Restores the clock of an earlier daemon from the catalog. */
int kvc_clock_start_both(struct kvc *k);
int kvc_clock_save_both(struct kvc *k);

#endif
