/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Number of outstanding requests, and memory for io_uring. libfuse makes one queue for each CPU
 * that the machine can have, because the kernel requires that. Each queue has `depth` entries, and
 * each entry has a header page and a buffer of `payload` bytes. At first this is only address
 * space: pages are allocated on first use, the kernel reuses the entry that was used last, and
 * requests are small, so a few MiB are typical. But an entry keeps its pages, so many full-size
 * requests at one moment can allocate all of it.
 *
 * An entry is in use until its request is answered, also while the request waits (wait_slots.h).
 * A full queue stops its CPU, so the queues are deep: as deep as a sixteenth of the memory outside
 * the pool (of the machine or of the daemon's cgroup) permits in the worst case, with a total
 * between KVFS_RINGS_LEAST and KVFS_RINGS bytes. They are not deeper than KVFS_RING_DEPTH,
 * because each entry makes a mount and an unmount some microseconds longer, and more threads than
 * that rarely wait on one CPU. The queues are part of memory=: if that option is set, they get at
 * most a quarter of it, and less if the rest needs more. The worst case is
 *
 * 	queues x depth x (payload + page)
 *
 * with a depth of at most KVFS_RING_DEPTH and at least KVFS_RING_LEAST:
 *
 * 	CPUs                             2     8    16    32    64   128   256  1024
 * 	depth, 32 GiB or more outside 2047  2047  1820   910   455   227   113    28
 * 	wait slots of a single user   1152  1152  1024   513   257   129    64    16
 * 	depth, 2 GiB or less outside   910   227   113    56    28    16    16    16
 *
 * The payload must hold the largest request, because the kernel (6.14 to 6.18) stops at a BUG_ON if
 * a request does not fit. With passthrough, the largest request sets an extended attribute. Without
 * passthrough, reads and writes are split into pieces of the payload's size and use the whole
 * buffer; KVFS_RINGS_DATA limits the total.
 */
#ifndef KVFS_RING_H
#define KVFS_RING_H

#include <stdbool.h>
#include <stdint.h>

#define KVFS_RINGS (2048ull << 20)
#define KVFS_RINGS_LEAST (128ull << 20)
#define KVFS_RINGS_DATA (256ull << 20)
#define KVFS_RINGS_PART 4u    /* the queues may use 1/4 of memory=, if that is set */
#define KVFS_RING_DEPTH 2047u /* plus one entry of libfuse: a power of two */
#define KVFS_RING_LEAST 16u
/* Value and name of the largest attribute. Rounded up to whole pages. */
#define KVFS_RING_PAYLOAD ((64u << 10) + 256u)
#define KVFS_RING_PAYLOAD_DATA (1u << 20)

struct kvfs_ring {
	unsigned queues, depth;
	uint32_t page, payload; /* bytes */
};

/*
 * Chooses the sizes of the queues. cpus: CPUs the machine can have. page: page size in bytes. data:
 * reads and writes arrive as requests, because passthrough is not available. memory: bytes of
 * memory outside the pool. most: maximum total bytes of the queues; KVFS_RING_LEAST takes
 * precedence.
 */
void kvfs_ring_choose(struct kvfs_ring *r, unsigned cpus, uint32_t page, bool data, uint64_t memory,
		      uint64_t most);
/* Total bytes of all entries in the worst case. */
uint64_t kvfs_ring_bytes(const struct kvfs_ring *r);

#endif
