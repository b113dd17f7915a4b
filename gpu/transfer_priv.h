/* SPDX-License-Identifier: Apache-2.0 */
/* A transfer, as transfer.c and item.c see it. */
#ifndef KVCACHEFS_TRANSFER_PRIV_H
#define KVCACHEFS_TRANSFER_PRIV_H

#include "file.h"
#include "transfer.h"

#include <stdatomic.h>

struct kvcachefs_piece {
	struct kvcachefs_file f;
	bool pinned;
	int fd; /* of a load without a mapping; belongs to the lease */
	const struct kvcachefs_cache *cache;
};

struct kvcachefs_cache { /* a cache that items belong to, and its strides */
	const struct kvcachefs_paged *p;
	struct kvcachefs_strides s;
};

struct kvcachefs_transfer {
	struct kvcachefs_transfer *next; /* the next kept transfer */
	char *block;
	size_t capacity;
	bool store, staged, landed, lent; /* lent: the lease is the caller's */
	const char *mount;
	uint64_t dev;                   /* device number of the mount; not set if lent */
	struct kvcachefs_paged p;       /* the cache of the call */
	struct kvcachefs_cache *caches; /* the cache of the call, and the caches of items */
	size_t ncaches;
	const char **paths; /* of the items */
	atomic_bool asked;  /* the mount was told to load all of them */
	struct kvcachefs_item *items;
	struct kvcachefs_piece *pieces;
	void *row; /* memory for one row of a file whose keys are rotated on the host */
	size_t n;
	struct kvcachefs_lease *lease;
	size_t first; /* index in the lease of the object of item 0 */
	struct kvcachefs_cuda *cuda;
	bool shares;          /* threads may share the items */
	pthread_mutex_t lock; /* guards the next two while threads share the items */
	int err;              /* error of the first failed item */
	char error[512];      /* its text */
};

#pragma GCC visibility push(hidden)
/*
 * Opens or creates the file of item i, and does its work in host memory or adds it to the device's,
 * unless the item failed or is skipped. Returns 0 or a negative errno. Several threads may begin
 * different items at once.
 */
int kvcachefs_item_begin(struct kvcachefs_transfer *t, size_t i);
/* Item i of a load has ended: its bytes are in the cache, unless it failed. */
void kvcachefs_item_loaded(struct kvcachefs_transfer *t, size_t i);
/* Describes the layout of an item's file, so that another layout is refused. */
void kvcachefs_item_layout(const struct kvcachefs_transfer *t, size_t i, char *buf,
			   size_t capacity);
#pragma GCC visibility pop

#endif
