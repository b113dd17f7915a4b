/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The host's half of what passes through pinned memory: a thread for each lane that needs one, so
 * that a transfer that stands (a store behind a long computation) keeps no other from going on, and
 * copiers.h's to help it. A transfer gives it its groups in their order:
 *
 *   load    thread: wait till the copy before has left this memory, fill it, say so
 *           stream of copies: wait for that, copy to the device, say so
 *   store   stream of copies: wait till the thread has emptied this memory, copy from the device,
 *           say so
 *           thread: wait for that, write the file's pages, say so
 *
 * Both say so by a number in pinned memory, of the last group that they are done with: `handled` is
 * the thread's, and a stream waits for it (cuStreamWaitValue32); `copied` is the stream's
 * (cuStreamWriteValue32), and the thread looks at it now and then. So all of a transfer is queued
 * at once, no stream waits for a function of the host, and the thread makes no call to CUDA: one
 * that waits there with a lock held (cudaFree, until all streams rest) does not stop it.
 *
 * Where the driver has not these two, functions of the host on the stream wait and say so instead.
 * CUDA runs such functions one after the other, of all streams: one that waits holds up the
 * program's own for as long as the thread copies a group.
 *
 * Numbers go on from transfer to transfer of a lane, and wrap. Whatever happens, `handled` comes to
 * the last group: no stream is left waiting.
 */
#pragma once

#include "context.cuh"
#include "copiers.h"

#include <signal.h>
#include <stdlib.h>
#include <unistd.h>

#include <atomic>
#include <condition_variable>
#include <memory>
#include <system_error>
#include <thread>
#include <vector>

namespace {

constexpr size_t NONE = SIZE_MAX;

struct Staged {          /* one group, for the thread */
	size_t after;    /* the group whose copy it waits for; NONE: no wait */
	size_t first, n; /* of the stage's copies */
};

struct alignas(64) Word { /* each on a line of its own */
	uint32_t value;
};

struct Stage;

struct Number { /* for a function of the host: that of a group */
	Stage *stage;
	uint32_t value;
};

struct Stage {
	Word *handled = nullptr, *copied = nullptr; /* pinned; `copied` is behind `handled` */
	std::atomic<size_t> limit{ 0 };             /* no more groups than these will come */
	/*
	 * The transfer's that has the lane; while it is busy the thread's. They keep their memory.
	 */
	std::vector<Staged> groups;
	std::vector<kvcachefs_copy> copies;
	std::vector<Number> numbers; /* the transfer's alone: of each group */
	std::mutex mutex;            /* guards what follows */
	std::condition_variable changed;
	uint32_t base = 0; /* the number before the first group's */
	bool busy = false, started = false, stop = false;
};

/*
 * At the process's end, where transfers were left under way: no stream is left waiting, and then
 * pinned memory goes, so no thread may use it any more.
 */
std::atomic<bool> ending;
std::atomic<unsigned> carrying; /* transfers that a thread has */

pid_t owner; /* of the threads: a child that was forked has none */

void stage_end()
{
	ending = true;
	while (carrying && owner == getpid())
		usleep(100);
}

/* Waits till the copy of a group is made. false: it never will be. */
bool stage_copied(const Stage *s, size_t group)
{
	uint32_t value = s->base + (uint32_t)group + 1;

	/* acquire: the bytes that came with it */
	for (unsigned n = 0;
	     (int32_t)(__atomic_load_n(&s->copied->value, __ATOMIC_ACQUIRE) - value) < 0; n++) {
		if (group >= s->limit || ending)
			return false;
		usleep(n < 500 ? 20 : 200);
	}
	return true;
}

void stage_say(Stage *s, uint32_t value)
{
	/* release: the bytes are there before the number is */
	__atomic_store_n(&s->handled->value, value, __ATOMIC_RELEASE);
}

/* A Number's: the thread has come to it; waits for that; the stream has come to it. */
bool stage_handled(void *number)
{
	const Number *n = static_cast<Number *>(number);

	/* acquire: the bytes that came with it */
	return (int32_t)(__atomic_load_n(&n->stage->handled->value, __ATOMIC_ACQUIRE) - n->value) >=
	       0;
}

void CUDART_CB stage_await(void *number)
{
	for (unsigned n = 0; !stage_handled(number); n++)
		usleep(n < 500 ? 20 : 200);
}

void CUDART_CB stage_tell(void *number)
{
	const Number *n = static_cast<Number *>(number);

	/* release: the bytes are there before the number is */
	__atomic_store_n(&n->stage->copied->value, n->value, __ATOMIC_RELEASE);
}

void stage_carry(Stage *s)
{
	for (size_t k = 0; k < s->groups.size() && k < s->limit && !ending; k++) {
		const Staged &g = s->groups[k];

		if (g.after != NONE && !stage_copied(s, g.after))
			break;
		kvcachefs_copy_all(s->copies.data() + g.first, g.n);
		stage_say(s, s->base + (uint32_t)k + 1);
	}
	stage_say(s, s->base + (uint32_t)s->groups.size());
}

void stage_thread(const std::shared_ptr<Stage> &s)
{
	std::unique_lock<std::mutex> hold(s->mutex);

	for (;;) {
		s->changed.wait(hold, [&] { return s->busy || s->stop; });
		if (s->stop)
			return;
		hold.unlock(); /* while it is busy nobody else changes its groups */
		stage_carry(s.get());
		carrying--;
		hold.lock();
		s->base += (uint32_t)s->groups.size();
		s->busy = false;
		s->changed.notify_all();
	}
}

/*
 * Its groups are those of a transfer, none of which is queued yet; group k is done with where a
 * number is at *base + k + 1.
 */
int stage_start(const std::shared_ptr<Stage> &s, uint32_t *base)
{
	std::lock_guard<std::mutex> hold(s->mutex);
	static std::once_flag once;
	sigset_t all, old;

	std::call_once(once, [] {
		owner = getpid();
		atexit(stage_end);
	});
	if (!s->started) {
		sigfillset(&all); /* signals are the program's, and its own threads' */
		pthread_sigmask(SIG_SETMASK, &all, &old);
		try {
			std::thread(stage_thread, s).detach(); /* it holds what it uses */
			s->started = true;
		} catch (const std::system_error &) {
		}
		pthread_sigmask(SIG_SETMASK, &old, nullptr);
	}
	s->numbers.resize(s->groups.size());
	if (!s->started)
		return kvcachefs_fail(-EAGAIN, "no thread for what is staged");
	s->limit = s->groups.size();
	s->busy = true;
	carrying++;
	*base = s->base;
	for (size_t k = 0; k < s->groups.size(); k++)
		s->numbers[k] = { s.get(), s->base + (uint32_t)k + 1 };
	s->changed.notify_all();
	return 0;
}

/* Not all will come: the first n are on their streams, and no more. */
void stage_close(Stage *s, size_t n)
{
	if (n < s->limit)
		s->limit = n;
}

bool stage_busy(Stage *s)
{
	std::lock_guard<std::mutex> hold(s->mutex);

	return s->busy;
}

void stage_wait(Stage *s)
{
	std::unique_lock<std::mutex> hold(s->mutex);

	s->changed.wait(hold, [&] { return !s->busy; });
}

/* Its thread, which has nothing to do, ends. */
void stage_stop(const std::shared_ptr<Stage> &s)
{
	std::lock_guard<std::mutex> hold(s->mutex);

	s->stop = true;
	s->changed.notify_all();
}

} // namespace
