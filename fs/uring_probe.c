/* SPDX-License-Identifier: Apache-2.0 */
/* Tries io_uring in a child process. See uring_probe.h. */
#include "uring_probe.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/io_uring.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define FILES_EACH 2u   /* descriptors of a queue: its ring and its eventfd */
#define FILES_REST 128u /* other descriptors of the daemon, before any file is open */

enum step { SETUP, REGISTER, ENTER, STEPS };

static const char *const calls[STEPS] = { "io_uring_setup", "io_uring_register", "io_uring_enter" };

struct outcome {
	int32_t step, err; /* the call that failed; STEPS: none */
};

/* Runs in the child: makes system calls only. The ring is freed when the process exits. */
static struct outcome try_calls(unsigned depth)
{
	struct io_uring_params p = {
		.flags = IORING_SETUP_SQE128 | IORING_SETUP_CQSIZE,
		.cq_entries = 2 * (depth + 1),
	};
	struct outcome o = { .step = SETUP };
	long fd = syscall(SYS_io_uring_setup, depth + 1, &p);
	int32_t file = (int32_t)fd;

	if (fd < 0)
		goto failed;
	o.step = REGISTER;
	file = open("/dev/null", O_RDWR | O_CLOEXEC);
	if (syscall(SYS_io_uring_register, fd, IORING_REGISTER_FILES, &file, 1) < 0)
		goto failed;
	o.step = ENTER;
	if (syscall(SYS_io_uring_enter, fd, 0, 0, 0, NULL, 0) < 0)
		goto failed;
	o.step = STEPS;
	return o;
failed:
	o.err = errno;
	return o;
}

/*
 * Runs try_calls in a child process. Returns false, and leaves *o unchanged, if the child died
 * before it could report its result.
 */
static bool try_in_child(unsigned depth, struct outcome *o)
{
	int ends[2], status;
	bool reported = false;
	pid_t child;

	if (pipe2(ends, O_CLOEXEC))
		return false;
	child = fork();
	if (!child) {
		struct outcome result = try_calls(depth);

		_exit(write(ends[1], &result, sizeof result) == sizeof result ? 0 : 1);
	}
	close(ends[1]);
	if (child > 0) {
		reported = read(ends[0], o, sizeof *o) == sizeof *o;
		while (waitpid(child, &status, 0) < 0 && errno == EINTR)
			;
	}
	close(ends[0]);
	return reported;
}

bool kvfs_uring_works(unsigned queues, unsigned depth, char *why, size_t size)
{
	unsigned long need = FILES_EACH * (unsigned long)queues + FILES_REST;
	struct outcome o = { .step = STEPS };
	struct rlimit files;

	if (!getrlimit(RLIMIT_NOFILE, &files) && files.rlim_cur < need) {
		snprintf(why, size,
			 "it needs %lu file descriptors and %llu are allowed; raise the limit "
			 "(ulimit -n)",
			 need, (unsigned long long)files.rlim_cur);
		return false;
	}
	if (!try_in_child(depth, &o))
		snprintf(why, size,
			 "a test process that used it was killed, probably by a seccomp filter");
	else if (o.step == STEPS)
		return true;
	else if (o.err == ENOMEM)
		snprintf(why, size, "%s failed: free memory, or raise RLIMIT_MEMLOCK",
			 calls[o.step]);
	else
		snprintf(why, size,
			 "%s is refused (%s) by a seccomp filter or kernel.io_uring_disabled",
			 calls[o.step], strerror(o.err));
	return false;
}
