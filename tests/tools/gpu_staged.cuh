/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Part of gpu.cu: the ways that bytes take, and mistakes in the order of streams, which must be
 * found. Groups are small here, so that they reuse the buffers often.
 */
#pragma once

#include "gpu_cache.cuh"
#include "gpu_queue.cuh"

#include <dirent.h>

extern "C" {
#include "../../gpu/map.h"
#include "../../gpu/ready.h"
}

namespace {

kvcachefs_gpu_counts stats()
{
	kvcachefs_gpu_counts s;

	kvcachefs_gpu_stats(&s);
	return s;
}

/* A file of 2 layers in a cache with blocks of 2 KiB per component. */
struct Chunk {
	Cache c;
	std::vector<int64_t> ids;
	std::string path;
	std::vector<kvcachefs_item> items;
	size_t bytes;

	Chunk(const std::string &name, unsigned blocks)
		: c(KVCACHEFS_NL_X_TWO_NB_BS_NH_HS, 2, 4, 16, 16, blocks, 2, blocks), path(name)
	{
		kvcachefs_item it = {};

		/* each once, if the number of blocks is not a multiple of 7 */
		for (unsigned i = 0; i < blocks; i++)
			ids.push_back(i * 7 % blocks);
		unlink((mnt + "/" + path).c_str()); /* of an earlier run on this mount */
		it.path = path.c_str();
		it.nlayers = 2;
		it.tokens = { nullptr, ids.data(), ids.size(), 0 };
		items.push_back(it);
		bytes = kvcachefs_file_size(&c.p, 2, &it.tokens);
	}
};

/* Did these bytes take these ways since then? */
bool went(const kvcachefs_gpu_counts &since, size_t pinned, size_t direct, size_t staged)
{
	kvcachefs_gpu_counts now = stats();

	return now.pinned_bytes - since.pinned_bytes == pinned &&
	       now.direct_bytes - since.direct_bytes == direct &&
	       now.staged_bytes - since.staged_bytes == staged;
}

/*
 * A mount that allows registrations gives its own pages to loads; the smallest files are copied by
 * a kernel. A store without prepared files is staged.
 */
void ways(bool pins)
{
	Chunk large("ways/large", 80), small("ways/small", 40), tiny("ways/tiny", 3);
	kvcachefs_gpu_counts a = stats();
	size_t all = large.bytes + small.bytes + tiny.bytes;

	check(small.bytes >= DIRECT && tiny.bytes < DIRECT);
	for (Chunk *c : { &large, &small, &tiny })
		check(!move_all(c->c, 0, true, c->items));
	check(went(a, 0, 0, all));
	kvcachefs_map_cache(64 * MiB);
	a = stats();
	for (Chunk *c : { &large, &small, &tiny })
		load_twice(c->c, c->items);
	check(went(a, 0, 0, 2 * all));
	check(pins ? stats().refused == a.refused : stats().refused > a.refused);
	for (Chunk *c : { &large, &small, &tiny }) {
		check(c->c.down() == c->c.host);
		c->c.forget();
	}
	for (int warm = 0; warm < 2; warm++) {
		a = stats();
		for (Chunk *c : { &large, &small, &tiny })
			check(!move_all(c->c, 0, false, c->items));
		check(went(a, pins ? large.bytes + small.bytes : 0, pins ? tiny.bytes : 0,
			   pins ? 0 : all));
	}
	for (Chunk *c : { &large, &small, &tiny })
		check(c->c.down() == c->c.host);
	kvcachefs_map_cache(0);
}

/*
 * Rows of many lengths, in caches whose blocks are padded so that addresses have every alignment:
 * whole rounds of four loads, single loads after them, and less than one load.
 */
void lengths()
{
	int64_t slots[5] = { 7, 2, -1, 4, 9 };

	for (uint32_t n :
	     { 1u,   15u,   16u,   17u,   63u,   64u,   65u,   127u,  128u,  200u,  255u,
	       256u, 1023u, 1024u, 1040u, 2047u, 2048u, 2049u, 2064u, 2112u, 4101u, 6160u })
		for (uint64_t pad : { 0u, 2u, 4u, 8u, 16u }) {
			Cache c(KVCACHEFS_NL_X_NB_BS_NH_HS, 1, 1, n, 2, 6, 1, n, false, pad),
				d(KVCACHEFS_NL_X_NB_BS_NH_HS, 1, 1, n, 2, 6, 1, 7, false, pad);
			kvcachefs_paged host = c.on(-1), other = d.on(-1);
			kvcachefs_item it = {};
			std::string path = "lengths/" + std::to_string(n) + "-" +
					   std::to_string(pad);

			it.path = path.c_str();
			it.nlayers = 1;
			it.tokens = { slots, nullptr, 5, 0 };
			std::vector<kvcachefs_item> items{ it };
			std::vector<uint8_t> want(kvcachefs_file_size(&host, 1, &it.tokens));

			check(!kvcachefs_gather(&host, 0, 1, &it.tokens, want.data()));
			check(!move_all(c, 0, true, items) && contents(path) == want);
			check(!move_all(d, 0, false, items) &&
			      !kvcachefs_scatter(&other, 0, 1, &it.tokens, want.data()) &&
			      d.down() == d.host);
		}
}

/* Does the mount give pages that can be registered? */
bool can_pin()
{
	Chunk one("ways/pin", 80);
	kvcachefs_buffer *b;
	bool pins;

	check(!move_all(one.c, -1, true, one.items));
	check(!kvcachefs_buffer_open(&b, mnt.c_str(), one.path.c_str(), 0));
	pins = kvcachefs_buffer_pinned(b);
	kvcachefs_buffer_free(b);
	return pins;
}

} // namespace

#ifdef FAKE_CUDA_RUNTIME_H
namespace {

std::atomic<size_t> host_copies;
bool holds; /* host copies wait until no stream can continue */
std::atomic<Gate *> host_gate;
enum { READABLE, NO_FILE, TOO_SHORT } last_read; /* what the last read of a group finds */

} // namespace

extern "C" int __real_kvcachefs_copy_all(const struct kvcachefs_copy *v, size_t n, size_t *bad);
extern "C" int __wrap_kvcachefs_copy_all(const struct kvcachefs_copy *v, size_t n, size_t *bad)
{
	std::vector<kvcachefs_copy> reads;
	int err;

	if (holds)
		fake_until_stuck();
	if (Gate *g = host_gate)
		g->pass();
	if (last_read != READABLE) {
		reads.assign(v, v + n);
		reads.back().fd = last_read == NO_FILE ? -1 : reads.back().fd;
		reads.back().offset += last_read == TOO_SHORT ? 1 : 0;
		v = reads.data();
	}
	err = __real_kvcachefs_copy_all(v, n, bad);
	host_copies++;
	return err;
}

namespace {

constexpr size_t KiB = 1024;
constexpr Sizes SMALL = { 64 * KiB, 32 * KiB, 16 * KiB, 128 * KiB, 64 * KiB, 64 * MiB };

/* One copy per group and no host function; a stopped transfer does not delay others. */
void staged()
{
	Chunk a("staged/a", 39), b("staged/b", 38);
	auto before = b.c.host;
	Sizes usual = sizes;
	Streams s;
	Gate gate;
	kvcachefs_paged p = a.c.on(0);
	kvcachefs_transfer *t;

	sizes = SMALL;
	forget_lanes();
	check(!move_all(b.c, 0, true, b.items));
	fake_no_register = 1;
	cuda(cudaLaunchHostFunc(s.s[0], Gate::stop, &gate));
	check(!kvcachefs_store(&t, mnt.c_str(), &p, a.items.data(), 1, s.s[0]));
	fake_counts c = fake_counted();

	check(!move_all(b.c, 0, false, b.items, s.s[1]));
	fake_counts d = fake_counted();

	/* its bytes in groups of 32 KiB, and the arguments */
	check(d.copies - c.copies == (b.bytes + 32 * KiB - 1) / (32 * KiB) + 1 &&
	      d.batches == c.batches && d.host_functions == c.host_functions);
	check(b.c.down() == before && kvcachefs_transfer_poll(t) == -EAGAIN);
	gate.open();
	check(!kvcachefs_transfer_free(t));
	check(!move_all(a.c, 0, false, a.items) && a.c.down() == a.c.host);
	fake_no_register = 0;
	sizes = usual;
	forget_lanes();
}

/*
 * A store that fits into the buffer does not make the caller's stream wait for a copy, even if none
 * can be made. A store without memory on the device is correct too.
 */
void held()
{
	Chunk c("staged/held", 15);
	Sizes usual = sizes;
	Streams s;
	Gate gate;
	cudaEvent_t passed;
	kvcachefs_paged p = c.c.on(0);
	kvcachefs_transfer *t;

	sizes = SMALL;
	forget_lanes();
	check(c.bytes > SMALL.staging && c.bytes <= SMALL.buffer);
	cuda(cudaEventCreateWithFlags(&passed, cudaEventDisableTiming));
	fake_no_register = 1;
	host_gate = &gate;
	check(!kvcachefs_store(&t, mnt.c_str(), &p, c.items.data(), 1, s.s[0]));
	cuda(cudaEventRecord(passed, s.s[0]));
	for (int i = 0; i < 60000 && cudaEventQuery(passed) == cudaErrorNotReady; i++)
		usleep(1000);
	check(cudaEventQuery(passed) == cudaSuccess && kvcachefs_transfer_poll(t) == -EAGAIN);
	gate.open();
	check(!kvcachefs_transfer_free(t));
	host_gate = nullptr;
	auto want = contents(c.path);

	forget_lanes();
	fake_largest = SMALL.buffer - 1;
	check(!move_all(c.c, 0, true, c.items) && contents(c.path) == want);
	check(spares.size() == 1 && spares[0].buffer.len == SMALL.buffer / 2);
	check(!move_all(c.c, 0, false, c.items) && c.c.down() == c.c.host && spares.size() == 1);
	fake_largest = 0;
	fake_no_register = 0;
	sizes = usual;
	forget_lanes();
	cuda(cudaEventDestroy(passed));
}

/*
 * While the first group of a store is written to the files' pages, the device copies the next ones,
 * as far as the pinned memory allows. The groups of a load are filled while the device copies none.
 */
void overlaps()
{
	const size_t ahead = SMALL.staging / SMALL.staged_group;
	Chunk c("staged/overlaps", 39);
	Sizes usual = sizes;
	Streams s;
	Gate gate;
	kvcachefs_paged p = c.c.on(0);
	kvcachefs_transfer *t;
	size_t on_host = host_copies;
	unsigned long copied = fake_counted().copied;

	sizes = SMALL;
	forget_lanes();
	check(ahead > 1 && c.bytes > SMALL.staging);
	fake_no_register = 1;
	host_gate = &gate;
	check(!kvcachefs_store(&t, mnt.c_str(), &p, c.items.data(), 1, s.s[0]));
	fake_until_stuck();
	check(fake_counted().copied - copied == ahead + 1); /* and the arguments */
	check(host_copies == on_host && kvcachefs_transfer_poll(t) == -EAGAIN);
	gate.open();
	check(!kvcachefs_transfer_free(t));
	host_gate = nullptr;
	for (void *d : c.c.device)
		cuda(cudaMemsetAsync(d, 0x33, c.c.len, nullptr));
	cuda(cudaStreamSynchronize(nullptr));

	fake_paused = 1;
	on_host = host_copies;
	copied = fake_counted().copied;
	check(!kvcachefs_load(&t, mnt.c_str(), &p, c.items.data(), 1, s.s[0]));
	while (host_copies - on_host < ahead)
		usleep(1000);
	check(fake_counted().copied == copied && kvcachefs_transfer_poll(t) == -EAGAIN);
	fake_paused = 0;
	check(!kvcachefs_transfer_free(t) && c.c.down() == c.c.host);
	fake_no_register = 0;
	sizes = usual;
	forget_lanes();
}

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
	/* and the lease */
	check(descriptors() == before + MOST + 1);
	check(!mapped(paths[0]) && mapped(paths[N - 1]));
	fake_paused = 0;
	check(!kvcachefs_transfer_free(t) && c.down() == c.host);
	check(went(a, 0, 0, N * kvcachefs_file_size(&p, 1, &items[0].tokens)));
	check(descriptors() == before);
}

/*
 * The pinned memory of many transfers at once is bounded: beyond that, a transfer has one group's.
 * If the host is short of memory, it uses less too.
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

/* A program that exits during a store, behind a stopped stream, just exits. */
void leave()
{
	Gate &never = *new Gate; /* never opened */
	Chunk c("staged/leave", 39);
	Streams s;
	kvcachefs_paged p = c.c.on(0);
	kvcachefs_transfer *t;

	fake_no_register = 1;
	cuda(cudaLaunchHostFunc(s.s[0], Gate::stop, &never));
	check(!kvcachefs_store(&t, mnt.c_str(), &p, c.items.data(), 1, s.s[0]));
	printf("left\n");
	exit(0);
}

/* Makes the driver lack numbers for streams; called before the first call. */
void without_numbers()
{
	fake_no_numbers = 1;
	fake_functions = { stage_await, stage_tell, stage_handled };
}

struct Trial { /* of the command line */
	bool pins, store;
	fake_order kind;
	unsigned long at;
};

/*
 * One transfer with a mistake in it, or without; then it prints how many mistakes are possible.
 * Everything is queued before a stream starts. A stream without its wait runs before the others
 * (fake.cpp) and before the staging thread. A number that is written too early is seen by that
 * thread while the streams are stopped, and so it acts too early.
 */
void trial(const Trial &w)
{
	Chunk chunk("trial/x", w.pins ? 80 : 39);
	kvcachefs_paged p = chunk.c.on(0);
	auto before = chunk.c.host;
	fake_counts from, to;
	kvcachefs_transfer *t;
	Streams s;
	size_t ahead = 0;

	sizes = SMALL;
	fake_no_register = !w.pins;
	check(!move_all(chunk.c, -1, true, chunk.items));
	if (w.pins && w.store) { /* unprepared files are staged */
		struct stat st;

		kvcachefs_map_cache(64 * MiB);
		check(!stat(mnt.c_str(), &st));
		kvcachefs_want want = {
			mnt.c_str(), st.st_dev, chunk.path.c_str(), chunk.bytes, 0,
		};

		check(!kvcachefs_ready_warm(&want, 1, 1000000));
	}
	if (w.pins && !w.store) {
		kvcachefs_map_cache(64 * MiB);
		load_twice(chunk.c, chunk.items);
	}
	if (!w.store) {
		for (auto &h : chunk.c.host)
			std::fill(h.begin(), h.end(), (uint8_t)0);
		chunk.c.up();
		/* groups that need not wait for a place */
		ahead = SMALL.staging / SMALL.staged_group;
	}
	auto want = contents(chunk.path);

	from = fake_counted();
	fake_paused = 1;
	holds = w.kind == FAKE_VALUE;
	fake_mistake = w.kind;
	fake_mistake_at = w.at;
	check(!(w.store ? kvcachefs_store : kvcachefs_load)(&t, mnt.c_str(), &p, chunk.items.data(),
							    1, s.s[0]));
	to = fake_counted();
	check(!fake_mistake_at); /* the mistake was made */
	check(to.host_functions - from.host_functions ==
		      (fake_no_numbers ? to.orders[FAKE_VALUE] + to.orders[FAKE_NUMBER] : 0) &&
	      stats().host_functions == to.host_functions - from.host_functions);
	if (w.kind == FAKE_NUMBER)
		for (int i = 0; w.at && i < 10000 && host_copies <= ahead; i++)
			usleep(1000);
	check(w.at || kvcachefs_transfer_poll(t) == -EAGAIN);
	fake_paused = 0;
	check(!kvcachefs_transfer_free(t));
	check(contents(chunk.path) == want);
	if (!w.store)
		check(chunk.c.down() == before);
	for (int k = 0; k < FAKE_ORDERS; k++)
		printf("%lu ", to.orders[k] - from.orders[k]);
	printf("ok\n");
}

/* trial MOUNT pinned|direct|staged|functions store|load KIND N */
void trial(char **v)
{
	bool functions = !strcmp(v[0], "functions");

	if (functions)
		without_numbers();
	if (!strcmp(v[0], "direct"))
		setenv("KVCACHEFS_GPU_DIRECT", "1000000", 1);
	trial({ !functions && strcmp(v[0], "staged") != 0, !strcmp(v[1], "store"),
		(fake_order)atoi(v[2]), strtoul(v[3], nullptr, 10) });
}

} // namespace
#endif
