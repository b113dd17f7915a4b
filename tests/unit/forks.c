/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A fork while another thread holds a lock of libkvcachefs, and before the library was used at all:
 * the child finds the lock free.
 */
#include "maps.h"
#include "ready_priv.h"

#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#define HELD_US 50000 /* another thread holds the lock for this time, and a fork may wait */

struct holder {
	pthread_mutex_t *lock;
	atomic_bool held;
};

static void *hold(void *arg)
{
	struct holder *h = arg;

	pthread_mutex_lock(h->lock);
	atomic_store(&h->held, true);
	usleep(HELD_US);
	pthread_mutex_unlock(h->lock);
	return NULL;
}

static void free_in_child(pthread_mutex_t *lock)
{
	struct holder h = { .lock = lock };
	pthread_t thread;
	int status;
	pid_t child;

	assert_int_equal(pthread_create(&thread, NULL, hold, &h), 0);
	while (!atomic_load(&h.held))
		usleep(100);
	child = fork();
	if (!child)
		_exit(pthread_mutex_trylock(lock) != 0);
	assert_true(child > 0);
	assert_int_equal(waitpid(child, &status, 0), child);
	assert_int_equal(status, 0);
	pthread_join(thread, NULL);
}

static void prepared_files(void **state)
{
	(void)state;
	free_in_child(&kvcachefs_ready.lock);
}

static void mappings(void **state)
{
	char path[] = "/tmp/forks-XXXXXX";
	struct kvcachefs_map *m;
	struct stat st;
	int fd = mkstemp(path);

	(void)state;
	assert_true(fd >= 0);
	assert_int_equal(ftruncate(fd, 4096), 0);
	assert_int_equal(fstat(fd, &st), 0);
	assert_int_equal(kvcachefs_map_get(path, st.st_dev, st.st_ino, 4096, false, &m), 0);
	free_in_child(&m->lock);
	kvcachefs_map_put(m);
	close(fd);
	unlink(path);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(prepared_files),
		cmocka_unit_test(mappings),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
