/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Kernels: gather and scatter of runs, and the rotation of keys, for the parts of a group. Part of
 * cuda.cu, the only file that includes it.
 */
#pragma once

#include "layout.h"

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

namespace {

struct Shape { /* of a cache, for the kernels */
	kvcachefs_strides s;
	uint32_t elem;
	void *const *pointers;
};

struct Part { /* one piece of a file, for the kernels */
	const int64_t *slots, *block_ids;
	uint64_t ntokens, skip, first, rows; /* rows [first, first + rows) of the file */
	/* the byte of its first row at which the piece begins; 0 unless that row is cut */
	uint64_t row_from;
	uint8_t *at;    /* its place in the buffer */
	uint8_t *page;  /* its place in the file, for pages_kernel */
	uint64_t len;   /* bytes of the piece */
	uint32_t shape; /* number of its cache */
	uint32_t layer, nlayers;
	/* cos and sin of each pair; NULL: keys are not rotated */
	const float *turns;
	uint64_t key_rows; /* how many of the file's first rows have keys */
	uint32_t turn_first, turn_dims, type;
	bool interleaved;
	bool by_slots; /* for the host: which of slots and block_ids must become an address */
};

/*
 * Copies units i, i + step, ... of n. Four loads are in flight before the first store: with one
 * load at a time, the thread would mostly wait for memory, and even more so over the link to the
 * host.
 */
template <typename T>
__device__ void copy_units(T *to, const T *from, uint64_t n, uint64_t i, uint64_t step)
{
	for (; i + 3 * step < n; i += 4 * step) {
		T a = from[i], b = from[i + step], c = from[i + 2 * step], d = from[i + 3 * step];

		to[i] = a;
		to[i + step] = b;
		to[i + 2 * step] = c;
		to[i + 3 * step] = d;
	}
	for (; i < n; i += step)
		to[i] = from[i];
}

/*
 * Copies one span with `step` threads; this is thread i. Uses the widest units that both addresses
 * allow, and bytes for the rest.
 */
__device__ void copy_widest(uint8_t *to, const uint8_t *from, uint64_t bytes, uint64_t i,
			    uint64_t step)
{
	uintptr_t both = (uintptr_t)to | (uintptr_t)from;
	uint64_t done = bytes / 16 * 16;

	if (both % 16 == 0)
		copy_units((uint4 *)to, (const uint4 *)from, bytes / 16, i, step);
	else if (both % 8 == 0)
		copy_units((uint2 *)to, (const uint2 *)from, done / 8, i, step);
	else if (both % 4 == 0)
		copy_units((uint32_t *)to, (const uint32_t *)from, done / 4, i, step);
	else if (both % 2 == 0)
		copy_units((uint16_t *)to, (const uint16_t *)from, done / 2, i, step);
	else
		done = 0;
	copy_units(to + done, from + done, bytes - done, i, step);
}

/*
 * A run longer than this is copied by several teams, so that one page of many bytes keeps as many
 * warps busy as many short runs.
 */
constexpr uint32_t UNIT = 8192;

/* Returns the number of units of the longest run. */
__host__ __device__ inline uint64_t units_of(const kvcachefs_strides &s, uint32_t elem)
{
	uint64_t run = s.planes ? s.width : s.run;

	return (run * elem + UNIT - 1) / UNIT;
}

/*
 * Returns how many threads copy a unit of a run: the smallest power of two with at most 64 bytes
 * (four times 16) for each thread, but at least 2 (a sector of 32 bytes) and at most a warp.
 */
__host__ __device__ inline uint32_t team_of(const kvcachefs_strides &s, uint32_t elem)
{
	uint64_t bytes = s.planes ? UNIT : (uint64_t)s.run * elem;
	uint32_t n = 2;

	while (n < 32 && n * 64 < bytes)
		n *= 2;
	return n;
}

struct Span { /* bytes of a run */
	uint64_t from, to;
};

/*
 * Returns the bytes of unit `unit` of a run of `bytes` bytes that begins at byte `at` of its row.
 */
__device__ inline Span span_of(const Part &p, uint64_t row_bytes, uint64_t at, uint64_t bytes,
			       uint64_t unit)
{
	uint64_t from = unit * UNIT, to = from + UNIT < bytes ? from + UNIT : bytes,
		 end = p.row_from + p.len; /* of the piece, if it is a part of a row */

	if (p.rows == 1 && p.len < row_bytes) {
		uint64_t least = at < p.row_from ? p.row_from - at : 0,
			 most = at < end ? end - at : 0;

		from = from < least ? least : from;
		to = to < most ? to : most;
	}
	return { from, from < to ? to : from };
}

/* blockIdx.y is the part. A team of threads copies a unit of a run. */
template <bool STORE>
__global__ void move_kernel(const Shape *__restrict__ shapes, const Part *__restrict__ parts)
{
	const Part p = parts[blockIdx.y];
	const Shape &c = shapes[p.shape];
	uint32_t team = team_of(c.s, c.elem), me = threadIdx.x % team;
	uint64_t teams = (uint64_t)gridDim.x * (blockDim.x / team),
		 row_bytes = (uint64_t)c.s.heads * c.s.width * c.elem,
		 units = units_of(c.s, c.elem);

	for (uint64_t k = (uint64_t)blockIdx.x * (blockDim.x / team) + threadIdx.x / team;
	     k < p.rows * c.s.runs * units; k += teams) {
		uint64_t i = k / units, row = p.first + i / c.s.runs, token = row % p.ntokens,
			 rest = row / p.ntokens;
		uint32_t layer = p.layer + (uint32_t)(rest % p.nlayers),
			 kv = (uint32_t)(rest / p.nlayers);
		int64_t slot = token < p.skip ? -1
					      : kvcachefs_slot(p.slots, p.block_ids, c.s.block_size,
							       token);
		kvcachefs_run r = kvcachefs_at(&c.s, layer, kv, slot < 0 ? 0 : (uint64_t)slot,
					       (uint32_t)(i % c.s.runs));
		uint64_t in_row = (uint64_t)r.at * c.elem;
		Span span = span_of(p, row_bytes, in_row, (uint64_t)r.len * c.elem, k % units);
		uint64_t bytes = span.to - span.from;
		uint8_t *at = p.at + i / c.s.runs * row_bytes + (in_row + span.from - p.row_from);

		if (!bytes)
			continue;
		if (slot < 0) {
			/*
			 * missing tokens become zero, so that no earlier memory content is stored
			 */
			if (STORE)
				for (uint64_t b = me; b < bytes; b += team)
					at[b] = 0;
			continue;
		}
		uint8_t *cache = (uint8_t *)c.pointers[r.pointer] + r.offset * c.elem + span.from;

		if (STORE)
			copy_widest(at, cache, bytes, me, team);
		else
			copy_widest(cache, at, bytes, me, team);
	}
}

/* Copies between the buffer and the pages of n files. */
template <bool STORE> __global__ void pages_kernel(const Part *__restrict__ parts, uint32_t n)
{
	for (uint32_t k = blockIdx.x; k < n; k += gridDim.x) {
		const Part &p = parts[k];

		copy_widest(STORE ? p.page : p.at, STORE ? p.at : p.page, p.len, threadIdx.x,
			    blockDim.x);
	}
}

struct E4m3 {
	uint8_t bits;
};
struct E5m2 {
	uint8_t bits;
};

/* clang-format off: a table */
__device__ float get(const E4m3 *p)
{
	return kvcachefs_from_fp8(p->bits, false);
}
__device__ float get(const E5m2 *p)
{
	return kvcachefs_from_fp8(p->bits, true);
}
__device__ void set(E4m3 *p, float v)
{
	p->bits = kvcachefs_to_fp8(v, false);
}
__device__ void set(E5m2 *p, float v)
{
	p->bits = kvcachefs_to_fp8(v, true);
}
__device__ float get(const float *p)
{
	return *p;
}
__device__ float get(const __half *p)
{
	return __half2float(*p);
}
__device__ float get(const __nv_bfloat16 *p)
{
	return __bfloat162float(*p);
}
__device__ void set(float *p, float v)
{
	*p = v;
}
__device__ void set(__half *p, float v)
{
	*p = __float2half_rn(v);
}
__device__ void set(__nv_bfloat16 *p, float v)
{
	*p = __float2bfloat16_rn(v);
}
/* clang-format on */

template <typename T>
__device__ void rotate(T *keys, const Part &p, uint64_t heads, uint32_t width, uint64_t from,
		       uint64_t step)
{
	uint32_t half = p.turn_dims / 2;

	for (uint64_t k = from; k < heads * half; k += step) {
		uint32_t i = (uint32_t)(k % half);
		T *head = keys + k / half * width + p.turn_first;
		T *a = head + (p.interleaved ? 2 * i : i),
		  *b = head + (p.interleaved ? 2 * i + 1 : i + half);
		float x = get(a), y = get(b), cos_ = p.turns[2 * i], sin_ = p.turns[2 * i + 1];

		set(a, x * cos_ - y * sin_);
		set(b, y * cos_ + x * sin_);
	}
}

/* One thread per pair of a head. */
__global__ void rope_kernel(const Shape *__restrict__ shapes, const Part *__restrict__ parts)
{
	const Part p = parts[blockIdx.y];
	const Shape &c = shapes[p.shape];
	uint64_t from = (uint64_t)blockIdx.x * blockDim.x + threadIdx.x,
		 step = (uint64_t)gridDim.x * blockDim.x;
	uint64_t rows = !p.turns || p.first >= p.key_rows ? 0
			: p.key_rows - p.first < p.rows   ? p.key_rows - p.first
							  : p.rows;
	uint64_t heads = rows * c.s.heads;
	uint8_t *keys = p.at;

	switch (p.type) {
	case KVCACHEFS_F32: rotate((float *)keys, p, heads, c.s.width, from, step); break;
	case KVCACHEFS_F16: rotate((__half *)keys, p, heads, c.s.width, from, step); break;
	case KVCACHEFS_BF16: rotate((__nv_bfloat16 *)keys, p, heads, c.s.width, from, step); break;
	case KVCACHEFS_E4M3: rotate((E4m3 *)keys, p, heads, c.s.width, from, step); break;
	case KVCACHEFS_E5M2: rotate((E5m2 *)keys, p, heads, c.s.width, from, step); break;
	}
}

} // namespace
