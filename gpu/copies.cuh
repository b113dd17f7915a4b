/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Copies of a group's bytes between the pages of files and the device's buffer, on the copy stream.
 * There is one function per way: a batch, a kernel, or pinned memory with a thread on the host
 * (stage.cuh). Part of cuda.cu, the only file that includes it.
 */
#pragma once

#include "kernels.cuh"
#include "object.cuh"

#include <atomic>

#ifndef KVCACHEFS_LAUNCH /* tests define their own */
#define KVCACHEFS_LAUNCH(kernel, grid, block, stream, ...) \
	kernel<<<grid, block, 0, stream>>>(__VA_ARGS__)
#endif

namespace {

/*
 * The numbers that kvcachefs_gpu_stats() reports. They are independent, so no memory order is
 * needed.
 */
struct Counts {
	std::atomic<uint64_t> pinned, direct, staged, refused, functions;
} counts;

CUdeviceptr address(const Word *w)
{
	return (CUdeviceptr)(uintptr_t)&w->value; /* host and device share one address space */
}

int driver_failed(CUresult r, const char *what)
{
	return r == CUDA_SUCCESS ? 0 : kvcachefs_fail(-EIO, "CUDA: %s: error %d", what, (int)r);
}

/*
 * Copies the pieces of a group, with one call if the toolkit and the driver support that. staging:
 * the group's place in pinned memory; NULL: the files' own pages.
 */
int copy_batch(kvcachefs_cuda *c, const Group &g, uint8_t *staging)
{
	Lane *l = c->lane;
	std::vector<void *> &to = c->to;
	std::vector<const void *> &from = c->from;
	std::vector<size_t> &len = c->len;

	to.clear();
	from.clear();
	len.clear();
	for (size_t i = 0; i < g.n; i++) {
		const Piece &p = c->cut.pieces[g.first + i];
		uint8_t *device = p.cache ? p.cache : (uint8_t *)l->buffer.p + g.at + p.at,
			*host = staging ? staging + p.at : host_of(p);

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

int queue_function(kvcachefs_cuda *c, cudaHostFn_t fn, size_t k)
{
	counts.functions.fetch_add(1, std::memory_order_relaxed);
	TRY(cudaLaunchHostFunc(c->lane->copies, fn, &c->lane->stage->numbers[k]));
	return 0;
}

/* The stream waits until the thread is done with staged group k. */
int await_thread(kvcachefs_cuda *c, size_t k)
{
	Lane *l = c->lane;

	if (!c->driver.wait_value)
		return queue_function(c, stage_await, k);
	return driver_failed(c->driver.wait_value(l->copies, address(l->stage->handled),
						  c->base + (uint32_t)k + 1,
						  CU_STREAM_WAIT_VALUE_GEQ),
			     "cuStreamWaitValue32");
}

/* The stream tells the thread that group k was copied. */
int tell_thread(kvcachefs_cuda *c, size_t k)
{
	Lane *l = c->lane;

	if (!c->driver.write_value)
		return queue_function(c, stage_tell, k);
	return driver_failed(c->driver.write_value(l->copies, address(l->stage->copied),
						   c->base + (uint32_t)k + 1,
						   CU_STREAM_WRITE_VALUE_DEFAULT),
			     "cuStreamWriteValue32");
}

/*
 * Queues one copy of the whole group, or one for each part. The copy waits until the thread is done
 * with this memory, and then tells the thread.
 */
int copy_staged(kvcachefs_cuda *c, const Group &g)
{
	Lane *l = c->lane;
	uint8_t *device = g.parts ? nullptr : (uint8_t *)l->buffer.p + g.at,
		*host = (uint8_t *)l->staging.p + g.staging_at;
	size_t k = g.staged;

	if (c->store)
		k = g.staging_after == NONE ? NONE : c->cut.groups[g.staging_after].staged;
	if (k != NONE)
		if (int err = await_thread(c, k))
			return err;
	if (g.parts) {
		if (int err = copy_batch(c, g, host))
			return err;
	} else {
		TRY(cudaMemcpyAsync(c->store ? host : device, c->store ? device : host, g.bytes,
				    c->store ? cudaMemcpyDeviceToHost : cudaMemcpyHostToDevice,
				    l->copies));
	}
	if (!c->store && !g.leaves) /* no later group uses this place */
		return 0;
	return tell_thread(c, g.staged);
}

/* Uses a few blocks only: the link to the host is saturated long before the device is busy. */
int copy_direct(kvcachefs_cuda *c, const Group &g, const Part *parts)
{
	uint32_t n = (uint32_t)g.n;
	dim3 grid(n < 64 ? n : 64);

	if (c->store)
		KVCACHEFS_LAUNCH(pages_kernel<true>, grid, 256, c->lane->copies, parts + g.args, n);
	else
		KVCACHEFS_LAUNCH(pages_kernel<false>, grid, 256, c->lane->copies, parts + g.args,
				 n);
	return failed(cudaGetLastError(), "starting a kernel");
}

int copy_group(kvcachefs_cuda *c, const Group &g, const Part *parts)
{
	switch (g.way) {
	case Way::DIRECT: return copy_direct(c, g, parts);
	case Way::STAGED: return copy_staged(c, g);
	default: return copy_batch(c, g, nullptr);
	}
}

void count(const kvcachefs_cuda *c, const Group &g)
{
	std::atomic<uint64_t> *n = g.way == Way::STAGED   ? &counts.staged
				   : g.way == Way::DIRECT ? &counts.direct
							  : &counts.pinned;
	uint64_t bytes = 0;

	for (size_t i = 0; i < g.n; i++)
		bytes += c->cut.pieces[g.first + i].len;
	n->fetch_add(bytes, std::memory_order_relaxed);
}

/* Adds a copy to the group whose first copy is number `first`, or extends the group's last copy. */
void add_copy(std::vector<kvcachefs_copy> &v, size_t first, const kvcachefs_copy &c)
{
	kvcachefs_copy *last = v.size() > first ? &v.back() : nullptr;

	if (last && (uint8_t *)last->to + last->len == c.to &&
	    (c.from ? last->from && (const uint8_t *)last->from + last->len == c.from
		    : !last->from && last->fd == c.fd && last->offset + last->len == c.offset))
		last->len += c.len;
	else
		v.push_back(c);
}

/* Gives the thread its copies, and the groups that each must wait for. */
int start_stage(kvcachefs_cuda *c)
{
	Stage *s = c->lane->stage.get();

	s->groups.clear();
	s->copies.clear();
	for (const Group &g : c->cut.groups) {
		if (g.way != Way::STAGED)
			continue;
		uint8_t *memory = (uint8_t *)c->lane->staging.p + g.staging_at;
		size_t after = c->store                  ? g.staged
			       : g.staging_after == NONE ? NONE
							 : c->cut.groups[g.staging_after].staged;

		size_t first = s->copies.size();

		for (size_t i = 0; i < g.n; i++) {
			const Piece &p = c->cut.pieces[g.first + i];

			add_copy(s->copies, first,
				 c->store ? kvcachefs_copy{ host_of(p), memory + p.at, p.len, -1, 0,
							    nullptr }
					  : kvcachefs_copy{ memory + p.at, host_of(p), p.len,
							    p.w->fd, p.from, p.w->item->path });
		}
		s->groups.push_back({ after, first, s->copies.size() - first });
	}
	if (int err = stage_start(c->lane->stage, &c->base))
		return err;
	c->staged = true;
	return 0;
}

} // namespace
