/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Maps threads to processes. FUSE reports the thread of a request; /proc/THREAD/status names its
 * process. The file status is used because it takes no lock that a caller inside a page fault may
 * hold. Results are cached for CACHE_S seconds, because the kernel reuses thread ids. The cache has
 * CACHE_ROWS rows, indexed by the thread id; a new result replaces the row. If /proc is missing or
 * belongs to another PID namespace, each thread counts as its own process. See process.h.
 */
#include "process.h"

#include "util.h"

#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#define CACHE_ROWS 1024
#define CACHE_S 8u
#define NUMBER_BITS 22 /* bits of a thread or process id */
#define NUMBERS (1u << NUMBER_BITS)
#define SECONDS (1u << (64 - 2 * NUMBER_BITS))

/* A thread, its process, and the time of the lookup in one word, so that readers need no lock. */
static _Atomic uint64_t cache[CACHE_ROWS];

/* True if /proc belongs to the daemon's own PID namespace. */
static bool proc_is_ours(void)
{
	char text[16];
	ssize_t n = readlink("/proc/self", text, sizeof text - 1);

	text[n > 0 ? n : 0] = 0;
	return atoi(text) == getpid();
}

static uint32_t read_process(uint32_t thread)
{
	char path[32], text[1024], *at;
	unsigned process;
	ssize_t n;

	snprintf(path, sizeof path, "/proc/%u/status", thread);
	KVC_FD int fd = proc_is_ours() ? open(path, O_RDONLY | O_CLOEXEC) : -1;

	n = fd < 0 ? 0 : read(fd, text, sizeof text - 1);
	text[n > 0 ? n : 0] = 0;
	at = strstr(text, "\nTgid:");
	return at && sscanf(at, "\nTgid: %u", &process) == 1 && process && process < NUMBERS
		       ? process
		       : thread;
}

uint32_t kvfs_process_of(uint32_t thread)
{
	uint32_t now = (uint32_t)(kvc_mono_ns() / 1000000000) % SECONDS, process;
	uint64_t is;

	if (!thread || thread >= NUMBERS)
		return thread;
	/* relaxed: the word refers to no other memory */
	is = atomic_load_explicit(&cache[thread % CACHE_ROWS], memory_order_relaxed);
	if ((uint32_t)(is >> NUMBER_BITS) % NUMBERS == thread &&
	    (now - (uint32_t)(is >> 2 * NUMBER_BITS)) % SECONDS < CACHE_S)
		return (uint32_t)is % NUMBERS;
	process = read_process(thread);
	is = (uint64_t)now << 2 * NUMBER_BITS | (uint64_t)thread << NUMBER_BITS | process;
	atomic_store_explicit(&cache[thread % CACHE_ROWS], is, memory_order_relaxed);
	return process;
}
