/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Copies between host memory and files by several threads, for bytes that pass through pinned
 * memory.
 */
#ifndef KVCACHEFS_COPIERS_H
#define KVCACHEFS_COPIERS_H

#include <stddef.h>
#include <stdint.h>

struct kvcachefs_copy {
	void *to;
	const void *from; /* NULL: the bytes are read from a file */
	size_t len;
	/* of a read: the open file, the offset of its first byte, and its path for an error */
	int fd;
	uint64_t offset;
	const char *path;
};

#ifdef __cplusplus
extern "C" {
#endif
#pragma GCC visibility push(hidden)
/*
 * Makes all n copies and returns when they are made. They must not overlap. The calling thread
 * copies too, so the call also works without other threads. Any thread may call, without a lock.
 * Returns 0, or the negative errno of a read that failed; then *bad is the number of that copy, and
 * the memory of all copies is undefined. -EIO: the file is shorter than expected, or cannot be
 * read.
 */
int kvcachefs_copy_all(const struct kvcachefs_copy *v, size_t n, size_t *bad);
#pragma GCC visibility pop
#ifdef __cplusplus
}
#endif

#endif
