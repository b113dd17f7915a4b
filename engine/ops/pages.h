/* SPDX-License-Identifier: Apache-2.0 */
/* Allocating and freeing many pages of a segment in one call; pages.c says why this needs care. */
#ifndef KVC_PAGES_H
#define KVC_PAGES_H

#include "node.h"

#define KVC_PAGES_QUICK (8ull << 20) /* bytes that a request handler allocates or frees itself */
/* bytes that are allocated or freed under a lock: the kernel clears each page */
#define KVC_PAGES_HELD (1ull << 20)

/* the locks that the caller holds: k->lock, or the catalog's too */
enum kvc_held { KVC_HELD_ONE, KVC_HELD_BOTH };

/*
 * Calls fallocate on the segment of an OPEN node; fd is its descriptor. A range above
 * KVC_PAGES_HELD is processed without the locks, and the node stays in memory and open for writing
 * until they are taken again. If done is not NULL, *done is the number of bytes from `off` that
 * were processed, also after an error. Returns 0, -ESTALE if the file was destroyed, or another
 * negative errno. The caller settles the node afterwards, because the kernel may have forgotten it.
 */
int kvc_pages_locked(struct kvc *k, struct kvc_node *n, enum kvc_held held, int fd, int mode,
		     uint64_t off, uint64_t len, uint64_t *done);
/* Extends a file to at least this size (bytes). */
int kvc_pages_size(int fd, uint64_t least);
/* Truncates the segment, without the locks if many pages are freed; as kvc_pages_locked. */
int kvc_pages_truncate_locked(struct kvc *k, struct kvc_node *n, enum kvc_held held, int fd,
			      uint64_t size);
/*
 * Call it before the only writer of a file closes it. Frees most of the pages that were allocated
 * beyond the end of the file, in steps, and releases k->lock between the steps. Publishing frees
 * the rest at once.
 */
void kvc_pages_trim_locked(struct kvc *k, struct kvc_node *n);
/*
 * True if truncating this node to `size` would free so much that a request handler must not do it.
 */
bool kvc_pages_truncate_is_long_locked(const struct kvc_node *n, uint64_t size);

#endif
