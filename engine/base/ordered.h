/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Work on the items of a sequence by several threads, of which the first and the last step are done
 * in order. Each thread has a slot: memory for one item.
 */
#ifndef KVC_ORDERED_H
#define KVC_ORDERED_H

#include <stdint.h>

#define KVC_ORDERED_MAX 8u /* threads, with the caller's */

/* The functions return 0 or a negative errno. No item is begun after an error. */
struct kvc_ordered {
	uint64_t n; /* number of items */
	void *arg;
	/* In order, one call at a time: prepares item i in the slot. */
	int (*begin)(void *arg, void *slot, uint64_t i);
	/* Any order, several calls at the same time. */
	int (*work)(void *arg, void *slot, uint64_t i);
	/* In order, one call at a time, if `work` has succeeded for this item and all before it. */
	int (*finish)(void *arg, void *slot, uint64_t i);
	/* Makes a slot for another thread; NULL if there is no memory. */
	void *(*slot_new)(void *arg);
	void (*slot_free)(void *arg, void *slot);
};

/*
 * Runs the steps of all items, with the caller's slot in this thread, and with up to `threads` - 1
 * threads and slots made for them. The process uses at most as many such threads at the same time
 * as it has CPUs, so that many callers do not make more. Returns when all threads have ended: 0, or
 * the first error in the order of the items.
 */
int kvc_ordered_run(const struct kvc_ordered *o, void *slot, unsigned threads);

#endif
