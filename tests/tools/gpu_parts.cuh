/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Part of gpu.cu: items made of parts, long rows, and their measurement. The measurement needs no
 * mount: registered memory of the process stands for the pages of files.
 */
#pragma once

#include "gpu_cache.cuh"
#include "gpu_measure.cuh"
#include "gpu_staged.cuh"

namespace {

/* Memory on the device with known bytes, and parts of it. */
struct Ranges {
	std::vector<uint8_t> host; /* what the device has */
	uint8_t *device;
	std::vector<kvcachefs_part> parts;
	std::vector<uint8_t> file; /* what the file must have */

	explicit Ranges(size_t len, unsigned seed) : host(len)
	{
		for (uint8_t &b : host)
			b = (uint8_t)((seed = seed * 1103515245 + 12345) >> 16);
		cuda(cudaMalloc((void **)&device, len));
		up();
	}
	~Ranges()
	{
		cudaFree(device);
	}
	Ranges(const Ranges &) = delete;
	void up()
	{
		cuda(cudaMemcpy(device, host.data(), host.size(), cudaMemcpyHostToDevice));
	}
	std::vector<uint8_t> down()
	{
		std::vector<uint8_t> v(host.size());

		cuda(cudaDeviceSynchronize());
		cuda(cudaMemcpy(v.data(), device, v.size(), cudaMemcpyDeviceToHost));
		return v;
	}
	void add(size_t at, size_t len, size_t offset)
	{
		parts.push_back({ device + at, len, offset });
		if (file.size() < offset + len)
			file.resize(offset + len);
		memcpy(&file[offset], &host[at], len);
	}
	kvcachefs_item item(const std::string &path)
	{
		kvcachefs_item it = {};

		it.path = path.c_str();
		it.parts = parts.data();
		it.nparts = parts.size();
		return it;
	}
};

int move_parts(bool store, kvcachefs_item *items, size_t n, cudaStream_t stream = nullptr)
{
	kvcachefs_paged where = {};
	kvcachefs_transfer *t;
	int err = (store ? kvcachefs_store : kvcachefs_load)(&t, mnt.c_str(), &where, items, n,
							     stream);

	return err ? err : kvcachefs_transfer_free(t);
}

/* Small, large and odd parts, holes, and parts that continue each other. */
void fill_ranges(Ranges *r)
{
	r->add(0, 1000, 5);
	r->add(1000, 24 << 10, 1005); /* continues it */
	r->add(300001, 77, 40000);
	r->add(400000, 300000, 50001);
	r->add(200000, 4096, 400000);
	r->add(800000, 1, 404096);
}

/*
 * A round trip of two files in one transfer, three times: a file that was not prepared is staged, a
 * prepared one is copied directly.
 */
void parts(bool pins)
{
	const size_t LEN = MiB;

	for (int round = 0; round < 3; round++) {
		Ranges a(LEN, 1), b(LEN, 2), back(LEN, 3);
		std::string names[2] = {
			"parts/r" + std::to_string(round) + "/a",
			"parts/r" + std::to_string(round) + "/b",
		};
		kvcachefs_gpu_counts before;

		fill_ranges(&a);
		fill_ranges(&b);
		kvcachefs_item items[2] = { a.item(names[0]), b.item(names[1]) };

		unlink((mnt + "/" + names[0]).c_str());
		unlink((mnt + "/" + names[1]).c_str());
		check(!move_parts(true, items, 2));
		check(contents(names[0]) == a.file && contents(names[1]) == b.file);
		kvcachefs_map_cache(64 * MiB);
		/* a is registered once more bytes of it were loaded than it is long */
		for (int i = 0; i < 4; i++)
			check(!move_parts(false, items, 1));
		kvcachefs_unmap_wait();
		check(a.down() == a.host);
		/* only a's first parts, and all of b */
		for (kvcachefs_part &p : a.parts)
			p.at = back.device + ((uint8_t *)p.at - a.device);
		items[0].nparts = 3;
		before = stats();
		check(!move_parts(false, items, 1));
		check(pins ? stats().staged_bytes == before.staged_bytes
			   : stats().staged_bytes == before.staged_bytes + 1000 + (24 << 10) + 77);
		memcpy(&back.host[0], &a.host[0], 1000 + (24 << 10));
		memcpy(&back.host[300001], &a.host[300001], 77);
		check(back.down() == back.host);
		std::vector<uint8_t> was = b.host;

		std::fill(b.host.begin(), b.host.end(), (uint8_t)0);
		b.up();
		for (const kvcachefs_part &p : b.parts) {
			size_t at = (size_t)((uint8_t *)p.at - b.device);

			memcpy(&b.host[at], &was[at], p.len);
		}
		check(!move_parts(false, &items[1], 1) && b.down() == b.host);
		kvcachefs_map_cache(0);
	}
}

/* Tokens of a cache and parts in one transfer. */
void parts_beside_tokens()
{
	Chunk c("parts/tokens", 40);
	Ranges r(MiB, 9);
	auto before = c.c.host;

	fill_ranges(&r);
	std::string name = "parts/beside";

	unlink((mnt + "/" + name).c_str());
	c.items.push_back(r.item(name));
	check(!move_all(c.c, 0, true, c.items) && contents(name) == r.file);
	check(!move_all(c.c, 0, false, c.items) && c.c.down() == before);
	check(r.down() == r.host);
	/* a file that exists is left as it is */
	r.host[0] ^= 1;
	r.up();
	for (kvcachefs_item &it : c.items)
		it.skip_existing = true;
	check(!move_all(c.c, 0, true, c.items) && contents(name) == r.file);
	check(c.items[0].skipped && c.items[1].skipped);
}

/* The copies follow the work before them on the stream, and the work after follows them. */
void parts_order()
{
	const size_t LEN = 4 * MiB;
	Ranges r(LEN, 4);
	std::string name = "parts/order";
	std::vector<uint8_t> ones(LEN, 1), row(LEN);
	kvcachefs_paged where = {};
	kvcachefs_transfer *t;
	cudaStream_t stream;
	uint8_t *other;

	for (size_t at = 0; at < LEN; at += 64 << 10)
		r.add(LEN - at - (64 << 10), 64 << 10, at);
	kvcachefs_item it = r.item(name);

	unlink((mnt + "/" + name).c_str());
	cuda(cudaMalloc((void **)&other, LEN));
	cuda(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
	cuda(cudaMemsetAsync(r.device, 1, LEN, stream));
	check(!kvcachefs_store(&t, mnt.c_str(), &where, &it, 1, stream));
	cuda(cudaMemsetAsync(r.device, 2, LEN, stream));
	check(!kvcachefs_transfer_free(t) && contents(name) == ones);
	cuda(cudaMemsetAsync(r.device, 3, LEN, stream));
	check(!kvcachefs_load(&t, mnt.c_str(), &where, &it, 1, stream));
	cuda(cudaMemcpyAsync(other, r.device, LEN, cudaMemcpyDeviceToDevice, stream));
	cuda(cudaStreamSynchronize(stream));
	check(!kvcachefs_transfer_free(t));
	cuda(cudaMemcpy(row.data(), other, LEN, cudaMemcpyDeviceToHost));
	check(row == ones);
	cudaFree(other);
	cudaStreamDestroy(stream);
}

/* Memory that is not on the device fails its item only. */
void parts_refused()
{
	Ranges r(MiB, 5);
	std::string names[2] = { "parts/good", "parts/bad" };
	kvcachefs_part low = { (void *)4096, 10, 0 }; /* an offset in a tensor without memory */
	void *far = mmap(nullptr, 8 * MiB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1,
			 0);
	kvcachefs_part bad[2] = { { r.device, 100, 0 }, { (uint8_t *)far + 4 * MiB, 10, 100 } };

	fill_ranges(&r);
	kvcachefs_item items[2] = { r.item(names[0]), r.item(names[1]) };

	unlink((mnt + "/" + names[0]).c_str());
	items[1].parts = bad;
	items[1].nparts = 2;
	check(far != MAP_FAILED);
	check(move_parts(true, items, 2) == -EFAULT && items[0].err == 0 &&
	      items[1].err == -EFAULT && strstr(kvcachefs_error(), "not memory of device 0"));
	check(contents(names[0]) == r.file && access((mnt + "/" + names[1]).c_str(), F_OK));
	items[1].parts = &low;
	items[1].nparts = 1;
	check(move_parts(true, &items[1], 1) == -EFAULT && items[1].err == -EFAULT);
	munmap(far, 8 * MiB);
}

/* Rows longer than a group are cut; several runs and planes, which end inside a piece. */
void long_rows()
{
	const Sizes was = sizes;
	int64_t slots[5] = { 7, 2, -1, 4, 9 };

	sizes.group = 64 << 10;
	sizes.staged_group = 16 << 10;
	sizes.few = sizes.staging = 256 << 10;
	sizes.buffer = 256 << 10;
	forget_lanes();
	for (int f : { KVCACHEFS_NL_X_NB_BS_HS, KVCACHEFS_NL_X_NB_NH_BS_CS,
		       KVCACHEFS_NL_X_NP_X_NB_BS_ONE_HS, KVCACHEFS_NL_X_TWO_NB_BS_NH_HS })
		for (int fused = 0; fused <= (f == KVCACHEFS_NL_X_NB_NH_BS_CS); fused++) {
			Cache c(f, 2, 3, 50001, 2, 6, 2, (unsigned)f, fused),
				d(f, 2, 3, 50001, 2, 6, 2, 77, fused);
			kvcachefs_paged host = c.on(-1), other = d.on(-1);
			kvcachefs_item it = {};
			std::string path = "rows/" + std::to_string(f) + std::to_string(fused);

			it.path = path.c_str();
			it.nlayers = 2;
			it.tokens = { slots, nullptr, 5, 1 };
			std::vector<kvcachefs_item> items{ it };
			std::vector<uint8_t> want(kvcachefs_file_size(&host, 2, &it.tokens));

			check(!kvcachefs_gather(&host, 0, 2, &it.tokens, want.data()));
			check(!move_all(c, 0, true, items) && contents(path) == want);
			check(!move_all(d, 0, false, items) &&
			      !kvcachefs_scatter(&other, 0, 2, &it.tokens, want.data()) &&
			      d.down() == d.host);
		}
	forget_lanes();
	sizes = was;
}

/* ---- Measurement ---- */

/* Moves parts, or tokens, of files that are registered already: the device's half alone. */
double device_half(bool store, const std::vector<kvcachefs_work> &work, size_t all)
{
	cudaStream_t stream;
	double seconds;

	cuda(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
	seconds = median([&] {
		kvcachefs_cuda *c;

		check(!kvcachefs_cuda_new(&c, 0, store, stream));
		for (const kvcachefs_work &w : work)
			check(!kvcachefs_cuda_add(c, &w));
		check(!kvcachefs_cuda_run(c) && !kvcachefs_cuda_wait(c));
		kvcachefs_cuda_free(c);
	});
	cudaStreamDestroy(stream);
	return (double)all / 1e9 / seconds;
}

/* GB/s of plain copies of parts of n bytes, one call for each. */
double plain_parts(bool store, uint8_t *device, uint8_t *host, size_t n, size_t all)
{
	cudaStream_t s;
	double seconds;

	cuda(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking));
	seconds = median([&] {
		for (size_t at = 0; at < all; at += n) {
			uint8_t *d = device + (all - n - at); /* nothing can be merged */

			cuda(cudaMemcpyAsync(
				store ? host + at : d, store ? d : host + at, n,
				store ? cudaMemcpyDeviceToHost : cudaMemcpyHostToDevice, s));
		}
		cuda(cudaStreamSynchronize(s));
	});
	cudaStreamDestroy(s);
	return (double)all / 1e9 / seconds;
}

/*
 * Parts of files of `FILE_BYTES`, and byte pages of a paged cache, of many sizes, against plain
 * copies. The pages of the files are registered memory of this process.
 */
void measure_parts()
{
	constexpr size_t ALL = 128 * MiB, FILE_BYTES = 4 * MiB;
	uint8_t *device, *host;
	kvcachefs_gpu_counts before = stats();

	cuda(cudaMalloc((void **)&device, ALL));
	host = (uint8_t *)mmap(nullptr, ALL, PROT_READ | PROT_WRITE,
			       MAP_SHARED | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
	bool registered = host != MAP_FAILED && !kvcachefs_cuda_register(0, host, ALL, false);
	if (!registered) { /* some sandboxes refuse it */
		printf("memory cannot be registered here: pinned memory takes its place\n");
		cuda(cudaMallocHost((void **)&host, ALL));
	}
	printf("GB/s, %zu MiB; plain: one copy for each; batch: the copy engine; kernel: a kernel "
	       "for all; chosen: as parts of that size are copied\n",
	       ALL / MiB);
	printf("%-12s %6s %8s %8s %8s %8s %8s\n", "parts", "", "whole", "plain", "batch", "kernel",
	       "chosen");
	for (size_t n = 4096; n <= 64 * MiB; n *= n < MiB ? 2 : 4)
		for (int store = 1; store >= 0; store--) {
			size_t file = std::max(n, FILE_BYTES);
			std::vector<kvcachefs_part> all_parts;
			std::vector<kvcachefs_item> items;
			std::vector<kvcachefs_work> work;
			double rate[3];

			for (size_t at = 0; at < ALL; at += n)
				all_parts.push_back({ device + (ALL - n - at), n, at % file });
			for (size_t at = 0; at < ALL; at += file) {
				kvcachefs_item it = {};

				it.parts = &all_parts[at / n];
				it.nparts = file / n;
				items.push_back(it);
			}
			for (size_t i = 0; i < items.size(); i++) {
				kvcachefs_work w = {};

				w.item = &items[i];
				w.host = host + i * file;
				w.len = file;
				w.pinned = true;
				work.push_back(w);
			}
			for (int way = 0; way < 3; way++) {
				if (way < 2)
					setenv("KVCACHEFS_GPU_DIRECT", way ? "1000000000" : "0", 1);
				else
					unsetenv("KVCACHEFS_GPU_DIRECT");
				rate[way] = device_half(store, work, ALL);
			}
			printf("%-12zu %6s %8.2f %8.2f %8.2f %8.2f %8.2f\n", n,
			       store ? "store" : "load", plain_parts(store, device, host, ALL, ALL),
			       n >= 16384 ? plain_parts(store, device, host, n, ALL) : 0, rate[0],
			       rate[1], rate[2]);
		}
	printf("%-12s %6s %8s\n", "byte pages", "", "GB/s");
	for (size_t n = 4096; n <= 64 * MiB; n *= 4)
		for (int store = 1; store >= 0; store--) {
			size_t file = std::max(n, FILE_BYTES);
			kvcachefs_paged p = {};
			kvcachefs_strides s;
			void *pointer = device;
			std::vector<int64_t> ids;
			std::vector<kvcachefs_item> items;
			std::vector<kvcachefs_work> work;

			p.format = KVCACHEFS_NL_X_NB_BS_HS;
			p.layers = p.heads = p.block_size = 1;
			p.head_size = (uint32_t)n;
			p.blocks = ALL / n;
			p.elem = 1;
			p.pointers = &pointer;
			check(!kvcachefs_strides_of(&p, &s));
			for (size_t i = 0; i < ALL / n; i++)
				ids.push_back((int64_t)(ALL / n - 1 - i));
			for (size_t at = 0; at < ALL; at += file) {
				kvcachefs_item it = {};

				it.nlayers = 1;
				it.tokens = { nullptr, &ids[at / n], file / n, 0 };
				items.push_back(it);
			}
			for (size_t i = 0; i < items.size(); i++)
				work.push_back({ &items[i], &p, &s, file / n, host + i * file, file,
						 true });
			printf("%-12zu %6s %8.2f\n", n, store ? "store" : "load",
			       device_half(store, work, ALL));
		}
	printf("bytes staged: %llu\n",
	       (unsigned long long)(stats().staged_bytes - before.staged_bytes));
	if (registered) {
		kvcachefs_cuda_unregister(0, host);
		munmap(host, ALL);
	} else {
		cudaFreeHost(host);
	}
	cudaFree(device);
}

} // namespace
