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
#include "kernels.cuh"
#include "lane.cuh"
#include "order.cuh"

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

struct Piece { /* one piece of a file, for the host */
	uint8_t *host;
	size_t len, at;
	bool pinned;
};

struct Group {
	std::vector<Piece> pieces;
	size_t first_part, bytes, runs; /* runs: the most of a piece */
	bool rotates, staged;
};

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
	int err = check_device(device);

	if (err)
		return err;
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
