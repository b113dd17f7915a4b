/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The work of one transfer on a device, all of it queued on the caller's stream. For each file: the slots go up, and
 *   load:  the file's bytes are copied to a buffer on the device, its keys are rotated there where that is asked for, and a kernel scatters it
 *   store: a kernel gathers into the buffer, which is copied to the file's pages
 * The file's mapping is registered (cudaHostRegister), so the copy engine reads and writes its very pages; where the mount does not take that (no
 * passthrough) the bytes pass through pinned memory and are moved by a host function on the stream. Slot lists and buffers come from the stream's own
 * pool (cudaMallocAsync) and are given back on it. Nothing here waits but kvcachefs_cuda_wait and _free.
 *
 * The kernels share kvcachefs_at() with the host path. One warp moves one run (the heads that lie in a row) in the widest pieces that
 * its length and both addresses allow.
 */
#include "layout.h"

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <stdlib.h>
#include <string.h>

#include <new>
#include <vector>

namespace {

struct Piece { /* of one file, until the transfer is freed */
	void *host = nullptr;       /* the mapping */
	size_t len = 0;
	bool registered = false;
	void *pinned = nullptr;     /* instead */
	int64_t *ids = nullptr;     /* pinned copy of the caller's slots or block ids, which the stream reads later */
	bool store = false;
};

int failed(cudaError_t e, const char *what)
{
	return e == cudaSuccess ? 0 : kvcachefs_fail(e == cudaErrorMemoryAllocation ? -ENOMEM : -EIO, "CUDA: %s: %s", what, cudaGetErrorString(e));
}

#define TRY(call)                                            \
	do {                                                 \
		int err_ = failed((call), #call);            \
		if (err_)                                    \
			return err_;                         \
	} while (0)

struct Move { /* what the kernels need to know */
	kvcachefs_strides s;
	const int64_t *slots, *block_ids;
	uint64_t ntokens, skip;
	uint32_t layer, nlayers, heads, head_size, elem;
	void *const *pointers;
};

template <typename T> __device__ void copy_run(void *to, const void *from, uint32_t bytes, uint32_t lane)
{
	for (uint32_t i = lane; i < bytes / sizeof(T); i += 32)
		static_cast<T *>(to)[i] = static_cast<const T *>(from)[i];
}

__device__ void copy_widest(void *to, const void *from, uint32_t bytes, uint32_t lane)
{
	uintptr_t all = (uintptr_t)to | (uintptr_t)from | bytes;

	if (all % 16 == 0)
		copy_run<uint4>(to, from, bytes, lane);
	else if (all % 8 == 0)
		copy_run<uint2>(to, from, bytes, lane);
	else if (all % 4 == 0)
		copy_run<uint32_t>(to, from, bytes, lane);
	else if (all % 2 == 0)
		copy_run<uint16_t>(to, from, bytes, lane);
	else
		copy_run<uint8_t>(to, from, bytes, lane);
}

template <bool STORE> __global__ void move_kernel(Move m, uint8_t *file)
{
	uint64_t warps = (uint64_t)gridDim.x * (blockDim.x / 32), runs_head = m.heads / m.s.run_heads;
	uint64_t total = (uint64_t)m.s.kvs * m.nlayers * m.ntokens * runs_head;
	uint32_t lane = threadIdx.x % 32, bytes = m.s.run_heads * m.head_size * m.elem;

	for (uint64_t r = (uint64_t)blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32; r < total; r += warps) {
		uint32_t head = (uint32_t)(r % runs_head) * m.s.run_heads;
		uint64_t token = r / runs_head % m.ntokens, rest = r / runs_head / m.ntokens;
		uint32_t layer = m.layer + (uint32_t)(rest % m.nlayers), kv = (uint32_t)(rest / m.nlayers);
		int64_t slot = token < m.skip ? -1 : kvcachefs_slot(m.slots, m.block_ids, m.s.block_size, token);
		uint8_t *at = file + r * bytes;

		if (slot < 0) {
			if (STORE)
				for (uint32_t i = lane; i < bytes; i += 32)
					at[i] = 0;
			continue;
		}
		uint8_t *cache = (uint8_t *)m.pointers[kvcachefs_pointer(&m.s, layer, kv)] + kvcachefs_at(&m.s, layer, kv, (uint64_t)slot, head) * m.elem;

		if (STORE)
			copy_widest(at, cache, bytes, lane);
		else
			copy_widest(cache, at, bytes, lane);
	}
}

__device__ float get(const float *p) { return *p; }
__device__ float get(const __half *p) { return __half2float(*p); }
__device__ float get(const __nv_bfloat16 *p) { return __bfloat162float(*p); }
__device__ void set(float *p, float v) { *p = v; }
__device__ void set(__half *p, float v) { *p = __float2half_rn(v); }
__device__ void set(__nv_bfloat16 *p, float v) { *p = __float2bfloat16_rn(v); }

/* One thread a pair of a head. Angles in double: positions go to millions, and a float's angle would be noise there. */
template <typename T> __global__ void rope_kernel(T *keys, uint64_t heads, uint32_t head_size, uint32_t dims, bool interleaved, double theta, double delta)
{
	uint32_t half = dims / 2;
	uint64_t n = heads * half;

	for (uint64_t k = (uint64_t)blockIdx.x * blockDim.x + threadIdx.x; k < n; k += (uint64_t)gridDim.x * blockDim.x) {
		uint32_t i = (uint32_t)(k % half);
		T *head = keys + k / half * head_size, *a = head + (interleaved ? 2 * i : i), *b = head + (interleaved ? 2 * i + 1 : i + half);
		double sin_, cos_, x = get(a), y = get(b);

		sincos(delta * pow(theta, -2.0 * i / dims), &sin_, &cos_);
		set(a, (float)(x * cos_ - y * sin_));
		set(b, (float)(y * cos_ + x * sin_));
	}
}

/* On the stream: between pinned memory and the file's pages. */
void CUDART_CB host_copy(void *arg)
{
	Piece *p = static_cast<Piece *>(arg);

	memcpy(p->store ? p->host : p->pinned, p->store ? p->pinned : p->host, p->len);
}

} // namespace

struct kvcachefs_cuda {
	int device;
	cudaStream_t stream;
	cudaEvent_t event = nullptr;
	bool queued = false, waited = false;
	void **pointers = nullptr; /* on the device */
	void **pointers_host = nullptr;
	int sms = 0;
	kvcachefs_paged p;
	kvcachefs_strides s;
	std::vector<Piece *> pieces;
};

namespace {

/* The caller's device is his again when a call ends. */
struct Device {
	int before = -1;
	explicit Device(int device)
	{
		cudaGetDevice(&before);
		cudaSetDevice(device);
	}
	~Device()
	{
		if (before >= 0)
			cudaSetDevice(before);
	}
};

int begin(kvcachefs_cuda *c)
{
	int n = 0;

	if (cudaGetDeviceCount(&n) != cudaSuccess || !n)
		return kvcachefs_fail(-ENODEV, "there is no CUDA device, or no driver for it");
	if (c->device >= n)
		return kvcachefs_fail(-ENODEV, "device %d: there are %d", c->device, n);
	Device here(c->device);

	TRY(cudaDeviceGetAttribute(&c->sms, cudaDevAttrMultiProcessorCount, c->device));
	TRY(cudaEventCreateWithFlags(&c->event, cudaEventDisableTiming));
	TRY(cudaMallocHost(&c->pointers_host, c->s.npointers * sizeof(void *)));
	memcpy(c->pointers_host, c->p.pointers, c->s.npointers * sizeof(void *));
	TRY(cudaMallocAsync(&c->pointers, c->s.npointers * sizeof(void *), c->stream));
	TRY(cudaMemcpyAsync(c->pointers, c->pointers_host, c->s.npointers * sizeof(void *), cudaMemcpyHostToDevice, c->stream));
	return 0;
}

int rotate(kvcachefs_cuda *c, void *keys, uint64_t heads, const kvcachefs_rope *r)
{
	uint32_t dims = r->dims ? r->dims : c->p.head_size, blocks = (uint32_t)c->sms * 8;

	if (dims % 2 || dims > c->p.head_size || !(r->theta > 0))
		return kvcachefs_fail(-EINVAL, "a rotation of %u of %u elements with base %g is none", dims, c->p.head_size, r->theta);
	if (r->type == KVCACHEFS_F32)
		rope_kernel<<<blocks, 256, 0, c->stream>>>((float *)keys, heads, c->p.head_size, dims, r->interleaved, r->theta, (double)r->delta);
	else if (r->type == KVCACHEFS_F16)
		rope_kernel<<<blocks, 256, 0, c->stream>>>((__half *)keys, heads, c->p.head_size, dims, r->interleaved, r->theta, (double)r->delta);
	else
		rope_kernel<<<blocks, 256, 0, c->stream>>>((__nv_bfloat16 *)keys, heads, c->p.head_size, dims, r->interleaved, r->theta, (double)r->delta);
	return failed(cudaGetLastError(), "rotating keys");
}

int queue(kvcachefs_cuda *c, Piece *p, uint32_t layer, uint32_t nlayers, const kvcachefs_tokens *t, uint64_t ntokens, const kvcachefs_rope *rope)
{
	Device here(c->device);
	Move m = { c->s, nullptr, nullptr, ntokens, t->skip, layer, nlayers, c->p.heads, c->p.head_size, c->p.elem, c->pointers };
	uint64_t runs = (uint64_t)c->s.kvs * nlayers * ntokens * (c->p.heads / c->s.run_heads), blocks = (runs + 7) / 8;
	int64_t *ids = nullptr;
	uint8_t *buffer = nullptr;
	size_t ids_len = t->n * sizeof *ids;

	/* Registered pages when the mount gives them; a mapping that another transfer of this process registered already will do too. */
	cudaError_t e = cudaHostRegister(p->host, p->len, p->store ? cudaHostRegisterDefault : cudaHostRegisterReadOnly);

	p->registered = e == cudaSuccess;
	if (e != cudaSuccess && e != cudaErrorHostMemoryAlreadyRegistered) {
		cudaGetLastError();
		TRY(cudaMallocHost(&p->pinned, p->len));
	} else {
		cudaGetLastError();
	}
	TRY(cudaMallocHost(&p->ids, ids_len ? ids_len : 1));
	memcpy(p->ids, t->slots ? t->slots : t->block_ids, ids_len);
	TRY(cudaMallocAsync(&ids, ids_len ? ids_len : 1, c->stream));
	TRY(cudaMallocAsync(&buffer, p->len, c->stream));
	TRY(cudaMemcpyAsync(ids, p->ids, ids_len, cudaMemcpyHostToDevice, c->stream));
	(t->slots ? m.slots : m.block_ids) = ids;
	if (blocks > (uint64_t)c->sms * 16)
		blocks = (uint64_t)c->sms * 16;
	void *side = p->pinned ? p->pinned : p->host;

	if (p->store) {
		move_kernel<true><<<(unsigned)blocks, 256, 0, c->stream>>>(m, buffer);
		TRY(cudaGetLastError());
		TRY(cudaMemcpyAsync(side, buffer, p->len, cudaMemcpyDeviceToHost, c->stream));
		if (p->pinned)
			TRY(cudaLaunchHostFunc(c->stream, host_copy, p));
	} else {
		if (p->pinned)
			TRY(cudaLaunchHostFunc(c->stream, host_copy, p));
		TRY(cudaMemcpyAsync(buffer, side, p->len, cudaMemcpyHostToDevice, c->stream));
		if (rope) {
			int err = rotate(c, buffer, (uint64_t)nlayers * ntokens * c->p.heads, rope);

			if (err)
				return err;
		}
		move_kernel<false><<<(unsigned)blocks, 256, 0, c->stream>>>(m, buffer);
		TRY(cudaGetLastError());
	}
	TRY(cudaFreeAsync(buffer, c->stream));
	TRY(cudaFreeAsync(ids, c->stream));
	return 0;
}

} // namespace

extern "C" int kvcachefs_cuda_new(struct kvcachefs_cuda **out, const struct kvcachefs_paged *p, const struct kvcachefs_strides *s, void *stream)
{
	kvcachefs_cuda *c = new (std::nothrow) kvcachefs_cuda();
	int err;

	if (!c)
		return kvcachefs_fail(-ENOMEM, "out of memory");
	c->device = p->device;
	c->stream = static_cast<cudaStream_t>(stream);
	c->p = *p;
	c->s = *s;
	err = begin(c);
	if (err) {
		kvcachefs_cuda_free(c);
		return err;
	}
	*out = c;
	return 0;
}

extern "C" int kvcachefs_cuda_move(struct kvcachefs_cuda *c, bool store, uint32_t layer, uint32_t nlayers, const struct kvcachefs_tokens *t, uint64_t ntokens,
				   void *host, uint64_t len, const struct kvcachefs_rope *rope)
{
	Piece *p = new (std::nothrow) Piece();

	if (!p)
		return kvcachefs_fail(-ENOMEM, "out of memory");
	p->host = host;
	p->len = len;
	p->store = store;
	c->pieces.push_back(p);
	return queue(c, p, layer, nlayers, t, ntokens, rope);
}

extern "C" int kvcachefs_cuda_queued(struct kvcachefs_cuda *c)
{
	Device here(c->device);

	TRY(cudaFreeAsync(c->pointers, c->stream));
	c->pointers = nullptr;
	TRY(cudaEventRecord(c->event, c->stream));
	c->queued = true;
	return 0;
}

extern "C" int kvcachefs_cuda_poll(struct kvcachefs_cuda *c)
{
	Device here(c->device);
	cudaError_t e = c->queued ? cudaEventQuery(c->event) : cudaErrorNotReady;

	return e == cudaErrorNotReady ? -EAGAIN : failed(e, "the transfer");
}

extern "C" int kvcachefs_cuda_wait(struct kvcachefs_cuda *c)
{
	Device here(c->device);

	if (!c->waited)
		TRY(c->queued ? cudaEventSynchronize(c->event) : cudaStreamSynchronize(c->stream));
	c->waited = true;
	return 0;
}

extern "C" void kvcachefs_cuda_free(struct kvcachefs_cuda *c)
{
	if (!c)
		return;
	if (c->sms) {
		Device here(c->device);

		kvcachefs_cuda_wait(c);
		for (Piece *p : c->pieces) {
			if (p->registered)
				cudaHostUnregister(p->host);
			cudaFreeHost(p->pinned);
			cudaFreeHost(p->ids);
		}
		if (c->pointers)
			cudaFreeAsync(c->pointers, c->stream);
		cudaFreeHost(c->pointers_host);
		if (c->event)
			cudaEventDestroy(c->event);
	}
	for (Piece *p : c->pieces)
		delete p;
	delete c;
}
