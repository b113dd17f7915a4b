/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Part of gpu.cu: the ways that bytes take, and the groups of a staged transfer. Groups are small
 * here, so that they reuse the buffers often.
 */
#pragma once

#include "gpu_cache.cuh"
#include "gpu_queue.cuh"

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

} // namespace
#endif
