/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Lanes: the stream, events, buffers and pinned memory of a transfer, kept for the next one; and
 * the device's contexts. Part of cuda.cu, which alone includes it.
 */
#pragma once

#include "layout.h"

#include <cuda.h>
#include <cuda_runtime.h>

#include <stdlib.h>

#include <map>
#include <mutex>
#include <new>
#include <vector>

namespace {

constexpr size_t BUFFER = 8u << 20, LANES_KEPT = 8, ALIGN = 256;
constexpr size_t STAGED = 256u << 10; /* files of a store below this are not registered */

int failed(cudaError_t e, const char *what)
{
	if (e == cudaSuccess)
		return 0;
	cudaGetLastError(); /* not for the caller's next call to stumble over */
	return kvcachefs_fail(e == cudaErrorMemoryAllocation ? -ENOMEM : -EIO, "CUDA: %s: %s", what,
			      cudaGetErrorString(e));
}

#define TRY(call)                                 \
	do {                                      \
		int err_ = failed((call), #call); \
		if (err_)                         \
			return err_;              \
	} while (0)

struct Grow { /* memory that only grows */
	void *p = nullptr;
	size_t len = 0;
};

struct Lane {
	int device = -1, sms = 0;
	cudaStream_t copies = nullptr;
	cudaEvent_t copied[2] = {}, moved[2] = {}, ready = nullptr, done = nullptr;
	uint8_t *buffer[2] = {}, *staging[2] = {};
	Grow args, args_host; /* what the kernels read, and its pinned original */
};

std::mutex lock;
/* never destroyed: at the process's end there may be no CUDA to call any more */
std::vector<Lane *> &kept = *new std::vector<Lane *>;

/*
 * Of the driver itself: the runtime's cudaSetDevice() would leave the caller's thread another
 * device, or make a context there.
 */
struct Driver {
	CUresult (*device)(CUdevice *, int);
	CUresult (*retain)(CUcontext *, CUdevice);
	CUresult (*push)(CUcontext);
	CUresult (*pop)(CUcontext *);
};

template <typename F> bool find_entry(const char *name, F *fn)
{
	void *p = nullptr;
	cudaDriverEntryPointQueryResult found = cudaDriverEntryPointSymbolNotFound;
#if CUDART_VERSION >= 12050
	cudaError_t e = cudaGetDriverEntryPointByVersion(name, &p, 12000, cudaEnableDefault,
							 &found);
#else
	cudaError_t e = cudaGetDriverEntryPoint(name, &p, cudaEnableDefault, &found);
#endif

	if (e != cudaSuccess)
		cudaGetLastError();
	*fn = reinterpret_cast<F>(p);
	return e == cudaSuccess && found == cudaDriverEntryPointSuccess && p;
}

/* The device's own context, which the runtime uses too; kept for as long as the process lives. */
int primary(int device, CUcontext *out, Driver *driver)
{
	static std::mutex mutex;
	static Driver &known = *new Driver();
	static bool &have = *new bool(false);
	static std::map<int, CUcontext> &contexts = *new std::map<int, CUcontext>;
	std::lock_guard<std::mutex> hold(mutex);
	CUdevice d;

	have = have || (find_entry("cuDeviceGet", &known.device) &&
			find_entry("cuDevicePrimaryCtxRetain", &known.retain) &&
			find_entry("cuCtxPushCurrent", &known.push) &&
			find_entry("cuCtxPopCurrent", &known.pop));
	if (!have)
		return kvcachefs_fail(-ENODEV, "the CUDA driver lacks what is needed");
	auto i = contexts.find(device);

	if (i == contexts.end()) {
		CUcontext c;

		if (known.device(&d, device) != CUDA_SUCCESS || known.retain(&c, d) != CUDA_SUCCESS)
			return kvcachefs_fail(-EIO, "device %d gives no context", device);
		i = contexts.emplace(device, c).first;
	}
	*out = i->second;
	*driver = known;
	return 0;
}

/*
 * While one lives, the thread works on that device. The context that was current before, which may
 * be none, is so again afterwards: a thread without one never gets one on device 0. And a graph
 * that is being captured elsewhere in the process is not broken by an allocation here.
 */
struct Device {
	int err;
	Driver driver = {};
	cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;

	explicit Device(int device)
	{
		CUcontext c = nullptr;

		err = primary(device, &c, &driver);
		if (!err && driver.push(c) != CUDA_SUCCESS)
			err = kvcachefs_fail(-EIO, "device %d cannot be made current", device);
		cudaThreadExchangeStreamCaptureMode(&mode);
	}
	~Device()
	{
		CUcontext c;

		cudaThreadExchangeStreamCaptureMode(&mode);
		if (!err)
			driver.pop(&c);
	}
	Device(const Device &) = delete;
};

void lane_free(Lane *l)
{
	for (int i = 0; i < 2; i++) {
		cudaFree(l->buffer[i]);
		cudaFreeHost(l->staging[i]);
		if (l->copied[i])
			cudaEventDestroy(l->copied[i]);
		if (l->moved[i])
			cudaEventDestroy(l->moved[i]);
	}
	if (l->ready)
		cudaEventDestroy(l->ready);
	if (l->done)
		cudaEventDestroy(l->done);
	if (l->copies)
		cudaStreamDestroy(l->copies);
	cudaFree(l->args.p);
	cudaFreeHost(l->args_host.p);
	delete l;
}

int lane_open(Lane *l)
{
	cudaEvent_t *events[] = {
		&l->copied[0], &l->copied[1], &l->moved[0], &l->moved[1], &l->ready, &l->done,
	};

	TRY(cudaDeviceGetAttribute(&l->sms, cudaDevAttrMultiProcessorCount, l->device));
	TRY(cudaStreamCreateWithFlags(&l->copies, cudaStreamNonBlocking));
	for (cudaEvent_t *e : events)
		TRY(cudaEventCreateWithFlags(e, cudaEventDisableTiming));
	for (int i = 0; i < 2; i++)
		TRY(cudaMalloc((void **)&l->buffer[i], BUFFER));
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

void lane_put(Lane *l)
{
	{
		std::lock_guard<std::mutex> hold(lock);

		if (kept.size() < LANES_KEPT) {
			kept.push_back(l);
			return;
		}
	}
	lane_free(l);
}

int lane_args(Lane *l, size_t len)
{
	if (l->args.len >= len)
		return 0;
	cudaFree(l->args.p);
	cudaFreeHost(l->args_host.p);
	l->args = l->args_host = Grow();
	TRY(cudaMalloc(&l->args.p, len));
	TRY(cudaMallocHost(&l->args_host.p, len));
	l->args.len = l->args_host.len = len;
	return 0;
}

int lane_staging(Lane *l)
{
	for (int i = 0; i < 2; i++)
		if (!l->staging[i])
			TRY(cudaMallocHost((void **)&l->staging[i], BUFFER));
	return 0;
}

} // namespace
