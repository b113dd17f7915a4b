/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Shifts the wall clock by the number of seconds in the file WALL, as text, which is read on each
 * call.
 */
#include <dlfcn.h>
#include <fcntl.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

static long off(void)
{
	const char *path = getenv("WALL");
	char text[32] = "";
	int fd = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;

	if (fd < 0)
		return 0;
	if (read(fd, text, sizeof text - 1) < 0)
		text[0] = 0;
	close(fd);
	return strtol(text, NULL, 10);
}

__attribute__((visibility("default"))) int clock_gettime(clockid_t id, struct timespec *t)
{
	static int (*real)(clockid_t id, struct timespec *t);
	int err;

	if (!real)
		*(void **)&real = dlsym(RTLD_NEXT, "clock_gettime");
	err = real(id, t);
	if (!err && id == CLOCK_REALTIME)
		t->tv_sec += off();
	return err;
}
