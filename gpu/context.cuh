/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The contexts of devices, calls of the driver, and its errors. Part of cuda.cu, the only file that
 * includes it.
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
	/* clears the error, so that the caller's next call does not report it */
	cudaGetLastError();
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
 * Functions of the driver. The runtime's cudaSetDevice() would leave the caller's thread on another
 * device, or create a context there.
 */
struct Driver {
	CUresult (*device)(CUdevice *, int);
	CUresult (*retain)(CUcontext *, CUdevice);
	CUresult (*push)(CUcontext);
	CUresult (*pop)(CUcontext *);
	/*
	 * wait_value: the stream waits until a number in memory has reached a value, cyclically.
	 * write_value: the stream writes a number. Both are NULL if the driver lacks one of them.
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

/*
 * Returns the device's primary context, which the runtime uses too. It is kept until the process
 * ends.
 */
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
		return kvcachefs_fail(-ENODEV, "the CUDA driver lacks required functions");
	if (contexts.empty() && (!find_entry("cuStreamWaitValue32", &known.wait_value) ||
				 !find_entry("cuStreamWriteValue32", &known.write_value))) {
		known.wait_value = nullptr;
		known.write_value = nullptr;
	}
	auto i = contexts.find(device);

	if (i == contexts.end()) {
		CUcontext c;

		if (known.device(&d, device) != CUDA_SUCCESS || known.retain(&c, d) != CUDA_SUCCESS)
			return kvcachefs_fail(-EIO, "cannot get the context of device %d", device);
		i = contexts.emplace(device, c).first;
	}
	*out = i->second;
	*driver = known;
	return 0;
}

/*
 * While an object of this class lives, the thread works on that device. Afterwards the earlier
 * context is current again, possibly none: a thread without a context does not get one on device 0.
 * Allocations here do not break a graph that is being captured elsewhere in the process.
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
 * Creates a stream on the current device. Its kernels take microseconds, and a transfer waits for
 * them, so they have priority over a model's kernels.
 */
int stream_create(cudaStream_t *out)
{
	int least = 0, greatest = 0;

	TRY(cudaDeviceGetStreamPriorityRange(&least, &greatest));
	TRY(cudaStreamCreateWithPriority(out, cudaStreamNonBlocking, greatest));
	return 0;
}

} // namespace
