/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Joint holds of the objects' lock (base/joint.h), and the calls that use them (ops/hit.c): they
 * exclude threads that take the lock; they update the same counters as the calls with the lock; and
 * their accesses reach the policies in the order of the calls. With MODE=tsan, most cases also
 * detect data races.
 */
#include "engine.h"
#include "access_queue.h"
#include "model_stats.h"
#include "ops.h"
#include "rings.h"
#include "user.h"

#include <fcntl.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define THREADS 4
#define FILES 12
#define TURNS 4000
#define UID 1234

static uint64_t folder, file[FILES];

/* ---- the lock ---- */

static struct kvc_lock lock = { .m = PTHREAD_MUTEX_INITIALIZER };
static uint64_t striped[2], alone, closed;
static _Atomic bool go_on;

static void count_closed(void *arg)
{
	++*(uint64_t *)arg;
}

static void *join(void *arg)
{
	struct kvc_joint *j = lock.joint;
	uint64_t key = (uintptr_t)arg % 2, *joint = calloc(1, sizeof *joint);

	for (unsigned i = 0; i < TURNS; i++) {
		if (kvc_joint_begin(j)) {
			pthread_mutex_lock(kvc_joint_stripe(j, key));
			striped[key]++;
			pthread_mutex_unlock(kvc_joint_stripe(j, key));
			kvc_joint_end(j);
			++*joint;
		} else {
			kvc_lock_acquire(&lock, KVC_HERE("unit"));
			striped[key]++;
			kvc_joint_reopen(j);
			kvc_lock_release(&lock);
		}
	}
	return joint;
}

static void *take(void *arg)
{
	(void)arg;
	while (!go_on || !alone || !closed) { /* on a busy machine it may begin late */
		uint64_t sum;

		kvc_lock_acquire(&lock, KVC_HERE("unit"));
		alone++;
		sum = striped[0] + striped[1];
		usleep(20);
		assert_true(sum == striped[0] + striped[1]);
		kvc_lock_release(&lock);
		usleep(300);
	}
	return NULL;
}

static void joint_holds_exclude_the_lock(void **state)
{
	pthread_t t[THREADS], other;
	uint64_t all = 0;

	(void)state;
	lock.joint = kvc_joint_new();
	assert_non_null(lock.joint);
	lock.joint->closed = count_closed;
	lock.joint->arg = &closed;
	assert_false(kvc_joint_begin(lock.joint)); /* closed until the first turn with the mutex */
	assert_false(kvc_joint_begin(NULL));
	go_on = false;
	pthread_create(&other, NULL, take, NULL);
	for (uintptr_t i = 0; i < THREADS; i++)
		pthread_create(&t[i], NULL, join, (void *)i);
	for (int i = 0; i < THREADS; i++) {
		void *joint;

		pthread_join(t[i], &joint);
		all += *(uint64_t *)joint;
		free(joint);
	}
	go_on = true;
	pthread_join(other, NULL);
	assert_int_equal(striped[0] + striped[1], THREADS * TURNS);
	assert_true(all > 0 && alone > 0 && closed > 0);
	kvc_joint_free(lock.joint);
}

/* ---- the calls ---- */

/* Lets joint holds begin, however long ago they were closed. */
static void open_joint(void)
{
	kvc_lock(engine);
	engine->joint->reopen_ns = 0;
	kvc_unlock_to_joint(engine);
	assert_true(engine->joint->open);
}

static uint64_t hits(void)
{
	kvc_lock(engine);
	kvc_unlock(engine);
	return kvc_counted(&engine->stats, pool_hits);
}

static struct kvc_wait caller(uint32_t uid, uint32_t thread)
{
	return (struct kvc_wait){ .uid = uid, .client = kvc_client(100, thread) };
}

static void open_one(uint64_t ino, uint32_t uid, uint32_t thread)
{
	struct kvc_wait w = caller(uid, thread);
	struct kvc_opened o = { 0 };

	assert_int_equal(kvc_open_file(engine, ino, O_RDONLY, &o, &w), 0);
}

static uint64_t last_use(uint64_t ino)
{
	uint64_t ns;

	kvc_lock(engine);
	ns = kvc_node_find_locked(engine, ino)->chunk->use.last_ns;
	kvc_unlock(engine);
	return ns;
}

/* A call does not need the lock: it ends while another thread has the mutex beside joint holds. */
static void calls_take_no_mutex(void **state)
{
	struct kvc_wait w = caller(0, 1);
	struct kvc_opened o = { 0 };
	struct kvc_row row;
	uint64_t before = hits();

	(void)state;
	open_joint();
	assert_true(kvc_lock_try_beside(&engine->lock, KVC_HERE("objects")));
	assert_int_equal(kvc_open_file(engine, file[0], O_RDONLY, &o, &w), 0);
	assert_int_equal(kvc_entry_getattr(engine, file[0], &row), 0);
	assert_int_equal(row.ino, file[0]);
	assert_true(kvc_open_fd(engine, file[0]) >= 0);
	kvc_open_release(engine, file[0], O_RDONLY, 0);
	assert_int_equal(kvc_entry_lookup_any(engine, folder, "f0", &row, NULL), 0);
	kvc_entry_forget(engine, file[0], 1);
	assert_int_equal(kvc_entry_lookup_any(engine, folder, "none", &row, NULL), -ENOENT);
	kvc_lock_release(&engine->lock);
	assert_int_equal(hits(), before + 1);
}

/* Work that a joint hold may not do is left to the call with the lock. */
static void others_take_the_lock(void **state)
{
	struct kvc_wait w = caller(0, 1), woken = { .client = 1, .deadline_ns = 1 };
	struct kvc_opened o = { 0 };
	struct kvc_node *n;

	(void)state;
	open_joint();
	assert_false(kvc_hit_open(engine, file[0], O_RDWR, &o, &w));
	assert_false(kvc_hit_open(engine, file[0], O_RDONLY | O_TRUNC, &o, &w));
	assert_false(kvc_hit_open(engine, file[0], O_RDONLY, &o, &woken));
	assert_false(kvc_hit_open(engine, folder, O_RDONLY, &o, &w));
	assert_false(kvc_hit_open(engine, 999999, O_RDONLY, &o, &w));
	assert_false(kvc_hit_release(engine, file[0], O_RDONLY, 0)); /* not open */
	assert_false(kvc_hit_release(engine, file[0], O_WRONLY, 0));
	assert_false(kvc_hit_forget(engine, folder, 1));
	kvc_lock(engine);
	n = kvc_node_find_locked(engine, file[0]);
	kvc_chunk_detach_locked(engine, n->chunk, true);
	engine->joint->reopen_ns = 0;
	kvc_unlock_to_joint(engine);
	assert_false(kvc_hit_open(engine, file[0], O_RDONLY, &o, &w));
	assert_false(kvc_hit_attr(engine, file[0], &(struct kvc_row){ 0 }, false));
	kvc_lock(engine);
	kvc_chunk_detach_locked(engine, n->chunk, false);
	kvc_unlock(engine);
}

/* Accesses are recorded in the order of the calls, with their times, when a reader needs them. */
static void accesses_arrive_in_order(void **state)
{
	uint64_t before = hits(), then;

	(void)state;
	then = last_use(file[3]);
	open_joint();
	for (int i = 0; i < 4; i++)
		open_one(file[3 - i], 0, 7);
	engine_later_ns += 5000000000;
	assert_int_equal(hits(), before + 4);
	for (int i = 0; i < 3; i++)
		assert_true(last_use(file[3 - i]) < last_use(file[2 - i]));
	assert_true(last_use(file[3]) > then);
	/* not the time at which they were recorded */
	assert_true(last_use(file[0]) + 4000000000 < kvc_clock_ns(engine));
	for (int i = 0; i < 4; i++)
		kvc_open_release(engine, file[i], O_RDONLY, 0);
}

/*
 * A recorder gets the exact times at which the calls began. The time of recording minus a delay is
 * not exact: if the thread pauses between two readings of a clock, uses change their order.
 */
static void recorded_times_are_those_of_the_calls(void **state)
{
	struct kvc_access_item v[FILES];
	uint64_t at, lost, first_ns;

	(void)state;
	kvc_lock(engine);
	assert_int_equal(kvc_access_ring_open_locked(engine, &at), 0);
	kvc_unlock(engine);
	first_ns = kvc_mono_ns();
	open_joint();
	for (unsigned i = 0; i < 4; i++) {
		struct kvc_wait w = caller(0, 11);
		struct kvc_opened o = { 0 };

		w.begun_ns = first_ns + i;
		assert_true(kvc_hit_open(engine, file[i], O_RDONLY, &o, &w));
	}
	kvc_lock(engine);
	assert_int_equal(kvc_access_ring_take_locked(engine, &at, v, FILES, &lost), 4);
	kvc_access_ring_close_locked(engine);
	kvc_unlock(engine);
	for (unsigned i = 0; i < 4; i++) {
		assert_int_equal(v[i].file, file[i]);
		assert_int_equal(v[i].ns, first_ns + i);
		kvc_open_release(engine, file[i], O_RDONLY, 0);
	}
}

/* No access is lost if the queue is full while no thread can take the mutex to empty it. */
static void a_full_queue_loses_nothing(void **state)
{
	struct kvc_wait w = caller(0, 9);
	struct kvc_opened o = { 0 };
	uint64_t before = hits();
	unsigned n = 0;

	(void)state;
	open_joint();
	assert_true(kvc_lock_try_beside(&engine->lock, KVC_HERE("objects")));
	while (kvc_hit_open(engine, file[1], O_RDONLY, &o, &w))
		n++;
	kvc_lock_release(&engine->lock);
	assert_int_equal(n, KVC_ACCESS_QUEUE_ITEMS);
	open_one(file[1], 0, 9);
	assert_int_equal(hits(), before + n + 1);
	for (unsigned i = 0; i <= n; i++)
		kvc_open_release(engine, file[1], O_RDONLY, 0);
	kvc_lock(engine);
	assert_int_equal(kvc_node_opens_locked(engine), 0);
	assert_int_equal(kvc_node_find_locked(engine, file[1])->refs.opens, 0);
	kvc_unlock(engine);
}

/* ---- many threads ---- */

static _Atomic uint64_t opened;

static void *call(void *arg)
{
	unsigned me = (unsigned)(uintptr_t)arg, seed = me;
	uint32_t uid = me % 2 ? UID : 0;
	struct kvc_row row;
	char name[16];

	for (unsigned i = 0; i < TURNS; i++) {
		unsigned f = (unsigned)rand_r(&seed) % FILES;

		switch (i % 4) {
		case 0:
		case 1:
			open_one(file[f], uid, me + 1);
			opened++;
			kvc_open_fd(engine, file[f]);
			kvc_open_fd_done(engine);
			kvc_open_release(engine, file[f], O_RDONLY, uid);
			break;
		case 2:
			snprintf(name, sizeof name, "f%u", f);
			assert_int_equal(kvc_entry_lookup_any(engine, folder, name, &row, NULL), 0);
			kvc_entry_forget(engine, row.ino, 1);
			break;
		default:
			assert_int_equal(kvc_entry_getattr(engine, file[f], &row), 0);
			assert_int_equal(row.ino, file[f]);
		}
	}
	return NULL;
}

static void *change(void *arg)
{
	struct kvc_wait w = { 0 };
	uint64_t ino;

	(void)arg;
	while (!go_on) {
		ino = engine_file(folder, "changing");
		assert_int_equal(kvc_entry_unlink(engine, folder, "changing", &w), 0);
		engine_forget(ino);
		engine_commit();
	}
	return NULL;
}

static void threads_change_nothing_twice(void **state)
{
	uint64_t before = hits(), lookups[FILES];
	pthread_t t[THREADS], other;
	const struct kvc_user *u;

	(void)state;
	for (int i = 0; i < FILES; i++)
		lookups[i] = kvc_node_find_locked(engine, file[i])->refs.kernel;
	opened = 0;
	go_on = false;
	pthread_create(&other, NULL, change, NULL);
	for (uintptr_t i = 0; i < THREADS; i++)
		pthread_create(&t[i], NULL, call, (void *)i);
	for (int i = 0; i < THREADS; i++)
		pthread_join(t[i], NULL);
	go_on = true;
	pthread_join(other, NULL);
	assert_int_equal(hits(), before + opened);
	kvc_lock(engine);
	for (int i = 0; i < FILES; i++) {
		const struct kvc_node *n = kvc_node_find_locked(engine, file[i]);

		assert_true(!n->refs.opens && n->segment.fd < 0);
		assert_int_equal(n->refs.kernel, lookups[i]);
	}
	assert_int_equal(kvc_node_opens_locked(engine), 0);
	u = kvc_user_find_locked(engine, UID);
	assert_true(!u || !u->files);
	kvc_unlock(engine);
}

static int begin(void **state)
{
	char name[16];

	(void)state;
	engine_new("unit=file"); /* a chunk for each */
	folder = engine_folder(KVC_ROOT, "m");
	for (int i = 0; i < FILES; i++) {
		snprintf(name, sizeof name, "f%d", i);
		file[i] = engine_file(folder, name);
	}
	engine_commit();
	return 0;
}

static int end(void **state)
{
	(void)state;
	engine_end();
	return 0;
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(joint_holds_exclude_the_lock),
		cmocka_unit_test(calls_take_no_mutex),
		cmocka_unit_test(others_take_the_lock),
		cmocka_unit_test(accesses_arrive_in_order),
		cmocka_unit_test(recorded_times_are_those_of_the_calls),
		cmocka_unit_test(a_full_queue_loses_nothing),
		cmocka_unit_test(threads_change_nothing_twice),
	};

	return cmocka_run_group_tests_name("joint", tests, begin, end);
}
