/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The device's contexts, what is asked of the driver itself, and how its errors are told. Part of
 * cuda.cu, which alone includes it.
 */
#pragma once

#include "layout.h"

#include <cuda.h>
#include <cuda_runtime.h>

#include <map>
#include <mutex>

namespace {

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

/*
 * Of the driver itself: the runtime's cudaSetDevice() would leave the caller's thread another
 * device, or make a context there.
 */
struct Driver {
	CUresult (*device)(CUdevice *, int);
	CUresult (*retain)(CUcontext *, CUdevice);
	CUresult (*push)(CUcontext);
	CUresult (*pop)(CUcontext *);
	/*
	 * The stream waits till a number in memory is as high, cyclically; and writes one. NULL,
	 * both: the driver has not the two.
	 */
	CUresult (*wait_value)(CUstream, CUdeviceptr, cuuint32_t, unsigned);
	CUresult (*write_value)(CUstream, CUdeviceptr, cuuint32_t, unsigned);
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
	if (contexts.empty() && (!find_entry("cuStreamWaitValue32", &known.wait_value) ||
				 !find_entry("cuStreamWriteValue32", &known.write_value))) {
		known.wait_value = nullptr;
		known.write_value = nullptr;
	}
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

/*
 * A stream of the library's own, on the current device. Its kernels take microseconds, and what
 * waits for them waits for a transfer: they go before those of a model.
 */
int stream_create(cudaStream_t *out)
{
	int least = 0, greatest = 0;

	TRY(cudaDeviceGetStreamPriorityRange(&least, &greatest));
	TRY(cudaStreamCreateWithPriority(out, cudaStreamNonBlocking, greatest));
	return 0;
}

} // namespace
