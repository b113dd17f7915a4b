/* SPDX-License-Identifier: Apache-2.0 */
/* Functions of a transfer for the queue, in addition to the public ones. */
#ifndef KVCACHEFS_TRANSFER_H
#define KVCACHEFS_TRANSFER_H

#include "layout.h"

struct kvcachefs_begin { /* arguments of kvcachefs_store() and kvcachefs_load() */
	bool store;
	const char *mount;
	const struct kvcachefs_paged *p;
	struct kvcachefs_item *items; /* live with their arrays until free */
	size_t n;
	void *stream;
	/*
	 * loads: NULL, or a lease that lives until free; its objects from `first` on belong to the
	 * items
	 */
	struct kvcachefs_lease *lease;
	size_t first;
	bool staged; /* stores: use staging memory, also for registered mappings */
};

#pragma GCC visibility push(hidden)
int kvcachefs_transfer_begin(struct kvcachefs_transfer **out, const struct kvcachefs_begin *b);
/*
 * Waits, and releases the device's part. Afterwards the files of a store are complete and closed,
 * but not published. Freeing a transfer does this first. Returns 0 or the first error.
 */
int kvcachefs_transfer_land(struct kvcachefs_transfer *t);
/* Returns the error text of the first failed item, or "". */
const char *kvcachefs_transfer_error(const struct kvcachefs_transfer *t);
/*
 * Waits likewise, and makes sure that nothing is published: items that have not failed get the
 * error `why`.
 */
void kvcachefs_transfer_undo(struct kvcachefs_transfer *t, int why);
#pragma GCC visibility pop

#endif
