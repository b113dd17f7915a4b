/* SPDX-License-Identifier: Apache-2.0 */
/* Chooses depth and payload of the io_uring queues. See ring.h. */
#include "ring.h"

#define DEPTH_WANTED 64u /* at less depth, a large payload (without passthrough) is halved */
#define MEMORY_PART 16u  /* the queues may use 1/16 of the memory outside the pool */

static uint32_t payload_least(uint32_t page)
{
	return (KVFS_RING_PAYLOAD + page - 1) / page * page;
}

uint64_t kvfs_ring_bytes(const struct kvfs_ring *r)
{
	return (uint64_t)r->queues * r->depth * ((uint64_t)r->payload + r->page);
}

static unsigned depth_within(const struct kvfs_ring *r, uint64_t bytes)
{
	uint64_t n = bytes / ((uint64_t)r->queues * ((uint64_t)r->payload + r->page));

	n = n < KVFS_RING_LEAST ? KVFS_RING_LEAST : n;
	return n > KVFS_RING_DEPTH ? KVFS_RING_DEPTH : (unsigned)n;
}

/* Halves the payload. Returns false if it has its minimum size. */
static bool halve(struct kvfs_ring *r)
{
	uint32_t least = payload_least(r->page);

	if (r->payload <= least)
		return false;
	r->payload = r->payload / 2 > least ? r->payload / 2 : least;
	return true;
}

static uint64_t rings_budget(uint64_t memory)
{
	uint64_t bytes = memory / MEMORY_PART;

	return bytes < KVFS_RINGS_LEAST ? KVFS_RINGS_LEAST
	       : bytes > KVFS_RINGS     ? KVFS_RINGS
					: bytes;
}

void kvfs_ring_choose(struct kvfs_ring *r, unsigned cpus, uint32_t page, bool data, uint64_t memory,
		      uint64_t most)
{
	uint64_t bytes = data ? KVFS_RINGS_DATA : rings_budget(memory);

	bytes = bytes > most ? most : bytes;
	*r = (struct kvfs_ring){ .queues = cpus ? cpus : 1, .page = page };
	r->payload = data ? KVFS_RING_PAYLOAD_DATA : payload_least(page);
	r->depth = depth_within(r, bytes);
	while (r->depth < DEPTH_WANTED && halve(r))
		r->depth = depth_within(r, bytes);
}
