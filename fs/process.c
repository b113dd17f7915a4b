/* SPDX-License-Identifier: Apache-2.0 */
/*
 * See process.h. The kernel tells the thread, /proc/THREAD/status (of all files there the one that
 * takes no lock which a caller in the middle of a page fault has) its process. That is remembered
 * for KEPT_S, since a number may be another's after that; of THREADS places each has those that
 * fall there, and the last one stays. Where /proc is of another namespace than ours its numbers say
 * nothing, and without it there is nothing to ask: then each thread is taken for itself.
 */
#include "process.h"

#include "util.h"

#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#define THREADS 1024
#define KEPT_S 8u
#define NUMBER_BITS 22 /* of a thread, or process */
#define NUMBERS (1u << NUMBER_BITS)
#define SECONDS (1u << (64 - 2 * NUMBER_BITS))

/* A thread, its process, and when that was looked up: one word, so that readers need no lock. */
static _Atomic uint64_t known[THREADS];

/* Is /proc that of our own namespace? */
static bool is_ours(void)
{
	char text[16];
	ssize_t n = readlink("/proc/self", text, sizeof text - 1);

	text[n > 0 ? n : 0] = 0;
	return atoi(text) == getpid();
}

static uint32_t look(uint32_t thread)
{
	char path[32], text[1024], *at;
	unsigned process;
	ssize_t n;

	snprintf(path, sizeof path, "/proc/%u/status", thread);
	KVC_FD int fd = is_ours() ? open(path, O_RDONLY | O_CLOEXEC) : -1;

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
	/* no order: the word is all there is */
	is = atomic_load_explicit(&known[thread % THREADS], memory_order_relaxed);
	if ((uint32_t)(is >> NUMBER_BITS) % NUMBERS == thread &&
	    (now - (uint32_t)(is >> 2 * NUMBER_BITS)) % SECONDS < KEPT_S)
		return (uint32_t)is % NUMBERS;
	process = look(thread);
	is = (uint64_t)now << 2 * NUMBER_BITS | (uint64_t)thread << NUMBER_BITS | process;
	atomic_store_explicit(&known[thread % THREADS], is, memory_order_relaxed);
	return process;
}
