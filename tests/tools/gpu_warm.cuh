/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Part of gpu.cu: warm transfers allocate nothing on the calling thread, however many pieces they
 * have. Allocations by the fake device and by the library's own threads do not count.
 */
#pragma once

#include "gpu_staged.cuh"
#include "gpu_stores.cuh"

#ifdef FAKE_CUDA_RUNTIME_H
namespace {

thread_local unsigned long allocations;

void allocated()
{
	allocations += !fake_inside;
}

} // namespace

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
extern "C" int __sanitizer_install_malloc_and_free_hooks(
	void (*made)(const volatile void *, size_t), void (*freed)(const volatile void *));

namespace {

void count_allocations()
{
	check(__sanitizer_install_malloc_and_free_hooks(
		[](const volatile void *, size_t) { allocated(); }, [](const volatile void *) {}));
}

} // namespace
#else
/* Replaces malloc and its relatives, in libc too; the originals are glibc's under other names. */
extern "C" {
void *__libc_malloc(size_t len);
void *__libc_calloc(size_t n, size_t len);
void *__libc_realloc(void *p, size_t len);

void *malloc(size_t len) noexcept
{
	allocated();
	return __libc_malloc(len);
}

void *calloc(size_t n, size_t len) noexcept
{
	allocated();
	return __libc_calloc(n, len);
}

void *realloc(void *p, size_t len) noexcept
{
	allocated();
	return __libc_realloc(p, len);
}
}

namespace {

void count_allocations() {}

} // namespace
#endif

namespace {

struct Many { /* files of the size of that many blocks of 4 KiB */
	Cache c;
	std::vector<std::string> paths;
	std::vector<int64_t> ids;
	kvcachefs_rope rope = {};
	std::vector<kvcachefs_item> stores, loads;

	Many(const std::string &name, unsigned files, unsigned blocks)
		: c(KVCACHEFS_NL_X_TWO_NB_BS_NH_HS, 1, 4, 16, 16, blocks, 2, files)
	{
		rope.theta = 10000;
		rope.delta = 5;
		rope.type = KVCACHEFS_BF16;
		for (unsigned i = 0; i < blocks; i++)
			ids.push_back(i);
		for (unsigned i = 0; i < files; i++)
			paths.push_back("unallocated/" + name + std::to_string(i));
		for (unsigned i = 0; i < files; i++) {
			kvcachefs_item it = {};

			it.path = paths[i].c_str();
			it.nlayers = 1;
			it.tokens = { nullptr, ids.data(), ids.size(), 0 };
			stores.push_back(it);
			it.rope = &rope;
			loads.push_back(it);
		}
	}
	unsigned long count(bool store)
	{
		unsigned long before = allocations;

		check(!move_all(c, 0, store, store ? stores : loads));
		return allocations - before;
	}
};

void unallocated_way(const char *name, unsigned files, unsigned blocks)
{
	Many m(name, files, blocks);
	kvcachefs_paged p = m.c.on(0);
	kvcachefs_warm how = { 1, true, 1000 };
	struct stat st;

	check(!stat(mnt.c_str(), &st));
	kvcachefs_want want = {
		mnt.c_str(),
		st.st_dev,
		m.paths[0].c_str(),
		kvcachefs_file_size(&p, 1, &m.stores[0].tokens),
		0,
	};

	kvcachefs_map_cache(128 * MiB);
	check(!kvcachefs_gpu_warm(mnt.c_str(), &p, m.stores.data(), files, &how));
	/* while many mappings wait to be removed, registrations are put off to a later transfer */
	for (int round = 0, warm = 0; warm < 2; round++) {
		unsigned long stored = m.count(true), loaded;

		kvcachefs_map_cache(128 * MiB); /* waits for background work */
		check(!kvcachefs_ready_warm(&want, files, 1000000));
		loaded = m.count(false);
		warm += round && !stored && !loaded;
		if (round > 12) {
			printf("%s: %lu allocations of a store, %lu of a load\n", name, stored,
			       loaded);
			check(false);
		}
	}
	kvcachefs_map_cache(0);
}

/* Each way that bytes can take, with enough pieces that lists grow several times. */
void unallocated()
{
	Sizes usual = sizes;

	count_allocations();
	sizes = SMALL;
	forget_lanes();
	unallocated_way("pinned", 24, 64); /* 256 KiB */
	unallocated_way("direct", 40, 4);
	fake_driver = 12060;
	unallocated_way("older", 4, 64);
	fake_driver = 13000;
	fake_no_register = 1;
	unallocated_way("staged", 24, 64);
	fake_no_register = 0;
	sizes = usual;
	forget_lanes();
}

} // namespace
#endif
