/* SPDX-License-Identifier: Apache-2.0 */
/* What the queue needs of a transfer, beside the calls that everybody has. */
#ifndef KVCACHEFS_TRANSFER_H
#define KVCACHEFS_TRANSFER_H

#include "layout.h"

struct kvcachefs_begin { /* as the arguments of kvcachefs_store() and kvcachefs_load() */
	bool store;
	const char *mount;
	const struct kvcachefs_paged *p;
	struct kvcachefs_item *items; /* with their arrays they live until free */
	size_t n;
	void *stream;
	/*
	 * loads: NULL, or a lease whose objects from `first` on are the items'; it lives till free
	 */
	struct kvcachefs_lease *lease;
	size_t first;
	bool staged; /* stores: by way of staging memory, also what is registered */
};

#pragma GCC visibility push(hidden)
int kvcachefs_transfer_begin(struct kvcachefs_transfer **out, const struct kvcachefs_begin *b);
/*
 * Waits, and gives back the device's part; the files of a store are whole and closed then, but not
 * published. What freeing does first.
 */
int kvcachefs_transfer_land(struct kvcachefs_transfer *t);
/* What went wrong with the first item that failed, "" where none has. */
const char *kvcachefs_transfer_error(const struct kvcachefs_transfer *t);
/* Lands it, and nothing of it will be published: what had not failed has that error. */
void kvcachefs_transfer_undo(struct kvcachefs_transfer *t, int why);
#pragma GCC visibility pop

#endif
