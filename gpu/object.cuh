/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The device's part of a transfer, and the lists it is made of. One that is over is kept with the
 * memory of its lists for the next, so that a transfer like those before allocates nothing. Part of
 * cuda.cu, which alone includes it.
 */
#pragma once

#include "groups.cuh"
#include "lane.cuh"

#include <new>
#include <vector>

struct kvcachefs_cuda {
	Lane *lane;
	cudaStream_t stream;
	int device;
	bool store, batches, queued, waited, begun, staged;
	int result; /* of a poll or wait that failed: it stays so */
	Driver driver;
	uint32_t base; /* of what is staged: its numbers begin behind it */
	std::vector<kvcachefs_work> work;
	std::vector<Move> moves; /* of the work */
	Cut cut;
	/* a batch's */
	std::vector<void *> to;
	std::vector<const void *> from;
	std::vector<size_t> len;
};

namespace {

constexpr size_t OBJECTS_KEPT = LANES_KEPT,
		 LISTS_MOST = 4u << 20; /* bytes of lists: one with more is not kept */

/* never destroyed, as the lanes; under their lock */
std::vector<kvcachefs_cuda *> &objects = *new std::vector<kvcachefs_cuda *>;

template <typename T> size_t held_by(const std::vector<T> &v)
{
	return v.capacity() * sizeof(T);
}

size_t lists_of(const kvcachefs_cuda *c)
{
	const Cut &k = c->cut;

	return held_by(c->work) + held_by(c->moves) + held_by(c->to) + held_by(c->from) +
	       held_by(c->len) + held_by(k.args.bytes) + held_by(k.groups) + held_by(k.pieces) +
	       held_by(k.parts) + held_by(k.shapes) + held_by(k.known) + held_by(k.turns.held) +
	       held_by(k.device.taken) + held_by(k.staging.taken);
}

/* NULL: no memory. */
kvcachefs_cuda *object_get()
{
	std::lock_guard<std::mutex> hold(lock);

	if (objects.empty())
		return new (std::nothrow) kvcachefs_cuda();
	kvcachefs_cuda *c = objects.back();

	objects.pop_back();
	return c;
}

/* Its lane is not its own any more. */
void object_put(kvcachefs_cuda *c)
{
	c->lane = nullptr;
	c->batches = c->queued = c->waited = c->begun = c->staged = false;
	c->result = 0;
	c->base = 0;
	c->work.clear();
	c->moves.clear();
	c->cut.reset();
	if (lists_of(c) <= LISTS_MOST) {
		try {
			std::lock_guard<std::mutex> hold(lock);

			if (objects.size() < OBJECTS_KEPT) {
				objects.push_back(c);
				return;
			}
		} catch (const std::bad_alloc &) {
		}
	}
	delete c;
}

} // namespace
