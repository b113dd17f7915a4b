/* SPDX-License-Identifier: Apache-2.0 */
/* See cuda_runtime.h. One lock guards the tables; each stream has its queue, condition and thread. */
#include "cuda_runtime.h"

#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <map>
#include <mutex>
#include <thread>

int fake_devices = 1, fake_no_register, fake_no_batch;
thread_local dim3 gridDim, blockDim, blockIdx, threadIdx;

namespace {

std::mutex lock;
std::map<char *, size_t> device, pinned, registered; /* start and length */
fake_counts counts;
thread_local int current;

[[noreturn]] void breach(const char *what)
{
	fprintf(stderr, "fake CUDA: %s\n", what);
	abort();
}

bool in(const std::map<char *, size_t> &m, const void *p, size_t len)
{
	auto i = m.upper_bound((char *)p);

	if (i == m.begin())
		return false;
	--i;
	return (char *)p + len <= i->first + i->second;
}

} // namespace

struct fake_stream {
	std::mutex mutex;
	std::condition_variable more, idle;
	std::deque<std::function<void()>> queue;
	bool stop = false, busy = false;
	std::thread thread{ [this] { work(); } };

	void work()
	{
		std::unique_lock<std::mutex> hold(mutex);

		for (;;) {
			more.wait(hold, [this] { return stop || !queue.empty(); });
			if (queue.empty())
				return;
			auto fn = std::move(queue.front());
			queue.pop_front();
			busy = true;
			hold.unlock();
			fn();
			hold.lock();
			busy = false;
			idle.notify_all();
		}
	}
	void add(std::function<void()> fn)
	{
		std::lock_guard<std::mutex> hold(mutex);

		queue.push_back(std::move(fn));
		more.notify_one();
	}
	void wait()
	{
		std::unique_lock<std::mutex> hold(mutex);

		idle.wait(hold, [this] { return queue.empty() && !busy; });
	}
	~fake_stream()
	{
		{
			std::lock_guard<std::mutex> hold(mutex);
			stop = true;
			more.notify_one();
		}
		thread.join();
	}
};

struct fake_event {
	std::mutex mutex;
	std::condition_variable changed;
	unsigned long recorded = 0, done = 0; /* how often */
	double at = 0;

	void wait_for(unsigned long n)
	{
		std::unique_lock<std::mutex> hold(mutex);

		changed.wait(hold, [&] { return done >= n; });
	}
};

namespace {

fake_stream *null_stream()
{
	static fake_stream *s = new fake_stream; /* lives as long as the process */
	return s;
}

fake_stream *of(cudaStream_t s)
{
	return s ? s : null_stream();
}

/* What a copy may touch: device memory on its side, pinned memory on the other. */
void check_copy(void *to, const void *from, size_t len, cudaMemcpyKind kind, bool async)
{
	std::lock_guard<std::mutex> hold(lock);
	bool to_device = in(device, to, len), from_device = in(device, from, len);

	if ((kind == cudaMemcpyHostToDevice && (!to_device || from_device)) || (kind == cudaMemcpyDeviceToHost && (to_device || !from_device)))
		breach("a copy's direction is not that of its pointers");
	if (to_device == from_device && kind != cudaMemcpyDeviceToDevice)
		breach("a copy is outside what was allocated");
	const void *host = to_device ? from : to;

	if (async && to_device != from_device && !in(pinned, host, len) && !in(registered, host, len))
		breach("an asynchronous copy of memory that is not pinned");
}

cudaError_t add_memory(std::map<char *, size_t> &m, void **p, size_t len)
{
	*p = aligned_alloc(256, (len + 255) / 256 * 256);
	if (!*p)
		return cudaErrorMemoryAllocation;
	memset(*p, 0xdb, len);
	std::lock_guard<std::mutex> hold(lock);
	m[(char *)*p] = len;
	return cudaSuccess;
}

cudaError_t remove_memory(std::map<char *, size_t> &m, void *p)
{
	if (!p)
		return cudaSuccess;
	{
		std::lock_guard<std::mutex> hold(lock);

		if (!m.erase((char *)p))
			breach("memory is freed that was not allocated so");
	}
	free(p);
	return cudaSuccess;
}

double seconds()
{
	timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

} // namespace

extern "C" {

cudaError_t cudaGetLastError(void) { return cudaSuccess; }
const char *cudaGetErrorString(cudaError_t e) { return e == cudaErrorMemoryAllocation ? "out of memory" : "refused"; }

cudaError_t cudaGetDeviceCount(int *n)
{
	*n = fake_devices;
	return fake_devices ? cudaSuccess : cudaErrorNoDevice;
}

cudaError_t cudaGetDevice(int *d)
{
	*d = current;
	return cudaSuccess;
}

cudaError_t cudaSetDevice(int d)
{
	if (d < 0 || d >= fake_devices)
		return cudaErrorInvalidDevice;
	current = d;
	return cudaSuccess;
}

cudaError_t cudaDeviceGetAttribute(int *value, int, int)
{
	*value = 2;
	return cudaSuccess;
}

cudaError_t cudaDeviceSynchronize(void) { return cudaStreamSynchronize(nullptr); }
cudaError_t(cudaMalloc)(void **p, size_t len) { return add_memory(device, p, len); }
cudaError_t cudaMallocManaged(void **p, size_t len, unsigned) { return add_memory(device, p, len); }
cudaError_t cudaFree(void *p) { return remove_memory(device, p); }
cudaError_t cudaMallocHost(void **p, size_t len) { return add_memory(pinned, p, len); }
cudaError_t cudaFreeHost(void *p) { return remove_memory(pinned, p); }

cudaError_t cudaHostRegister(void *p, size_t len, unsigned)
{
	std::lock_guard<std::mutex> hold(lock);

	if (fake_no_register)
		return cudaErrorInvalidValue;
	for (auto &r : registered)
		if ((char *)p < r.first + r.second && r.first < (char *)p + len)
			return cudaErrorHostMemoryAlreadyRegistered;
	registered[(char *)p] = len;
	counts.registers++;
	return cudaSuccess;
}

cudaError_t cudaHostUnregister(void *p)
{
	std::lock_guard<std::mutex> hold(lock);

	if (!registered.erase((char *)p))
		breach("memory is unregistered that was not registered");
	return cudaSuccess;
}

cudaError_t cudaMemcpy(void *to, const void *from, size_t len, enum cudaMemcpyKind kind)
{
	check_copy(to, from, len, kind, false);
	cudaStreamSynchronize(nullptr);
	memcpy(to, from, len);
	return cudaSuccess;
}

cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t len, enum cudaMemcpyKind kind, cudaStream_t s)
{
	check_copy(to, from, len, kind, true);
	{
		std::lock_guard<std::mutex> hold(lock);
		counts.copies++;
	}
	of(s)->add([=] { memcpy(to, from, len); });
	return cudaSuccess;
}

cudaError_t cudaMemcpyBatchAsync(void *const *to, const void *const *from, const size_t *len, size_t n, struct cudaMemcpyAttributes *attrs, size_t *at,
				 size_t nattrs, cudaStream_t s)
{
	if (!s)
		return cudaErrorInvalidValue; /* not on the legacy stream */
	if (nattrs != 1 || at[0] != 0 || attrs[0].srcAccessOrder != cudaMemcpySrcAccessOrderStream || !n)
		return cudaErrorInvalidValue;
	if (fake_no_batch)
		return cudaErrorCallRequiresNewerDriver;
	{
		std::lock_guard<std::mutex> hold(lock);
		counts.batches++;
	}
	for (size_t i = 0; i < n; i++) {
		void *t = to[i];
		const void *f = from[i];
		size_t l = len[i];

		check_copy(t, f, l, cudaMemcpyDefault, true);
		s->add([=] { memcpy(t, f, l); });
	}
	return cudaSuccess;
}

cudaError_t cudaMemsetAsync(void *p, int value, size_t len, cudaStream_t s)
{
	of(s)->add([=] { memset(p, value, len); });
	return cudaSuccess;
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *s, unsigned)
{
	*s = new fake_stream;
	return cudaSuccess;
}

cudaError_t cudaStreamDestroy(cudaStream_t s)
{
	delete s;
	return cudaSuccess;
}

cudaError_t cudaStreamSynchronize(cudaStream_t s)
{
	of(s)->wait();
	return cudaSuccess;
}

cudaError_t cudaStreamWaitEvent(cudaStream_t s, cudaEvent_t e, unsigned)
{
	unsigned long n;
	{
		std::lock_guard<std::mutex> hold(e->mutex);
		n = e->recorded; /* the last record before this call */
	}
	of(s)->add([=] { e->wait_for(n); });
	return cudaSuccess;
}

cudaError_t cudaLaunchHostFunc(cudaStream_t s, cudaHostFn_t fn, void *arg)
{
	{
		std::lock_guard<std::mutex> hold(lock);
		counts.host_functions++;
	}
	of(s)->add([=] { fn(arg); });
	return cudaSuccess;
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *e, unsigned)
{
	*e = new fake_event;
	return cudaSuccess;
}

cudaError_t cudaEventCreate(cudaEvent_t *e) { return cudaEventCreateWithFlags(e, 0); }

cudaError_t cudaEventDestroy(cudaEvent_t e)
{
	delete e;
	return cudaSuccess;
}

cudaError_t cudaEventRecord(cudaEvent_t e, cudaStream_t s)
{
	unsigned long n;
	{
		std::lock_guard<std::mutex> hold(e->mutex);
		n = ++e->recorded;
	}
	of(s)->add([=] {
		std::lock_guard<std::mutex> hold(e->mutex);

		e->done = n;
		e->at = seconds();
		e->changed.notify_all();
	});
	return cudaSuccess;
}

cudaError_t cudaEventQuery(cudaEvent_t e)
{
	std::lock_guard<std::mutex> hold(e->mutex);

	return e->done >= e->recorded ? cudaSuccess : cudaErrorNotReady;
}

cudaError_t cudaEventSynchronize(cudaEvent_t e)
{
	unsigned long n;
	{
		std::lock_guard<std::mutex> hold(e->mutex);
		n = e->recorded;
	}
	e->wait_for(n);
	return cudaSuccess;
}

cudaError_t cudaEventElapsedTime(float *ms, cudaEvent_t from, cudaEvent_t to)
{
	std::lock_guard<std::mutex> a(from->mutex), b(to->mutex);

	*ms = (float)((to->at - from->at) * 1e3);
	return cudaSuccess;
}

struct fake_counts fake_counted(void)
{
	std::lock_guard<std::mutex> hold(lock);

	return counts;
}

} // extern "C"

void fake_launch(cudaStream_t s, dim3 grid, dim3 block, std::function<void()> thread)
{
	{
		std::lock_guard<std::mutex> hold(lock);
		counts.kernels++;
	}
	of(s)->add([=] {
		gridDim = grid;
		blockDim = block;
		for (blockIdx.z = 0; blockIdx.z < grid.z; blockIdx.z++)
			for (blockIdx.y = 0; blockIdx.y < grid.y; blockIdx.y++)
				for (blockIdx.x = 0; blockIdx.x < grid.x; blockIdx.x++)
					for (threadIdx.x = 0; threadIdx.x < block.x; threadIdx.x++)
						thread();
	});
}
