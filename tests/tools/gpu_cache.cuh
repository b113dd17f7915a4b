/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Part of gpu.cu: a cache on the device beside the same one in host memory, and helpers of the
 * checks.
 */
#pragma once

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

/* A paged cache on the device, and the same in host memory. */
struct Cache {
	kvcachefs_paged p = {};
	size_t len; /* of the memory of a pointer */
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
		    !s.planes) { /* larger distance between blocks, if a block is contiguous */
			p.block_stride = s.block + pad;
			len += (s.kvs == 2 && s.kv > s.block ? 2 : 1) *
			       (s.head > s.block ? heads : 1) * blocks * pad;
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
	/* Puts other bytes on the device. */
	void forget()
	{
		for (void *d : device)
			cuda(cudaMemsetAsync(d, 0x33, len, nullptr));
		cuda(cudaStreamSynchronize(nullptr));
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
 * Loads the files twice. The second load starts their registration, if the mount allows it and the
 * cache of mappings has space; waits until it has ended.
 */
void load_twice(Cache &c, std::vector<kvcachefs_item> &items)
{
	check(!move_all(c, 0, false, items) && !move_all(c, 0, false, items));
	kvcachefs_unmap_wait();
}

/* Frees the lanes kept from earlier transfers. */
void forget_lanes()
{
	for (Lane *l : kept)
		lane_free(l);
	kept.clear();
	for (Spare &s : spares)
		cudaFree(s.buffer.p);
	spares.clear();
}

} // namespace
