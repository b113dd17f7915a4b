/* SPDX-License-Identifier: Apache-2.0 */
/*
 * usleep() takes LATE_MS, which must be set. A daemon waits so for a moment before it tells the
 * kernel what went (engine/names/notify.c): it is told that much later.
 */
#include <errno.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

__attribute__((visibility("default"))) int usleep(useconds_t us)
{
	const char *text = getenv("LATE_MS");
	long ms = text ? atol(text) : 0;
	struct timespec t = { ms / 1000, ms % 1000 * 1000000 };

	(void)us;
	while (nanosleep(&t, &t) && errno == EINTR)
		;
	return 0;
}
