/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Part of gpu.cu: the ways in which loads use the pages of files: registered with the device,
 * mapped, or staged, within limits of memory and descriptors.
 */
#pragma once

#include "gpu_staged.cuh"

#include <dirent.h>

#ifdef FAKE_CUDA_RUNTIME_H
namespace {

thread_local bool loads_here;
std::atomic<Gate *> register_gate;
std::atomic<bool> registering_now;

void on_register()
{
	check(!loads_here);
	if (Gate *g = register_gate) {
		registering_now = true;
		g->pass();
	}
}

/* Is the file mapped? */
bool mapped(const std::string &path)
{
	FILE *f = fopen("/proc/self/maps", "re");
	char line[8400];
	bool found = false;

	while (f && fgets(line, sizeof line, f))
		found |= strstr(line, (mnt + "/" + path).c_str()) != nullptr;
	if (f)
		fclose(f);
	return found;
}

/*
 * The first load of a file neither maps nor registers it. The second load queues its registration.
 * Loads never register on the caller's thread; while a registration waits, they are staged. One
 * load of registered and other files takes both ways.
 */
void registers_behind()
{
	Chunk one("staged/once", 80), two("staged/twice", 90);
	kvcachefs_paged p = one.c.on(0), other = two.c.on(0);
	std::vector<kvcachefs_item> both{ one.items[0], two.items[0] };
	kvcachefs_gpu_counts a = stats();
	kvcachefs_transfer *t;
	Gate gate;

	both[1].cache = &other;
	kvcachefs_map_cache(0);
	kvcachefs_map_cache(64 * MiB);
	loads_here = true;
	fake_on_register = on_register;
	for (Chunk *c : { &one, &two }) {
		check(!move_all(c->c, -1, true, c->items));
		c->c.forget();
	}
	check(!move_all(one.c, 0, false, one.items) && one.c.down() == one.c.host);
	check(!mapped(one.path));
	load_twice(two.c, two.items);
	check(mapped(two.path));
	check(went(a, 0, 0, one.bytes + 2 * two.bytes) && two.c.down() == two.c.host);
	one.c.forget();
	two.c.forget();
	a = stats();
	register_gate = &gate; /* of the second load of the first file */
	check(!kvcachefs_load(&t, mnt.c_str(), &p, both.data(), 2, nullptr) &&
	      !kvcachefs_transfer_free(t));
	check(went(a, two.bytes, 0, one.bytes));
	for (Chunk *c : { &one, &two }) {
		check(c->c.down() == c->c.host);
		c->c.forget();
	}
	while (!registering_now)
		usleep(1000);
	for (int i = 0; i < 3; i++) {
		a = stats();
		check(!move_all(one.c, 0, false, one.items) && went(a, 0, 0, one.bytes));
		check(one.c.down() == one.c.host);
		one.c.forget();
	}
	gate.open();
	kvcachefs_unmap_wait();
	register_gate = nullptr;
	a = stats();
	check(!move_all(one.c, 0, false, one.items) && went(a, one.bytes, 0, 0));
	check(one.c.down() == one.c.host);
	/* without space in the cache nothing is mapped, however often it is loaded */
	kvcachefs_map_cache(0);
	a = stats();
	load_twice(one.c, one.items);
	load_twice(one.c, one.items);
	check(went(a, 0, 0, 4 * one.bytes) && !mapped(one.path));
	fake_on_register = nullptr;
	loads_here = false;
}

/*
 * A load whose file cannot be read, or is too short, fails with the name of the file, and leaves no
 * stream waiting. The next load is correct.
 */
void unreadable()
{
	Chunk c("staged/unreadable", 79);
	kvcachefs_paged p = c.c.on(0);
	kvcachefs_transfer *t;
	Streams s;

	kvcachefs_map_cache(0);
	check(!move_all(c.c, -1, true, c.items));
	for (auto read : { NO_FILE, TOO_SHORT })
		for (int polls = 0; polls < 2; polls++) {
			int err = -EAGAIN, want = read == NO_FILE ? -EBADF : -EIO;

			last_read = read;
			check(!kvcachefs_load(&t, mnt.c_str(), &p, c.items.data(), 1, s.s[0]));
			while (polls && err == -EAGAIN)
				err = kvcachefs_transfer_poll(t);
			check(!polls || err == want);
			check(kvcachefs_transfer_wait(t) == want && c.items[0].err == want);
			check(strstr(kvcachefs_error(), c.path.c_str()));
			check(kvcachefs_transfer_free(t) == want);
			cuda(cudaStreamSynchronize(s.s[0]));
			last_read = READABLE;
			c.c.forget();
			check(!move_all(c.c, 0, false, c.items) && c.c.down() == c.c.host);
		}
}

size_t descriptors()
{
	DIR *d = opendir("/proc/self/fd");
	size_t n = 0;

	check(d != nullptr);
	while (readdir(d))
		n++;
	closedir(d);
	return n;
}

/*
 * A load of many files keeps at most 128 of them open, and maps the others. All are read at the
 * first load, and none is left open.
 */
void many_files()
{
	constexpr unsigned N = 150, MOST = 128;
	Cache c(KVCACHEFS_NL_X_TWO_NB_BS_NH_HS, 1, 2, 64, 16, N, 2, 5);
	std::vector<int64_t> ids(N);
	std::vector<std::string> paths(N);
	std::vector<kvcachefs_item> items(N);
	kvcachefs_paged p = c.on(0);
	kvcachefs_transfer *t;
	kvcachefs_gpu_counts a;
	size_t before;

	for (unsigned i = 0; i < N; i++) {
		ids[i] = (int64_t)i * 7 % N;
		paths[i] = "staged/many/" + std::to_string(i);
	}
	for (unsigned i = 0; i < N; i++) {
		items[i].path = paths[i].c_str();
		items[i].nlayers = 1;
		items[i].tokens = { nullptr, &ids[i], 1, 0 };
	}
	check(!move_all(c, -1, true, items));
	kvcachefs_map_cache(0); /* and no file is prepared */
	c.forget();
	before = descriptors();
	a = stats();
	fake_paused = 1;
	check(!kvcachefs_load(&t, mnt.c_str(), &p, items.data(), N, nullptr));
	/* MOST files, and the lease */
	check(descriptors() == before + MOST + 1);
	check(!mapped(paths[0]) && mapped(paths[N - 1]));
	fake_paused = 0;
	check(!kvcachefs_transfer_free(t) && c.down() == c.host);
	check(went(a, 0, 0, N * kvcachefs_file_size(&p, 1, &items[0].tokens)));
	check(descriptors() == before);
}

/*
 * The pinned memory of all transfers together is bounded. Beyond the bound, a transfer gets the
 * memory of one group only. A transfer also uses less if the host is short of memory.
 */
void pinned_bound()
{
	constexpr unsigned N = 6;
	Sizes usual = sizes;
	std::vector<std::unique_ptr<Chunk>> all;
	kvcachefs_paged p[N];
	kvcachefs_transfer *t[N];

	kvcachefs_map_cache(0);
	forget_lanes();
	kvcachefs_unmap_wait();
	check(!staging_bytes);
	sizes = SMALL;
	sizes.staging = 128 * KiB;
	sizes.staging_most = 300 * KiB;
	for (unsigned i = 0; i < N; i++) {
		all.emplace_back(new Chunk("staged/bound" + std::to_string(i), 79));
		check(!move_all(all[i]->c, -1, true, all[i]->items));
		all[i]->c.forget();
		p[i] = all[i]->c.on(0);
	}
	fake_paused = 1;
	for (unsigned i = 0; i < N; i++)
		check(!kvcachefs_load(&t[i], mnt.c_str(), &p[i], all[i]->items.data(), 1, nullptr));
	check(staging_bytes == 2 * sizes.staging + (N - 2) * sizes.staged_group);
	fake_paused = 0;
	for (unsigned i = 0; i < N; i++)
		check(!kvcachefs_transfer_free(t[i]) && all[i]->c.down() == all[i]->c.host);
	forget_lanes();
	kvcachefs_unmap_wait();
	check(!staging_bytes);
	fake_largest = 64 * KiB;
	all[0]->c.forget();
	check(!move_all(all[0]->c, 0, false, all[0]->items) && all[0]->c.down() == all[0]->c.host);
	check(staging_bytes == 64 * KiB);
	fake_largest = 0;
	sizes = usual;
	forget_lanes();
}

/*
 * Small files by a kernel: many at once, with lengths that are no multiples of anything, among
 * larger ones, rotated or not, on a device with its own addresses; the limit of the environment
 * variable; and both directions, as for a store's small files that are registered already.
 */
void direct()
{
	const unsigned N = 70;
	std::vector<std::unique_ptr<Chunk>> all;
	std::vector<kvcachefs_item> items;
	kvcachefs_transfer *t;
	kvcachefs_gpu_counts a;
	kvcachefs_strides st;
	size_t small = 0, bytes = 0;

	kvcachefs_map_cache(0);
	fake_one_address = 0;
	forget_lanes();
	/* each in its own cache; rows of 3 * 5 bytes */
	std::vector<std::unique_ptr<Cache>> caches;
	std::vector<kvcachefs_paged> on;
	std::vector<std::string> paths;
	std::vector<std::vector<int64_t>> ids;

	for (unsigned i = 0; i < N; i++) {
		caches.emplace_back(new Cache(KVCACHEFS_NL_X_NB_TWO_NH_BS_HS, 1, 3, 5, 4, 2000, 1,
					      i + 1));
		on.push_back(caches[i]->on(0));
		paths.push_back("direct/" + std::to_string(i));
		ids.emplace_back();
		for (unsigned k = 0; k < (i % 9 == 8 ? 1900 : 1 + i * 3); k++)
			ids[i].push_back(k * 7 % 2000);
	}
	for (unsigned i = 0; i < N; i++) {
		kvcachefs_item it = {};

		unlink((mnt + "/" + paths[i]).c_str());
		it.path = paths[i].c_str();
		it.nlayers = 1;
		it.tokens = { nullptr, ids[i].data(), ids[i].size(), 0 };
		it.cache = &on[i];
		items.push_back(it);
		size_t n = kvcachefs_file_size(&on[i], 1, &it.tokens);

		bytes += n;
		small += n < DIRECT ? n : 0;
	}
	check(small && small < bytes);
	check(!kvcachefs_store(&t, mnt.c_str(), &on[0], items.data(), N, nullptr) &&
	      !kvcachefs_transfer_free(t));
	kvcachefs_map_cache(64 * MiB);
	for (unsigned i = 0; i < 10; i++) { /* not all at once: too many would wait */
		a = stats();
		check(!kvcachefs_load(&t, mnt.c_str(), &on[0], items.data(), N, nullptr) &&
		      !kvcachefs_transfer_free(t));
		kvcachefs_unmap_wait();
		if (stats().staged_bytes == a.staged_bytes)
			break;
	}
	for (int way = 0; way < 3; way++) {
		const char *limit[] = { nullptr, "0", "1000000" };
		size_t by_kernel[] = { small, 0, bytes };

		if (way)
			setenv("KVCACHEFS_GPU_DIRECT", limit[way], 1);
		for (auto &c : caches)
			for (void *d : c->device)
				cuda(cudaMemsetAsync(d, 0x33, c->len, nullptr));
		a = stats();
		check(!kvcachefs_load(&t, mnt.c_str(), &on[0], items.data(), N, nullptr) &&
		      !kvcachefs_transfer_free(t));
		check(went(a, bytes - by_kernel[way], by_kernel[way], 0));
		for (unsigned i = 0; i < N; i++) {
			auto want = caches[i]->host;
			kvcachefs_paged host = caches[i]->on(-1);

			for (auto &h : caches[i]->host)
				std::fill(h.begin(), h.end(), (uint8_t)0x33);
			check(!kvcachefs_scatter(&host, 0, 1, &items[i].tokens,
						 contents(paths[i]).data()));
			check(caches[i]->down() == caches[i]->host);
			caches[i]->host = want;
		}
	}
	setenv("KVCACHEFS_GPU_DIRECT", "28K", 1);
	check(kvcachefs_load(&t, mnt.c_str(), &on[0], items.data(), N, nullptr) == -EINVAL &&
	      strstr(kvcachefs_error(), "KVCACHEFS_GPU_DIRECT"));
	unsetenv("KVCACHEFS_GPU_DIRECT");
	setenv("KVCACHEFS_GPU_REGISTER", "0", 1);
	check(kvcachefs_load(&t, mnt.c_str(), &on[0], items.data(), N, nullptr) == -EINVAL &&
	      strstr(kvcachefs_error(), "KVCACHEFS_GPU_REGISTER"));
	setenv("KVCACHEFS_GPU_REGISTER", "off", 1);
	kvcachefs_map_cache(0);
	kvcachefs_map_cache(64 * MiB);
	a = stats();
	for (int i = 1; i < 5; i++) {
		check(!kvcachefs_load(&t, mnt.c_str(), &on[0], items.data(), N, nullptr) &&
		      !kvcachefs_transfer_free(t) && went(a, 0, 0, i * bytes));
		kvcachefs_unmap_wait();
	}
	kvcachefs_map_cache(0);
	unsetenv("KVCACHEFS_GPU_REGISTER");
	/* a store's registered file gets its bytes, and those around it are unchanged */
	std::vector<uint8_t> want(kvcachefs_file_size(&on[7], 1, &items[7].tokens));
	size_t len = (want.size() + 8191) / 4096 * 4096;
	kvcachefs_paged host = caches[7]->on(-1);
	uint8_t *p = (uint8_t *)mmap(nullptr, len, PROT_READ | PROT_WRITE,
				     MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	kvcachefs_cuda *c;

	caches[7]->up();
	memset(p, 0x44, len);
	check(!kvcachefs_gather(&host, 0, 1, &items[7].tokens, want.data()));
	check(!kvcachefs_cuda_register(0, p, len, false) && !kvcachefs_strides_of(&on[7], &st));
	kvcachefs_work w = { &items[7], &on[7], &st, ids[7].size() * 4, p, want.size(), true };

	a = stats();
	check(!kvcachefs_cuda_new(&c, 0, true, nullptr) && !kvcachefs_cuda_add(c, &w) &&
	      !kvcachefs_cuda_run(c) && !kvcachefs_cuda_wait(c));
	kvcachefs_cuda_free(c);
	check(went(a, 0, want.size(), 0) && !memcmp(p, want.data(), want.size()));
	for (size_t i = want.size(); i < len; i++)
		check(p[i] == 0x44);
	kvcachefs_cuda_unregister(0, p);
	munmap(p, len);
	fake_one_address = 1;
	forget_lanes();
}

/*
 * Mappings for reading are registered as such; if a device does not support that they are staged.
 */
void readonly()
{
	Chunk c("staged/readonly", 80);
	kvcachefs_gpu_counts a;

	check(!move_all(c.c, 0, true, c.items));
	kvcachefs_map_cache(0);
	kvcachefs_map_cache(64 * MiB);
	fake_readonly = 0;
	a = stats();
	load_twice(c.c, c.items);
	check(stats().refused > a.refused);
	c.c.forget();
	check(!move_all(c.c, 0, false, c.items) && went(a, 0, 0, 3 * c.bytes));
	check(c.c.down() == c.c.host);
	fake_readonly = 1;
	kvcachefs_map_cache(0);
}

} // namespace
#endif
