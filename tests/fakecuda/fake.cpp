/* SPDX-License-Identifier: Apache-2.0 */
/*
 * See cuda_runtime.h. One lock guards the tables; each stream has its queue, condition and thread.
 */
#include "cuda_runtime.h"
#include "cuda.h"

#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include <sys/mman.h>
#include <unistd.h>

int fake_devices = 1, fake_no_register, fake_driver = 13000, fake_lost, fake_readonly = 1,
    fake_one_address = 1, fake_no_numbers, fake_pools = 1;
struct fake_functions fake_functions;
void (*fake_on_unregister)(void), (*fake_on_register)(void);
size_t fake_largest;
enum fake_order fake_mistake;
unsigned long fake_mistake_at;
std::atomic<int> fake_paused;
thread_local unsigned fake_inside;
thread_local dim3 gridDim, blockDim, blockIdx, threadIdx;

struct fake_context {
	int device;
};

namespace {

std::mutex lock;
std::map<char *, size_t> device, pinned, registered; /* start and length */
struct Registered {
	int device;
	char *alias; /* the device's address, if it differs from the host's */
	bool readonly, mapped;
};
std::map<char *, Registered> registered_as;
fake_counts counts;
fake_context contexts[8] = { { 0 }, { 1 }, { 2 }, { 3 }, { 4 }, { 5 }, { 6 }, { 7 } };
bool alive[8];
thread_local int current;                        /* the device of a thread that has no context */
thread_local std::vector<fake_context *> stack;  /* the last is current, and may be NULL */
thread_local cudaStreamCaptureMode capture_mode; /* global unless it was exchanged */
thread_local unsigned long made_here, registered_here;
std::set<cudaStream_t> captured;
bool broken; /* the capture in progress was broken */

[[noreturn]] void breach(const char *what)
{
	fprintf(stderr, "fake CUDA: %s\n", what);
	abort();
}

fake_context *primary(int d)
{
	std::lock_guard<std::mutex> hold(lock);

	if (!alive[d]) {
		alive[d] = true;
		counts.contexts[d]++;
	}
	return &contexts[d];
}

/* Every call that needs a context begins with this. */
int use()
{
	if (stack.empty())
		stack.push_back(nullptr);
	if (!stack.back())
		stack.back() = primary(current);
	return stack.back()->device;
}

/* Called by calls that break a capture on any stream, unless the thread's mode is relaxed. */
void unsafe()
{
	std::lock_guard<std::mutex> hold(lock);

	if (!captured.empty() && capture_mode != cudaStreamCaptureModeRelaxed)
		broken = true;
}

/* Called by calls on a stream that cannot be part of a graph. */
void outside(cudaStream_t s)
{
	std::lock_guard<std::mutex> hold(lock);

	if (captured.count(s))
		broken = true;
}

bool in(const std::map<char *, size_t> &m, const void *p, size_t len)
{
	auto i = m.upper_bound((char *)p);

	if (i == m.begin())
		return false;
	--i;
	return (char *)p + len <= i->first + i->second;
}

std::set<fake_stream *> streams;
std::atomic<unsigned long> steps;    /* operations that streams have done */
std::atomic<fake_stream *> favoured; /* the stream whose wait was skipped */
void give_way(const fake_stream *s);

} // namespace

struct fake_stream {
	int device = 0;
	std::mutex mutex;
	std::condition_variable more, idle;
	std::deque<std::function<void()>> queue;
	bool stop = false, busy = false;
	std::function<bool()> over; /* while it waits: has the wait ended? */
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
			while (fake_paused)
				usleep(20);
			fn();
			hold.lock();
			steps++;
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
	/* The stream continues when is() is true; wait() returns soon after that. */
	template <typename W> void wait_until(std::function<bool()> is, W wait)
	{
		{
			std::lock_guard<std::mutex> hold(mutex);

			over = is;
		}
		wait();
		std::lock_guard<std::mutex> hold(mutex);

		over = nullptr;
	}
	bool rests()
	{
		std::lock_guard<std::mutex> hold(mutex);

		return queue.empty() && !busy;
	}
	bool stuck()
	{
		std::lock_guard<std::mutex> hold(mutex);

		return (queue.empty() && !busy) || (over && !over());
	}
	~fake_stream()
	{
		{
			std::lock_guard<std::mutex> hold(::lock);
			streams.erase(this);
		}
		{
			std::lock_guard<std::mutex> hold(mutex);
			stop = true;
			more.notify_one();
		}
		thread.join();
	}
};

struct fake_event {
	std::shared_ptr<fake_event> self{ this }; /* until it is destroyed and no longer used */
	int device = 0;
	std::mutex mutex;
	std::condition_variable changed;
	unsigned long recorded = 0, done = 0; /* numbers of records */
	double at = 0;

	bool reached(unsigned long n)
	{
		std::lock_guard<std::mutex> hold(mutex);

		return done >= n;
	}
	void wait_for(unsigned long n)
	{
		std::unique_lock<std::mutex> hold(mutex);

		changed.wait(hold, [&] { return done >= n; });
	}
};

namespace {

fake_stream *null_stream()
{
	static fake_stream *s = [] { /* lives as long as the process */
				     fake_stream *made = new fake_stream;
				     std::lock_guard<std::mutex> hold(lock);

				     streams.insert(made);
				     return made;
	}();

	return s;
}

fake_stream *of(cudaStream_t s) { return s ? s : null_stream(); }

/* Checks that a stream and an event belong to the current device. */
void same_device(cudaStream_t s, cudaEvent_t e)
{
	int d = use();

	if ((s && s->device != d) || (e && e->device != d))
		breach("a stream or event of another device than the current one");
}

/* Checks a copy: device memory on one side, and host memory on the other, pinned if async. */
void check_copy(void *to, const void *from, size_t len, cudaMemcpyKind kind, bool async)
{
	std::lock_guard<std::mutex> hold(lock);
	bool to_device = in(device, to, len), from_device = in(device, from, len);

	if ((kind == cudaMemcpyHostToDevice && (!to_device || from_device)) ||
	    (kind == cudaMemcpyDeviceToHost && (to_device || !from_device)))
		breach("a copy's direction is not that of its pointers");
	if (to_device == from_device && kind != cudaMemcpyDeviceToDevice)
		breach("a copy is outside of allocated memory");
	const void *host = to_device ? from : to;

	if (async && to_device != from_device && !in(pinned, host, len) &&
	    !in(registered, host, len))
		breach("an asynchronous copy of memory that is not pinned");
	if (from_device && !to_device && in(registered, to, len)) {
		auto r = registered_as.upper_bound((char *)to);

		if ((--r)->second.readonly)
			breach("a copy into memory that was registered to be read");
	}
}

cudaError_t add_memory(std::map<char *, size_t> &m, void **p, size_t len)
{
	use();
	unsafe();
	made_here++;
	if (fake_largest && len > fake_largest)
		return cudaErrorMemoryAllocation;
	*p = aligned_alloc(256, (len + 255) / 256 * 256);
	if (!*p)
		return cudaErrorMemoryAllocation;
	memset(*p, 0xdb, len);
	std::lock_guard<std::mutex> hold(lock);
	m[(char *)*p] = len;
	return cudaSuccess;
}

/* Waits until each stream has been idle at some time from now on. */
void until_idle()
{
	std::set<fake_stream *> waits;

	{
		std::lock_guard<std::mutex> hold(lock);

		waits = streams;
	}
	while (!waits.empty()) {
		{
			std::lock_guard<std::mutex> hold(lock);

			for (auto i = waits.begin(); i != waits.end();)
				i = !streams.count(*i) || (*i)->rests() ? waits.erase(i)
									: std::next(i);
		}
		usleep(20);
	}
}

void forget_memory(std::map<char *, size_t> &m, void *p)
{
	{
		std::lock_guard<std::mutex> hold(lock);

		if (!m.erase((char *)p))
			breach("memory is freed by the wrong function");
	}
	free(p);
}

cudaError_t remove_memory(std::map<char *, size_t> &m, void *p)
{
	if (!p)
		return cudaSuccess;
	unsafe();
	made_here++;
	until_idle();
	forget_memory(m, p);
	return cudaSuccess;
}

/* Is this the call into which a test injects a mistake? */
bool mistaken(fake_order kind, fake_stream *s)
{
	std::lock_guard<std::mutex> hold(lock);

	counts.orders[kind]++;
	if (kind != fake_mistake || !fake_mistake_at || --fake_mistake_at)
		return false;
	favoured = s;
	return true;
}

void give_way(const fake_stream *s)
{
	for (fake_stream *f; (f = favoured) && f != s && !f->stuck();)
		usleep(20);
}

void copy_on(fake_stream *s, void *to, const void *from, size_t len)
{
	s->add([=] {
		give_way(s);
		memcpy(to, from, len);
		std::lock_guard<std::mutex> hold(lock);

		counts.copied++;
	});
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
const char *cudaGetErrorString(cudaError_t e)
{
	return e == cudaErrorMemoryAllocation ? "out of memory" : "refused";
}

cudaError_t cudaGetDeviceCount(int *n)
{
	*n = fake_devices;
	return fake_devices ? cudaSuccess : cudaErrorNoDevice;
}

cudaError_t cudaGetDevice(int *d)
{
	*d = !stack.empty() && stack.back() ? stack.back()->device : current;
	return cudaSuccess;
}

cudaError_t cudaSetDevice(int d)
{
	if (d < 0 || d >= fake_devices)
		return cudaErrorInvalidDevice;
	current = d;
	if (stack.empty())
		stack.push_back(nullptr);
	stack.back() = primary(d); /* since CUDA 12 */
	return cudaSuccess;
}

int fake_current(void) { return !stack.empty() && stack.back() ? stack.back()->device : -1; }

static CUresult device_get(CUdevice *out, int d)
{
	*out = d;
	return d >= 0 && d < fake_devices ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

static CUresult context_retain(CUcontext *out, CUdevice d)
{
	*out = primary(d);
	return CUDA_SUCCESS;
}

static CUresult context_push(CUcontext c)
{
	stack.push_back(c);
	return CUDA_SUCCESS;
}

static CUresult context_pop(CUcontext *out)
{
	if (stack.empty())
		return CUDA_ERROR_INVALID_CONTEXT;
	*out = stack.back();
	stack.pop_back();
	return CUDA_SUCCESS;
}

/* A number in pinned memory, as the device sees it. */
static uint32_t *number(CUstream s, CUdeviceptr at)
{
	use();
	outside(s);
	std::lock_guard<std::mutex> hold(lock);

	if (!in(pinned, (void *)(uintptr_t)at, sizeof(uint32_t)) || at % sizeof(uint32_t))
		breach("a number that a stream waits for or writes is not in pinned memory");
	return (uint32_t *)(uintptr_t)at;
}

static CUresult wait_value(CUstream s, CUdeviceptr at, cuuint32_t value, unsigned)
{
	fake_own own;
	uint32_t *p = number(s, at);

	auto reached = [=] { return (int32_t)(__atomic_load_n(p, __ATOMIC_ACQUIRE) - value) >= 0; };

	if (!mistaken(FAKE_VALUE, s))
		s->add([=] {
			s->wait_until(reached, [=] {
				while (!reached())
					usleep(20);
			});
		});
	return CUDA_SUCCESS;
}

static CUresult write_value(CUstream s, CUdeviceptr at, cuuint32_t value, unsigned)
{
	fake_own own;
	uint32_t *p = number(s, at);

	if (mistaken(FAKE_NUMBER, nullptr))
		__atomic_store_n(p, value, __ATOMIC_RELEASE);
	else
		s->add([=] { __atomic_store_n(p, value, __ATOMIC_RELEASE); });
	return CUDA_SUCCESS;
}

cudaError_t cudaGetDriverEntryPointByVersion(const char *name, void **fn, unsigned,
					     unsigned long long,
					     cudaDriverEntryPointQueryResult *found)
{
	fake_own own;
	static const std::map<std::string, void *> known = {
		{ "cuDeviceGet", (void *)device_get },
		{ "cuDevicePrimaryCtxRetain", (void *)context_retain },
		{ "cuCtxPushCurrent", (void *)context_push },
		{ "cuCtxPopCurrent", (void *)context_pop },
		{ "cuStreamWaitValue32", (void *)wait_value },
		{ "cuStreamWriteValue32", (void *)write_value }
	};
	auto i = known.find(name);

	if (fake_no_numbers && strstr(name, "Value32"))
		i = known.end();
	*fn = i == known.end() ? nullptr : i->second;
	*found = *fn ? cudaDriverEntryPointSuccess : cudaDriverEntryPointSymbolNotFound;
	return cudaSuccess;
}

cudaError_t cudaDriverGetVersion(int *version)
{
	*version = fake_driver;
	return cudaSuccess;
}

cudaError_t cudaStreamIsCapturing(cudaStream_t s, cudaStreamCaptureStatus *status)
{
	std::lock_guard<std::mutex> hold(lock);

	if (!s && !captured.empty())
		return cudaErrorStreamCaptureImplicit;
	*status = !captured.count(s) ? cudaStreamCaptureStatusNone
		  : broken           ? cudaStreamCaptureStatusInvalidated
				     : cudaStreamCaptureStatusActive;
	return cudaSuccess;
}

cudaError_t cudaStreamBeginCapture(cudaStream_t s, cudaStreamCaptureMode)
{
	std::lock_guard<std::mutex> hold(lock);

	captured.insert(s);
	broken = false;
	return cudaSuccess;
}

cudaError_t cudaStreamEndCapture(cudaStream_t s, cudaGraph_t *graph)
{
	std::lock_guard<std::mutex> hold(lock);

	captured.erase(s);
	*graph = nullptr;
	return broken ? cudaErrorStreamCaptureInvalidated : cudaSuccess;
}

cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode *mode)
{
	std::swap(*mode, capture_mode);
	return cudaSuccess;
}

cudaError_t cudaDeviceGetAttribute(int *value, int attr, int)
{
	*value = attr == cudaDevAttrHostRegisterReadOnlySupported       ? fake_readonly
		 : attr == cudaDevAttrCanUseHostPointerForRegisteredMem ? fake_one_address
		 : attr == cudaDevAttrMemoryPoolsSupported              ? fake_pools
									: 2;
	return cudaSuccess;
}

cudaError_t cudaDeviceSynchronize(void) { return cudaStreamSynchronize(nullptr); }
cudaError_t(cudaMalloc)(void **p, size_t len) { return add_memory(device, p, len); }
cudaError_t cudaMallocManaged(void **p, size_t len, unsigned) { return add_memory(device, p, len); }
cudaError_t cudaMallocAsync(void **p, size_t len, cudaStream_t s)
{
	outside(s);
	return add_memory(device, p, len);
}
/* The memory is freed in the stream's order. */
cudaError_t cudaFreeAsync(void *p, cudaStream_t s)
{
	outside(s);
	of(s)->add([=] { forget_memory(device, p); });
	return cudaSuccess;
}
cudaError_t cudaFree(void *p) { return remove_memory(device, p); }
cudaError_t cudaMallocHost(void **p, size_t len) { return add_memory(pinned, p, len); }
cudaError_t cudaFreeHost(void *p) { return remove_memory(pinned, p); }

/* May the process write to this address? */
static bool writable(void *p)
{
	FILE *f = fopen("/proc/self/maps", "re");
	unsigned long from, to, at = (unsigned long)(uintptr_t)p;
	char line[512], r, w = '-';

	while (f && fgets(line, sizeof line, f))
		if (sscanf(line, "%lx-%lx %c%c", &from, &to, &r, &w) == 4 && from <= at && at < to)
			break;
	if (f)
		fclose(f);
	return w == 'w';
}

cudaError_t cudaHostRegister(void *p, size_t len, unsigned flags)
{
	if (fake_on_register)
		fake_on_register();
	fake_own own;
	int d = use();
	bool readonly = flags & cudaHostRegisterReadOnly;

	unsafe();
	made_here++;
	std::lock_guard<std::mutex> hold(lock);

	if (readonly && !fake_readonly)
		return cudaErrorNotSupported;
	if (fake_no_register || (!readonly && !writable(p)))
		return cudaErrorInvalidValue;
	for (auto &r : registered)
		if ((char *)p < r.first + r.second && r.first < (char *)p + len)
			return cudaErrorHostMemoryAlreadyRegistered;
	registered[(char *)p] = len;
	registered_as[(char *)p] = { d, nullptr, readonly, (flags & cudaHostRegisterMapped) != 0 };
	counts.registers++;
	registered_here++;
	return cudaSuccess;
}

/* A second mapping of the same pages, if the device's address differs from the host's. */
cudaError_t cudaHostGetDevicePointer(void **out, void *host, unsigned)
{
	use();
	std::lock_guard<std::mutex> hold(lock);
	auto i = registered_as.find((char *)host);

	if (i == registered_as.end() || !i->second.mapped)
		return cudaErrorInvalidValue;
	if (!fake_one_address && !i->second.alias) {
		void *alias = mremap(host, 0, registered[(char *)host], MREMAP_MAYMOVE);

		if (alias == MAP_FAILED)
			return cudaErrorInvalidValue;
		i->second.alias = (char *)alias;
	}
	*out = fake_one_address ? host : i->second.alias;
	return cudaSuccess;
}

cudaError_t cudaHostUnregister(void *p)
{
	int d = use();

	made_here++;
	if (fake_on_unregister)
		fake_on_unregister();
	unsafe();
	until_idle();
	std::lock_guard<std::mutex> hold(lock);
	auto i = registered_as.find((char *)p);

	if (i == registered_as.end())
		breach("memory is unregistered that was not registered");
	if (i->second.device != d)
		breach("memory is unregistered on another device than it was registered on");
	if (i->second.alias)
		munmap(i->second.alias, registered[(char *)p]);
	registered_as.erase(i);
	registered.erase((char *)p);
	return cudaSuccess;
}

/* All memory of devices counts as that of the current one. */
cudaError_t cudaPointerGetAttributes(struct cudaPointerAttributes *out, const void *p)
{
	int d = use();
	std::lock_guard<std::mutex> hold(lock);

	*out = {
		in(device, p, 1)                           ? cudaMemoryTypeDevice
		: in(pinned, p, 1) || in(registered, p, 1) ? cudaMemoryTypeHost
							   : cudaMemoryTypeUnregistered,
		d,
	};
	return cudaSuccess;
}

cudaError_t cudaMemcpy(void *to, const void *from, size_t len, enum cudaMemcpyKind kind)
{
	check_copy(to, from, len, kind, false);
	cudaStreamSynchronize(nullptr);
	memcpy(to, from, len);
	return cudaSuccess;
}

cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t len, enum cudaMemcpyKind kind,
			    cudaStream_t s)
{
	fake_own own;
	use();
	outside(s);
	check_copy(to, from, len, kind, true);
	{
		std::lock_guard<std::mutex> hold(lock);
		counts.copies++;
	}
	copy_on(of(s), to, from, len);
	return cudaSuccess;
}

cudaError_t cudaMemcpyBatchAsync(void *const *to, const void *const *from, const size_t *len,
				 size_t n, struct cudaMemcpyAttributes *attrs, size_t *at,
				 size_t nattrs, cudaStream_t s)
{
	fake_own own;
	if (!s)
		return cudaErrorInvalidValue; /* not on the legacy stream */
	if (nattrs != 1 || at[0] != 0 ||
	    attrs[0].srcAccessOrder != cudaMemcpySrcAccessOrderStream || !n)
		return cudaErrorInvalidValue;
	if (fake_driver < 12080)
		breach("a batch on a driver that is too old: the caller must check its version");
	use();
	{
		std::lock_guard<std::mutex> hold(lock);
		counts.batches++;
	}
	for (size_t i = 0; i < n; i++) {
		void *t = to[i];
		const void *f = from[i];
		size_t l = len[i];

		check_copy(t, f, l, cudaMemcpyDefault, true);
		copy_on(s, t, f, l);
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
	(*s)->device = use();
	made_here++;
	std::lock_guard<std::mutex> hold(lock);
	streams.insert(*s);
	counts.streams++;
	return cudaSuccess;
}

cudaError_t cudaDeviceGetStreamPriorityRange(int *least, int *greatest)
{
	*least = 0;
	*greatest = -5;
	return cudaSuccess;
}

/* The priority has no effect. */
cudaError_t cudaStreamCreateWithPriority(cudaStream_t *s, unsigned flags, int priority)
{
	if (priority > 0 || priority < -5)
		return cudaErrorInvalidValue;
	return cudaStreamCreateWithFlags(s, flags);
}

cudaError_t cudaStreamDestroy(cudaStream_t s)
{
	made_here++;
	delete s;
	return cudaSuccess;
}

cudaError_t cudaStreamSynchronize(cudaStream_t s)
{
	unsafe();
	outside(s);
	of(s)->wait();
	return cudaSuccess;
}

cudaError_t cudaStreamWaitEvent(cudaStream_t s, cudaEvent_t e, unsigned)
{
	fake_own own;
	outside(s);
	unsigned long n;
	if (mistaken(FAKE_EVENT, of(s)))
		return cudaSuccess;
	{
		std::lock_guard<std::mutex> hold(e->mutex);
		n = e->recorded; /* the last record before this call */
	}
	of(s)->add([n, keep = e->self, on = of(s)] {
		on->wait_until([=] { return keep->reached(n); }, [&] { keep->wait_for(n); });
	});
	return cudaSuccess;
}

cudaError_t cudaLaunchHostFunc(cudaStream_t s, cudaHostFn_t fn, void *arg)
{
	fake_own own;

	{
		std::lock_guard<std::mutex> hold(lock);
		counts.host_functions++;
	}
	if (fn == fake_functions.waits && mistaken(FAKE_VALUE, of(s)))
		return cudaSuccess;
	if (fn == fake_functions.writes && mistaken(FAKE_NUMBER, nullptr))
		fn(arg);
	else if (fn == fake_functions.waits)
		of(s)->add([=, on = of(s)] {
			on->wait_until([=] { return fake_functions.over(arg); }, [=] { fn(arg); });
		});
	else
		of(s)->add([=] { fn(arg); });
	return cudaSuccess;
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *e, unsigned)
{
	*e = new fake_event;
	(*e)->device = use();
	made_here++;
	return cudaSuccess;
}

cudaError_t cudaEventCreate(cudaEvent_t *e) { return cudaEventCreateWithFlags(e, 0); }

cudaError_t cudaEventDestroy(cudaEvent_t e)
{
	auto keep = std::move(e->self);

	made_here++;
	return cudaSuccess;
}

cudaError_t cudaEventRecord(cudaEvent_t e, cudaStream_t s)
{
	fake_own own;
	same_device(s, e);
	outside(s);
	unsigned long n;
	{
		std::lock_guard<std::mutex> hold(e->mutex);
		n = ++e->recorded;
	}
	of(s)->add([n, keep = e->self] {
		std::lock_guard<std::mutex> hold(keep->mutex);

		/* the later of two records on two streams counts, whichever is reached first */
		if (keep->done < n)
			keep->done = n;
		keep->at = seconds();
		keep->changed.notify_all();
	});
	return cudaSuccess;
}

cudaError_t cudaEventQuery(cudaEvent_t e)
{
	if (fake_lost)
		return cudaErrorUnknown;
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
	return fake_lost ? cudaErrorUnknown : cudaSuccess;
}

cudaError_t cudaEventElapsedTime(float *ms, cudaEvent_t from, cudaEvent_t to)
{
	std::lock_guard<std::mutex> a(from->mutex), b(to->mutex);

	*ms = (float)((to->at - from->at) * 1e3);
	return cudaSuccess;
}

void fake_until_stuck(void)
{
	for (bool all = false; !all;) {
		usleep(20);
		all = !fake_paused;
		std::lock_guard<std::mutex> hold(lock);
		unsigned long before = steps;

		for (fake_stream *s : streams)
			all = all && s->stuck();
		/* otherwise a stream that waited when it was checked may have continued */
		all = all && steps == before;
	}
}

unsigned long fake_made_here(void) { return made_here; }
unsigned long fake_registered_here(void) { return registered_here; }

struct fake_counts fake_counted(void)
{
	std::lock_guard<std::mutex> hold(lock);

	return counts;
}

} // extern "C"

void fake_launch(cudaStream_t s, dim3 grid, dim3 block, std::function<void()> thread)
{
	same_device(s, nullptr);
	outside(s);
	{
		std::lock_guard<std::mutex> hold(lock);
		counts.kernels++;
	}
	of(s)->add([=, on = of(s)] {
		give_way(on);
		gridDim = grid;
		blockDim = block;
		for (blockIdx.z = 0; blockIdx.z < grid.z; blockIdx.z++)
			for (blockIdx.y = 0; blockIdx.y < grid.y; blockIdx.y++)
				for (blockIdx.x = 0; blockIdx.x < grid.x; blockIdx.x++)
					for (threadIdx.x = 0; threadIdx.x < block.x; threadIdx.x++)
						thread();
	});
}
