/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The device's part of a transfer and its lists. A finished one is kept with the memory of its
 * lists for the next transfer, so that a transfer similar to earlier ones allocates nothing. Part
 * of cuda.cu, the only file that includes it.
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
	int result; /* of a failed poll or wait; it does not change any more */
	Driver driver;
	uint32_t base; /* the numbers of its staged groups begin after this one */
	std::vector<kvcachefs_work> work;
	std::vector<Move> moves; /* of the work */
	Cut cut;
	/* of a batch */
	std::vector<void *> to;
	std::vector<const void *> from;
	std::vector<size_t> len;
};

namespace {

constexpr size_t OBJECTS_KEPT = LANES_KEPT,
		 LISTS_MOST = 4u << 20; /* bytes of lists; a larger object is not kept */

/* never destroyed, like the lanes; guarded by their lock */
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

/* Returns NULL if memory is short. */
kvcachefs_cuda *object_get()
{
	std::lock_guard<std::mutex> hold(lock);

	if (objects.empty())
		return new (std::nothrow) kvcachefs_cuda();
	kvcachefs_cuda *c = objects.back();

	objects.pop_back();
	return c;
}

/* Keeps or frees the object. Its lane belongs to another owner already. */
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
