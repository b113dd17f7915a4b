/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How much memory serving by io_uring may take. libfuse makes a queue for every CPU that the
 * machine could have (the kernel asks for each), and in each `depth` entries of one header page and
 * one buffer of `payload` bytes. That is address space at first: pages come with use, the entry
 * used last is used next, and names are short, so little of it is ever there. But all of it can be,
 * and then stays. So, in bytes,
 *
 *	queues x depth x (payload + page) <= KVFS_RINGS, with data passing KVFS_RINGS_DATA,
 *
 * or KVFS_RING_LEAST entries a queue where that is more:
 *
 *	CPUs           2     8    14    16    32    64   128   256  1024
 *	depth         64    64    64    56    28    14     8     8     8
 *	MiB            9    36    63    63    63    63    72   144   576
 *
 * An entry is taken as long as its request is not answered, also by opens that wait for a load or
 * for room; when all of a CPU are, what is asked from there waits. So the depth is as great as it
 * may be.
 *
 * The payload cannot be smaller than the largest request: the kernel (6.14 to 6.18) stops at a
 * BUG_ON for one that does not fit, which is that of an extended attribute. With passthrough
 * nothing else needs more. Without, what is read and written goes in pieces of the payload's size.
 */
#ifndef KVFS_RING_H
#define KVFS_RING_H

#include <stdbool.h>
#include <stdint.h>

#define KVFS_RINGS (64ull << 20)
#define KVFS_RINGS_DATA (256ull << 20)
#define KVFS_RING_DEPTH 64u /* more are never waited for at one CPU */
#define KVFS_RING_LEAST 8u
/* Value and name of the largest attribute; taken in whole pages. */
#define KVFS_RING_PAYLOAD ((64u << 10) + 256u)
#define KVFS_RING_PAYLOAD_DATA (1u << 20)

struct kvfs_ring {
	unsigned queues, depth;
	uint32_t page, payload; /* bytes */
};

/* For so many CPUs and pages of so many bytes. data: what is read and written passes through. */
void kvfs_ring_choose(struct kvfs_ring *r, unsigned cpus, uint32_t page, bool data);
/* The depth stands; the payload grows as far as it may where data passes through after all. */
void kvfs_ring_for_data(struct kvfs_ring *r);
/* What all entries take when all were used in full. */
uint64_t kvfs_ring_bytes(const struct kvfs_ring *r);

#endif
