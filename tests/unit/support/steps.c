/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Counts steps under the locks (steps.h), by functions that replace the engine's (Makefile, wrap).
 */
#include "steps.h"

#include "engine.h"
#include "admission.h"

#include <unistd.h>

struct steps steps;
_Thread_local unsigned steps_locked;

static _Thread_local unsigned names, rows, deleted, reads, stepped; /* under this hold */
static _Thread_local unsigned judged;                               /* of k->lock */
static _Thread_local bool holding;

static void note(_Atomic unsigned *most, unsigned *n)
{
	unsigned was = *most;

	while (*n > was && !atomic_compare_exchange_weak(most, &was, *n))
		;
	*n = 0;
}

/* The linker reserves these names (--wrap). */
/* NOLINTBEGIN(bugprone-reserved-identifier) */
struct through {
	kvc_name_fn *fn;
	void *arg;
};

static int see(void *arg, const struct kvc_name *n)
{
	const struct through *t = arg;

	names++;
	return t->fn(t->arg, n);
}

int __real_kvc_name_each(struct kvc_catalog *c, uint64_t p, uint64_t after, kvc_name_fn *f,
			 void *a);
int __wrap_kvc_name_each(struct kvc_catalog *c, uint64_t p, uint64_t after, kvc_name_fn *f,
			 void *a);
int __wrap_kvc_name_each(struct kvc_catalog *c, uint64_t p, uint64_t after, kvc_name_fn *f, void *a)
{
	struct through t = { f, a };

	return __real_kvc_name_each(c, p, after, see, &t);
}

int __real_kvc_name_del(struct kvc_catalog *c, uint64_t parent, const char *name);
int __wrap_kvc_name_del(struct kvc_catalog *c, uint64_t parent, const char *name);
int __wrap_kvc_name_del(struct kvc_catalog *c, uint64_t parent, const char *name)
{
	deleted++;
	steps.all_deleted++;
	return __real_kvc_name_del(c, parent, name);
}

int __real_kvc_row_get(struct kvc_catalog *c, uint64_t ino, struct kvc_row *r);
int __wrap_kvc_row_get(struct kvc_catalog *c, uint64_t ino, struct kvc_row *r);
int __wrap_kvc_row_get(struct kvc_catalog *c, uint64_t ino, struct kvc_row *r)
{
	rows++;
	return __real_kvc_row_get(c, ino, r);
}

int __real_kvc_chunk_get(struct kvc_catalog *c, uint64_t id, struct kvc_chunk_row *r);
int __wrap_kvc_chunk_get(struct kvc_catalog *c, uint64_t id, struct kvc_chunk_row *r);
int __wrap_kvc_chunk_get(struct kvc_catalog *c, uint64_t id, struct kvc_chunk_row *r)
{
	rows++;
	return __real_kvc_chunk_get(c, id, r);
}

/* Each SQLite query takes a connection. */
struct kvc_conn *__real_kvc_reader_get(struct kvc_catalog *c);
struct kvc_conn *__wrap_kvc_reader_get(struct kvc_catalog *c);
struct kvc_conn *__wrap_kvc_reader_get(struct kvc_catalog *c)
{
	reads += holding;
	return __real_kvc_reader_get(c);
}

struct kvc_conn *__real_kvc_reader_get_held(struct kvc_catalog *c);
struct kvc_conn *__wrap_kvc_reader_get_held(struct kvc_catalog *c);
struct kvc_conn *__wrap_kvc_reader_get_held(struct kvc_catalog *c)
{
	reads += holding;
	return __real_kvc_reader_get_held(c);
}

struct sqlite3_stmt;

/* Each row that it returns is a step. */
int __real_kvc_sql_step(struct kvc_conn *n, struct sqlite3_stmt *st);
int __wrap_kvc_sql_step(struct kvc_conn *n, struct sqlite3_stmt *st);
int __wrap_kvc_sql_step(struct kvc_conn *n, struct sqlite3_stmt *st)
{
	stepped += holding;
	return __real_kvc_sql_step(n, st);
}

void __real_kvc_catalog_lock_at(struct kvc_catalog *c, struct kvc_lock_profile *here);
void __wrap_kvc_catalog_lock_at(struct kvc_catalog *c, struct kvc_lock_profile *here);
void __wrap_kvc_catalog_lock_at(struct kvc_catalog *c, struct kvc_lock_profile *here)
{
	__real_kvc_catalog_lock_at(c, here);
	holding = true;
}

uint64_t __real_kvc_catalog_seal(struct kvc_catalog *c);
uint64_t __wrap_kvc_catalog_seal(struct kvc_catalog *c);
uint64_t __wrap_kvc_catalog_seal(struct kvc_catalog *c)
{
	if (kvc_catalog_changes(c) > steps.most_changes)
		steps.most_changes = kvc_catalog_changes(c);
	return __real_kvc_catalog_seal(c);
}

int __real_kvc_catalog_write(struct kvc_catalog *c);
int __wrap_kvc_catalog_write(struct kvc_catalog *c);
int __wrap_kvc_catalog_write(struct kvc_catalog *c)
{
	usleep(steps.slow_us);
	return __real_kvc_catalog_write(c);
}

/* Between two holds of the locks. */
void __real_kvc_catalog_pause(struct kvc_catalog *c);
void __wrap_kvc_catalog_pause(struct kvc_catalog *c);
void __wrap_kvc_catalog_pause(struct kvc_catalog *c)
{
	void (*now)(void) = atomic_exchange(&steps.meanwhile, NULL);

	if (now)
		now();
	__real_kvc_catalog_pause(c);
}

void __real_kvc_catalog_unlock(struct kvc_catalog *c);
void __wrap_kvc_catalog_unlock(struct kvc_catalog *c);
void __wrap_kvc_catalog_unlock(struct kvc_catalog *c)
{
	note(&steps.most_names, &names);
	note(&steps.most_rows, &rows);
	note(&steps.most_deleted, &deleted);
	note(&steps.most_reads, &reads);
	note(&steps.most_steps, &stepped);
	holding = false;
	__real_kvc_catalog_unlock(c);
}

void *__real_calloc(size_t n, size_t size);
void *__wrap_calloc(size_t n, size_t size);
void *__wrap_calloc(size_t n, size_t size)
{
	if (n * size > steps.largest)
		steps.largest = n * size;
	return __real_calloc(n, size);
}

int __real_pthread_mutex_trylock(pthread_mutex_t *m);
int __wrap_pthread_mutex_trylock(pthread_mutex_t *m);
int __wrap_pthread_mutex_trylock(pthread_mutex_t *m)
{
	steps_locked++;
	if (engine && m == &engine->lock.m)
		note(&steps.most_judged, &judged);
	return __real_pthread_mutex_trylock(m);
}

/* Called for each node that the evictor checks. */
enum kvc_refusal __real_kvc_admission_check_locked(struct kvc *k, const struct kvc_node *n,
						   unsigned tier);
enum kvc_refusal __wrap_kvc_admission_check_locked(struct kvc *k, const struct kvc_node *n,
						   unsigned tier);
enum kvc_refusal __wrap_kvc_admission_check_locked(struct kvc *k, const struct kvc_node *n,
						   unsigned tier)
{
	judged++;
	steps.all_judged++;
	return __real_kvc_admission_check_locked(k, n, tier);
}
/* NOLINTEND(bugprone-reserved-identifier) */
