/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Part of gpu.cu: files that are prepared before a store needs them, their registration, and warm
 * transfers.
 */
#pragma once

#include "gpu_cache.cuh"
#include "gpu_staged.cuh"

#include <sys/xattr.h>

extern "C" {
#include "../../gpu/ready.h"
}

#ifdef FAKE_CUDA_RUNTIME_H
namespace {

bool mapped_writable()
{
	FILE *f = fopen("/proc/self/maps", "re");
	char line[8400];
	bool found = false;

	while (f && fgets(line, sizeof line, f))
		found |= strstr(line, mnt.c_str()) && strstr(line, "rw-s") &&
			 strstr(line, "stores");
	if (f)
		fclose(f);
	return found;
}

struct Stores {
	static constexpr uint32_t FILES = 4;
	static constexpr size_t BYTES = 2 * MiB; /* of each file */
	Cache c{ KVCACHEFS_NL_X_TWO_NB_BS_NH_HS, 2, 8, 128, 16, 64, 2, 5 };
	int64_t ids[FILES][16];
	std::vector<std::string> paths;
	std::vector<kvcachefs_item> items;

	explicit Stores(const std::string &name)
	{
		for (uint32_t i = 0; i < FILES; i++) {
			for (int k = 0; k < 16; k++)
				ids[i][k] = (int64_t)i * 16 + k;
			paths.push_back("stores/" + name + "/" + std::to_string(i));
		}
		for (uint32_t i = 0; i < FILES; i++) {
			kvcachefs_item it = {};

			it.path = paths[i].c_str();
			it.nlayers = 2;
			it.tokens = { nullptr, ids[i], 16, 0 };
			items.push_back(it);
		}
	}
};

void until_ready(unsigned n)
{
	while (kvcachefs_ready_count() != n)
		usleep(2000);
}

thread_local bool stores_here;

void not_here()
{
	check(!stores_here);
}

/*
 * Once files are prepared, a store registers nothing on the caller's thread, and it never
 * unregisters there. Its load finds the registration made for it, and no writable mapping is left.
 */
void handed_over()
{
	kvcachefs_ready_idle(1000000);
	kvcachefs_map_cache(64 * MiB);
	stores_here = true;
	fake_on_unregister = not_here;
	for (int r = 0; r < 3; r++) {
		Stores s("round" + std::to_string(r));
		auto before = s.c.host;
		unsigned long here = fake_made_here(), registers;
		kvcachefs_gpu_counts a = stats();
		const size_t all = s.FILES * s.BYTES;

		check(!move_all(s.c, 0, true, s.items));
		/*
		 * Unprepared files are staged. The second file of a length starts the thread that
		 * prepares files, which may be in time for the third one.
		 */
		kvcachefs_gpu_counts b = stats();
		size_t staged = b.staged_bytes - a.staged_bytes;

		check(b.pinned_bytes - a.pinned_bytes + staged == all &&
		      b.direct_bytes == a.direct_bytes);
		check(r ? !staged : staged >= 2 * s.BYTES);
		check(r == 0 || fake_made_here() == here);
		kvcachefs_map_cache(64 * MiB); /* waits for background work */
		until_ready(s.FILES);
		registers = fake_counted().registers;
		here = fake_made_here();
		check(!move_all(s.c, 0, false, s.items) && s.c.down() == before);
		check(r == 0 ||
		      (fake_counted().registers == registers && fake_made_here() == here));
		for (auto &path : s.paths) {
			kvcachefs_paged host = s.c.on(-1);
			size_t i = (size_t)(&path - s.paths.data());
			std::vector<uint8_t> want(kvcachefs_file_size(&host, 2,
								      &s.items[i].tokens));

			check(!kvcachefs_gather(&host, 0, 2, &s.items[i].tokens, want.data()));
			check(contents(path) == want);
		}
	}
	kvcachefs_map_cache(0);
	check(!kvcachefs_ready_count() && !mapped_writable());
	fake_on_unregister = nullptr;
	stores_here = false;
}

void until_lower(const std::string &path)
{
	char state[64] = "";
	unsigned looks = 0;

	do {
		usleep(2000);
		check(getxattr((mnt + "/" + path).c_str(), "user.kvcachefs.state", state,
			       sizeof state - 1) > 0 &&
		      ++looks < 30000);
	} while (strcmp(state, "resident+lower") != 0);
}

/* Published files do not stay mapped for writing: the mount copies them to its tier. */
void copied_on()
{
	Stores s("copied");

	kvcachefs_map_cache(64 * MiB);
	check(!move_all(s.c, 0, true, s.items));
	for (auto &path : s.paths)
		until_lower(path);
	kvcachefs_map_cache(0);
}

/*
 * While a program's work on the device does not end, nothing can be unregistered. Stored files are
 * still copied to the tier, and if many wait, no more are registered.
 */
void beside_work()
{
	kvcachefs_warm how = { 1, true, 1000 };
	Streams streams;
	Gate gate;
	struct stat st;
	std::vector<std::unique_ptr<Stores>> all; /* freeing one waits too */
	unsigned rounds = 0;
	bool staged = false;

	check(!stat(mnt.c_str(), &st));
	kvcachefs_map_cache(64 * MiB);
	{
		Stores s("busy");
		kvcachefs_paged p = s.c.on(0);

		check(!kvcachefs_gpu_warm(mnt.c_str(), &p, s.items.data(), s.items.size(), &how));
	}
	cuda(cudaLaunchHostFunc(streams.s[0], Gate::stop, &gate));
	for (; !staged && rounds < 60; rounds++) {
		all.emplace_back(new Stores("busy" + std::to_string(rounds)));
		Stores &s = *all.back();
		kvcachefs_want want = { mnt.c_str(), st.st_dev, s.paths[0].c_str(), s.BYTES, 0 };
		kvcachefs_gpu_counts a = stats();

		check(!kvcachefs_ready_warm(&want, s.FILES, 1000000));
		check(!move_all(s.c, 0, true, s.items, streams.s[1]));
		staged = stats().staged_bytes > a.staged_bytes;
		check(staged || went(a, s.FILES * s.BYTES, 0, 0));
		if (rounds == 0)
			for (auto &path : s.paths)
				until_lower(path);
	}
	check(staged && rounds > 10);
	gate.open();
	kvcachefs_map_cache(0);
}

/* An undone store leaves nothing, and its mapping is removed by the other thread too. */
void undone()
{
	Stores s("undone");

	kvcachefs_map_cache(64 * MiB);
	check(!move_all(s.c, 0, true, s.items));
	until_ready(s.FILES);
	Stores other("undone2");

	other.items[2].layer = 7;
	stores_here = true;
	fake_on_unregister = not_here;
	check(move_all(other.c, 0, true, other.items) == -ERANGE && other.items[2].err == -ERANGE);
	check(access((mnt + "/" + other.paths[2]).c_str(), F_OK) &&
	      !access((mnt + "/" + other.paths[1]).c_str(), F_OK));
	kvcachefs_map_cache(0);
	fake_on_unregister = nullptr;
	stores_here = false;
}

/* After warming, neither the first store nor the first load allocates on the caller's thread. */
void warmed()
{
	kvcachefs_warm how = { 2, true, 1000 };

	for (int staged = 0; staged < 2; staged++) {
		Stores s("warm" + std::to_string(staged)), t("warm-" + std::to_string(staged));
		auto before = s.c.host;
		kvcachefs_paged p = s.c.on(0);
		kvcachefs_transfer *first, *second;
		unsigned long here;

		for (Lane *l : kept)
			lane_free(l);
		kept.clear();
		fake_no_register = staged;
		kvcachefs_map_cache(128 * MiB);
		check(!kvcachefs_gpu_warm(mnt.c_str(), &p, s.items.data(), s.items.size(), &how));
		check(s.c.down() == before && kvcachefs_ready_count() == 2 * s.FILES);
		here = fake_made_here();
		check(!kvcachefs_store(&first, mnt.c_str(), &p, s.items.data(), s.items.size(),
				       nullptr));
		check(!kvcachefs_store(&second, mnt.c_str(), &p, t.items.data(), t.items.size(),
				       nullptr));
		check(!kvcachefs_transfer_free(first) && !kvcachefs_transfer_free(second));
		check(fake_made_here() == here);
		kvcachefs_map_cache(128 * MiB);
		here = fake_made_here();
		check(!move_all(s.c, 0, false, s.items) && s.c.down() == before);
		check(fake_made_here() == here);
		kvcachefs_map_cache(0);
	}
	fake_no_register = 0;
}

/*
 * Small prepared files are registered too: the smallest ones of a store are written by a kernel
 * directly to their pages, and loads read them there.
 */
void small_files()
{
	static constexpr uint32_t FILES = 6;
	const kvcachefs_warm how = { 1, true, 1000 };

	for (uint32_t blocks : { 1u, 20u }) { /* of 8 KiB: below and above the kernel's limit */
		Cache c(KVCACHEFS_NL_X_TWO_NB_BS_NH_HS, 1, 2, 64, 16, FILES * blocks, 2, blocks);
		kvcachefs_paged p = c.on(0), host = c.on(-1);
		std::vector<int64_t> ids(FILES * blocks);
		std::vector<std::string> paths;
		std::vector<kvcachefs_item> items(FILES);
		auto before = c.host;
		size_t len, all;

		for (size_t i = 0; i < ids.size(); i++)
			ids[i] = (int64_t)(ids.size() - 1 - i);
		for (uint32_t i = 0; i < FILES; i++)
			paths.push_back("stores/small" + std::to_string(blocks) + "/" +
					std::to_string(i));
		for (uint32_t i = 0; i < FILES; i++) {
			items[i].path = paths[i].c_str();
			items[i].nlayers = 1;
			items[i].tokens = { nullptr, ids.data() + i * blocks, blocks, 0 };
		}
		len = kvcachefs_file_size(&host, 1, &items[0].tokens);
		all = FILES * len;
		check((len < DIRECT) == (blocks == 1));
		kvcachefs_map_cache(64 * MiB);
		check(!kvcachefs_gpu_warm(mnt.c_str(), &p, items.data(), FILES, &how));
		for (int store = 1; store >= 0; store--) {
			kvcachefs_gpu_counts a = stats();

			check(!move_all(c, 0, store, items));
			check(went(a, len < DIRECT ? 0 : all, len < DIRECT ? all : 0, 0));
			for (uint32_t i = 0; store && i < FILES; i++) {
				std::vector<uint8_t> want(len);

				check(!kvcachefs_gather(&host, 0, 1, &items[i].tokens,
							want.data()));
				check(contents(paths[i]) == want);
			}
			if (store) { /* the files are registered for loads in the background */
				kvcachefs_unmap_wait();
				c.forget();
			}
		}
		check(c.down() == before);
		kvcachefs_map_cache(0);
	}
}

void stores()
{
	handed_over();
	copied_on();
	beside_work();
	undone();
	warmed();
	small_files();
}

} // namespace
#endif
