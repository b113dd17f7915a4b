/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How many requests may be outstanding, and how much memory serving by io_uring may take. libfuse
 * makes a queue for every CPU that the machine could have (the kernel asks for each), and in each
 * `depth` entries of one header page and one buffer of `payload` bytes. That is address space at
 * first: pages are allocated on use, the entry used last is used next, and names are short, so a
 * few MiB are the rule. But an entry keeps its pages, so all of it can be allocated, by as many
 * requests of full size at one moment.
 *
 * An entry is taken until its request is answered, also by requests that wait (place.h). Deep
 * queues cost little, and a queue that is full stops its CPU: so the queues are as deep as a
 * sixteenth of the memory beside the pool (the machine's, or what the daemon's cgroup allows)
 * permits in the worst case, between KVFS_RINGS_LEAST and KVFS_RINGS bytes in all. The queues are
 * part of memory=: if that is given they get a quarter of it at most, and less if the rest needs
 *it:
 *
 *	queues x depth x (payload + page)
 *
 * with KVFS_RING_DEPTH entries a queue at most, and KVFS_RING_LEAST at least:
 *
 *	CPUs                             2     8    16    32    64   128   256  1024
 *	depth, 32 GiB or more beside  8191  3640  1820   910   455   227   113    28
 *	one user alone waits in       4608  2048  1024   513   257   129    64    16
 *	depth, 2 GiB or less beside    910   227   113    56    28    16    16    16
 *
 * The payload cannot be smaller than the largest request: the kernel (6.14 to 6.18) stops at a
 * BUG_ON if a request does not fit, and the largest is that of an extended attribute. With
 * passthrough no other request needs more. Without passthrough reads and writes are split into
 * pieces of the payload's size, the buffers are used in full, and KVFS_RINGS_DATA bounds them.
 */
#ifndef KVFS_RING_H
#define KVFS_RING_H

#include <stdbool.h>
#include <stdint.h>

#define KVFS_RINGS (2048ull << 20)
#define KVFS_RINGS_LEAST (128ull << 20)
#define KVFS_RINGS_DATA (256ull << 20)
#define KVFS_RINGS_PART 4u    /* of memory=, if that is given */
#define KVFS_RING_DEPTH 8191u /* and one more for libfuse: a power of two */
#define KVFS_RING_LEAST 16u
/* Value and name of the largest attribute; taken in whole pages. */
#define KVFS_RING_PAYLOAD ((64u << 10) + 256u)
#define KVFS_RING_PAYLOAD_DATA (1u << 20)

struct kvfs_ring {
	unsigned queues, depth;
	uint32_t page, payload; /* bytes */
};

/*
 * For so many CPUs, pages of so many bytes, and so many bytes of memory beside the pool. data:
 * reads and writes come as requests, since passthrough cannot be had. most: the queues
 * get no more bytes than this, as far as KVFS_RING_LEAST permits.
 */
void kvfs_ring_choose(struct kvfs_ring *r, unsigned cpus, uint32_t page, bool data, uint64_t memory,
		      uint64_t most);
/* What all entries take when all were used in full. */
uint64_t kvfs_ring_bytes(const struct kvfs_ring *r);

#endif
