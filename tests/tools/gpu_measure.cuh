/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Part of gpu.cu: the speed of a device, for kvcachefs-gpu(7). It times the public calls on a
 * mount, as a program makes them, compared with a plain copy of as many bytes in pinned memory;
 * then their parts.
 */
#pragma once

#include "gpu_cache.cuh"
#include "gpu_queue.cuh"

namespace {

#ifdef FAKE_CUDA_RUNTIME_H /* its times mean nothing */
constexpr int ROUNDS = 1, REST_US = 0;
constexpr uint32_t LAYERS = 4;
#else
constexpr int ROUNDS = 9;
constexpr int REST_US = 50000;  /* a model's computation between two chunks */
constexpr uint32_t LAYERS = 32; /* Llama-8B: 8 heads of 128 in bf16, 1 MiB for 256 tokens */
#endif

double now()
{
	timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

/* Returns the median seconds of fn, which leaves the device idle; `before` is not timed. */
template <typename B, typename F> double median(B before, F fn)
{
	std::vector<double> v;

	for (int i = 0; i <= ROUNDS; i++) {
		before();
		double start = now();

		fn();
		if (i) /* the first round includes one-time work */
			v.push_back(now() - start);
	}
	std::sort(v.begin(), v.end());
	return v[v.size() / 2];
}

template <typename F> double median(F fn)
{
	return median([] {}, fn);
}

/*
 * Makes a folder whose next files can be registered. The first file of a folder, whose size is
 * unknown, is served by plain requests.
 */
std::string taught(const char *name)
{
	std::string dir = mnt + "/" + name, path = dir + "/first";

	check(!mkdir(dir.c_str(), 0700) || errno == EEXIST);
	int fd = open(path.c_str(), O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);

	check(fd >= 0 && !fallocate(fd, 0, 0, 4096) && !close(fd));
	check(!rename(path.c_str(), (path + "ly").c_str()) && !unlink((path + "ly").c_str()));
	return dir;
}

/* A file of the mount; mapped for writing, or as a load maps it. */
struct File {
	int fd;
	uint8_t *p, *readonly;
	size_t len;
	File(const std::string &dir, const char *name, size_t n) : len(n)
	{
		std::string path = dir + "/" + name;

		fd = open(path.c_str(), O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
		check(fd >= 0 && !ftruncate(fd, (off_t)n));
		std::vector<uint8_t> some(n, 0x5a);
		check(pwrite(fd, some.data(), n, 0) == (ssize_t)n);
		p = (uint8_t *)mmap(nullptr, n, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
		readonly = (uint8_t *)mmap(nullptr, n, PROT_READ, MAP_SHARED, fd, 0);
		check(p != MAP_FAILED && readonly != MAP_FAILED);
		unlink(path.c_str());
	}
	~File()
	{
		munmap(p, len);
		munmap(readonly, len);
		close(fd);
	}
	File(const File &) = delete;
};

/* Sets the microseconds to register and to unregister. Returns false if registering fails. */
bool registering(uint8_t *p, size_t n, bool readonly, double *reg, double *unreg)
{
	*reg = *unreg = 0;
	for (int i = 0; i < ROUNDS; i++) {
		double a = now();
		bool ok = !kvcachefs_cuda_register(0, p, n, readonly);
		double b = now();

		if (!ok)
			return false;
		kvcachefs_cuda_unregister(0, p);
		*reg += (b - a) / 1e-6 / ROUNDS;
		*unreg += (now() - b) / 1e-6 / ROUNDS;
	}
	return true;
}

void rates()
{
	const std::string dir = taught("rates");
	static const size_t sizes_of[] = { 128u << 10, MiB, 2 * MiB, 32 * MiB, 64 * MiB };
	cudaStream_t s;
	uint8_t *device, *pinned;
	int can = 0;

	cuda(cudaDeviceGetAttribute(&can, cudaDevAttrHostRegisterReadOnlySupported, 0));
	printf("registering as read-only: the device %s it\n", can ? "takes" : "does not take");
	cuda(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking));
	cuda(cudaMalloc((void **)&device, 64 * MiB));
	cuda(cudaMallocHost((void **)&pinned, 64 * MiB));
	printf("%-9s us to register (and back): %15s %15s   GB/s: %8s %8s %9s %9s %9s %9s\n",
	       "size", "to write", "read-only", "pin h2d", "pin d2h", "file h2d", "file d2h",
	       "page h2d", "page d2h");
	for (size_t n : sizes_of) {
		File f(dir, "measured", n);
		std::vector<uint8_t> page(n, 1);
		double reg, unreg, ro_reg, ro_unreg;

		if (!registering(f.p, n, false, &reg, &unreg)) {
			printf("%-9zu a mapping of a file here cannot be registered\n", n);
			break;
		}
		bool ro = registering(f.readonly, n, true, &ro_reg, &ro_unreg);
		auto rate = [&](void *to, const void *from, cudaMemcpyKind kind, bool async) {
			return (double)n / 1e9 / median([&] {
				       if (async)
					       cuda(cudaMemcpyAsync(to, from, n, kind, s));
				       else
					       cuda(cudaMemcpy(to, from, n, kind));
				       cuda(cudaStreamSynchronize(s));
			       });
		};
		char text[40] = "refused";

		if (ro)
			snprintf(text, sizeof text, "%.1f %.1f", ro_reg, ro_unreg);
		printf("%-9zu %30s%8.1f %6.1f %15s         %8.2f %8.2f", n, "", reg, unreg, text,
		       rate(device, pinned, cudaMemcpyHostToDevice, true),
		       rate(pinned, device, cudaMemcpyDeviceToHost, true));
		/* a load reads a read-only mapping, a store writes a writable one */
		double h2d = 0, d2h;

		if (ro) {
			check(!kvcachefs_cuda_register(0, f.readonly, n, true));
			h2d = rate(device, f.readonly, cudaMemcpyHostToDevice, true);
			kvcachefs_cuda_unregister(0, f.readonly);
		}
		check(!kvcachefs_cuda_register(0, f.p, n, false));
		d2h = rate(f.p, device, cudaMemcpyDeviceToHost, true);
		kvcachefs_cuda_unregister(0, f.p);
		printf(" %9.2f %9.2f %9.2f %9.2f\n", h2d, d2h,
		       rate(device, page.data(), cudaMemcpyHostToDevice, false),
		       rate(page.data(), device, cudaMemcpyDeviceToHost, false));
	}
	cudaFree(device);
	cudaFreeHost(pinned);
	cudaStreamDestroy(s);
	rmdir(dir.c_str());
}

/* A chunk of LAYERS MiB in `files` files. */
struct Load {
	Cache c{ KVCACHEFS_NL_X_TWO_NB_BS_NH_HS, LAYERS, 8, 128, 16, 256, 2, 1 };
	std::vector<int64_t> ids;
	std::vector<std::string> paths;
	std::vector<kvcachefs_item> items;
	kvcachefs_paged p = c.on(0);
	cudaStream_t stream;
	/* of the last call: time until it returned, and until the stream was free */
	double called = 0, held = 0;

	explicit Load(size_t files) : paths(files), items(files)
	{
		for (int64_t i = 0; i < 16; i++)
			ids.push_back((i * 37) % 256);
		cuda(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
		name(0);
	}
	~Load()
	{
		clear();
		cudaStreamDestroy(stream);
	}
	Load(const Load &) = delete;
	void clear()
	{
		for (auto &path : paths)
			unlink((mnt + "/" + path).c_str());
		rmdir((mnt + "/" + paths[0].substr(0, paths[0].rfind('/'))).c_str());
	}
	void name(unsigned n)
	{
		for (size_t i = 0; i < paths.size(); i++) {
			paths[i] = "measure/" + std::to_string(n) + "/" + std::to_string(i);
			items[i] = {};
			items[i].path = paths[i].c_str();
			items[i].layer = (uint32_t)i;
			items[i].nlayers = LAYERS / (uint32_t)paths.size();
			items[i].tokens = { nullptr, ids.data(), ids.size(), 0 };
		}
	}
	void call(bool store)
	{
		kvcachefs_transfer *t;
		double start = now();

		check(!(store ? kvcachefs_store : kvcachefs_load)(&t, mnt.c_str(), &p, items.data(),
								  items.size(), stream));
		called = now() - start;
		cuda(cudaStreamSynchronize(stream));
		held = now() - start;
		check(!kvcachefs_transfer_free(t));
	}
	void queue(bool store, kvcachefs_queue *q)
	{
		uint64_t id;
		double start = now();

		check(!(store ? kvcachefs_submit_store : kvcachefs_submit_load)(
			q, &p, items.data(), items.size(), stream, 0, &id));
		called = now() - start;
		check(!kvcachefs_layer_wait(q, id, LAYERS - 1, stream));
		cuda(cudaStreamSynchronize(stream));
		held = now() - start;
		check(!take_one(q).err);
	}
};

/* Drops everything kept from earlier transfers. */
void make_cold()
{
	kvcachefs_map_cache(0);
	kvcachefs_map_cache(1024 * MiB);
	forget_lanes();
}

enum { COLD, WARM, RESTED, STATES };

void measure(bool store, size_t files, bool queued, double plain)
{
	Load w(files);
	kvcachefs_queue *q;
	unsigned n = 0;
	double times[STATES], called[STATES], held[STATES];
	kvcachefs_gpu_counts a, b;

	check(!kvcachefs_queue_new(&q, mnt.c_str(), 0));
	w.call(true);
	kvcachefs_gpu_stats(&a);
	for (int state = COLD; state < STATES; state++) {
		for (int i = 0; state == WARM && !store && i < 2; i++)
			w.call(false); /* the second load starts the registration */
		kvcachefs_unmap_wait();
		times[state] = median(
			[&] {
				if (state == COLD)
					make_cold();
				if (store) { /* each into new files */
					w.clear();
					w.name(++n);
				}
				if (state == RESTED)
					usleep(REST_US);
			},
			[&] {
				if (queued)
					w.queue(store, q);
				else
					w.call(store);
			});
		called[state] = w.called * 1e6;
		held[state] = w.held * 1e6;
	}
	kvcachefs_gpu_stats(&b);
	kvcachefs_queue_free(q);
	printf("%-5s %-6s %5zu %9.1f", store ? "store" : "load", queued ? "queue" : "call", files,
	       plain * 1e6);
	for (int state = COLD; state < STATES; state++)
		printf(" %9.1f %5.2f %9.1f %9.1f", times[state] * 1e6, plain / times[state],
		       called[state], held[state]);
	printf(" %9llu %9llu\n",
	       (unsigned long long)(b.pinned_bytes + b.direct_bytes - a.pinned_bytes -
				    a.direct_bytes) >>
		       20,
	       (unsigned long long)(b.staged_bytes - a.staged_bytes) >> 20);
}

/*
 * kvcachefs_store(), kvcachefs_load() and the queue, compared with one plain pinned copy of the
 * same size.
 */
void transfers()
{
	const size_t all = LAYERS * MiB;
	const std::string dir = taught("measure"); /* kept, since files are prepared in it */
	cudaStream_t stream;
	uint8_t *device, *pinned;

	cuda(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
	cuda(cudaMalloc((void **)&device, all));
	cuda(cudaMallocHost((void **)&pinned, all));
	printf("%u MiB, us; plain: one pinned copy. cold: no mapping, registration or buffer is "
	       "kept from before; warm: directly after a previous call; rested: %d ms after a "
	       "previous call. ratio: plain / this. called: until the call returned; held: until "
	       "the stream was free\n",
	       LAYERS, REST_US / 1000);
	printf("%-5s %-6s %5s %9s", "", "by", "files", "plain");
	for (const char *state : { "cold", "warm", "rested" })
		printf(" %9s %5s %9s %9s", state, "ratio", "called", "held");
	printf(" %9s %9s\n", "MiB pin", "MiB stage");
	for (int store = 1; store >= 0; store--)
		for (size_t files : { (size_t)1, (size_t)LAYERS })
			for (int queued = 0; queued < 2; queued++) {
				/* measured together with the call that it is compared with */
				double plain = median([&] {
					cuda(cudaMemcpyAsync(store ? pinned : device,
							     store ? device : pinned, all,
							     store ? cudaMemcpyDeviceToHost
								   : cudaMemcpyHostToDevice,
							     stream));
					cuda(cudaStreamSynchronize(stream));
				});
				measure(store, files, queued, plain);
			}
	kvcachefs_map_cache(0);
	rmdir(dir.c_str());
	cudaFree(device);
	cudaFreeHost(pinned);
	cudaStreamDestroy(stream);
}

/* Returns GB/s of files of n bytes that are registered already, for the device's half alone. */
double small_rate(bool store, size_t n, uint8_t *host, const kvcachefs_paged &p,
		  const kvcachefs_strides &s, cudaStream_t stream)
{
	std::vector<int64_t> ids;
	kvcachefs_item it = {};
	size_t all = LAYERS * MiB / 4 / n * n;

	for (int64_t i = 0; i < (int64_t)(n / 4096); i++) /* of a block, in both components */
		ids.push_back(i * 37 % (int64_t)p.blocks);
	it.nlayers = 1;
	it.tokens = { nullptr, ids.data(), ids.size(), 0 };
	return (double)all / 1e9 / median([&] {
		       kvcachefs_cuda *c;

		       check(!kvcachefs_cuda_new(&c, 0, store, stream));
		       for (size_t at = 0; at < all; at += n) {
			       kvcachefs_work w = {
				       &it, &p, &s, ids.size() * p.block_size, host + at, n, true,
			       };
			       check(!kvcachefs_cuda_add(c, &w));
		       }
		       check(!kvcachefs_cuda_run(c) && !kvcachefs_cuda_wait(c));
		       kvcachefs_cuda_free(c);
	       });
}

/* Small files, copied as pieces of a batch and by a kernel; DIRECT is where the two are equal. */
void smalls()
{
	const std::string dir = taught("smalls");
	Cache c(KVCACHEFS_NL_X_TWO_NB_BS_NH_HS, 1, 1, 64, 16, 4096, 2, 1);
	File f(dir, "measured", 8 * MiB);
	kvcachefs_paged p = c.on(0);
	kvcachefs_strides s;
	cudaStream_t stream;
	size_t meet = 0;

	if (kvcachefs_cuda_register(0, f.p, f.len, false))
		return;
	check(!kvcachefs_strides_of(&p, &s));
	cuda(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
	printf("%-11s GB/s: %11s %11s %11s %11s\n", "small files", "load batch", "load kernel",
	       "store batch", "store kernel");
	for (size_t n = 4096; n <= 1u << 20; n += n < 32768 ? 4096 : n) {
		double rate[4];

		for (int way = 0; way < 4; way++) {
			setenv("KVCACHEFS_GPU_DIRECT", way % 2 ? "100000000" : "0", 1);
			rate[way] = small_rate(way / 2, n, f.p, p, s, stream);
		}
		if (rate[1] + rate[3] > rate[0] + rate[2])
			meet = n;
		printf("%-11zu       %11.2f %11.2f %11.2f %11.2f\n", n, rate[0], rate[1], rate[2],
		       rate[3]);
	}
	unsetenv("KVCACHEFS_GPU_DIRECT");
	printf("a kernel is quicker up to %zu bytes; KVCACHEFS_GPU_DIRECT is %zu where it is not "
	       "set\n",
	       meet, DIRECT);
	kvcachefs_cuda_unregister(0, f.p);
	cudaStreamDestroy(stream);
	rmdir(dir.c_str());
}

/* The kernels alone: bytes read and written per second, compared with a copy within the device. */
void kernels()
{
	Cache c(KVCACHEFS_NL_X_TWO_NB_BS_NH_HS, 8, 8, 128, 16, 512, 2, 1);
	Lane *l;
	kvcachefs_paged p = c.on(0);
	kvcachefs_strides s;
	cudaStream_t stream;
	std::vector<int64_t> ids;
	std::vector<float> turns(128, 0.5f);
	Part part = {};
	Args a;
	const int rounds = 20;
	const size_t half = 8 * MiB;

	for (int64_t i = 0; i < 128; i++)
		ids.push_back((i * 37) % 512);
	check(!kvcachefs_strides_of(&p, &s) && !lane_get(0, &l));
	cuda(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
	size_t pointers = a.add(p.pointers, s.npointers * sizeof(void *)),
	       at_ids = a.add(ids.data(), ids.size() * 8), at_turns = a.add(turns.data(), 512),
	       at = a.add(nullptr, 0);

	Shape shape = { s, p.elem, nullptr };

	check(!lane_args(l, at + sizeof shape + 16 + sizeof part) &&
	      !lane_buffer(l, 2 * half, 2 * half));
	part.block_ids = (const int64_t *)((uint8_t *)l->args.p + at_ids);
	part.at = (uint8_t *)l->buffer.p;
	part.turns = (const float *)((uint8_t *)l->args.p + at_turns);
	part.turn_dims = 128;
	part.type = KVCACHEFS_BF16;
	part.ntokens = 2048;
	part.nlayers = 1;
	part.rows = part.key_rows = 4096; /* 8 MiB */
	shape.pointers = (void *const *)((uint8_t *)l->args.p + pointers);
	a.add(&shape, sizeof shape);
	size_t at_part = a.add(&part, sizeof part);

	cuda(cudaMemcpy(l->args.p, a.bytes.data(), a.bytes.size(), cudaMemcpyHostToDevice));
	const Shape *shapes = (const Shape *)((uint8_t *)l->args.p + at);
	const Part *parts = (const Part *)((uint8_t *)l->args.p + at_part);
	dim3 grid((unsigned)l->sms * 16 < 512u ? (unsigned)l->sms * 16 : 512u);
	auto rate = [&](auto fn) {
		return 2.0 * half * rounds / 1e9 / median([&] {
			       for (int i = 0; i < rounds; i++)
				       fn();
			       cuda(cudaGetLastError());
			       cuda(cudaStreamSynchronize(stream));
		       });
	};
	double copy = rate([&] {
		cudaMemcpyAsync(l->buffer.p, (uint8_t *)l->buffer.p + half, half,
				cudaMemcpyDeviceToDevice, stream);
	});
	double gather = rate([&] {
		KVCACHEFS_LAUNCH(move_kernel<true>, grid, 256, stream, shapes, parts);
	});
	double scatter = rate([&] {
		KVCACHEFS_LAUNCH(move_kernel<false>, grid, 256, stream, shapes, parts);
	});
	double rope =
		rate([&] { KVCACHEFS_LAUNCH(rope_kernel, grid, 256, stream, shapes, parts); });

	printf("kernels, 8 MiB, GB/s read and written: copy within the device %.0f; gather %.0f, "
	       "%.2f of it; scatter %.0f, %.2f; rotation %.0f, %.2f\n",
	       copy, gather, gather / copy, scatter, scatter / copy, rope, rope / copy);
	lane_put(l);
	cudaStreamDestroy(stream);
}

} // namespace
