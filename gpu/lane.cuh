/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Lanes: the stream, events, buffer, pinned memory and thread of a transfer, which are kept for the
 * next transfer.
 *
 * cudaFree(), cudaFreeHost() and cudaHostUnregister() wait until the device is idle, including the
 * program's own kernels (measured: 140 ms, as long as a kernel ran). A transfer must not wait
 * for that. So device memory is allocated and freed in the order of the lane's stream, if the
 * device supports it. Pinned memory grows by a new allocation beside the old one. A lane that is
 * not kept is destroyed by the thread that unregisters (kvcachefs_cuda_reap()).
 *
 * Part of cuda.cu, the only file that includes it.
 */
#pragma once

#include "stage.cuh"

extern "C" {
#include "unmap.h"
}

namespace {

constexpr size_t LANES_KEPT = 8, ALIGN = 256;

/*
 * Registered files smaller than this are copied by a kernel that reads or writes their pages, since
 * the copy engine is slow with small pieces of a batch. Measured on an H200 (kvcachefs-gpu(7)): a
 * kernel is faster up to 256 KiB, but by less than a tenth from 128 KiB on. KVCACHEFS_GPU_DIRECT=
 * overrides it.
 */
constexpr size_t DIRECT = 128u << 10;
/* pieces of a group; a dimension of a kernel's grid is limited to 65535 */
constexpr unsigned PIECES_MOST = 32768;

/*
 * Sizes in bytes: the largest group, the largest staged group, a lane's buffer on the device, and
 * its pinned memory; groups use both in turn. A store occupies the caller's stream only until its
 * last groups have a place in the buffer; a store that fits the buffer, only while its kernels run.
 * Transfers of up to `few` bytes have a buffer of that size. If the lanes together would have
 * more than `staging_most` bytes of pinned memory, a lane gets only enough for its largest group.
 * All are multiples of ALIGN; tests make them small.
 */
struct Sizes {
	size_t group, staged_group, few, buffer, staging, staging_most;
} sizes = { 16u << 20, 4u << 20, 8u << 20, 64u << 20, 16u << 20, 256u << 20 };
constexpr size_t SPARE_MOST = 256u << 20; /* bytes of buffers that are kept */
constexpr size_t ARGS_LEAST = 64u << 10;

struct Grow { /* memory that only grows */
	void *p = nullptr;
	size_t len = 0;
};

struct Events { /* of a group: its bytes were copied; a kernel has moved them */
	cudaEvent_t copied, moved;
};

struct Lane {
	int device = -1, sms = 0;
	int one_address = 0; /* registered memory has the same address on the device */
	int ordered = 0;     /* memory is allocated and freed in the order of a stream */
	cudaStream_t copies = nullptr;
	cudaEvent_t ready = nullptr, done = nullptr;
	std::vector<Events> events;
	Grow buffer, staging;
	size_t pinned = 0;            /* bytes of staging memory, with outgrown memory */
	size_t wanted = 0;            /* wanted size of the buffer, as in a Spare */
	Grow args, args_host;         /* the arguments of the kernels, and their pinned original */
	std::vector<void *> outgrown; /* pinned memory that became too small */
	std::shared_ptr<Stage> stage;
};

std::atomic<size_t> staging_bytes; /* `pinned` of all lanes; it guards no other data */
std::mutex lock;
/* never destroyed: at the process's end CUDA may be gone already */
std::vector<Lane *> &kept = *new std::vector<Lane *>;
struct Spare { /* a buffer without a lane */
	int device;
	size_t wanted; /* its length, if the device had enough memory */
	Grow buffer;
};
std::vector<Spare> &spares = *new std::vector<Spare>;

std::vector<Lane *> &retired = *new std::vector<Lane *>; /* to be destroyed */

cudaError_t device_get(const Lane *l, void **p, size_t len)
{
	return l->ordered ? cudaMallocAsync(p, len, l->copies) : cudaMalloc(p, len);
}

/* The work that used the memory must be finished. */
void device_put(const Lane *l, void *p)
{
	if (p && (l->ordered ? cudaFreeAsync(p, l->copies) : cudaFree(p)) != cudaSuccess)
		cudaGetLastError();
}

/* Waits until the device is idle. */
void lane_free(Lane *l)
{
	device_put(l, l->buffer.p);
	device_put(l, l->args.p);
	for (const Events &e : l->events) {
		cudaEventDestroy(e.copied);
		cudaEventDestroy(e.moved);
	}
	if (l->ready)
		cudaEventDestroy(l->ready);
	if (l->done)
		cudaEventDestroy(l->done);
	if (l->copies)
		cudaStreamDestroy(l->copies);
	if (l->stage) {
		stage_stop(l->stage);
		cudaFreeHost(l->stage->handled);
	}
	for (void *p : l->outgrown)
		cudaFreeHost(p);
	cudaFreeHost(l->staging.p);
	staging_bytes -= l->pinned;
	cudaFreeHost(l->args_host.p);
	delete l;
}

int lane_open(Lane *l)
{
	TRY(cudaDeviceGetAttribute(&l->sms, cudaDevAttrMultiProcessorCount, l->device));
	if (cudaDeviceGetAttribute(&l->one_address, cudaDevAttrCanUseHostPointerForRegisteredMem,
				   l->device) != cudaSuccess)
		cudaGetLastError();
	if (cudaDeviceGetAttribute(&l->ordered, cudaDevAttrMemoryPoolsSupported, l->device) !=
	    cudaSuccess)
		cudaGetLastError();
	if (int err = stream_create(&l->copies))
		return err;
	for (cudaEvent_t *e : { &l->ready, &l->done })
		TRY(cudaEventCreateWithFlags(e, cudaEventDisableTiming));
	return 0;
}

int lane_get(int device, Lane **out)
{
	Lane *l = nullptr;
	int err;

	{
		std::lock_guard<std::mutex> hold(lock);

		for (size_t i = 0; i < kept.size() && !l; i++)
			if (kept[i]->device == device) {
				l = kept[i];
				kept.erase(kept.begin() + (ptrdiff_t)i);
			}
	}
	if (!l) {
		l = new (std::nothrow) Lane();
		if (!l)
			return kvcachefs_fail(-ENOMEM, "out of memory");
		l->device = device;
		err = lane_open(l);
		if (err) {
			lane_free(l);
			return err;
		}
	}
	*out = l;
	return 0;
}

/* Grows pinned memory to at least len bytes; the content is lost. */
int grow_host(Lane *l, Grow *g, size_t len)
{
	if (g->len >= len)
		return 0;
	if (g->p)
		l->outgrown.push_back(g->p);
	*g = Grow();
	TRY(cudaMallocHost(&g->p, len));
	g->len = len;
	return 0;
}

/* Grows by doubling, so that outgrown memory is less than current memory. */
int lane_args(Lane *l, size_t len)
{
	size_t size = ARGS_LEAST;

	while (size < len)
		size *= 2;
	if (l->args.len < size) {
		device_put(l, l->args.p);
		l->args = Grow();
		TRY(device_get(l, &l->args.p, size));
		l->args.len = size;
	}
	return grow_host(l, &l->args_host, size);
}

/*
 * Gets the buffer for groups of `bytes` bytes in all, the largest of `largest` bytes; smaller if
 * the device does not have enough memory. lane_put() returns it.
 */
int lane_buffer(Lane *l, size_t bytes, size_t largest)
{
	size_t len = l->wanted = bytes <= sizes.few ? sizes.few : sizes.buffer;
	cudaError_t e;

	{
		std::lock_guard<std::mutex> hold(lock);

		for (size_t i = 0; i < spares.size(); i++)
			if (spares[i].device == l->device && spares[i].wanted == len &&
			    spares[i].buffer.len >= largest) {
				l->buffer = spares[i].buffer;
				spares.erase(spares.begin() + (ptrdiff_t)i);
				return 0;
			}
	}
	while ((e = device_get(l, &l->buffer.p, len)) == cudaErrorMemoryAllocation &&
	       len / 2 >= largest && len / 2 >= ALIGN) {
		cudaGetLastError();
		len = len / 2 / ALIGN * ALIGN;
	}
	l->buffer.len = e == cudaSuccess ? len : 0;
	return failed(e, "a buffer on the device");
}

/* Returns the lane's buffer to the spares, or to the device. */
void buffer_put(Lane *l)
{
	Grow b = l->buffer;
	size_t all = b.len;

	l->buffer = Grow();
	{
		std::lock_guard<std::mutex> hold(lock);

		for (const Spare &s : spares)
			all += s.buffer.len;
		if (b.len && all <= SPARE_MOST) {
			spares.push_back({ l->device, l->wanted, b });
			return;
		}
	}
	device_put(l, b.p);
}

/*
 * Allocates the pinned memory, and the two signals between the thread and the stream (stage.cuh).
 * `largest`: the largest staged group. A lane gets less memory if all lanes have much, or if the
 * host is short of memory.
 */
int lane_staging(Lane *l, size_t largest)
{
	size_t len = sizes.staging, least = (largest + ALIGN - 1) / ALIGN * ALIGN;

	if (!l->stage) {
		auto stage = std::make_shared<Stage>();

		TRY(cudaMallocHost((void **)&stage->handled, 2 * sizeof(Word)));
		stage->copied = stage->handled + 1;
		stage->handled->value = stage->copied->value = 0;
		l->stage = stage;
	}
	if (l->staging.len >= least)
		return 0;
	if (staging_bytes + len > sizes.staging_most)
		len = least;
	while (int err = grow_host(l, &l->staging, len)) {
		if (err != -ENOMEM || len == least)
			return err;
		len = std::max(len / 2 / ALIGN * ALIGN, least);
	}
	l->pinned += l->staging.len;
	staging_bytes += l->staging.len;
	return 0;
}

/* Creates two events for each of n groups. */
int lane_events(Lane *l, size_t n)
{
	while (l->events.size() < n) {
		Events e = {};

		TRY(cudaEventCreateWithFlags(&e.copied, cudaEventDisableTiming));
		if (int err = failed(cudaEventCreateWithFlags(&e.moved, cudaEventDisableTiming),
				     "cudaEventCreate")) {
			cudaEventDestroy(e.copied);
			return err;
		}
		l->events.push_back(e);
	}
	return 0;
}

/* Hands the lane to the thread that destroys it, which may wait. */
void lane_retire(Lane *l)
{
	{
		std::lock_guard<std::mutex> hold(lock);

		retired.push_back(l);
	}
	if (!kvcachefs_unmap_wake())
		kvcachefs_cuda_reap();
}

void lane_put(Lane *l)
{
	buffer_put(l);
	{
		std::lock_guard<std::mutex> hold(lock);

		if (kept.size() < LANES_KEPT) {
			kept.push_back(l);
			return;
		}
	}
	lane_retire(l);
}

} // namespace

extern "C" void kvcachefs_cuda_reap(void)
{
	std::vector<Lane *> mine;

	{
		std::lock_guard<std::mutex> hold(lock);

		mine.swap(retired);
	}
	for (Lane *l : mine) {
		Device here(l->device);

		lane_free(l);
	}
}
