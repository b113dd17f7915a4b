/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The host's half of copies through pinned memory. Each lane that needs it has a thread, so that a
 * blocked transfer (a store behind a long computation) does not delay others; the threads of
 * copiers.h help. A transfer gives the thread its groups in order:
 *
 *   load    thread: wait until the previous copy has left this memory, fill it from the file's
 *           mapping or by reading the file, signal
 *           copy stream: wait for that, copy to the device, signal
 *   store   copy stream: wait until the thread has emptied this memory, copy from the device,
 *           signal
 *           thread: wait for that, write the file's pages, signal
 *
 * A signal is a number in pinned memory: the last group that the signalling side has finished.
 * `handled` is written by the thread, and a stream waits for it (cuStreamWaitValue32). `copied` is
 * written by the stream (cuStreamWriteValue32), and the thread polls it. So a whole transfer is
 * queued at once, no stream waits for a host function, and the thread does not call CUDA: a CUDA
 * call that waits with a lock held (cudaFree, until all streams are idle) does not stop it.
 *
 * If the driver lacks these two functions, host functions on the stream wait and signal instead.
 * CUDA runs host functions of all streams one after the other, so one that waits delays the
 * program's own host functions while the thread copies a group.
 *
 * The numbers continue from transfer to transfer of a lane, and wrap. `handled` always reaches the
 * last group, whatever fails, so that no stream waits for ever. If a file cannot be read, the
 * transfer fails when its caller polls it or waits for it.
 */
#pragma once

#include "context.cuh"
#include "copiers.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>
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

struct alignas(64) Word { /* each in a cache line of its own */
	uint32_t value;
};

struct Stage;

struct Number { /* of a group; the argument of a host function */
	Stage *stage;
	uint32_t value;
};

struct Stage {
	Word *handled = nullptr, *copied = nullptr; /* pinned; `copied` follows `handled` */
	/* the number of groups that will come, at most */
	std::atomic<size_t> limit{ 0 };
	/*
	 * Owned by the transfer that has the lane; while the stage is busy, by the thread. They
	 * keep their memory.
	 */
	std::vector<Staged> groups;
	std::vector<kvcachefs_copy> copies;
	std::vector<Number> numbers; /* of each group; owned by the transfer */
	std::mutex mutex;            /* guards the members below */
	std::condition_variable changed;
	uint32_t base = 0;          /* the number before the first group's */
	int err = 0;                /* of a file that could not be read; owned like the groups */
	const char *path = nullptr; /* of that file */
	bool busy = false, started = false, stop = false;
};

/*
 * Set at the process's end if transfers are still running: no stream is left waiting. Pinned memory
 * is freed afterwards, so no thread may use it any more.
 */
std::atomic<bool> ending;
std::atomic<unsigned> carrying; /* transfers that a thread is working on */

pid_t owner; /* of the threads; a forked child has none */

void stage_end()
{
	ending = true;
	while (carrying && owner == getpid())
		usleep(100);
}

/* Waits until the copy of a group is made. Returns false if it never will be. */
bool stage_copied(const Stage *s, size_t group)
{
	uint32_t value = s->base + (uint32_t)group + 1;

	/* acquire: the bytes are accessed after the number was read */
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
	/* release: the bytes are visible before the number */
	__atomic_store_n(&s->handled->value, value, __ATOMIC_RELEASE);
}

/*
 * Host functions; the argument is a Number. stage_handled: has the thread reached it? stage_await:
 * waits for that. stage_tell: the stream has reached it.
 */
bool stage_handled(void *number)
{
	const Number *n = static_cast<Number *>(number);

	/* acquire: the bytes are accessed after the number was read */
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

	/* release: the bytes are visible before the number */
	__atomic_store_n(&n->stage->copied->value, n->value, __ATOMIC_RELEASE);
}

void stage_carry(Stage *s)
{
	for (size_t k = 0; k < s->groups.size() && k < s->limit && !ending; k++) {
		const Staged &g = s->groups[k];

		if (g.after != NONE && !stage_copied(s, g.after))
			break;
		size_t bad;
		int err = s->err ? 0 : kvcachefs_copy_all(s->copies.data() + g.first, g.n, &bad);

		if (err) {
			s->err = err;
			s->path = s->copies[g.first + bad].path;
		}
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
		hold.unlock(); /* while it is busy no other thread changes its groups */
		stage_carry(s.get());
		carrying--;
		hold.lock();
		s->base += (uint32_t)s->groups.size();
		s->busy = false;
		s->changed.notify_all();
	}
}

/*
 * Starts the thread's work on the groups of a transfer, none of which is queued yet. Group k is
 * finished when a number has reached *base + k + 1.
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
		sigfillset(&all); /* signals are for the program and its own threads */
		pthread_sigmask(SIG_SETMASK, &all, &old);
		try {
			/* it holds a reference to what it uses */
			std::thread(stage_thread, s).detach();
			s->started = true;
		} catch (const std::system_error &) {
		}
		pthread_sigmask(SIG_SETMASK, &old, nullptr);
	}
	s->numbers.resize(s->groups.size());
	if (!s->started)
		return kvcachefs_fail(-EAGAIN, "cannot start the staging thread");
	s->limit = s->groups.size();
	s->err = 0;
	s->busy = true;
	carrying++;
	*base = s->base;
	for (size_t k = 0; k < s->groups.size(); k++)
		s->numbers[k] = { s.get(), s->base + (uint32_t)k + 1 };
	s->changed.notify_all();
	return 0;
}

/* Only the first n groups are queued on their streams; no more will come. */
void stage_close(Stage *s, size_t n)
{
	if (n < s->limit)
		s->limit = n;
}

/* Returns the error of a file that could not be read, or 0. The stage must not be busy. */
int stage_result(const Stage *s)
{
	return s->err ? kvcachefs_fail(s->err, "cannot read %s: %s", s->path, strerror(-s->err))
		      : 0;
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

/* Ends the thread, which must be idle. */
void stage_stop(const std::shared_ptr<Stage> &s)
{
	std::lock_guard<std::mutex> hold(s->mutex);

	s->stop = true;
	s->changed.notify_all();
}

} // namespace
