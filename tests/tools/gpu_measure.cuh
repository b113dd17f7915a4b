/* SPDX-License-Identifier: Apache-2.0 */
/* Of gpu.cu: what a device reaches, for kvcachefs-gpu(7). */
#pragma once

#include "gpu_cache.cuh"

namespace {

double now()
{
	timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

/* Median seconds of fn, which leaves the device idle. */
template <typename F> double median(F fn, int rounds = 9)
{
	std::vector<double> v;

	fn();
	for (int i = 0; i < rounds; i++) {
		double start = now();

		fn();
		v.push_back(now() - start);
	}
	std::sort(v.begin(), v.end());
	return v[v.size() / 2];
}

struct File {
	int fd;
	uint8_t *p;
	size_t len;
	File(const std::string &dir, const char *name, size_t n) : len(n)
	{
		std::string path = dir + "/" + name;

		fd = open(path.c_str(), O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
		check(fd >= 0 && !ftruncate(fd, (off_t)n));
		std::vector<uint8_t> some(n, 0x5a);
		check(pwrite(fd, some.data(), n, 0) == (ssize_t)n);
		p = (uint8_t *)mmap(nullptr, n, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
		check(p != MAP_FAILED);
		unlink(path.c_str());
	}
	~File()
	{
		munmap(p, len);
		close(fd);
	}
	File(const File &) = delete;
};

void rates(const std::string &dir)
{
	static const size_t sizes[] = { 128u << 10, MiB, 2 * MiB, 32 * MiB, 64 * MiB };
	cudaStream_t s;
	uint8_t *device, *pinned;

	cuda(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking));
	cuda(cudaMalloc((void **)&device, 64 * MiB));
	cuda(cudaMallocHost((void **)&pinned, 64 * MiB));
	printf("%-9s %14s %14s   GB/s: %8s %8s %10s %10s %9s %9s\n", "size", "register us",
	       "unregister us", "pin h2d", "pin d2h", "file h2d", "file d2h", "page h2d",
	       "page d2h");
	for (size_t n : sizes) {
		File f(dir, "measure", n);
		std::vector<uint8_t> page(n, 1);
		double reg = 0, unreg = 0;

		for (int i = 0; i < 9; i++) {
			double a = now();
			bool ok = !kvcachefs_cuda_register(0, f.p, n, i % 2);
			double b = now();

			if (!ok) {
				printf("%-9zu a mapping of a file here cannot be registered\n", n);
				return;
			}
			kvcachefs_cuda_unregister(0, f.p);
			reg += (b - a) / 9;
			unreg += (now() - b) / 9;
		}
		check(!kvcachefs_cuda_register(0, f.p, n, false));
		auto rate = [&](void *to, const void *from, cudaMemcpyKind kind, bool async) {
			return (double)n / 1e9 / median([&] {
				       if (async)
					       cuda(cudaMemcpyAsync(to, from, n, kind, s));
				       else
					       cuda(cudaMemcpy(to, from, n, kind));
				       cuda(cudaStreamSynchronize(s));
			       });
		};
		printf("%-9zu %14.1f %14.1f         %8.2f %8.2f %10.2f %10.2f %9.2f %9.2f\n", n,
		       reg * 1e6, unreg * 1e6, rate(device, pinned, cudaMemcpyHostToDevice, true),
		       rate(pinned, device, cudaMemcpyDeviceToHost, true),
		       rate(device, f.p, cudaMemcpyHostToDevice, true),
		       rate(f.p, device, cudaMemcpyDeviceToHost, true),
		       rate(device, page.data(), cudaMemcpyHostToDevice, false),
		       rate(page.data(), device, cudaMemcpyDeviceToHost, false));
		kvcachefs_cuda_unregister(0, f.p);
	}
	cudaFree(device);
	cudaFreeHost(pinned);
	cudaStreamDestroy(s);
}

/*
 * Whole transfers of Llama-8B's shape (32 layers of 8 heads of 128, bf16), against one plain pinned
 * copy of the same bytes.
 */
void transfers(const std::string &dir)
{
	const size_t layer = MiB, all = 32 * MiB;
	Cache c(KVCACHEFS_NL_X_TWO_NB_BS_NH_HS, 32, 8, 128, 16, 256, 2, 1);
	File f(dir, "measure", all);
	kvcachefs_paged p = c.on(0);
	kvcachefs_strides s;
	std::vector<int64_t> ids;
	cudaStream_t stream;
	uint8_t *device, *pinned;
	std::vector<uint8_t> page(all);

	for (int64_t i = 0; i < 16; i++)
		ids.push_back((i * 37) % 256);
	check(!kvcachefs_strides_of(&p, &s));
	cuda(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
	cuda(cudaMalloc((void **)&device, all));
	cuda(cudaMallocHost((void **)&pinned, all));
	check(!kvcachefs_cuda_register(0, f.p, all, false));
	auto transfer = [&](bool store, size_t files) {
		kvcachefs_cuda *t;
		std::vector<kvcachefs_item> items(files);

		check(!kvcachefs_cuda_new(&t, 0, store, stream));
		for (size_t i = 0; i < files; i++) {
			items[i].layer = files == 1 ? 0 : (uint32_t)i;
			items[i].nlayers = files == 1 ? 32 : 1;
			items[i].tokens = { nullptr, ids.data(), ids.size(), 0 };
			kvcachefs_work w = {
				&items[i], &p, &s, 256, f.p + i * layer, files == 1 ? all : layer,
				true
			};
			check(!kvcachefs_cuda_add(t, &w));
		}
		check(!kvcachefs_cuda_run(t) && !kvcachefs_cuda_wait(t));
		kvcachefs_cuda_free(t);
	};
	auto plain = [&](bool store) {
		cuda(cudaMemcpyAsync(store ? pinned : device, store ? device : pinned, all,
				     store ? cudaMemcpyDeviceToHost : cudaMemcpyHostToDevice,
				     stream));
		cuda(cudaStreamSynchronize(stream));
	};
	for (int store = 0; store < 2; store++) {
		/* interleaved: the medians of each are of the same minutes */
		double one = median([&] { plain(store); }),
		       whole = median([&] { transfer(store, 1); }),
		       layers = median([&] { transfer(store, 32); });
		double pageable = median([&] {
			if (store) {
				cuda(cudaMemcpy(page.data(), device, all, cudaMemcpyDeviceToHost));
				check(pwrite(f.fd, page.data(), all, 0) == (ssize_t)all);
			} else {
				check(pread(f.fd, page.data(), all, 0) == (ssize_t)all);
				cuda(cudaMemcpy(device, page.data(), all, cudaMemcpyHostToDevice));
			}
		});

		one = (one + median([&] { plain(store); })) / 2;
		printf("%s, 32 MiB: plain pinned copy %.1f us; one file %.1f us, %.2f of it; 32 "
		       "files of 1 MiB %.1f us, %.2f; by read or write and a pageable "
		       "copy %.1f us, %.1f times as long as one file\n",
		       store ? "store" : "load", one * 1e6, whole * 1e6, one / whole, layers * 1e6,
		       one / layers, pageable * 1e6, pageable / whole);
	}
	kvcachefs_cuda_unregister(0, f.p);
	cudaFree(device);
	cudaFreeHost(pinned);
	cudaStreamDestroy(stream);
}

/* The kernels alone: bytes read and written a second, against a copy within the device. */
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

	for (int64_t i = 0; i < 128; i++)
		ids.push_back((i * 37) % 512);
	check(!kvcachefs_strides_of(&p, &s) && !lane_get(0, &l));
	cuda(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
	size_t pointers = a.add(p.pointers, s.npointers * sizeof(void *)),
	       at_ids = a.add(ids.data(), ids.size() * 8), at_turns = a.add(turns.data(), 512),
	       at = a.add(nullptr, 0);

	Shape shape = { s, p.elem, nullptr };

	check(!lane_args(l, at + sizeof shape + 16 + sizeof part));
	part.block_ids = (const int64_t *)((uint8_t *)l->args.p + at_ids);
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
		return 2.0 * BUFFER * rounds / 1e9 / median([&] {
			       for (int i = 0; i < rounds; i++)
				       fn();
			       cuda(cudaGetLastError());
			       cuda(cudaStreamSynchronize(stream));
		       });
	};
	double copy = rate([&] {
		cudaMemcpyAsync(l->buffer[0], l->buffer[1], BUFFER, cudaMemcpyDeviceToDevice,
				stream);
	});
	double gather = rate([&] {
		KVCACHEFS_LAUNCH(move_kernel<true>, grid, 256, stream, shapes, parts, l->buffer[0]);
	});
	double scatter = rate([&] {
		KVCACHEFS_LAUNCH(move_kernel<false>, grid, 256, stream, shapes, parts,
				 l->buffer[0]);
	});
	double rope = rate([&] {
		KVCACHEFS_LAUNCH(rope_kernel, grid, 256, stream, shapes, parts, l->buffer[0]);
	});

	printf("kernels, 8 MiB, GB/s read and written: copy within the device %.0f; gather %.0f, "
	       "%.2f of it; scatter %.0f, %.2f; rotation %.0f, %.2f\n",
	       copy, gather, gather / copy, scatter, scatter / copy, rope, rope / copy);
	lane_put(l);
	cudaStreamDestroy(stream);
}

} // namespace
