/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Parts: ranges of memory that an item of a transfer stores or loads, as contiguous bytes of its
 * file.
 */
#ifndef KVCACHEFS_PARTS_H
#define KVCACHEFS_PARTS_H

#include "priv.h"

#pragma GCC visibility push(hidden)
/*
 * Checks the parts of an item, and sets *size to the length of its file: item->size, or the end of
 * the last part. Returns 0; -EINVAL: the item also has tokens, or a part has no bytes or no memory,
 * or overlaps another one (of a store: in the file; of a load: in memory); -ERANGE: a part ends
 * beyond the end of the file or of the address space; -ENOMEM.
 */
int kvcachefs_parts_check(const struct kvcachefs_item *it, bool store, uint64_t *size);
/* Returns 0, or -E2BIG if the items of a call have more parts than allowed. */
int kvcachefs_parts_bound(const struct kvcachefs_item *items, size_t n);
/* Returns the sum of the parts' bytes. */
uint64_t kvcachefs_parts_bytes(const struct kvcachefs_item *it);
/*
 * Returns the part that begins with part i and includes the parts after it that continue it in
 * memory and in the file, and sets *next to the first part that it does not include.
 */
struct kvcachefs_part kvcachefs_parts_merged(const struct kvcachefs_item *it, size_t i,
					     size_t *next);
/*
 * Copy the parts of an item in host memory to its new file of `size` bytes, or from its file, with
 * as few system calls as possible. Return 0 or a negative errno; -EIO: the file is shorter than it
 * was.
 */
int kvcachefs_parts_write(const struct kvcachefs_item *it, int fd, uint64_t size);
int kvcachefs_parts_read(const struct kvcachefs_item *it, int fd);
#pragma GCC visibility pop

#endif
