/* SPDX-License-Identifier: Apache-2.0 */
/* Taking and freeing many pages of a segment by one call (pages.c). */
#ifndef KVC_PAGES_H
#define KVC_PAGES_H

#include "node.h"

#define KVC_PAGES_QUICK (8ull << 20) /* so many a handler takes or frees */
#define KVC_PAGES_HELD (1ull << 20)  /* and so many under a lock: the kernel clears each */

enum kvc_held { KVC_HELD_ONE, KVC_HELD_BOTH }; /* which locks the caller has */

/*
 * fallocate of an OPEN node's segment, which `fd` is. More than KVC_PAGES_HELD is done with the
 * locks let go, and then the node is kept meanwhile, open for writing. 0, -ESTALE (it was
 * destroyed), or another errno; *done, where it is not NULL: so many bytes from off on are done.
 * The caller settles the node in the end, since the kernel may have forgotten it meanwhile.
 */
int kvc_pages_locked(struct kvc *k, struct kvc_node *n, enum kvc_held held, int fd, int mode,
		     uint64_t off, uint64_t len, uint64_t *done);
/* A size of at least so many bytes. 0 or an errno. */
int kvc_pages_size(int fd, uint64_t least);
/* ftruncate, likewise. */
int kvc_pages_cut_locked(struct kvc *k, struct kvc_node *n, enum kvc_held held, int fd,
			 uint64_t size);
/*
 * Before a file's only writer closes it: what was prepared far behind its end goes, by steps, with
 * the lock let go in between. Its publishing frees the rest at once.
 */
void kvc_pages_spare_locked(struct kvc *k, struct kvc_node *n);
/* Are those many that a cut of this node to `size` would free? */
bool kvc_pages_many_locked(const struct kvc_node *n, uint64_t size);

#endif
