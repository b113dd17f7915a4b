/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Part of gpu.cu: the queue on a device. A stream is stopped at a gate, so that a missing or wrong
 * wait moves wrong bytes every time and not only rarely.
 */
#pragma once

#include "gpu_cache.cuh"

#include <poll.h>

#include <atomic>
#include <condition_variable>
#include <memory>

namespace {

class Gate {
	std::mutex mutex;
	std::condition_variable changed;
	bool opened = false;

      public:
	void open()
	{
		std::lock_guard<std::mutex> hold(mutex);

		opened = true;
		changed.notify_all();
	}
	void pass()
	{
		std::unique_lock<std::mutex> hold(mutex);

		changed.wait(hold, [this] { return opened; });
	}
	static void CUDART_CB stop(void *arg)
	{
		static_cast<Gate *>(arg)->pass();
	}
};

/* Pauses for so long that work which wrongly did not wait would have been done. */
void linger()
{
	usleep(30000);
}

kvcachefs_completion take_one(kvcachefs_queue *q)
{
	pollfd p = { kvcachefs_queue_fd(q), POLLIN, 0 };
	kvcachefs_completion c;

	check(poll(&p, 1, 60000) == 1 && kvcachefs_take(q, &c, 1) == 1);
	return c;
}

constexpr uint32_t QL = 4, CHUNKS = 2;

/* A cache, and items with a file for each layer and chunk, the last layers first. */
struct Paged {
	Cache c{ KVCACHEFS_NL_X_TWO_NB_BS_NH_HS, QL, 8, 64, 16, 64, 2, 5 };
	int64_t ids[CHUNKS][16];
	std::vector<std::string> paths;
	std::vector<kvcachefs_item> items;
	kvcachefs_paged p = c.on(0), host = c.on(-1);

	explicit Paged(const std::string &name)
	{
		for (uint32_t k = 0; k < CHUNKS; k++)
			for (int i = 0; i < 16; i++)
				ids[k][i] = (k * 16 + i) * 23 % 64;
		for (uint32_t i = 0; i < QL * CHUNKS; i++)
			paths.push_back(name + "/" + std::to_string(i));
		for (auto &path : paths) /* of an earlier run on this mount */
			unlink((mnt + "/" + path).c_str());
		for (uint32_t i = 0; i < QL * CHUNKS; i++) {
			kvcachefs_item it = {};

			it.path = paths[i].c_str();
			it.layer = QL - 1 - i / CHUNKS;
			it.nlayers = 1;
			it.tokens = { nullptr, ids[i % CHUNKS], 16, 0 };
			items.push_back(it);
		}
	}
	std::vector<uint8_t> gathered(size_t i)
	{
		std::vector<uint8_t> v(kvcachefs_file_size(&host, 1, &items[i].tokens));

		check(!kvcachefs_gather(&host, items[i].layer, 1, &items[i].tokens, v.data()));
		return v;
	}
	bool none()
	{
		for (auto &path : paths)
			if (!access((mnt + "/" + path).c_str(), F_OK))
				return false;
		return true;
	}
	uint64_t submit(kvcachefs_queue *q, bool store, cudaStream_t s, uint64_t tag)
	{
		uint64_t id;

		check(!(store ? kvcachefs_submit_store : kvcachefs_submit_load)(
			q, &p, items.data(), items.size(), s, tag, &id));
		return id;
	}
};

struct Streams {
	cudaStream_t s[2];
	Streams()
	{
		for (cudaStream_t &one : s)
			cuda(cudaStreamCreateWithFlags(&one, cudaStreamNonBlocking));
	}
	~Streams()
	{
		for (cudaStream_t one : s)
			cudaStreamDestroy(one);
	}
	Streams(const Streams &) = delete;
};

/*
 * A store reads the cache as the stream's earlier work leaves it, not as it was at the call; and
 * after waiting for a layer, a thread may change it. Two steps are queued while the stream is
 * stopped.
 */
void queued_store(kvcachefs_queue *q, Paged &a)
{
	Streams s;
	Gate gate;

	for (uint32_t l = 0; l < QL; l++)
		std::fill(a.c.host[l].begin(), a.c.host[l].end(), (uint8_t)(l + 1));
	cuda(cudaLaunchHostFunc(s.s[0], Gate::stop, &gate));
	for (uint32_t l = 0; l < QL; l++)
		cuda(cudaMemsetAsync(a.c.device[l], (int)l + 1, a.c.len, s.s[0]));
	uint64_t id = a.submit(q, true, s.s[0], 7);

	for (uint32_t l = 0; l < QL; l++) {
		check(!kvcachefs_layer_wait(q, id, l, s.s[1]));
		cuda(cudaMemsetAsync(a.c.device[l], 0xee, a.c.len, s.s[1]));
		if (l == 0)
			check(kvcachefs_layer_poll(q, id, QL - 1, s.s[1]) == -EAGAIN);
		if (l == 1) {
			linger();
			check(a.none());
			gate.open();
		}
	}
	kvcachefs_completion c = take_one(q);

	check(c.tag == 7 && c.id == id && !c.err && !c.failed);
	for (size_t i = 0; i < a.items.size(); i++)
		check(contents(a.paths[i]) == a.gathered(i));
	cuda(cudaStreamSynchronize(s.s[1]));
}

/*
 * A load writes the cache after the stream's earlier work; after waiting for a layer, a thread may
 * read it.
 */
void queued_load(kvcachefs_queue *q, Paged &a)
{
	Streams s;
	Gate gate;
	uint8_t *pinned;

	cuda(cudaMallocHost((void **)&pinned, a.c.len * QL));
	cuda(cudaLaunchHostFunc(s.s[0], Gate::stop, &gate));
	for (uint32_t l = 0; l < QL; l++)
		cuda(cudaMemsetAsync(a.c.device[l], 0x11, a.c.len, s.s[0]));
	uint64_t id = a.submit(q, false, s.s[0], 8);

	for (uint32_t l = 0; l < QL; l++) {
		check(!kvcachefs_layer_wait(q, id, l, s.s[1]));
		cuda(cudaMemcpyAsync(pinned + l * a.c.len, a.c.device[l], a.c.len,
				     cudaMemcpyDeviceToHost, s.s[1]));
		if (l == 1) {
			linger();
			gate.open();
		}
	}
	cuda(cudaStreamSynchronize(s.s[1]));
	for (uint32_t l = 0; l < QL; l++) /* only the blocks of the items were written */
		std::fill(a.c.host[l].begin(), a.c.host[l].end(), (uint8_t)0x11);
	for (size_t i = 0; i < a.items.size(); i++)
		check(!kvcachefs_scatter(&a.host, a.items[i].layer, 1, &a.items[i].tokens,
					 contents(a.paths[i]).data()));
	for (uint32_t l = 0; l < QL; l++)
		check(!memcmp(pinned + l * a.c.len, a.c.host[l].data(), a.c.len));
	check(take_one(q).tag == 8 && a.c.down() == a.c.host);
	cuda(cudaFreeHost(pinned));
}

void queued_cancel(kvcachefs_queue *q)
{
	Paged a("queue/cancel");
	Streams s;
	Gate gate;

	cuda(cudaLaunchHostFunc(s.s[0], Gate::stop, &gate));
	uint64_t id = a.submit(q, true, s.s[0], 9);

	check(!kvcachefs_layer_wait(q, id, 0, s.s[1]) && !kvcachefs_cancel(q, id));
	gate.open();
	kvcachefs_completion c = take_one(q);

	check(c.err == -ECANCELED && c.failed == a.items.size() && a.none());
}

void queued_capture(kvcachefs_queue *q, Paged &a)
{
	Streams s;
	cudaGraph_t graph;
	uint64_t id = a.submit(q, false, s.s[1], 1), no;

	take_one(q);
	id = a.submit(q, false, s.s[1], 1);
	cuda(cudaStreamBeginCapture(s.s[0], cudaStreamCaptureModeGlobal));
	check(kvcachefs_submit_load(q, &a.p, a.items.data(), 1, s.s[0], 0, &no) == -EBUSY);
	check(kvcachefs_layer_wait(q, id, 0, s.s[0]) == -EBUSY);
	check(!kvcachefs_layer_wait(q, id, QL, s.s[1]) && !take_one(q).err);
	cuda(cudaStreamEndCapture(s.s[0], &graph));
}

/* Several threads use one queue, each with its own cache and stream. */
void queued_threads(kvcachefs_queue *q)
{
	std::vector<std::unique_ptr<Paged>> caches;

	for (int w = 0; w < 3; w++)
		caches.emplace_back(new Paged("queue/thread" + std::to_string(w)));
	for (int r = 0; r < 4; r++) {
		std::vector<std::thread> all;

		for (auto &a : caches)
			all.emplace_back([&, r] {
				Streams s;
				uint64_t id = a->submit(q, r % 2 == 0, s.s[0], 100);

				check(!kvcachefs_layer_wait(q, id, QL, s.s[0]));
				cuda(cudaStreamSynchronize(s.s[0]));
			});
		for (auto &t : all)
			t.join();
		for (size_t i = 0; i < caches.size(); i++)
			check(!take_one(q).err);
		for (auto &a : caches)
			check(a->c.down() == a->c.host);
	}
}

void queues()
{
	kvcachefs_queue *q;
	Paged a("queue/order");

	check(!kvcachefs_queue_new(&q, mnt.c_str(), 2));
	queued_store(q, a);
	queued_load(q, a);
	queued_cancel(q);
	queued_capture(q, a);
	queued_threads(q);
	kvcachefs_queue_free(q);
}

/* A program's own copies, through pinned memory of files. */
void buffers()
{
	kvcachefs_buffer *b;
	const size_t n = 300000;
	uint8_t *device;
	size_t len;
	void *p;
	std::vector<uint8_t> want(n);
	cudaStream_t s;

	for (size_t i = 0; i < n; i++)
		want[i] = (uint8_t)(i * 7 + i / 1000);
	cuda(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking));
	cuda(cudaMalloc((void **)&device, n));
	cuda(cudaMemcpy(device, want.data(), n, cudaMemcpyHostToDevice));
	check(!kvcachefs_buffer_new(&b, mnt.c_str(), "buffers/x", n, 0));
	p = kvcachefs_buffer_data(b, &len);
	check(p && len == n);
	if (kvcachefs_buffer_pinned(b))
		cuda(cudaMemcpyAsync(p, device, n, cudaMemcpyDeviceToHost, s));
	else
		cuda(cudaMemcpy(p, device, n, cudaMemcpyDeviceToHost));
	cuda(cudaStreamSynchronize(s));
	check(!kvcachefs_buffer_publish(b));
	kvcachefs_buffer_free(b);
	check(contents("buffers/x") == want);
	check(!kvcachefs_buffer_open(&b, mnt.c_str(), "buffers/x", 0));
	p = kvcachefs_buffer_data(b, &len);
	check(len == n && !memcmp(p, want.data(), n));
	std::vector<uint8_t> got(n);

	cuda(cudaMemcpy(device, got.data(), n, cudaMemcpyHostToDevice));
	if (kvcachefs_buffer_pinned(b)) {
		cuda(cudaMemcpyAsync(device, p, n, cudaMemcpyHostToDevice, s));
		cuda(cudaStreamSynchronize(s));
		cuda(cudaMemcpy(got.data(), device, n, cudaMemcpyDeviceToHost));
		check(got == want);
	}
	kvcachefs_buffer_free(b);
	check(kvcachefs_buffer_open(&b, mnt.c_str(), "buffers/x", 7) == -ENODEV);
	cuda(cudaFree(device));
	cuda(cudaStreamDestroy(s));
}

} // namespace

#ifdef FAKE_CUDA_RUNTIME_H
namespace {

/* A device is lost during a job: the job fails, and nothing is published. */
void queue_lost()
{
	kvcachefs_queue *q;
	Paged a("queue/lost");
	Streams s;
	Gate gate;

	check(!kvcachefs_queue_new(&q, mnt.c_str(), 1));
	cuda(cudaLaunchHostFunc(s.s[0], Gate::stop, &gate));
	uint64_t id = a.submit(q, true, s.s[0], 1);

	check(!kvcachefs_layer_wait(q, id, 0, s.s[0]));
	fake_lost = 1;
	gate.open();
	kvcachefs_completion c = take_one(q);

	fake_lost = 0;
	check(c.err == -EIO && c.failed && *c.error && a.none());
	kvcachefs_queue_free(q);
}

Gate *unregistering;
thread_local bool calls; /* this thread calls the library */
std::atomic<int> unregistered;

void on_unregister()
{
	check(!calls);
	unregistered++;
	unregistering->pass();
}

/* Unregistering is done by another thread; meanwhile, threads get and release mappings. */
void aside()
{
	Paged a("queue/aside");
	Gate gate;
	auto before = a.c.host;

	kvcachefs_map_cache(0); /* mappings of earlier steps */
	check(!move_all(a.c, 0, true, a.items));
	kvcachefs_map_cache(64 * MiB);
	load_twice(a.c, a.items);
	calls = true;
	unregistering = &gate;
	fake_on_unregister = on_unregister;
	std::thread smaller([] {
		calls = true;
		kvcachefs_map_cache(64 * 1024); /* less than one of the files */
	});

	while (!unregistered)
		usleep(1000);
	check(!move_all(a.c, -1, false, a.items)); /* in host memory: registers nothing */
	gate.open();
	smaller.join();
	/* >=, because prepared files are unregistered too */
	check(unregistered >= (int)a.items.size() && a.c.down() == before);
	fake_on_unregister = nullptr;
	kvcachefs_map_cache(0);
}

} // namespace
#endif
