/* SPDX-License-Identifier: Apache-2.0 */
/* Copies in host memory by several threads, for bytes that pass through pinned memory. */
#ifndef KVCACHEFS_COPIERS_H
#define KVCACHEFS_COPIERS_H

#include <stddef.h>

struct kvcachefs_copy {
	void *to;
	const void *from;
	size_t len;
};

#ifdef __cplusplus
extern "C" {
#endif
#pragma GCC visibility push(hidden)
/*
 * Makes all n copies and returns when they are made. They must not overlap. The calling thread
 * copies too, so the call also works without other threads. Any thread may call, without a lock.
 */
void kvcachefs_copy_all(const struct kvcachefs_copy *v, size_t n);
#pragma GCC visibility pop
#ifdef __cplusplus
}
#endif

#endif
