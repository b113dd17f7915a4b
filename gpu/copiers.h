/* SPDX-License-Identifier: Apache-2.0 */
/* Copies in host memory by several threads, for what passes through pinned memory. */
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
 * Makes all n copies, which do not overlap, and returns when they are made. The caller copies too,
 * so nothing fails where there are no other threads. Any thread may call; no lock is needed.
 */
void kvcachefs_copy_all(const struct kvcachefs_copy *v, size_t n);
#pragma GCC visibility pop
#ifdef __cplusplus
}
#endif

#endif
