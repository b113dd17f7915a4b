/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory of arrays that may become large. An array of KVC_ARRAY_BIG bytes or more is a mapping of
 * its own. It grows without a copy, so a caller that holds a lock does not hold it for a copy.
 * Growing leaves no freed copies between other allocations, so memory is not fragmented. Its unused
 * end takes no memory (with huge pages for all memory: up to one huge page), and freeing it returns
 * all memory to the kernel. Smaller arrays come from malloc.
 *
 * Use it for plain values only: leak checkers do not search a mapping for pointers.
 */
#ifndef KVC_ARRAY_H
#define KVC_ARRAY_H

#include <stddef.h>

#define KVC_ARRAY_BIG (256u << 10)

/*
 * Makes the array p, which came from this function or is NULL, hold at least `bytes` bytes. Returns
 * its new address, or NULL if memory is short; then p is unchanged. An array never shrinks. The new
 * bytes are undefined, except that a new array (p is NULL) of at least KVC_ARRAY_BIG bytes is zero.
 */
void *kvc_array_grow(void *p, size_t bytes);
void kvc_array_free(void *p);
/*
 * From now on, arrays of 2 MiB or more ask for huge pages, which makes random accesses faster. For
 * tools only: the kernel may need milliseconds to provide a huge page.
 */
void kvc_array_use_huge_pages(void);

#endif
