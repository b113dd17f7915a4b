/* SPDX-License-Identifier: Apache-2.0 */
/* Part of gpu.cu: contexts, threads, and lost devices. */
#pragma once

#include "gpu_cache.cuh"

#ifdef FAKE_CUDA_RUNTIME_H /* the fake runtime can report contexts, and fail */
namespace {

/*
 * A helper thread without a context works on device 1 and has none afterwards, and nothing is
 * created on device 0.
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
	}).join(); /* unregisters, which fake.cpp requires on device 1 */
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
 * A device is lost: the wait fails each time, the store leaves no file, and its lane is not used
 * again.
 */
void lost()
{
	Cache c(KVCACHEFS_NL_X_TWO_NB_BS_NH_HS, 2, 2, 64, 16, 64, 2, 1);
	int64_t ids[2] = { 1, 60 };
	kvcachefs_item it = {};
	kvcachefs_transfer *t;
	kvcachefs_cuda *d;
	unsigned long streams;

	unlink((mnt + "/lost/x").c_str()); /* of an earlier run on this mount */
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
	/* the layer below: a failed wait fails each time, and the lane is freed */
	forget_lanes();
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

/* A refused registration is tried again after 1, 3, 7, ... more loads. */
void refused_pin()
{
	Cache c(KVCACHEFS_NL_X_TWO_NB_BS_NH_HS, 2, 8, 64, 16, 64, 2, 1);
	int64_t ids[4] = { 1, 60, 3, 4 };
	kvcachefs_item it = {};
	unsigned long pinned_at = 0;

	it.path = "pin/x";
	it.nlayers = 2;
	it.tokens = { nullptr, ids, 4, 0 };
	std::vector<kvcachefs_item> items{ it };

	check(!move_all(c, 0, true, items));
	kvcachefs_map_cache(64 * MiB);
	fake_no_register = 1;
	load_twice(c, items); /* not tried, refused */
	load_twice(c, items); /* skipped, refused */
	fake_no_register = 0;
	for (int i = 1; i <= 10; i++) {
		kvcachefs_gpu_counts a;

		kvcachefs_gpu_stats(&a);
		check(!move_all(c, 0, false, items));
		kvcachefs_unmap_wait();
		kvcachefs_gpu_counts b;

		kvcachefs_gpu_stats(&b);
		if (!pinned_at && b.staged_bytes == a.staged_bytes)
			pinned_at = (unsigned long)i;
		check(!pinned_at || b.staged_bytes == a.staged_bytes);
	}
	check(pinned_at == 5 && c.down() == c.host);
	kvcachefs_map_cache(0);
}

} // namespace
#endif
