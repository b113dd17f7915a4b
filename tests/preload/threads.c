/* SPDX-License-Identifier: Apache-2.0 */
/* Limits the process to MAX_THREADS threads in addition to its first, like pids.max. */
#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>

static atomic_int alive;

struct start {
	void *(*run)(void *);
	void *arg;
};

static void *run(void *arg)
{
	struct start s = *(struct start *)arg;
	void *result;

	free(arg);
	result = s.run(s.arg);
	atomic_fetch_sub(&alive, 1);
	return result;
}

__attribute__((visibility("default"))) int
pthread_create(pthread_t *thread, const pthread_attr_t *attr, void *(*what)(void *), void *arg)
{
	static int (*real)(pthread_t *thread, const pthread_attr_t *attr, void *(*run)(void *),
			   void *arg);
	const char *max = getenv("MAX_THREADS");
	struct start *s = malloc(sizeof *s);
	int err;

	if (!real)
		*(void **)&real = dlsym(RTLD_NEXT, "pthread_create");
	if (!s || (atomic_fetch_add(&alive, 1) >= atoi(max ? max : "1000000"))) {
		atomic_fetch_sub(&alive, s ? 1 : 0);
		free(s);
		return EAGAIN;
	}
	*s = (struct start){ what, arg };
	err = real(thread, attr, run, s);
	if (err) {
		atomic_fetch_sub(&alive, 1);
		free(s);
	}
	return err;
}
