/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Lanes: the stream, events, buffer, pinned memory and thread of a transfer, kept for the next one.
 * Part of cuda.cu, which alone includes it.
 */
#pragma once

#include "stage.cuh"

namespace {

constexpr size_t LANES_KEPT = 8, ALIGN = 256;

/*
 * Registered files below this go by a kernel that reads or writes their pages itself: as pieces of
 * a batch the copy engine moves them slowly. To be measured on each kind of device (make
 * gpu-measure prints where the two meet); KVCACHEFS_GPU_DIRECT= says another.
 */
constexpr size_t DIRECT = 28u << 10;
constexpr unsigned PIECES_MOST = 32768; /* of a group: a dimension of a kernel's grid has 65535 */

/*
 * Bytes: of a group, at most; of a lane's buffer on the device and of its pinned memory, in which
 * groups take turns. A store holds the caller's stream only until its last groups have a place in
 * the buffer: one that fits into it, for no longer than its kernels run. Transfers of up to `few`
 * have a buffer of that size. Multiples of ALIGN; tests make them small.
 */
struct Sizes {
	size_t group, staged_group, few, buffer, staging;
} sizes = { 16u << 20, 4u << 20, 8u << 20, 64u << 20, 16u << 20 };
constexpr size_t SPARE_MOST = 256u << 20; /* bytes of buffers that are kept */

struct Grow { /* memory that only grows */
	void *p = nullptr;
	size_t len = 0;
};

struct Events { /* of a group: its bytes were copied; and moved by a kernel */
	cudaEvent_t copied, moved;
};

struct Lane {
	int device = -1, sms = 0;
	int one_address = 0; /* registered memory has the same address for the device */
	cudaStream_t copies = nullptr;
	cudaEvent_t ready = nullptr, done = nullptr;
	std::vector<Events> events;
	Grow buffer, staging;
	size_t wanted = 0;    /* of the buffer, as in a Spare */
	Grow args, args_host; /* what the kernels read, and its pinned original */
	std::shared_ptr<Stage> stage;
};

std::mutex lock;
/* never destroyed: at the process's end there may be no CUDA to call any more */
std::vector<Lane *> &kept = *new std::vector<Lane *>;
struct Spare { /* a buffer that no lane has */
	int device;
	size_t wanted; /* its length, where the device had room */
	Grow buffer;
};
std::vector<Spare> &spares = *new std::vector<Spare>;

void grow_free(Grow *device, Grow *host)
{
	if (device)
		cudaFree(device->p);
	if (host)
		cudaFreeHost(host->p);
}

void lane_free(Lane *l)
{
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
	grow_free(&l->buffer, &l->staging);
	grow_free(&l->args, &l->args_host);
	delete l;
}

int lane_open(Lane *l)
{
	TRY(cudaDeviceGetAttribute(&l->sms, cudaDevAttrMultiProcessorCount, l->device));
	if (cudaDeviceGetAttribute(&l->one_address, cudaDevAttrCanUseHostPointerForRegisteredMem,
				   l->device) != cudaSuccess)
		cudaGetLastError();
	TRY(cudaStreamCreateWithFlags(&l->copies, cudaStreamNonBlocking));
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

/* Memory of at least so many bytes; what was in it is lost. */
int grow(Grow *g, size_t len, bool host)
{
	if (g->len >= len)
		return 0;
	grow_free(host ? nullptr : g, host ? g : nullptr);
	*g = Grow();
	TRY(host ? cudaMallocHost(&g->p, len) : cudaMalloc(&g->p, len));
	g->len = len;
	return 0;
}

int lane_args(Lane *l, size_t len)
{
	int err = grow(&l->args, len, false);

	return err ? err : grow(&l->args_host, len, true);
}

/*
 * The buffer, for groups of so many bytes in all and `largest`; smaller where the device has no
 * room. lane_put() gives it back.
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
	while ((e = cudaMalloc(&l->buffer.p, len)) == cudaErrorMemoryAllocation &&
	       len / 2 >= largest && len / 2 >= ALIGN) {
		cudaGetLastError();
		len = len / 2 / ALIGN * ALIGN;
	}
	l->buffer.len = e == cudaSuccess ? len : 0;
	return failed(e, "a buffer on the device");
}

/* The lane's buffer, for another, or back to the device. */
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
	cudaFree(b.p);
}

/* Pinned memory, and the thread's numbers. */
int lane_staging(Lane *l)
{
	if (!l->stage) {
		auto stage = std::make_shared<Stage>();

		TRY(cudaMallocHost((void **)&stage->handled, 2 * sizeof(Word)));
		stage->copied = stage->handled + 1;
		stage->handled->value = stage->copied->value = 0;
		l->stage = stage;
	}
	return grow(&l->staging, sizes.staging, true);
}

/* Two for each of n groups. */
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
	lane_free(l);
}

} // namespace
