/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The work of one transfer on a device. A file's bytes are rows (a token's of one layer and
 * component), and those runs (kvcachefs_at: what lies in a row in the cache as in the file). A
 * transfer is cut into pieces of whole rows, and pieces are gathered into groups of at most BUFFER
 * bytes. The two buffers on the device take turns:
 *
 *   load    copies:               file pages -> buffer (one batch a group)
 *           the caller's stream:  rotate keys, scatter to the cache
 *   store   the caller's stream:  gather from the cache -> buffer
 *           copies:               buffer -> file pages
 *
 * Copies have a stream of their own, so that one group is copied while the other is scattered or
 * gathered; events order the two. A load's copies do not wait for what the caller queued before; a
 * load is complete on the caller's stream when all is scattered, a store leaves that stream when
 * all is gathered and is complete when all is copied.
 *
 * A file's mapping is registered (pinned for the device) where the mount takes that, and the copy
 * engine moves its very pages. Otherwise, and for small files of a store, where registering would
 * cost more than a copy, the bytes pass through pinned memory, moved by a host function on the
 * stream of copies.
 *
 * All this (stream, events, buffers, pinned memory) is a lane. A transfer takes one for itself;
 * lanes are kept for the next. Calls that wait: kvcachefs_cuda_wait, _free, and what makes a lane
 * or registers memory.
 */
#include "layout.h"

#include <cuda.h>
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include <map>
#include <mutex>
#include <new>
#include <vector>

#ifndef KVCACHEFS_LAUNCH /* tests have their own */
#define KVCACHEFS_LAUNCH(kernel, grid, block, stream, ...) \
	kernel<<<grid, block, 0, stream>>>(__VA_ARGS__)
#endif

namespace {

constexpr size_t BUFFER = 8u << 20, LANES_KEPT = 8, ALIGN = 256;
constexpr size_t STAGED = 256u << 10; /* files of a store below this are not registered */

struct Shape { /* of a cache, for the kernels */
	kvcachefs_strides s;
	uint32_t elem;
	void *const *pointers;
};

struct Part { /* one piece of a file, for the kernels */
	const int64_t *slots, *block_ids;
	uint64_t ntokens, skip, first, rows; /* rows [first, first + rows) of the file */
	uint64_t at;                         /* where it is in the buffer */
	uint32_t shape;                      /* which cache */
	uint32_t layer, nlayers;
	/* cos and sin of each pair; NULL: keys are not rotated */
	const float *turns;
	uint64_t key_rows; /* the file's first so many rows have keys */
	uint32_t turn_first, turn_dims, type;
	bool interleaved;
	bool by_slots; /* for the host: which of slots and block_ids is to become an address */
};

struct Piece { /* the same for the host */
	uint8_t *host;
	size_t len, at;
	bool pinned;
};

struct Group {
	std::vector<Piece> pieces;
	size_t first_part, bytes, runs; /* runs: the most of a piece */
	bool rotates, staged;
};

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

/* ---- Kernels ---- */

template <typename T>
__device__ void copy_run(void *to, const void *from, uint32_t bytes, uint32_t lane)
{
	for (uint32_t i = lane; i < bytes / sizeof(T); i += 32)
		static_cast<T *>(to)[i] = static_cast<const T *>(from)[i];
}

/* One warp moves one run, in the widest pieces that its length and both addresses allow. */
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

/* blockIdx.y is the part. */
template <bool STORE>
__global__ void move_kernel(const Shape *__restrict__ shapes, const Part *__restrict__ parts,
			    uint8_t *buffer)
{
	const Part p = parts[blockIdx.y];
	const Shape &c = shapes[p.shape];
	uint64_t warps = (uint64_t)gridDim.x * (blockDim.x / 32),
		 row_bytes = (uint64_t)c.s.heads * c.s.width * c.elem;
	uint32_t lane = threadIdx.x % 32;

	for (uint64_t i = (uint64_t)blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32;
	     i < p.rows * c.s.runs; i += warps) {
		uint64_t row = p.first + i / c.s.runs, token = row % p.ntokens,
			 rest = row / p.ntokens;
		uint32_t layer = p.layer + (uint32_t)(rest % p.nlayers),
			 kv = (uint32_t)(rest / p.nlayers);
		int64_t slot = token < p.skip ? -1
					      : kvcachefs_slot(p.slots, p.block_ids, c.s.block_size,
							       token);
		kvcachefs_run r = kvcachefs_at(&c.s, layer, kv, slot < 0 ? 0 : (uint64_t)slot,
					       (uint32_t)(i % c.s.runs));
		uint8_t *at = buffer + p.at + i / c.s.runs * row_bytes + (uint64_t)r.at * c.elem;
		uint32_t bytes = r.len * c.elem;

		if (slot < 0) {
			/* what is not there is zero, and never what was in memory before */
			if (STORE)
				for (uint32_t k = lane; k < bytes; k += 32)
					at[k] = 0;
			continue;
		}
		uint8_t *cache = (uint8_t *)c.pointers[r.pointer] + r.offset * c.elem;

		if (STORE)
			copy_widest(at, cache, bytes, lane);
		else
			copy_widest(cache, at, bytes, lane);
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

/* One thread a pair of a head. */
__global__ void rope_kernel(const Shape *__restrict__ shapes, const Part *__restrict__ parts,
			    uint8_t *buffer)
{
	const Part p = parts[blockIdx.y];
	const Shape &c = shapes[p.shape];
	uint64_t from = (uint64_t)blockIdx.x * blockDim.x + threadIdx.x,
		 step = (uint64_t)gridDim.x * blockDim.x;
	uint64_t rows = !p.turns || p.first >= p.key_rows ? 0
			: p.key_rows - p.first < p.rows   ? p.key_rows - p.first
							  : p.rows;
	uint64_t heads = rows * c.s.heads;
	uint8_t *keys = buffer + p.at;

	switch (p.type) {
	case KVCACHEFS_F32: rotate((float *)keys, p, heads, c.s.width, from, step); break;
	case KVCACHEFS_F16: rotate((__half *)keys, p, heads, c.s.width, from, step); break;
	case KVCACHEFS_BF16: rotate((__nv_bfloat16 *)keys, p, heads, c.s.width, from, step); break;
	case KVCACHEFS_E4M3: rotate((E4m3 *)keys, p, heads, c.s.width, from, step); break;
	case KVCACHEFS_E5M2: rotate((E5m2 *)keys, p, heads, c.s.width, from, step); break;
	}
}

/* ---- Lanes ---- */

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

struct kvcachefs_cuda {
	Lane *lane = nullptr;
	cudaStream_t stream;
	int device;
	bool store, batches = false, queued = false, waited = false, begun = false;
	int result = 0; /* of a poll or wait that failed: it stays so */
	std::vector<kvcachefs_work> work;
	std::vector<void *> registered; /* by this transfer: a store's mappings */
	std::vector<Group> groups;
	struct Stage { /* what a host function moves */
		kvcachefs_cuda *c;
		size_t group;
		uint8_t *staging;
	};
	std::vector<Stage> stages;
};

namespace {

/* On the stream of copies: between pinned memory and the file's pages. */
void CUDART_CB host_copy(void *arg)
{
	kvcachefs_cuda::Stage *s = static_cast<kvcachefs_cuda::Stage *>(arg);

	for (const Piece &p : s->c->groups[s->group].pieces)
		if (!p.pinned)
			memcpy(s->c->store ? p.host : s->staging + p.at,
			       s->c->store ? s->staging + p.at : p.host, p.len);
}

/*
 * Lays out the memory that the kernels read: pointers, ids, turns, parts. On the host it is filled,
 * on the device it is the same.
 */
struct Args {
	std::vector<uint8_t> bytes;
	size_t add(const void *p, size_t len)
	{
		size_t at = (bytes.size() + 15) / 16 * 16;

		bytes.resize(at + len);
		if (len)
			memcpy(bytes.data() + at, p, len);
		return at;
	}
};

/* Where each rotation's turns are among the arguments; the host's are held until all is copied. */
struct Turns {
	std::map<const kvcachefs_turns *, size_t> at;
	~Turns()
	{
		for (auto &t : at)
			kvcachefs_turns_put(t.first);
	}
	int add(Args *a, const kvcachefs_rope *r, uint32_t head_size, const kvcachefs_turns **out,
		size_t *where)
	{
		int err = kvcachefs_turns_get(r, head_size, out);

		if (err)
			return err;
		auto i = at.find(*out);

		if (i != at.end()) {
			kvcachefs_turns_put(*out);
		} else {
			std::vector<float> v((*out)->v, (*out)->v + (*out)->dims);

			i = at.emplace(*out, a->add(v.data(), v.size() * sizeof(float))).first;
		}
		*where = i->second;
		return 0;
	}
};

/*
 * The shape of a cache, once; its pointers are an offset among the arguments until they are an
 * address.
 */
uint32_t shape_of(Args *a, std::map<const kvcachefs_strides *, uint32_t> *known,
		  std::vector<Shape> *shapes, const kvcachefs_work &w)
{
	auto i = known->find(w.s);

	if (i == known->end()) {
		size_t at = a->add(w.p->pointers, w.s->npointers * sizeof(void *));

		shapes->push_back(Shape{ *w.s, w.p->elem, (void *const *)at });
		i = known->emplace(w.s, (uint32_t)shapes->size() - 1).first;
	}
	return i->second;
}

/*
 * Cuts the work into groups and makes the kernels' arguments; offsets become addresses once the
 * lane's memory is there.
 */
int cut(kvcachefs_cuda *c, Args *a, std::vector<Part> *parts, std::vector<Shape> *shapes)
{
	std::map<const kvcachefs_strides *, uint32_t> known;
	Turns turns;
	Group *g = nullptr;

	for (const kvcachefs_work &w : c->work) {
		const kvcachefs_tokens *t = &w.item->tokens;
		const kvcachefs_rope *r = c->store ? nullptr : w.item->rope;
		const kvcachefs_turns *turn = nullptr;
		size_t row = (size_t)w.s->heads * w.s->width * w.p->elem, most = BUFFER / row,
		       where = 0;
		size_t ids = a->add(t->slots ? t->slots : t->block_ids, t->n * sizeof(int64_t));
		uint32_t shape = shape_of(a, &known, shapes, w);
		uint64_t rows = w.len / row;
		int err = r ? turns.add(a, r, w.p->head_size, &turn, &where) : 0;

		if (!err && !most)
			err = kvcachefs_fail(-EINVAL,
					     "a token of %zu bytes does not fit the buffer of %zu",
					     row, BUFFER);
		if (err)
			return err;
		for (uint64_t first = 0, n; first < rows; first += n) {
			Part p = {};

			n = rows - first < most ? rows - first : most;
			if (!g || g->bytes + n * row > BUFFER) {
				c->groups.push_back(Group{ {}, parts->size(), 0, 0, false, false });
				g = &c->groups.back();
			}
			(t->slots ? p.slots : p.block_ids) = (const int64_t *)ids;
			p.by_slots = t->slots != nullptr;
			p.ntokens = w.ntokens;
			p.skip = t->skip;
			p.first = first;
			p.rows = n;
			p.at = g->bytes;
			p.shape = shape;
			p.layer = w.item->layer;
			p.nlayers = w.item->nlayers;
			p.key_rows = rows / w.s->kvs;
			if (r) {
				p.turns = (const float *)where;
				p.turn_first = turn->first;
				p.turn_dims = turn->dims;
				p.type = r->type;
				p.interleaved = r->interleaved;
				g->rotates = true;
			}
			parts->push_back(p);
			g->pieces.push_back(Piece{ (uint8_t *)w.host + first * row, n * row,
						   (size_t)p.at, w.pinned });
			g->staged |= !w.pinned;
			g->runs = g->runs > n * w.s->runs ? g->runs : n * w.s->runs;
			g->bytes = (g->bytes + n * row + ALIGN - 1) / ALIGN * ALIGN;
		}
	}
	return 0;
}

/* One group's copies, all in one call where the toolkit and the driver have that. */
int copy_group(kvcachefs_cuda *c, const Group &g, int b)
{
	Lane *l = c->lane;
	std::vector<void *> to;
	std::vector<const void *> from;
	std::vector<size_t> len;

	for (const Piece &p : g.pieces) {
		uint8_t *host = p.pinned ? p.host : l->staging[b] + p.at,
			*device = l->buffer[b] + p.at;

		to.push_back(c->store ? host : device);
		from.push_back(c->store ? device : host);
		len.push_back(p.len);
	}
#if CUDART_VERSION >= 12080
	if (to.size() > 1 && c->batches) {
		cudaMemcpyAttributes how = {};
		size_t all = 0;
		cudaError_t e;

		how.srcAccessOrder = cudaMemcpySrcAccessOrderStream;
#if CUDART_VERSION >= 13000
		e = cudaMemcpyBatchAsync(to.data(), from.data(), len.data(), to.size(), &how, &all,
					 1, l->copies);
#else
		size_t bad;

		e = cudaMemcpyBatchAsync(to.data(), const_cast<void **>(from.data()), len.data(),
					 to.size(), &how, &all, 1, &bad, l->copies);
#endif
		return failed(e, "copying a batch");
	}
#endif
	for (size_t i = 0; i < to.size(); i++)
		TRY(cudaMemcpyAsync(to[i], from[i], len[i],
				    c->store ? cudaMemcpyDeviceToHost : cudaMemcpyHostToDevice,
				    l->copies));
	return 0;
}

int launch(kvcachefs_cuda *c, const Shape *shapes, const Part *parts, const Group &g, int b)
{
	Lane *l = c->lane;
	/* Eight runs a block of threads; no more blocks than keep the device busy. */
	uint64_t blocks = (g.runs + 7) / 8, busy = (uint64_t)l->sms * 16 / g.pieces.size() + 1;
	dim3 grid((unsigned)(blocks < busy ? blocks : busy), (unsigned)g.pieces.size());

	if (c->store) {
		KVCACHEFS_LAUNCH(move_kernel<true>, grid, 256, c->stream, shapes,
				 parts + g.first_part, l->buffer[b]);
	} else {
		if (g.rotates) {
			KVCACHEFS_LAUNCH(rope_kernel, grid, 256, c->stream, shapes,
					 parts + g.first_part, l->buffer[b]);
			TRY(cudaGetLastError());
		}
		KVCACHEFS_LAUNCH(move_kernel<false>, grid, 256, c->stream, shapes,
				 parts + g.first_part, l->buffer[b]);
	}
	return failed(cudaGetLastError(), "starting a kernel");
}

int queue_group(kvcachefs_cuda *c, const Shape *shapes, const Part *parts, size_t i)
{
	Lane *l = c->lane;
	const Group &g = c->groups[i];
	int b = (int)(i % 2);

	if (g.staged)
		c->stages[i] = { c, i, l->staging[b] };
	if (c->store) {
		if (i >= 2) /* the buffer is free when its last copy is made */
			TRY(cudaStreamWaitEvent(c->stream, l->copied[b], 0));
		if (int err = launch(c, shapes, parts, g, b))
			return err;
		TRY(cudaEventRecord(l->moved[b], c->stream));
		TRY(cudaStreamWaitEvent(l->copies, l->moved[b], 0));
		if (int err = copy_group(c, g, b))
			return err;
		if (g.staged)
			TRY(cudaLaunchHostFunc(l->copies, host_copy, &c->stages[i]));
		TRY(cudaEventRecord(l->copied[b], l->copies));
	} else {
		if (i >= 2)
			TRY(cudaStreamWaitEvent(l->copies, l->moved[b], 0));
		if (g.staged)
			TRY(cudaLaunchHostFunc(l->copies, host_copy, &c->stages[i]));
		if (int err = copy_group(c, g, b))
			return err;
		TRY(cudaEventRecord(l->copied[b], l->copies));
		TRY(cudaStreamWaitEvent(c->stream, l->copied[b], 0));
		if (int err = launch(c, shapes, parts, g, b))
			return err;
		TRY(cudaEventRecord(l->moved[b], c->stream));
	}
	return 0;
}

/* A store's mappings are new: those worth it are registered for this transfer. */
void register_stores(kvcachefs_cuda *c)
{
	for (kvcachefs_work &w : c->work)
		if (!w.pinned && w.len >= STAGED &&
		    !kvcachefs_cuda_register(c->device, w.host, w.len, false)) {
			w.pinned = true;
			c->registered.push_back(w.host);
		}
}

int run(kvcachefs_cuda *c)
{
	Args a;
	std::vector<Part> parts;
	std::vector<Shape> shapes;
	size_t at, len;
	int err;

	if (c->store)
		register_stores(c);
	err = cut(c, &a, &parts, &shapes);
	if (err)
		return err;
	at = a.add(nullptr, 0); /* the shapes and parts come after all that they point at */
	len = at + shapes.size() * sizeof(Shape) + 16 + parts.size() * sizeof(Part);
	err = lane_args(c->lane, len);
	for (const Group &g : c->groups)
		if (!err && g.staged)
			err = lane_staging(c->lane);
	if (err)
		return err;
	Lane *l = c->lane;
	uint8_t *device = (uint8_t *)l->args.p;

	for (Shape &s : shapes)
		s.pointers = (void *const *)(device + (uintptr_t)s.pointers);
	for (Part &p : parts) {
		if (p.by_slots)
			p.slots = (const int64_t *)(device + (uintptr_t)p.slots);
		else
			p.block_ids = (const int64_t *)(device + (uintptr_t)p.block_ids);
		if (p.turn_dims)
			p.turns = (const float *)(device + (uintptr_t)p.turns);
	}
	a.add(shapes.data(), shapes.size() * sizeof(Shape));
	const Part *parts_at =
		(const Part *)(device + a.add(parts.data(), parts.size() * sizeof(Part)));

	if (!a.bytes.empty())
		memcpy(l->args_host.p, a.bytes.data(), a.bytes.size());
	c->stages.resize(c->groups.size());
	c->begun = true;
	TRY(cudaMemcpyAsync(device, l->args_host.p, a.bytes.size(), cudaMemcpyHostToDevice,
			    l->copies));
	TRY(cudaEventRecord(l->ready, l->copies));
	TRY(cudaStreamWaitEvent(c->stream, l->ready, 0));
	for (size_t i = 0; i < c->groups.size(); i++)
		if ((err = queue_group(c, (const Shape *)(device + at), parts_at, i)))
			return err;
	TRY(cudaEventRecord(l->done, c->store ? l->copies : c->stream));
	c->queued = true;
	return 0;
}

/*
 * A stream that is being captured would make a graph of what must run now, and waiting for it
 * breaks the graph.
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

int open_transfer(kvcachefs_cuda *c)
{
	int driver = 0, err = check_stream(c->stream);

	if (err)
		return err;
	TRY(cudaDriverGetVersion(&driver));
	c->batches = driver >= 12080;
	return lane_get(c->device, &c->lane);
}

} // namespace

extern "C" int kvcachefs_cuda_register(int device, void *p, size_t len, bool readonly)
{
	Device here(device);
	int can = 0;
	cudaError_t e;

	if (here.err)
		return here.err;
	if (readonly && cudaDeviceGetAttribute(&can, cudaDevAttrHostRegisterReadOnlySupported,
					       device) != cudaSuccess)
		cudaGetLastError();
	e = cudaHostRegister(p, len,
			     cudaHostRegisterPortable | (can ? cudaHostRegisterReadOnly : 0));
	if (e != cudaSuccess)
		cudaGetLastError();
	return e == cudaSuccess ? 0 : -EFAULT;
}

extern "C" void kvcachefs_cuda_unregister(int device, void *p)
{
	Device here(device);

	if (cudaHostUnregister(p) != cudaSuccess)
		cudaGetLastError();
}

extern "C" int kvcachefs_cuda_new(struct kvcachefs_cuda **out, int device, bool store, void *stream)
{
	kvcachefs_cuda *c;
	int n = 0, err;

	if (cudaGetDeviceCount(&n) != cudaSuccess || !n) {
		cudaGetLastError();
		return kvcachefs_fail(-ENODEV, "there is no CUDA device, or no driver for it");
	}
	if (device >= n)
		return kvcachefs_fail(-ENODEV, "device %d: there are %d", device, n);
	Device here(device);

	if (here.err)
		return here.err;
	c = new (std::nothrow) kvcachefs_cuda();
	if (!c)
		return kvcachefs_fail(-ENOMEM, "out of memory");
	c->stream = static_cast<cudaStream_t>(stream);
	c->store = store;
	c->device = device;
	err = open_transfer(c);
	if (err) {
		delete c;
		return err;
	}
	*out = c;
	return 0;
}

extern "C" int kvcachefs_cuda_add(struct kvcachefs_cuda *c, const struct kvcachefs_work *w)
{
	try {
		c->work.push_back(*w);
	} catch (const std::bad_alloc &) {
		return kvcachefs_fail(-ENOMEM, "out of memory");
	}
	return 0;
}

extern "C" int kvcachefs_cuda_run(struct kvcachefs_cuda *c)
{
	Device here(c->device);

	try {
		return run(c);
	} catch (const std::bad_alloc &) {
		return kvcachefs_fail(-ENOMEM, "out of memory");
	}
}

extern "C" int kvcachefs_cuda_poll(struct kvcachefs_cuda *c)
{
	Device here(c->device);
	cudaError_t e;

	if (c->result || c->waited)
		return c->result;
	e = c->queued ? cudaEventQuery(c->lane->done) : cudaErrorNotReady;
	if (e == cudaErrorNotReady) {
		cudaGetLastError();
		return -EAGAIN;
	}
	return c->result = failed(e, "the transfer");
}

namespace {

int wait_for(kvcachefs_cuda *c)
{
	if (c->queued) {
		TRY(cudaEventSynchronize(c->lane->done));
		return 0;
	}
	/* It ended half way: nothing may still read or write the buffers or the files. */
	TRY(cudaStreamSynchronize(c->stream));
	TRY(cudaStreamSynchronize(c->lane->copies));
	return 0;
}

} // namespace

extern "C" int kvcachefs_cuda_wait(struct kvcachefs_cuda *c)
{
	Device here(c->device);

	if (!c->waited && c->begun) {
		int err = wait_for(c);

		if (!c->result)
			c->result = err;
	}
	c->waited = true;
	return c->result;
}

extern "C" void kvcachefs_cuda_free(struct kvcachefs_cuda *c)
{
	if (!c)
		return;
	Device here(c->device);
	int err = kvcachefs_cuda_wait(c);

	for (void *p : c->registered)
		kvcachefs_cuda_unregister(c->device, p);
	if (err)
		lane_free(c->lane);
	else
		lane_put(c->lane);
	delete c;
}
