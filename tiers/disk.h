/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The driver of one device of a store: a block device or a preallocated file (disk.c). devices.c
 * combines these drivers into the disk tier. In their struct kvc_where, `at` is an offset in the
 * device.
 */
#ifndef KVCT_DISK_H
#define KVCT_DISK_H

#include "store.h"
#include "tier.h"

struct kvct_pipeline;
/*
 * Opens device `nr` of the store and checks its label. Large frames are moved with the help of
 * `pipeline`, which must outlive the driver. Returns 0 and sets *out, or a negative errno with one
 * line in error[512].
 */
int kvct_disk_open(const struct kvc_store *s, unsigned nr, struct kvct_pipeline *pipeline,
		   struct kvc_tier **out, char *error);
/*
 * The device and its label have this new size, in bytes, which is a multiple of KVC_PAGE: uses the
 * added space. Returns 0, -ERANGE (smaller than before) or -ENOMEM; after an error nothing has
 * changed.
 */
int kvct_disk_grow(struct kvc_tier *t, uint64_t size);
/* Tries once more to clear headers that could not be cleared. */
void kvct_disk_clear(struct kvc_tier *t);
/*
 * Sets a function that list() calls for each place that cannot be read, and then continues. With
 * NULL, list() ends with the error.
 */
void kvct_disk_unread(struct kvc_tier *t, void (*fn)(void *arg, uint64_t at, uint64_t len, int err),
		      void *arg);

#endif
