/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory of arrays that may become large: from KVC_ARRAY_BIG bytes on an array is a mapping of its
 * own. It grows without a copy, so that who holds a lock does not hold it for that; no smaller
 * ones that it once was are left between other memory; what was never used of it takes none
 * (where all memory is of huge pages, up to one of these); and when it is freed all goes back.
 * Smaller ones are the allocator's.
 *
 * Of plain values: a leak checker does not look into a mapping for pointers.
 */
#ifndef KVC_ARRAY_H
#define KVC_ARRAY_H

#include <stddef.h>

#define KVC_ARRAY_BIG (256u << 10)

/*
 * p, of these calls or NULL, has room for so many bytes: where it is now, or NULL: out of memory,
 * and p stands. It never shrinks. What the new bytes are is not said; those of a first one that is
 * BIG are zero.
 */
void *kvc_array_grow(void *p, size_t bytes);
void kvc_array_free(void *p);

#endif
