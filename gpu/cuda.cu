/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The work of one transfer on a device. The bytes of a file are rows (one token of one layer and
 * component), and rows consist of runs (kvcachefs_at: contiguous in the cache and in the file). A
 * transfer is cut into pieces of whole rows, and pieces are gathered into groups (groups.cuh). The
 * groups use a buffer on the device in turn:
 *
 *   load    copy stream:          file pages -> buffer (one batch per group)
 *           the caller's stream:  rotate keys, scatter to the cache
 *   store   the caller's stream:  gather from the cache -> buffer
 *           copy stream:          buffer -> file pages
 *
 * Copies have a separate stream, so that one group is copied while another is scattered or
 * gathered; events order the two streams. The copies of a load do not wait for work that the caller
 * queued before. A load is complete on the caller's stream when all is scattered. A store leaves
 * that stream when all is gathered, and is complete when all is copied.
 *
 * If a file's mapping is registered (pinned for the device), the copy engine accesses its pages
 * directly; for small files a kernel does, on the same stream. Otherwise, the bytes pass through
 * pinned memory, copied by threads of the library (stage.cuh). The same holds for files of a store
 * that were not prepared and for the first loads of a file, since registering them would cost more
 * than a copy.
 *
 * The parts of an item are contiguous in memory and in the file. They are copied in the same three
 * ways between the memory itself and the file's pages, without the buffer and without a gather.
 *
 * The stream, events, buffer, pinned memory and thread together are a lane. A transfer has a lane
 * for itself; lanes are kept for the next transfer. These calls wait: kvcachefs_cuda_wait,
 * kvcachefs_cuda_free, and calls that create a lane or register memory.
 */
#include "copies.cuh"
#include "order.cuh"

#include <cuda.h>
#include <cuda_runtime.h>

#include <new>

namespace {

int launch(kvcachefs_cuda *c, const Shape *shapes, const Part *parts, const Group &g)
{
	/* eight warps per block; no more blocks than keep the device busy */
	uint64_t blocks = (g.warps + 7) / 8, busy = (uint64_t)c->lane->sms * 16 / g.n + 1;
	dim3 grid((unsigned)(blocks < busy ? blocks : busy), (unsigned)g.n);

	if (c->store) {
		KVCACHEFS_LAUNCH(move_kernel<true>, grid, 256, c->stream, shapes, parts + g.args);
	} else {
		if (g.rotates) {
			KVCACHEFS_LAUNCH(rope_kernel, grid, 256, c->stream, shapes, parts + g.args);
			TRY(cudaGetLastError());
		}
		KVCACHEFS_LAUNCH(move_kernel<false>, grid, 256, c->stream, shapes, parts + g.args);
	}
	return failed(cudaGetLastError(), "starting a kernel");
}

/*
 * The copies access the caller's memory itself, so they follow the work on the caller's stream, and
 * the work that is queued there later follows them.
 */
int queue_parts(kvcachefs_cuda *c, const Part *parts, const Group &g, const Events &mine)
{
	Lane *l = c->lane;

	TRY(cudaEventRecord(mine.moved, c->stream));
	TRY(cudaStreamWaitEvent(l->copies, mine.moved, 0));
	if (int err = copy_group(c, g, parts))
		return err;
	TRY(cudaEventRecord(mine.copied, l->copies));
	TRY(cudaStreamWaitEvent(c->stream, mine.copied, 0));
	return 0;
}

int queue_group(kvcachefs_cuda *c, const Shape *shapes, const Part *parts, size_t i)
{
	Lane *l = c->lane;
	const Group &g = c->cut.groups[i];
	const Events &mine = l->events[i];

	if (g.parts)
		return queue_parts(c, parts, g, mine);
	if (c->store) {
		if (g.after != NONE) /* its place is free when the last copy from it is made */
			TRY(cudaStreamWaitEvent(c->stream, l->events[g.after].copied, 0));
		if (int err = launch(c, shapes, parts, g))
			return err;
		TRY(cudaEventRecord(mine.moved, c->stream));
		TRY(cudaStreamWaitEvent(l->copies, mine.moved, 0));
		if (int err = copy_group(c, g, parts))
			return err;
		TRY(cudaEventRecord(mine.copied, l->copies));
	} else {
		if (g.after != NONE)
			TRY(cudaStreamWaitEvent(l->copies, l->events[g.after].moved, 0));
		if (int err = copy_group(c, g, parts))
			return err;
		TRY(cudaEventRecord(mine.copied, l->copies));
		TRY(cudaStreamWaitEvent(c->stream, mine.copied, 0));
		if (int err = launch(c, shapes, parts, g))
			return err;
		TRY(cudaEventRecord(mine.moved, c->stream));
	}
	return 0;
}

/*
 * Queues the groups in order. After a failure, the staged groups that wait only for queued work are
 * still finished; for a load this includes the failed group, since a stream may wait for it.
 */
int queue_groups(kvcachefs_cuda *c, const Shape *shapes, const Part *parts)
{
	for (size_t i = 0; i < c->cut.groups.size(); i++) {
		const Group &g = c->cut.groups[i];
		int err = queue_group(c, shapes, parts, i);

		if (!err) {
			count(c, g);
			continue;
		}
		for (size_t k = i; c->staged && k < c->cut.groups.size(); k++)
			if (c->cut.groups[k].way == Way::STAGED) {
				size_t n = c->cut.groups[k].staged;

				stage_close(c->lane->stage.get(), n + (k == i && !c->store));
				break;
			}
		return err;
	}
	return 0;
}

/* Gets the size below which a kernel copies: DIRECT, or the value of the environment variable. */
int direct_below(size_t *out)
{
	const char *text = getenv("KVCACHEFS_GPU_DIRECT");
	char *end;

	*out = DIRECT;
	if (!text)
		return 0;
	*out = strtoull(text, &end, 10);
	return *text >= '0' && *text <= '9' && !*end
		       ? 0
		       : kvcachefs_fail(-EINVAL,
					"KVCACHEFS_GPU_DIRECT='%.20s' is not a number of bytes",
					text);
}

/*
 * May mappings be registered? The environment variable can force staging, to compare, or if a
 * driver's registrations are faulty. < 0: its value is invalid.
 */
int registering()
{
	const char *text = getenv("KVCACHEFS_GPU_REGISTER");

	return !text ? 1 : !strcmp(text, "off") ? 0 : -1;
}

/* Returns the device's address of a registered mapping; NULL: there is none. */
uint8_t *page_of(const kvcachefs_cuda *c, const kvcachefs_work &w)
{
	void *page = w.host;

	if (c->lane->one_address || cudaHostGetDevicePointer(&page, w.host, 0) == cudaSuccess)
		return (uint8_t *)page;
	cudaGetLastError(); /* then it is copied like larger files */
	return nullptr;
}

/* Lists the files, and finds those that a kernel can access. */
int find_pages(kvcachefs_cuda *c)
{
	size_t below;

	if (int err = direct_below(&below))
		return err;
	if (registering() < 0)
		return kvcachefs_fail(-EINVAL,
				      "KVCACHEFS_GPU_REGISTER='%.20s': the only value is off",
				      getenv("KVCACHEFS_GPU_REGISTER"));
	for (const kvcachefs_work &w : c->work)
		c->moves.push_back({ &w,
				     w.pinned && (!w.p || w.len < below) ? page_of(c, w) : nullptr,
				     below });
	return 0;
}

/* Gets everything that the transfer needs from the lane. */
int prepare(kvcachefs_cuda *c, size_t args)
{
	Lane *l = c->lane;
	int err = lane_args(l, args);

	if (!err && bytes_of(c->cut))
		err = lane_buffer(l, bytes_of(c->cut), largest_of(c->cut));
	err = err ? err : lane_events(l, c->cut.groups.size());
	if (!err && largest_staged(c->cut))
		err = lane_staging(l, largest_staged(c->cut));
	if (err)
		return err;
	place(&c->cut, l->buffer.len, l->staging.len);
	return 0;
}

/* Copies the kernels' arguments to the device, before the first kernel. */
int queue_args(kvcachefs_cuda *c)
{
	Lane *l = c->lane;
	const Args &a = c->cut.args;

	if (!a.bytes.empty()) { /* empty if each of its files failed */
		memcpy(l->args_host.p, a.bytes.data(), a.bytes.size());
		TRY(cudaMemcpyAsync(l->args.p, l->args_host.p, a.bytes.size(),
				    cudaMemcpyHostToDevice, l->copies));
	}
	if (!c->store) /* a load's kernels follow copies on that stream */
		return 0;
	TRY(cudaEventRecord(l->ready, l->copies));
	TRY(cudaStreamWaitEvent(c->stream, l->ready, 0));
	return 0;
}

int run(kvcachefs_cuda *c)
{
	Lane *l = c->lane;
	Args &a = c->cut.args;
	size_t at, at_parts;
	int err;

	err = find_pages(c);
	err = err ? err : cut(&c->cut, c->moves, c->store);
	if (err)
		return err;
	at = a.add(nullptr, 0); /* the shapes and parts follow everything that they point at */
	err = prepare(c, at + c->cut.shapes.size() * sizeof(Shape) + 16 +
				 c->cut.parts.size() * sizeof(Part));
	if (err)
		return err;
	uint8_t *device = (uint8_t *)l->args.p;

	set_addresses(&c->cut, device, (uint8_t *)l->buffer.p);
	a.add(c->cut.shapes.data(), c->cut.shapes.size() * sizeof(Shape));
	at_parts = a.add(c->cut.parts.data(), c->cut.parts.size() * sizeof(Part));
	c->begun = true;
	if (c->cut.staged && (err = start_stage(c)))
		return err;
	err = queue_args(c);
	if (err && c->staged)
		stage_close(l->stage.get(), 0);
	if (!err)
		err = queue_groups(c, (const Shape *)(device + at),
				   (const Part *)(device + at_parts));
	if (err)
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
	if (!registering()) {
		counts.refused.fetch_add(1, std::memory_order_relaxed);
		return -EFAULT;
	}
	if (readonly && cudaDeviceGetAttribute(&can, cudaDevAttrHostRegisterReadOnlySupported,
					       device) != cudaSuccess)
		cudaGetLastError();
	e = cudaHostRegister(p, len,
			     cudaHostRegisterPortable | cudaHostRegisterMapped |
				     (can ? cudaHostRegisterReadOnly : 0));
	if (e == cudaSuccess)
		return 0;
	cudaGetLastError();
	counts.refused.fetch_add(1, std::memory_order_relaxed);
	return -EFAULT;
}

extern "C" void kvcachefs_cuda_unregister(int device, void *p)
{
	Device here(device);

	if (cudaHostUnregister(p) != cudaSuccess)
		cudaGetLastError();
}

extern "C" void kvcachefs_gpu_stats(struct kvcachefs_gpu_counts *out)
{
	out->pinned_bytes = counts.pinned.load(std::memory_order_relaxed);
	out->direct_bytes = counts.direct.load(std::memory_order_relaxed);
	out->staged_bytes = counts.staged.load(std::memory_order_relaxed);
	out->host_functions = counts.functions.load(std::memory_order_relaxed);
	out->refused = counts.refused.load(std::memory_order_relaxed);
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
	c = object_get();
	if (!c)
		return kvcachefs_fail(-ENOMEM, "out of memory");
	c->stream = static_cast<cudaStream_t>(stream);
	c->store = store;
	c->device = device;
	c->driver = here.driver;
	err = open_transfer(c);
	if (err) {
		object_put(c);
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

extern "C" int kvcachefs_cuda_check_parts(int device, const struct kvcachefs_part *v, size_t n)
{
	/* the driver maps memory in pages of this size, so a page belongs to one device */
	constexpr uintptr_t PAGE = 2u << 20;
	uintptr_t known[64] = {}; /* the first page has no memory, so 0 means none */
	int err = check_device(device);

	if (err)
		return err;
	Device here(device);

	if (here.err)
		return here.err;
	for (size_t i = 0; i < 2 * n; i++) {
		const struct kvcachefs_part &p = v[i / 2];
		uintptr_t at = (uintptr_t)p.at + (i % 2 ? p.len - 1 : 0),
			  &last = known[at / PAGE % 64];
		cudaPointerAttributes a = {};

		if (last && last == at / PAGE)
			continue;
		if (cudaPointerGetAttributes(&a, (const void *)at) != cudaSuccess)
			cudaGetLastError();
		if (a.type != cudaMemoryTypeManaged &&
		    (a.type != cudaMemoryTypeDevice || a.device != device))
			return kvcachefs_fail(-EFAULT, "part %zu at %p is not memory of device %d",
					      i / 2, p.at, device);
		last = at / PAGE;
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
	if (e == cudaSuccess && c->staged && stage_busy(c->lane->stage.get()))
		return -EAGAIN; /* the thread still writes the last pages of a store */
	c->result = failed(e, "the transfer");
	if (!c->result && c->staged)
		c->result = stage_result(c->lane->stage.get());
	return c->result;
}

namespace {

int wait_device(kvcachefs_cuda *c)
{
	if (c->queued) {
		TRY(cudaEventSynchronize(c->lane->done));
		return 0;
	}
	/*
	 * It failed half way: make sure that nothing still reads or writes the buffers or the
	 * files.
	 */
	TRY(cudaStreamSynchronize(c->stream));
	TRY(cudaStreamSynchronize(c->lane->copies));
	return 0;
}

int wait_for(kvcachefs_cuda *c)
{
	int err = wait_device(c);

	if (!c->staged)
		return err;
	if (err) /* the device will signal nothing more */
		stage_close(c->lane->stage.get(), 0);
	stage_wait(c->lane->stage.get());
	return err ? err : stage_result(c->lane->stage.get());
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
	/* another lane may reuse the buffer, which was allocated in the order of that stream */
	if (!c->begun && cudaStreamSynchronize(c->lane->copies) != cudaSuccess)
		cudaGetLastError();
	if (kvcachefs_cuda_wait(c))
		lane_retire(c->lane);
	else
		lane_put(c->lane);
	object_put(c);
}
