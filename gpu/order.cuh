/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Order between streams, for the queue: a stream for each of its threads, and marks (events). A
 * mark is a position in one stream that another stream can wait for. Streams and marks are kept for
 * reuse. Nothing here waits for a device. Part of cuda.cu, the only file that includes it.
 */
#pragma once

#include "lane.cuh"

#include <utility>

namespace {

constexpr size_t MARKS_KEPT = 256, STREAMS_KEPT = 16;

std::mutex marks_lock;
/* by device; never destroyed, like the lanes */
std::vector<std::pair<int, cudaEvent_t>> &marks = *new std::vector<std::pair<int, cudaEvent_t>>;

std::vector<std::pair<int, cudaStream_t>> &streams =
	*new std::vector<std::pair<int, cudaStream_t>>; /* guarded by marks_lock too */

/* Removes one entry of that device from v and sets *out to it. Returns false if there is none. */
template <typename T> bool reuse(std::vector<std::pair<int, T>> &v, int device, T *out)
{
	std::lock_guard<std::mutex> hold(marks_lock);

	for (size_t i = v.size(); i-- > 0;)
		if (v[i].first == device) {
			*out = v[i].second;
			v.erase(v.begin() + (ptrdiff_t)i);
			return true;
		}
	return false;
}

template <typename T> bool keep(std::vector<std::pair<int, T>> &v, size_t most, int device, T what)
{
	try {
		std::lock_guard<std::mutex> hold(marks_lock);

		if (v.size() < most) {
			v.emplace_back(device, what);
			return true;
		}
	} catch (const std::bad_alloc &) {
	}
	return false;
}

/*
 * Checks that the stream is not being captured: the work would become part of a graph instead of
 * running now, and waiting for it would break the graph.
 */
int check_stream(cudaStream_t stream)
{
	cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
	cudaError_t e = cudaStreamIsCapturing(stream, &status);

	if (e == cudaErrorStreamCaptureImplicit ||
	    (e == cudaSuccess && status != cudaStreamCaptureStatusNone)) {
		cudaGetLastError();
		return kvcachefs_fail(-EBUSY, "the stream is being captured into a graph; "
					      "transfers cannot be part of one");
	}
	return failed(e, "asking whether the stream is being captured");
}

/* Checks that the device exists. Returns 0 or -ENODEV. */
int check_device(int device)
{
	int n = 0;

	if (cudaGetDeviceCount(&n) != cudaSuccess || !n) {
		cudaGetLastError();
		return kvcachefs_fail(-ENODEV, "there is no CUDA device, or no driver for it");
	}
	if (device < 0 || device >= n)
		return kvcachefs_fail(-ENODEV, "there is no device %d; the number of devices is %d",
				      device, n);
	return 0;
}

int mark_get(int device, cudaEvent_t *out)
{
	if (!reuse(marks, device, out))
		TRY(cudaEventCreateWithFlags(out, cudaEventDisableTiming));
	return 0;
}

} // namespace

extern "C" int kvcachefs_cuda_check(int device)
{
	return check_device(device);
}

extern "C" int kvcachefs_cuda_stream_new(int device, void **out)
{
	if (int err = check_device(device))
		return err;
	Device here(device);
	cudaStream_t s;

	if (here.err)
		return here.err;
	if (!reuse(streams, device, &s))
		if (int err = stream_create(&s))
			return err;
	*out = s;
	return 0;
}

extern "C" void kvcachefs_cuda_stream_free(int device, void *stream)
{
	if (keep(streams, STREAMS_KEPT, device, static_cast<cudaStream_t>(stream)))
		return;
	Device here(device);

	if (cudaStreamDestroy(static_cast<cudaStream_t>(stream)) != cudaSuccess)
		cudaGetLastError();
}

extern "C" int kvcachefs_cuda_mark(int device, void *stream, void **out)
{
	if (int err = check_device(device))
		return err;
	Device here(device);
	cudaStream_t s = static_cast<cudaStream_t>(stream);
	cudaEvent_t e;

	if (here.err)
		return here.err;
	if (int err = check_stream(s))
		return err;
	if (int err = mark_get(device, &e))
		return err;
	if (int err = failed(cudaEventRecord(e, s), "cudaEventRecord")) {
		kvcachefs_cuda_unmark(device, e);
		return err;
	}
	*out = e;
	return 0;
}

extern "C" int kvcachefs_cuda_after(int device, void *stream, void *mark)
{
	Device here(device);
	cudaStream_t s = static_cast<cudaStream_t>(stream);

	if (here.err)
		return here.err;
	if (int err = check_stream(s))
		return err;
	TRY(cudaStreamWaitEvent(s, static_cast<cudaEvent_t>(mark), 0));
	return 0;
}

extern "C" void kvcachefs_cuda_unmark(int device, void *mark)
{
	cudaEvent_t e = static_cast<cudaEvent_t>(mark);

	if (keep(marks, MARKS_KEPT, device, e))
		return;
	Device here(device);

	if (cudaEventDestroy(e) != cudaSuccess)
		cudaGetLastError();
}
