/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A CUDA runtime for machines without a GPU, so that gpu/cuda.cu itself is tested there. It has the
 * part of the interface that cuda.cu uses, and checks CUDA's rules. Each stream runs in a thread of
 * its own, so operations that no event orders race, and the thread sanitizer reports them. Only
 * kernels and copies may touch device memory, and asynchronous copies need pinned host memory. Both
 * rules are checked, and a breach ends the program (fake.cpp). A kernel runs block by block and
 * thread by thread, which is enough for the kernels of cuda.cu.
 *
 * Contexts work as in the real runtime. A call that needs a context uses the thread's current one;
 * if the thread has none, the call makes the primary context of the thread's device current. That
 * is device 0 unless the thread has set another. The contexts created on each device are counted.
 * Streams, events and registered memory belong to a device, and must be used with its context
 * current. A stream can be captured, and calls that break a capture in CUDA break it here. Calls
 * that free memory (cudaFree(), cudaFreeHost(), cudaHostUnregister()) wait until all streams are
 * idle, as on a device.
 */
#ifndef FAKE_CUDA_RUNTIME_H
#define FAKE_CUDA_RUNTIME_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
#include <atomic>
#define _FAKE_ATOMIC(type) std::atomic<type>
#else
#define _FAKE_ATOMIC(type) _Atomic type
#endif

#define CUDART_VERSION 13000
#define CUDART_CB
#define __host__
#define __device__
#define __global__

#ifdef __cplusplus
extern "C" {
#endif
typedef enum {
	cudaSuccess = 0,
	cudaErrorInvalidValue = 1,
	cudaErrorMemoryAllocation = 2,
	cudaErrorCallRequiresNewerDriver = 36,
	cudaErrorNoDevice = 100,
	cudaErrorInvalidDevice = 101,
	cudaErrorNotReady = 600,
	cudaErrorHostMemoryAlreadyRegistered = 712,
	cudaErrorHostMemoryNotRegistered = 713,
	cudaErrorNotSupported = 801,
	cudaErrorStreamCaptureInvalidated = 901,
	cudaErrorStreamCaptureImplicit = 906,
	cudaErrorUnknown = 999
} cudaError_t;
enum cudaMemcpyKind {
	cudaMemcpyHostToDevice = 1,
	cudaMemcpyDeviceToHost = 2,
	cudaMemcpyDeviceToDevice = 3,
	cudaMemcpyDefault = 4
};
enum {
	cudaHostRegisterDefault = 0,
	cudaHostRegisterPortable = 1,
	cudaHostRegisterMapped = 2,
	cudaHostRegisterReadOnly = 8
};
enum {
	cudaStreamNonBlocking = 1,
	cudaEventDefault = 0,
	cudaEventDisableTiming = 2,
	cudaDevAttrMultiProcessorCount = 16,
	cudaDevAttrCanUseHostPointerForRegisteredMem = 91,
	cudaDevAttrHostRegisterReadOnlySupported = 113,
	cudaDevAttrMemoryPoolsSupported = 115,
	cudaMemcpySrcAccessOrderStream = 1
};
enum { cudaMemAttachGlobal = 1, cudaEnableDefault = 0 };
typedef enum {
	cudaDriverEntryPointSuccess = 0,
	cudaDriverEntryPointSymbolNotFound = 1
} cudaDriverEntryPointQueryResult;
typedef enum {
	cudaStreamCaptureModeGlobal = 0,
	cudaStreamCaptureModeThreadLocal = 1,
	cudaStreamCaptureModeRelaxed = 2
} cudaStreamCaptureMode;
typedef enum {
	cudaStreamCaptureStatusNone = 0,
	cudaStreamCaptureStatusActive = 1,
	cudaStreamCaptureStatusInvalidated = 2
} cudaStreamCaptureStatus;
typedef struct fake_graph *cudaGraph_t;
typedef struct fake_stream *cudaStream_t;
typedef struct fake_event *cudaEvent_t;
typedef void (*cudaHostFn_t)(void *);
enum cudaMemoryType {
	cudaMemoryTypeUnregistered = 0,
	cudaMemoryTypeHost = 1,
	cudaMemoryTypeDevice = 2,
	cudaMemoryTypeManaged = 3
};
struct cudaPointerAttributes {
	enum cudaMemoryType type;
	int device;
};
struct cudaMemcpyAttributes {
	int srcAccessOrder;
};

cudaError_t cudaGetLastError(void);
const char *cudaGetErrorString(cudaError_t e);
cudaError_t cudaGetDeviceCount(int *n);
cudaError_t cudaGetDevice(int *device);
cudaError_t cudaSetDevice(int device);
cudaError_t cudaDeviceGetAttribute(int *value, int attr, int device);
cudaError_t cudaDriverGetVersion(int *version);
cudaError_t cudaGetDriverEntryPointByVersion(const char *name, void **fn, unsigned version,
					     unsigned long long flags,
					     cudaDriverEntryPointQueryResult *found);
cudaError_t cudaStreamIsCapturing(cudaStream_t s, cudaStreamCaptureStatus *status);
cudaError_t cudaStreamBeginCapture(cudaStream_t s, cudaStreamCaptureMode mode);
cudaError_t cudaStreamEndCapture(cudaStream_t s, cudaGraph_t *graph);
cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode *mode);
cudaError_t cudaDeviceSynchronize(void);
cudaError_t cudaMalloc(void **p, size_t len);
cudaError_t cudaMallocManaged(void **p, size_t len, unsigned flags);
cudaError_t cudaMallocAsync(void **p, size_t len, cudaStream_t s);
cudaError_t cudaFreeAsync(void *p, cudaStream_t s);
cudaError_t cudaFree(void *p);
cudaError_t cudaMallocHost(void **p, size_t len);
cudaError_t cudaFreeHost(void *p);
cudaError_t cudaHostRegister(void *p, size_t len, unsigned flags);
cudaError_t cudaHostUnregister(void *p);
cudaError_t cudaHostGetDevicePointer(void **device, void *host, unsigned flags);
cudaError_t cudaPointerGetAttributes(struct cudaPointerAttributes *out, const void *p);
cudaError_t cudaMemcpy(void *to, const void *from, size_t len, enum cudaMemcpyKind kind);
cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t len, enum cudaMemcpyKind kind,
			    cudaStream_t s);
cudaError_t cudaMemcpyBatchAsync(void *const *to, const void *const *from, const size_t *len,
				 size_t n, struct cudaMemcpyAttributes *attrs, size_t *at,
				 size_t nattrs, cudaStream_t s);
cudaError_t cudaMemsetAsync(void *p, int value, size_t len, cudaStream_t s);
cudaError_t cudaStreamCreateWithFlags(cudaStream_t *s, unsigned flags);
cudaError_t cudaDeviceGetStreamPriorityRange(int *least, int *greatest);
cudaError_t cudaStreamCreateWithPriority(cudaStream_t *s, unsigned flags, int priority);
cudaError_t cudaStreamDestroy(cudaStream_t s);
cudaError_t cudaStreamSynchronize(cudaStream_t s);
cudaError_t cudaStreamWaitEvent(cudaStream_t s, cudaEvent_t e, unsigned flags);
cudaError_t cudaLaunchHostFunc(cudaStream_t s, cudaHostFn_t fn, void *arg);
cudaError_t cudaEventCreateWithFlags(cudaEvent_t *e, unsigned flags);
cudaError_t cudaEventCreate(cudaEvent_t *e);
cudaError_t cudaEventDestroy(cudaEvent_t e);
cudaError_t cudaEventRecord(cudaEvent_t e, cudaStream_t s);
cudaError_t cudaEventQuery(cudaEvent_t e);
cudaError_t cudaEventSynchronize(cudaEvent_t e);
cudaError_t cudaEventElapsedTime(float *ms, cudaEvent_t from, cudaEvent_t to);

/* For tests: the calls that fail from now on, and counts of the calls that were made. */
extern size_t fake_largest;                             /* larger allocations fail; 0: none fails */
extern int fake_devices, fake_no_register, fake_driver, /* its version */
	fake_lost,                                      /* events fail */
	fake_readonly,    /* read-only memory can be registered; otherwise that fails */
	fake_pools,       /* memory can be allocated and freed in the order of a stream */
	fake_no_numbers,  /* streams neither wait for a number in memory nor write one */
	fake_one_address; /* registered memory has the same address for the device */
/* called by cudaHostUnregister() and cudaHostRegister() first; NULL: nothing */
extern void (*fake_on_unregister)(void), (*fake_on_register)(void);
/*
 * An injected mistake, to check that a test finds it: the fake_mistake_at'th call that orders
 * streams (from 1; 0: none) has no effect. Kinds: a wait for an event is skipped; a wait for a
 * number in memory is skipped; a number is written at once. After the mistake no other stream
 * begins a copy or kernel while the stream without its wait can continue.
 */
enum fake_order { FAKE_EVENT, FAKE_VALUE, FAKE_NUMBER, FAKE_ORDERS };
extern enum fake_order fake_mistake;
extern unsigned long fake_mistake_at;
/*
 * Host functions that replace such waits and writes; a wait ends when `over` returns true. Mistakes
 * are injected into these as well. NULL: none.
 */
extern struct fake_functions {
	cudaHostFn_t waits, writes;
	bool (*over)(void *arg);
} fake_functions;
extern _FAKE_ATOMIC(int) fake_paused; /* no stream begins anything */
/* Waits until no stream can continue: each is idle or waits. */
void fake_until_stuck(void);
struct fake_counts {
	unsigned long registers, batches, copies, host_functions, kernels, streams, contexts[8],
		orders[FAKE_ORDERS];
	unsigned long copied; /* finished copies and parts of batches */
};
/* Counts the calls of this thread that allocate, free, register or unregister something. */
unsigned long fake_made_here(void);
/* Counts the registrations by this thread, without those of threads that prepare files. */
unsigned long fake_registered_here(void);
/* The device of the thread's current context; -1: it has none. */
int fake_current(void);
struct fake_counts fake_counted(void);
#ifdef __cplusplus
}

#include <functional>

struct uint2 {
	uint32_t x, y;
};
struct uint4 {
	uint32_t x, y, z, w;
};
struct dim3 {
	unsigned x, y, z;
	dim3(unsigned x_ = 1, unsigned y_ = 1, unsigned z_ = 1) : x(x_), y(y_), z(z_) {}
};
extern thread_local dim3 gridDim, blockDim, blockIdx, threadIdx;
/* While an object of this type exists, the thread's allocations do not count as the caller's. */
extern thread_local unsigned fake_inside;
struct fake_own {
	fake_own() { fake_inside++; }
	~fake_own() { fake_inside--; }
};
void fake_launch(cudaStream_t s, dim3 grid, dim3 block, std::function<void()> thread);
template <typename... P, typename... A>
void fake_call(void (*kernel)(P...), cudaStream_t s, dim3 grid, dim3 block, A... args)
{
	fake_own own;

	fake_launch(s, grid, block, [=] { kernel(args...); });
}
#define KVCACHEFS_LAUNCH(kernel, grid, block, stream, ...) \
	fake_call(kernel, stream, grid, block, __VA_ARGS__)

template <typename T> cudaError_t cudaMalloc(T **p, size_t len)
{
	return cudaMalloc((void **)p, len);
}
#endif
#endif
