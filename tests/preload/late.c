/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Makes usleep() take LATE_MS milliseconds, which must be set. The daemon calls usleep() before it
 * notifies the kernel of removed names (engine/names/notify.c), so these notifications are delayed.
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
