/* SPDX-License-Identifier: Apache-2.0 */
/*
 * crowd MOUNT UID CPU THREADS SECONDS FILES: threads of one user on one CPU. Every second call
 * looks up a name that does not exist, and the others open m/c0/0 to m/c0/FILES-1 (0: all look up).
 * After a call that took less than 20 ms, its thread pauses. SIGTERM ends the program before the
 * time. Prints the number of threads, of calls that succeeded, of calls that failed, and of calls
 * that took less than 20 ms; exits with 1 if a thread cannot be made.
 */
#include <fcntl.h>
#include <grp.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define EARLY_NS 20000000ull
#define PAUSE_NS 200000000l

static _Atomic unsigned long turn, succeeded, failed, early;
static unsigned long files;
static _Atomic unsigned long long end;

static unsigned long long now_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (unsigned long long)t.tv_sec * 1000000000 + (unsigned long long)t.tv_nsec;
}

static int call(unsigned long n)
{
	struct stat st;
	char path[64];
	int fd;

	if (!files || n % 2) {
		snprintf(path, sizeof path, "unknown-%d-%lu", getpid(), n);
		return stat(path, &st);
	}
	snprintf(path, sizeof path, "m/c0/%lu", n / 2 % files);
	fd = open(path, O_RDONLY | O_CLOEXEC);
	return fd < 0 ? fd : close(fd);
}

static void *client(void *arg)
{
	const struct timespec pause = { .tv_nsec = PAUSE_NS };
	unsigned long long began;

	(void)arg;
	while ((began = now_ns()) < end) {
		atomic_fetch_add(call(atomic_fetch_add(&turn, 1)) ? &failed : &succeeded, 1);
		if (now_ns() - began < EARLY_NS) {
			atomic_fetch_add(&early, 1);
			nanosleep(&pause, NULL);
		}
	}
	return NULL;
}

static void stop(int signal)
{
	(void)signal;
	end = 0;
}

int main(int argc, char **argv)
{
	unsigned long threads = argc == 7 ? strtoul(argv[4], NULL, 10) : 0, n = 0;
	uid_t uid = argc == 7 ? (uid_t)strtoul(argv[2], NULL, 10) : 0;
	pthread_t *all = calloc(threads + 1, sizeof *all);
	pthread_attr_t attr;
	cpu_set_t cpu;

	if (!threads || !all)
		return 2;
	CPU_ZERO(&cpu);
	CPU_SET(strtoul(argv[3], NULL, 10), &cpu);
	files = strtoul(argv[6], NULL, 10);
	end = now_ns() + strtoull(argv[5], NULL, 10) * 1000000000;
	if (chdir(argv[1]) || sched_setaffinity(0, sizeof cpu, &cpu) || setgroups(0, NULL) ||
	    setgid(uid) || setuid(uid)) {
		perror("crowd");
		return 2;
	}
	signal(SIGTERM, stop);
	pthread_attr_init(&attr);
	pthread_attr_setstacksize(&attr, 64 << 10);
	while (n < threads && !pthread_create(&all[n], &attr, client, NULL))
		n++;
	if (n < threads)
		end = 0;
	for (unsigned long i = 0; i < n; i++)
		pthread_join(all[i], NULL);
	pthread_attr_destroy(&attr);
	free(all);
	printf("%lu %lu %lu %lu\n", n, succeeded, failed, early);
	return n < threads;
}
