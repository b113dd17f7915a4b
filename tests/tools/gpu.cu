/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gpu test MOUNT: transfers between files of a mount and a paged cache on a device, against the
 * same in host memory. Exit 1 and a line where something is wrong, 77 where there is no device. gpu
 * measure DIR: what kvcachefs-gpu(7) has numbers of, on files in DIR (a mount, or a tmpfs of huge
 * pages in its place).
 *
 * Built twice: with CUDA for a machine that has a device, and with tests/fakecuda for any. It
 * contains gpu/cuda.cu, so as to reach the kernels.
 */
#include "../../gpu/cuda.cu"

#include <fcntl.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <string>
#include <thread>

#define check(what)                                                                       \
	do {                                                                              \
		if (!(what)) {                                                            \
			printf("line %d: %s (%s)\n", __LINE__, #what, kvcachefs_error()); \
			exit(1);                                                          \
		}                                                                         \
	} while (0)
#define cuda(call) check((call) == cudaSuccess)

namespace {

constexpr size_t MiB = 1u << 20;
std::string mnt;

bool is_single(int f) /* one head */
{
	return f == KVCACHEFS_NL_X_NB_BS_HS || f == KVCACHEFS_NL_X_NBBS_ONE_HS ||
	       f == KVCACHEFS_NL_X_NB_BSV_BSS || f == KVCACHEFS_NL_X_NP_X_NB_BS_ONE_HS;
}

bool can_fuse(int f)
{
	return (f >= KVCACHEFS_NL_X_NB_NH_BS_TWO_HS && f <= KVCACHEFS_NL_X_NB_BS_NH_CS) ||
	       f >= KVCACHEFS_NB_NL_NH_BS_CS;
}

/* A paged cache on the device and the same in host memory. */
struct Cache {
	kvcachefs_paged p = {};
	size_t len; /* of what a pointer points at */
	std::vector<void *> device;
	std::vector<std::vector<uint8_t>> host;
	std::vector<void *> host_pointers;

	Cache(int format, uint32_t layers, uint32_t heads, uint32_t head_size, uint32_t block_size,
	      uint64_t blocks, uint32_t elem, unsigned seed, bool fused = false, uint64_t pad = 0)
	{
		kvcachefs_strides s;

		p.format = (kvcachefs_format)format;
		p.layers = layers;
		p.heads = is_single(format) ? 1 : heads;
		p.head_size = head_size;
		p.block_size = block_size;
		p.blocks = blocks;
		p.elem = elem;
		if (format == KVCACHEFS_NL_X_NP_X_NB_BS_ONE_HS) {
			p.planes = 3;
			p.plane_width[0] = head_size - 3;
			p.plane_width[1] = 1;
			p.plane_width[2] = 2;
		}
		check(!kvcachefs_shape_of(&p, &s));
		size_t n = s.npointers,
		       all = (size_t)s.kvs * layers * blocks * block_size * p.heads * head_size;

		len = s.planes ? blocks * block_size * head_size : all / n;
		p.fused = fused;
		if (pad &&
		    !s.planes) { /* blocks further apart, where all of a block lies together */
			p.block_stride = s.block + pad;
			len += (s.kvs == 2 && s.kv > s.block ? 2 : 1) * blocks * pad;
		}
		len *= elem;
		for (size_t i = 0; i < n; i++) {
			void *d;

			host.emplace_back(len);
			for (uint8_t &b : host.back())
				b = (uint8_t)((seed = seed * 1103515245 + 12345) >> 16);
			cuda(cudaMalloc((void **)&d, len));
			device.push_back(d);
		}
		for (auto &h : host)
			host_pointers.push_back(h.data());
		up();
	}
	~Cache()
	{
		for (void *d : device)
			cudaFree(d);
	}
	Cache(const Cache &) = delete;
	void up()
	{
		for (size_t i = 0; i < host.size(); i++)
			cuda(cudaMemcpy(device[i], host[i].data(), len, cudaMemcpyHostToDevice));
	}
	std::vector<std::vector<uint8_t>> down()
	{
		auto v = host;

		cuda(cudaDeviceSynchronize());
		for (size_t i = 0; i < host.size(); i++)
			cuda(cudaMemcpy(v[i].data(), device[i], len, cudaMemcpyDeviceToHost));
		return v;
	}
	kvcachefs_paged on(int where)
	{
		kvcachefs_paged q = p;

		q.device = where;
		q.pointers = where < 0 ? host_pointers.data() : device.data();
		return q;
	}
};

std::vector<uint8_t> contents(const std::string &path)
{
	std::string full = mnt + "/" + path;
	int fd = open(full.c_str(), O_RDONLY | O_CLOEXEC);
	struct stat st;

	check(fd >= 0 && !fstat(fd, &st));
	std::vector<uint8_t> v((size_t)st.st_size);
	check(read(fd, v.data(), v.size()) == (ssize_t)v.size());
	close(fd);
	return v;
}

int move_all(Cache &c, int where, bool store, std::vector<kvcachefs_item> &items,
	     cudaStream_t stream = nullptr)
{
	kvcachefs_paged p = c.on(where);
	kvcachefs_transfer *t;
	int err = (store ? kvcachefs_store : kvcachefs_load)(&t, mnt.c_str(), &p, items.data(),
							     items.size(), stream);

	if (err)
		return err;
	while (kvcachefs_transfer_poll(t) == -EAGAIN)
		usleep(100);
	return kvcachefs_transfer_free(t);
}

/*
 * Every format, element and way of addressing: out by the device, compared with the host's gather,
 * and in again.
 */
void formats()
{
	int64_t slots[9] = { 3, 10, 17, 0, 23, -1, 21, 4, 11 }, blocks[3] = { 4, -1, 1 };

	for (int f = 0; f < KVCACHEFS_FORMATS; f++)
		for (uint32_t elem = 1; elem <= 4; elem *= 2)
			for (int by_block = 0; by_block < 2; by_block++)
				for (uint32_t size :
				     { 8u,
				       5u }) { /* 5: nothing is aligned, and blocks are padded */
					bool fused = can_fuse(f) && (elem == 2 || size == 5) &&
						     by_block;
					Cache c(f, 3, 2, size, 4, 6, elem, (unsigned)f + elem,
						fused, size == 5 ? 3 : 0);
					kvcachefs_item it = {};
					std::string path = "gpu/f" + std::to_string(f) + "/l" +
							   std::to_string(elem) +
							   std::to_string(by_block);

					it.path = path.c_str();
					it.layer = 1;
					it.nlayers = 2;
					if (by_block)
						it.tokens = { nullptr, blocks, 3, 1 };
					else
						it.tokens = { slots, nullptr, 9, 2 };
					std::vector<kvcachefs_item> items{ it };
					kvcachefs_paged host = c.on(-1);
					std::vector<uint8_t> want(kvcachefs_file_size(&host, 2,
										      &it.tokens));

					check(!kvcachefs_gather(&host, 1, 2, &it.tokens,
								want.data()));
					check(!move_all(c, 0, true, items));
					check(contents(path) == want);
					/* what was not named stays as it was */
					Cache d(f, 3, 2, size, 4, 6, elem, 99, fused,
						size == 5 ? 3 : 0);
					kvcachefs_paged dhost = d.on(-1);

					check(!move_all(d, 0, false, items));
					check(!kvcachefs_scatter(&dhost, 1, 2, &it.tokens,
								 want.data()));
					check(d.down() == d.host);
				}
}

float value(const uint8_t *p, int type)
{
	uint16_t h;
	uint32_t u;
	float f;

	if (type == KVCACHEFS_F32) {
		memcpy(&f, p, 4);
		return f;
	}
	memcpy(&h, p, 2);
	if (type == KVCACHEFS_BF16) {
		u = (uint32_t)h << 16;
		memcpy(&f, &u, 4);
		return f;
	}
	int e = h >> 10 & 31, m = h & 1023;

	f = e ? ldexpf((float)(m + 1024), e - 25) : ldexpf((float)m, -24);
	return h >> 15 ? -f : f;
}

/*
 * Many files in one call, one larger than both buffers, keys rotated on the way; the host does the
 * same with doubles.
 */
void many(int type)
{
	const uint32_t elem = type == KVCACHEFS_F32 ? 4 : 2, H = 4, D = 64, BS = 16, NB = 320,
		       N = 20;
	Cache c(KVCACHEFS_NL_X_TWO_NB_BS_NH_HS, 4, H, D, BS, NB, elem, 7);
	kvcachefs_rope rope = {};

	rope.theta = 500000;
	rope.interleaved = type == KVCACHEFS_F16;
	rope.delta = 1234567;
	rope.type = (kvcachefs_float)type;
	std::vector<std::string> paths;
	std::vector<std::vector<int64_t>> ids;
	std::vector<kvcachefs_item> items;

	for (auto &h : c.host) /* numbers that rotate well: no NaN, no infinity */
		for (size_t i = 0; i < h.size() / elem; i++) {
			float f = (float)((int)(h[i * elem] % 201) - 100) / 32;
			uint32_t u;

			memcpy(&u, &f, 4);
			if (type == KVCACHEFS_F32)
				memcpy(&h[i * 4], &u, 4);
			else if (type == KVCACHEFS_BF16)
				memcpy(&h[i * 2], (uint8_t *)&u + 2, 2);
			else
				h[i * 2] &= 0x7f, h[i * 2 + 1] = 0x38 | (h[i * 2 + 1] & 0x83);
		}
	c.up();
	for (uint32_t i = 0; i <= N; i++) {
		paths.push_back(std::string(i == N ? "large/" : "many/") + std::to_string(type) +
				"/" + std::to_string(i));
		ids.emplace_back();
		for (uint32_t b = 0; b < (i == N ? NB : 1 + i % 9); b++)
			ids.back().push_back((b * 37 + i * 11) % NB);
	}
	for (uint32_t i = 0; i <= N; i++) {
		kvcachefs_item it = {};

		it.path = paths[i].c_str();
		it.layer = i == N ? 0 : i % 4;
		it.nlayers = i == N ? 4 : 1;
		it.tokens = { nullptr, ids[i].data(), ids[i].size(), 0 };
		items.push_back(it);
	}
	check(!move_all(c, 0, true, items));
	for (uint32_t i = 0; i <= N; i++) {
		kvcachefs_paged host = c.on(-1);
		std::vector<uint8_t> want(kvcachefs_file_size(&host, items[i].nlayers,
							      &items[i].tokens));

		check(!kvcachefs_gather(&host, items[i].layer, items[i].nlayers, &items[i].tokens,
					want.data()));
		check(contents(paths[i]) == want);
	}
	/* one file after the other: they overlap in the cache */
	for (uint32_t i = 0; i <= N; i++) {
		std::vector<kvcachefs_item> one{ items[i] };

		if (i % 2 == 0)
			one[0].rope = &rope;
		check(!move_all(c, 0, false, one));
		check(!move_all(c, -1, false, one));
		auto got = c.down();

		for (size_t k = 0; k < got.size(); k++)
			for (size_t e = 0; e < c.len; e += elem) {
				float a = value(&got[k][e], type), b = value(&c.host[k][e], type);

				/* one rounding apart at most: floats there, doubles here */
				check(fabsf(a - b) <= fabsf(b) * (type == KVCACHEFS_F32 ? 1e-6f
								  : type == KVCACHEFS_F16
									  ? 1.f / 1024
									  : 1.f / 128) +
							      1e-5f);
			}
		c.up();
	}
}

/* What the caller queues before and after on the same stream is kept apart. */
void order()
{
	Cache c(KVCACHEFS_NL_X_TWO_NB_BS_NH_HS, 2, 8, 64, 16, 512, 2, 3);
	std::vector<int64_t> ids;
	cudaStream_t stream;
	kvcachefs_transfer *t;
	kvcachefs_item it = {};
	std::vector<uint8_t> want, row(c.len);

	for (int64_t i = 0; i < 512; i++)
		ids.push_back((i * 5) % 512);
	it.path = "order/all";
	it.nlayers = 2;
	it.tokens = { nullptr, ids.data(), ids.size(), 0 };
	cuda(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
	kvcachefs_paged p = c.on(0), host = c.on(-1);

	want.resize(kvcachefs_file_size(&host, 2, &it.tokens));
	/* the store takes what was queued before it, and not what was queued after */
	cuda(cudaMemsetAsync(c.device[0], 1, c.len, stream));
	std::fill(c.host[0].begin(), c.host[0].end(), (uint8_t)1);
	check(!kvcachefs_store(&t, mnt.c_str(), &p, &it, 1, stream));
	for (void *d : c.device)
		cuda(cudaMemsetAsync(d, 2, c.len, stream));
	check(!kvcachefs_transfer_free(t));
	check(!kvcachefs_gather(&host, 0, 2, &it.tokens, want.data()));
	check(contents("order/all") == want);
	/* what is queued after a load sees it */
	void *pinned;

	cuda(cudaMallocHost(&pinned, c.len));
	check(!kvcachefs_load(&t, mnt.c_str(), &p, &it, 1, stream));
	cuda(cudaMemcpyAsync(pinned, c.device[1], c.len, cudaMemcpyDeviceToHost, stream));
	cuda(cudaStreamSynchronize(stream));
	check(!memcmp(pinned, c.host[1].data(), c.len));
	check(!kvcachefs_transfer_wait(t) && !kvcachefs_transfer_poll(t));
	check(!kvcachefs_transfer_free(t));
	cuda(cudaFreeHost(pinned));
	cuda(cudaStreamDestroy(stream));
}

void threads()
{
	std::vector<std::thread> all;

	for (int w = 0; w < 4; w++)
		all.emplace_back([w] {
			Cache c(w, 2, 2, 64, 16, 64, 2, (unsigned)w);
			int64_t ids[8] = { 1, 60, 3, 7, 22, 9, 50, 2 };
			cudaStream_t stream;

			cuda(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
			for (int r = 0; r < 10; r++) {
				std::string path = "threads/" + std::to_string(w) + "-" +
						   std::to_string(r);
				kvcachefs_item it = {};
				auto before = c.host;

				it.path = path.c_str();
				it.nlayers = 2;
				it.tokens = { nullptr, ids, 8, 0 };
				std::vector<kvcachefs_item> items{ it };
				check(!move_all(c, 0, true, items, stream) &&
				      !move_all(c, 0, false, items, stream));
				check(c.down() == before);
			}
			cuda(cudaStreamDestroy(stream));
		});
	for (auto &t : all)
		t.join();
}

void refused()
{
	Cache c(KVCACHEFS_NL_X_TWO_NB_BS_NH_HS, 2, 2, 8, 4, 4, 2, 1);
	int64_t slot = 3, outside = 16;
	kvcachefs_item it = {};
	kvcachefs_transfer *t;
	kvcachefs_rope rope = {};

	it.path = "refused/x";
	it.nlayers = 1;
	it.tokens = { &slot, nullptr, 1, 0 };
	std::vector<kvcachefs_item> items{ it };

	check(!move_all(c, 0, true, items));
	kvcachefs_paged p = c.on(0);

	p.device = 7;
	check(kvcachefs_load(&t, mnt.c_str(), &p, items.data(), 1, nullptr) == -ENODEV &&
	      strstr(kvcachefs_error(), "device 7"));
	auto bad = items;

	bad[0].tokens.slots = &outside;
	check(move_all(c, 0, false, bad) == -ERANGE && bad[0].err == -ERANGE &&
	      strstr(kvcachefs_error(), "refused/x: slot 16"));
	bad = items;
	bad[0].nlayers = 2; /* another layout than the file's */
	check(move_all(c, 0, false, bad) == -EPROTOTYPE);
	bad = items;
	bad[0].path = "refused/none";
	check(move_all(c, 0, false, bad) == -ENOENT);
	bad = items;
	rope.theta = 10000;
	rope.delta = 5;
	rope.type = KVCACHEFS_BF16;
	rope.dims = 7;
	bad[0].rope = &rope;
	check(move_all(c, 0, false, bad) == -EINVAL);
	/* the good ones of a call are done, the bad one is named */
	bad = { items[0], items[0] };
	bad[0].tokens.slots = &outside;
	check(move_all(c, 0, false, bad) == -ERANGE && bad[0].err == -ERANGE && !bad[1].err);
	check(c.down() == c.host);
	/* a store that fails leaves nothing */
	bad = items;
	bad[0].path = "refused/bad";
	bad[0].tokens.slots = &outside;
	check(move_all(c, 0, true, bad) == -ERANGE && access((mnt + "/refused/bad").c_str(), F_OK));
}

/* With mappings kept, a file is registered once. */
void kept_mappings()
{
	Cache c(KVCACHEFS_NL_X_TWO_NB_BS_NH_HS, 2, 8, 64, 16, 64, 2, 1);
	int64_t ids[16];
	kvcachefs_item it = {};

	for (int i = 0; i < 16; i++)
		ids[i] = i * 3;
	it.path = "kept/x";
	it.nlayers = 2;
	it.tokens = { nullptr, ids, 16, 0 };
	std::vector<kvcachefs_item> items{ it };

	kvcachefs_map_cache(64 * MiB);
	check(!move_all(c, 0, true, items) && !move_all(c, 0, false, items));
#ifdef FAKE_CUDA_RUNTIME_H
	unsigned long registers = fake_counted().registers;
#endif
	for (int i = 0; i < 5; i++)
		check(!move_all(c, 0, false, items));
#ifdef FAKE_CUDA_RUNTIME_H
	check(fake_counted().registers == registers);
#endif
	check(c.down() == c.host);
	kvcachefs_map_cache(0);
}

/*
 * Rotations of every kind, on the device against the host: a table, frequencies, parts of a head,
 * fp8, fused files.
 */
void rotations()
{
	std::vector<float> table(300 * 8);
	std::vector<double> freq(4);
	int64_t slots[9] = { 3, 10, 17, 0, 23, -1, 21, 4, 11 };

	check(!kvcachefs_rope_yarn(10000, 8, 40, 32, 1, 4096, freq.data()));
	for (int i = 0; i < 300; i++)
		for (int k = 0; k < 4; k++) {
			table[i * 8 + k] = (float)cos(i * freq[k]);
			table[i * 8 + 4 + k] = (float)sin(i * freq[k]);
		}
	for (int format : { KVCACHEFS_NL_X_NB_BS_HS, KVCACHEFS_NL_X_NB_NH_BS_CS,
			    KVCACHEFS_NL_X_TWO_NB_NH_BS_HS, KVCACHEFS_NL_X_NP_X_NB_BS_ONE_HS })
		for (int type = KVCACHEFS_F32; type <= KVCACHEFS_E5M2; type++)
			for (int way = 0; way < 3; way++) {
				uint32_t elem = kvcachefs_float_size((kvcachefs_float)type);
				Cache c(format, 2, 2, 24, 4, 6, elem, 5,
					format == KVCACHEFS_NL_X_NB_NH_BS_CS);
				kvcachefs_rope rope = {};
				kvcachefs_item it = {};
				std::string path = "rotations/" +
						   std::to_string(format * 100 + type * 10 + way);

				for (auto &h : c.host) /* the tops of small numbers of any type: no
							  NaN, no infinity */
					for (size_t i = 0; i < h.size(); i++)
						if (i % elem == elem - 1)
							h[i] = (uint8_t)((h[i] & 0x83) | 0x38);
				c.up();
				rope.theta = way == 0 ? 10000 : 0;
				rope.inv_freq = way == 1 ? freq.data() : nullptr;
				rope.cos_sin = way == 2 ? table.data() : nullptr;
				rope.rows = 300;
				rope.first = 16;
				rope.dims = 8;
				rope.delta = way == 2 ? -123 : 77777;
				rope.interleaved = type % 2;
				rope.type = (kvcachefs_float)type;
				it.path = path.c_str();
				it.nlayers = 2;
				it.tokens = { slots, nullptr, 9, 0 };
				std::vector<kvcachefs_item> items{ it };

				check(!move_all(c, 0, true, items));
				items[0].rope = &rope;
				auto before = c.host;

				check(!move_all(c, 0, false, items) &&
				      !move_all(c, -1, false, items));
				auto got = c.down();
				size_t moved = 0;

				for (size_t k = 0; k < got.size(); k++)
					for (size_t e = 0; e < c.len; e += elem) {
						bool fp8 = elem == 1, e5m2 = type == KVCACHEFS_E5M2;
						float a = fp8 ? kvcachefs_from_fp8(got[k][e], e5m2)
							      : value(&got[k][e], type);
						float b = fp8 ? kvcachefs_from_fp8(c.host[k][e],
										   e5m2)
							      : value(&c.host[k][e], type);
						float step = fp8 ? (e5m2 ? .25f : .125f)
							     : type == KVCACHEFS_F32 ? 1e-5f
							     : type == KVCACHEFS_F16 ? 1.f / 512
										     : 1.f / 128;

						/*
						 * one rounding apart at most: floats there, doubles
						 * here
						 */
						check(fabsf(a - b) <=
						      fabsf(b) * step + (fp8 ? .02f : 1e-4f) *
										(1 + fabsf(b)));
						moved += memcmp(&before[k][e], &c.host[k][e],
								elem) != 0;
					}
				check(moved > 0);
			}
}

/*
 * Caches of several shapes in one call, each with its own pointers, on the device as in host
 * memory.
 */
void several()
{
	Cache full(KVCACHEFS_NL_X_NB_BS_NH_CS, 3, 4, 64, 16, 32, 2, 1, true),
		window(KVCACHEFS_NL_X_TWO_NB_BS_NH_HS, 2, 2, 128, 32, 8, 2, 2),
		indexer(KVCACHEFS_NL_X_NB_BSV_BSS, 3, 1, 132, 64, 6, 1, 3);
	Cache *caches[] = { &full, &window, &indexer };
	int64_t ids[3][4] = { { 31, 2, 9, 17 }, { 7, 0, 3, 5 }, { 4, 1, 5, 0 } };
	std::string paths[] = { "several/full", "several/window", "several/indexer" };
	kvcachefs_paged device[3], host[3];
	std::vector<kvcachefs_item> items(6);
	kvcachefs_paged call = full.on(0), none = full.on(-1);
	kvcachefs_transfer *t;

	for (int i = 0; i < 3; i++) {
		device[i] = caches[i]->on(0);
		host[i] = caches[i]->on(-1);
		items[i].path = paths[i].c_str();
		items[i].nlayers = caches[i]->p.layers;
		items[i].tokens = { nullptr, ids[i], 4, 0 };
		items[i].cache = i ? &device[i] : nullptr; /* the first is the call's own */
	}
	items.resize(3);
	check(!kvcachefs_store(&t, mnt.c_str(), &call, items.data(), 3, nullptr) &&
	      !kvcachefs_transfer_free(t));
	for (int i = 0; i < 3; i++) {
		std::vector<uint8_t> want(kvcachefs_file_size(&host[i], items[i].nlayers,
							      &items[i].tokens));

		check(!kvcachefs_gather(&host[i], 0, items[i].nlayers, &items[i].tokens,
					want.data()));
		check(contents(paths[i]) == want);
	}
	/*
	 * other bytes on the device, then back; in host memory the same with all pointers at once
	 */
	for (int where = 0; where >= -1; where--) {
		for (int i = 0; i < 3; i++) {
			auto keep = caches[i]->host;

			if (where < 0) {
				for (auto &h : caches[i]->host)
					std::fill(h.begin(), h.end(), (uint8_t)0);
			} else {
				for (auto &h : caches[i]->host)
					std::fill(h.begin(), h.end(), (uint8_t)0);
				caches[i]->up();
				caches[i]->host = keep;
			}
			items[i].cache = where < 0 ? &host[i] : &device[i];
		}
		check(!kvcachefs_load(&t, mnt.c_str(), where < 0 ? &none : &call, items.data(), 3,
				      nullptr) &&
		      !kvcachefs_transfer_free(t));
	}
	for (int i = 0; i < 3; i++) /* both got the same blocks into zeros */
		check(caches[i]->down() == caches[i]->host);
	items[2].cache = &host[2];
	check(kvcachefs_load(&t, mnt.c_str(), &call, items.data(), 3, nullptr) == -EINVAL);
	items[2].cache = &device[2];
	device[2].head_size = 3;
	check(kvcachefs_load(&t, mnt.c_str(), &call, items.data(), 3, nullptr) == -EINVAL);
}

/* While a graph is captured: its stream is refused, other streams work, and the graph lives. */
void capture()
{
	Cache c(KVCACHEFS_NL_X_TWO_NB_BS_NH_HS, 2, 2, 64, 16, 64, 2, 1);
	int64_t ids[8] = { 1, 60, 3, 7, 22, 9, 50, 2 };
	cudaStream_t captured, other;
	cudaGraph_t graph;
	kvcachefs_item it = {};
	auto before = c.host;

	unlink((mnt + "/capture/x").c_str()); /* of a run before on this mount */
	it.path = "capture/x";
	it.nlayers = 2;
	it.tokens = { nullptr, ids, 8, 0 };
	std::vector<kvcachefs_item> items{ it };

	cuda(cudaStreamCreateWithFlags(&captured, cudaStreamNonBlocking));
	cuda(cudaStreamCreateWithFlags(&other, cudaStreamNonBlocking));
	cuda(cudaStreamBeginCapture(captured, cudaStreamCaptureModeGlobal));
	check(move_all(c, 0, true, items, captured) == -EBUSY &&
	      strstr(kvcachefs_error(), "captured"));
	check(access((mnt + "/capture/x").c_str(), F_OK));
	check(!move_all(c, 0, true, items, other));
	check(move_all(c, 0, false, items, captured) == -EBUSY);
	check(!move_all(c, 0, false, items, other));
	cuda(cudaStreamEndCapture(captured, &graph));
	cudaStreamCaptureMode mode = cudaStreamCaptureModeGlobal; /* the thread has its own again */

	cuda(cudaThreadExchangeStreamCaptureMode(&mode));
	check(mode == cudaStreamCaptureModeGlobal);
	check(!move_all(c, 0, false, items, captured) && c.down() == before);
	cuda(cudaStreamDestroy(captured));
	cuda(cudaStreamDestroy(other));
}

#ifdef FAKE_CUDA_RUNTIME_H
/*
 * A helper thread without a context works on device 1 and has none afterwards, and nothing is made
 * on device 0.
 */
void contexts()
{
	Cache *c = nullptr;
	int64_t ids[4] = { 1, 3, 7, 2 };
	kvcachefs_item it = {};
	kvcachefs_transfer *t = nullptr;

	fake_devices = 2;
	std::thread([&] {
		cuda(cudaSetDevice(1));
		c = new Cache(KVCACHEFS_NL_X_TWO_NB_BS_NH_HS, 2, 8, 64, 16, 32, 4, 1);
	}).join();
	kvcachefs_paged p = c->on(1);

	it.path = "contexts/x";
	it.nlayers = 2;
	it.tokens = { nullptr, ids, 4, 0 };
	kvcachefs_map_cache(64 * MiB);
	for (int round = 0; round < 2; round++) {
		auto step = [&](auto fn) {
			std::thread([&] {
				int device;

				fn();
				check(fake_current() == -1 && !cudaGetDevice(&device) &&
				      device == 0);
			}).join();
		};
		cudaStream_t stream;

		std::thread([&] {
			cuda(cudaSetDevice(1));
			cuda(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
		}).join();
		step([&] {
			check(!(round ? kvcachefs_load : kvcachefs_store)(&t, mnt.c_str(), &p, &it,
									  1, stream));
		});
		step([&] { kvcachefs_transfer_poll(t); });
		step([&] { check(!kvcachefs_transfer_wait(t)); });
		step([&] { check(!kvcachefs_transfer_free(t)); });
		cudaStreamDestroy(stream);
	}
	std::thread([&] {
		kvcachefs_map_cache(0);
	}).join(); /* unregisters, which fake.cpp wants on device 1 */
	check(fake_counted().contexts[0] == 0 && fake_counted().contexts[1] == 1);
	/* a thread that has device 0 keeps it */
	std::thread([&] {
		kvcachefs_transfer *u;

		cuda(cudaSetDevice(0));
		check(!kvcachefs_load(&u, mnt.c_str(), &p, &it, 1, nullptr) &&
		      !kvcachefs_transfer_free(u) && fake_current() == 0);
	}).join();
	delete c;
	fake_devices = 1;
}

/*
 * A device that is lost: the wait fails and stays failed, the store leaves no file, and its lane is
 * not used again.
 */
void lost()
{
	Cache c(KVCACHEFS_NL_X_TWO_NB_BS_NH_HS, 2, 2, 64, 16, 64, 2, 1);
	int64_t ids[2] = { 1, 60 };
	kvcachefs_item it = {};
	kvcachefs_transfer *t;
	kvcachefs_cuda *d;
	unsigned long streams;

	it.path = "lost/x";
	it.nlayers = 2;
	it.tokens = { nullptr, ids, 2, 0 };
	std::vector<kvcachefs_item> items{ it };
	kvcachefs_paged p = c.on(0);

	for (int polls = 0; polls < 2; polls++) {
		check(!kvcachefs_store(&t, mnt.c_str(), &p, items.data(), 1, nullptr));
		fake_lost = 1;
		check((polls ? kvcachefs_transfer_poll : kvcachefs_transfer_wait)(t) == -EIO);
		fake_lost = 0;
		check(kvcachefs_transfer_wait(t) == -EIO && kvcachefs_transfer_wait(t) == -EIO &&
		      kvcachefs_transfer_poll(t) == -EIO);
		check(kvcachefs_transfer_free(t) == -EIO && items[0].err == -EIO);
		check(access((mnt + "/lost/x").c_str(), F_OK));
	}
	/* and below: a wait that failed says so each time, and the lane goes */
	for (Lane *l : kept)
		lane_free(l);
	kept.clear();
	check(!kvcachefs_cuda_new(&d, 0, true, nullptr) && !kvcachefs_cuda_run(d));
	fake_lost = 1;
	check(kvcachefs_cuda_wait(d) == -EIO);
	fake_lost = 0;
	check(kvcachefs_cuda_wait(d) == -EIO && kvcachefs_cuda_poll(d) == -EIO);
	kvcachefs_cuda_free(d);
	check(kept.empty());
	streams = fake_counted().streams;
	check(!move_all(c, 0, true, items) && fake_counted().streams == streams + 1);
}

/* A refusal to pin is tried again later: after 1, 3, 7, ... more uses. */
void refused_pin()
{
	Cache c(KVCACHEFS_NL_X_TWO_NB_BS_NH_HS, 2, 8, 64, 16, 64, 2, 1);
	int64_t ids[4] = { 1, 60, 3, 4 };
	kvcachefs_item it = {};
	unsigned long registers, pinned_at = 0;

	it.path = "pin/x";
	it.nlayers = 2;
	it.tokens = { nullptr, ids, 4, 0 };
	std::vector<kvcachefs_item> items{ it };

	check(!move_all(c, 0, true, items));
	kvcachefs_map_cache(64 * MiB);
	fake_no_register = 1;
	for (int i = 0; i < 3; i++) /* refused, left alone, refused */
		check(!move_all(c, 0, false, items));
	fake_no_register = 0;
	registers = fake_counted().registers;
	for (int i = 1; i <= 10; i++) {
		check(!move_all(c, 0, false, items));
		if (!pinned_at && fake_counted().registers > registers)
			pinned_at = (unsigned long)i;
	}
	check(pinned_at == 4 && fake_counted().registers == registers + 1 && c.down() == c.host);
	kvcachefs_map_cache(0);
}
#endif

void test()
{
#ifdef FAKE_CUDA_RUNTIME_H
	contexts(); /* first: nothing has a context yet */
#endif
	formats();
	for (int type = 0; type < 3; type++)
		many(type);
	order();
	threads();
	refused();
	kept_mappings();
	rotations();
	several();
	capture();
#ifdef FAKE_CUDA_RUNTIME_H
	lost();
	refused_pin();
#endif
#ifdef FAKE_CUDA_RUNTIME_H
	fake_counts before = fake_counted();

	check(before.registers && before.batches && before.host_functions && before.kernels);
	/*
	 * an older driver: copies one by one; a mount that gives no pins: all through pinned memory
	 */
	fake_driver = 12060;
	many(KVCACHEFS_BF16);
	check(fake_counted().batches == before.batches);
	fake_no_register = 1;
	many(KVCACHEFS_F16);
	order();
	fake_devices = 0;
	Cache *none = nullptr;
	kvcachefs_paged p = {};
	kvcachefs_transfer *t;
	void *pointer = &p;
	int64_t slot = 0;
	kvcachefs_item it = {};

	(void)none;
	p.format = KVCACHEFS_NL_X_NB_BS_HS;
	p.layers = p.heads = p.head_size = p.block_size = 1;
	p.blocks = 1;
	p.elem = 1;
	p.pointers = &pointer;
	it.path = "x";
	it.nlayers = 1;
	it.tokens = { &slot, nullptr, 1, 0 };
	check(kvcachefs_store(&t, mnt.c_str(), &p, &it, 1, nullptr) == -ENODEV &&
	      strstr(kvcachefs_error(), "no CUDA device"));
#endif
	printf("ok\n");
}

/* ---- Measuring ---- */

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

int main(int argc, char **argv)
{
	int n = 0;

	if (argc != 3 || (strcmp(argv[1], "test") && strcmp(argv[1], "measure"))) {
		fprintf(stderr, "usage: gpu test MOUNT | gpu measure DIR\n");
		return 2;
	}
	if (cudaGetDeviceCount(&n) != cudaSuccess || !n) {
		printf("there is no CUDA device\n");
		return 77;
	}
	mnt = argv[2];
	if (!strcmp(argv[1], "test")) {
		test();
	} else {
		rates(mnt);
		transfers(mnt);
		kernels();
	}
	return 0;
}
