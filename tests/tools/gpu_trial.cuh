/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Part of gpu.cu: mistakes in the order of streams, which must be found, and a program that exits
 * during a store.
 */
#pragma once

#include "gpu_staged.cuh"

#ifdef FAKE_CUDA_RUNTIME_H
namespace {

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

/*
 * Makes streams unable to wait for a number in memory or to write one; called before the first call
 * of the library.
 */
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
