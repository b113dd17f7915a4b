/* SPDX-License-Identifier: Apache-2.0 */
/* Functions that all files of the library use. */
#ifndef KVCACHEFS_PRIV_H
#define KVCACHEFS_PRIV_H

#include "kvcachefs_gpu.h"
#include "kvcachefs_layout.h"
#include "kvcachefs_names.h"
#include "kvcachefs_rope.h"

#include <errno.h>
#include <pthread.h>
#include <time.h>

#ifdef __cplusplus
extern "C" {
#endif
/* Stores the error text for kvcachefs_error(), and returns err. */
int kvcachefs_fail(int err, const char *format, ...)
	__attribute__((format(printf, 2, 3), visibility("hidden")));
#ifdef __cplusplus
}
#endif

static inline uint64_t kvcachefs_now_ms(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC_COARSE, &t); /* needs no system call */
	return (uint64_t)t.tv_sec * 1000 + (uint64_t)t.tv_nsec / 1000000;
}

/*
 * Waits for at most ms milliseconds, unaffected by changes of the wall clock. Returns 0 or
 * ETIMEDOUT.
 */
static inline int kvcachefs_wait_ms(pthread_cond_t *c, pthread_mutex_t *m, uint64_t ms)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	t.tv_sec += (time_t)(ms / 1000);
	t.tv_nsec += (long)(ms % 1000) * 1000000;
	t.tv_sec += t.tv_nsec / 1000000000;
	t.tv_nsec %= 1000000000;
	return pthread_cond_clockwait(c, m, CLOCK_MONOTONIC, &t);
}

/*
 * Registers fork handlers when the library is loaded. Handlers that are registered at the first use
 * of a lock would come too late for a fork during that use: the child would find the lock taken,
 * for ever.
 */
#define KVCACHEFS_AT_FORK(before, after, in_child)             \
	__attribute__((constructor)) static void at_fork(void) \
	{                                                      \
		pthread_atfork(before, after, in_child);       \
	}

/*
 * The same for a lock under which no other lock of the library is taken; in_child is called with
 * it. These handlers are registered first, so that a fork takes their locks last.
 */
#define KVCACHEFS_AT_FORK_INNER(lock, in_child)                               \
	static void before_fork(void)                                         \
	{                                                                     \
		pthread_mutex_lock(&(lock));                                  \
	}                                                                     \
	static void after_fork(void)                                          \
	{                                                                     \
		pthread_mutex_unlock(&(lock));                                \
	}                                                                     \
	static void after_fork_in_child(void)                                 \
	{                                                                     \
		in_child();                                                   \
		pthread_mutex_unlock(&(lock));                                \
	}                                                                     \
	__attribute__((constructor(101))) static void at_fork(void)           \
	{                                                                     \
		pthread_atfork(before_fork, after_fork, after_fork_in_child); \
	}

static inline void kvcachefs_nothing_in_child(void) {}

/* The child of a fork finds the file's lock free, whatever the parent's threads did. */
#define KVCACHEFS_FREE_IN_CHILD(lock) KVCACHEFS_AT_FORK_INNER(lock, kvcachefs_nothing_in_child)

/*
 * The answer to a command of .kvcachefs/lease. words: its first line, with a newline. The caller
 * frees *out with kvcachefs_lease_free.
 */
int kvcachefs_lease_command(struct kvcachefs_lease **out, const char *mount, const char *words,
			    const char *const *paths, size_t n)
	__attribute__((visibility("hidden")));

#endif
