/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The filter of names: a blocked Bloom filter over (folder, hash of the name). It has ten bits for
 * each name and sets five of them, all in one cache line. The bits of removed names stay set. The
 * filter is refilled when removed names make up half of it, or when it has more names than it was
 * made for. A thread walks the table of names with the scanner's connection, in slices. Each slice
 * is a separate read, so that no snapshot is held.
 *
 * The refill misses no name. kvc_filter_begin() is called with the catalog's lock, and under the
 * same hold all names of the overlay are added. Names that are added later go into both filters.
 * All other names are in SQLite already, so the walk meets them unless they are removed.
 *
 * Bits are set and read with relaxed atomics: a thread that must see a name was synchronised by a
 * lock or a reply after the name was added. The rwlock only prevents a filter from being freed
 * while it is read.
 */

#include "catalog_priv.h"

#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#define BITS_A_NAME 10
#define BLOCK_BITS 512
#define WORDS (BLOCK_BITS / 64)
#define LEAST (1u << 17) /* minimum number of names that a filter is made for */
#define NAME_BYTES 32    /* minimum number of bytes of a name in the catalog's file */
#define SLICE 8192
#define LOOK_NS 1000000000ull

struct bits {
	uint64_t blocks, capacity; /* capacity: number of names that the filter is made for */
	_Atomic uint64_t words[];
};

struct kvc_filter {
	pthread_rwlock_t lock;
	struct bits *now, *next;
	_Atomic uint64_t added, removed; /* names added and removed so far */
	uint64_t filled;                 /* names added while `next` is filled */

	struct kvc_catalog *c;
	pthread_t thread;
	pthread_mutex_t wait_lock;
	pthread_cond_t wait;
	bool running, stop;
};

struct kvc_filter *kvc_filter_new(void)
{
	struct kvc_filter *f = calloc(1, sizeof *f);
	pthread_condattr_t attr;

	if (!f)
		return NULL;
	pthread_rwlock_init(&f->lock, NULL);
	pthread_mutex_init(&f->wait_lock, NULL);
	pthread_condattr_init(&attr);
	pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
	pthread_cond_init(&f->wait, &attr);
	pthread_condattr_destroy(&attr);
	return f;
}

void kvc_filter_free(struct kvc_filter *f)
{
	if (!f)
		return;
	free(f->now);
	free(f->next);
	pthread_cond_destroy(&f->wait);
	pthread_mutex_destroy(&f->wait_lock);
	pthread_rwlock_destroy(&f->lock);
	free(f);
}

static uint64_t mix(uint64_t parent, uint64_t hash)
{
	uint64_t h = (hash ^ parent * 0x9e3779b97f4a7c15ull) * 0xff51afd7ed558ccdull;

	return (h ^ h >> 32) * 0xc4ceb9fe1a85ec53ull;
}

/* For each of the five bits of a name: its word and mask. */
#define EACH_BIT(h, word, mask)                                                             \
	for (uint64_t bit_ = 0, at_ = (h) * 0x9e3779b97f4a7c15ull, word = at_ >> 58 & 7,    \
		      mask = 1ull << (at_ >> 52 & 63);                                      \
	     bit_ < 5; bit_++, at_ = at_ * 0xd1342543de82ef95ull + 1, word = at_ >> 58 & 7, \
		      mask = 1ull << (at_ >> 52 & 63))

static void set(struct bits *b, uint64_t h)
{
	_Atomic uint64_t *block =
		&b->words[(uint64_t)((unsigned __int128)h * b->blocks >> 64) * WORDS];

	EACH_BIT(h, word, mask)
	if (!(atomic_load_explicit(&block[word], memory_order_relaxed) & mask))
		atomic_fetch_or_explicit(&block[word], mask, memory_order_relaxed);
}

static bool has(const struct bits *b, uint64_t h)
{
	const _Atomic uint64_t *block =
		&b->words[(uint64_t)((unsigned __int128)h * b->blocks >> 64) * WORDS];

	EACH_BIT(h, word, mask)
	if (!(atomic_load_explicit(&block[word], memory_order_relaxed) & mask))
		return false;
	return true;
}

void kvc_filter_add(struct kvc_filter *f, uint64_t parent, uint64_t hash)
{
	uint64_t h = mix(parent, hash);

	pthread_rwlock_rdlock(&f->lock);
	if (f->now)
		set(f->now, h);
	if (f->next)
		set(f->next, h);
	pthread_rwlock_unlock(&f->lock);
	atomic_fetch_add_explicit(&f->added, 1, memory_order_relaxed);
}

void kvc_filter_removed(struct kvc_filter *f)
{
	atomic_fetch_add_explicit(&f->removed, 1, memory_order_relaxed);
}

bool kvc_filter_may_have(struct kvc_filter *f, uint64_t parent, uint64_t hash)
{
	bool may;

	pthread_rwlock_rdlock(&f->lock);
	may = !f->now || has(f->now, mix(parent, hash));
	pthread_rwlock_unlock(&f->lock);
	return may;
}

int kvc_filter_begin(struct kvc_filter *f, uint64_t names)
{
	uint64_t capacity = names + names / 4 + LEAST,
		 blocks = capacity * BITS_A_NAME / BLOCK_BITS + 1;
	struct bits *b = calloc(1, sizeof *b + blocks * (BLOCK_BITS / 8));

	if (!b)
		return -ENOMEM;
	b->blocks = blocks;
	b->capacity = capacity;
	f->filled = 0;
	pthread_rwlock_wrlock(&f->lock);
	f->next = b;
	pthread_rwlock_unlock(&f->lock);
	return 0;
}

void kvc_filter_add_old(struct kvc_filter *f, uint64_t parent, uint64_t hash)
{
	set(f->next, mix(parent, hash)); /* only the filling thread sets f->next */
	f->filled++;
}

void kvc_filter_end(struct kvc_filter *f, bool good)
{
	struct bits *old;

	pthread_rwlock_wrlock(&f->lock);
	old = good ? f->now : f->next;
	if (good) {
		f->now = f->next;
		atomic_store(&f->added, f->filled);
		atomic_store(&f->removed, 0);
	}
	f->next = NULL;
	pthread_rwlock_unlock(&f->lock);
	free(old);
}

bool kvc_filter_stale(struct kvc_filter *f)
{
	uint64_t added = atomic_load(&f->added), removed = atomic_load(&f->removed);

	if (!f->now)
		return true;
	return added > f->now->capacity || (removed > LEAST && removed > added / 2);
}

/* ---- its thread ---- */

/*
 * Returns the maximum number of names that the catalog's files can hold. Asks the filesystem, so
 * call it without locks.
 */
static uint64_t most_names(const struct kvc_catalog *c)
{
	char wal[sizeof c->path + 8];
	uint64_t bytes = 0;
	struct stat st;

	snprintf(wal, sizeof wal, "%s-wal", c->path);
	bytes += stat(c->path, &st) ? 0 : (uint64_t)st.st_size;
	bytes += stat(wal, &st) ? 0 : (uint64_t)st.st_size;
	return bytes / NAME_BYTES;
}

/*
 * Returns the approximate number of names without counting them in a scan. The accounts have the
 * number, but are read from the file, so most_names() limits it. If the estimate is too low, the
 * filled filter is stale, and its number of names is the next estimate. With the catalog's lock.
 */
static uint64_t expected(const struct kvc_catalog *c, uint64_t most)
{
	uint64_t added = atomic_load(&c->filter->added), gone = atomic_load(&c->filter->removed);
	uint64_t names = kvc_max(kvc_usage_names(c), added - kvc_min(gone, added));

	return kvc_min(names, most) + c->over.count[KVC_T_NAME];
}

/*
 * Adds at most SLICE names after (*parent, *hash), and sets *parent and *hash to those of the last
 * one. Returns the number of names, or a negative errno.
 */
static int slice(struct kvc_catalog *c, uint64_t *parent, uint64_t *hash)
{
	struct kvc_conn *n = kvc_scan_get(c);
	sqlite3_stmt *st = kvc_sql(n, ST_NAME_SCAN, "iii", (sqlite3_int64)*parent,
				   (sqlite3_int64)*hash, (sqlite3_int64)SLICE);
	int got, seen = 0;

	/*
	 * two names of a folder with the same hash have the same bits, so skipping one is harmless
	 */
	while ((got = kvc_sql_step(n, st)) == 1) {
		*parent = kvc_sql_u64(st, 0);
		*hash = kvc_sql_u64(st, 1);
		kvc_filter_add_old(c->filter, *parent, *hash);
		seen++;
	}
	kvc_sql_done(st);
	sqlite3_db_release_memory(n->db); /* the next slice reads other pages */
	kvc_reader_put(n);
	return got < 0 ? got : seen;
}

static bool stopped(struct kvc_filter *f)
{
	bool stop;

	pthread_mutex_lock(&f->wait_lock);
	stop = f->stop;
	pthread_mutex_unlock(&f->wait_lock);
	return stop;
}

static void fill(struct kvc_filter *f)
{
	struct kvc_catalog *c = f->c;
	uint64_t parent = 0, hash = 0, most = most_names(c);
	struct kvc_change *x = NULL;
	int got, err;

	kvc_catalog_lock(c);
	err = kvc_filter_begin(f, expected(c, most));
	while (!err && (x = x ? kvc_overlay_after(&c->over, KVC_IX_NAME, x->a, x->b, 0, x->text)
			      : kvc_overlay_after(&c->over, KVC_IX_NAME, 0, 0, 0, "")))
		if (!x->gone)
			kvc_filter_add_old(f, x->a, x->b);
	kvc_catalog_unlock(c);
	if (err)
		return;
	do
		got = slice(c, &parent, &hash);
	while (got == SLICE && !stopped(f));
	kvc_filter_end(f, got >= 0 && got < SLICE);
}

static void *filler(void *arg)
{
	struct kvc_filter *f = arg;

	while (!stopped(f)) {
		struct timespec t = kvc_timespec(kvc_mono_ns() + LOOK_NS);

		if (kvc_filter_stale(f))
			fill(f);
		pthread_mutex_lock(&f->wait_lock);
		if (!f->stop)
			pthread_cond_timedwait(&f->wait, &f->wait_lock, &t);
		pthread_mutex_unlock(&f->wait_lock);
	}
	return NULL;
}

int kvc_filter_start(struct kvc_catalog *c)
{
	struct kvc_filter *f = c->filter;
	int err;

	f->c = c;
	f->stop = false;
	err = -pthread_create(&f->thread, NULL, filler, f);
	f->running = !err;
	return err;
}

void kvc_filter_stop(struct kvc_catalog *c)
{
	struct kvc_filter *f = c->filter;

	if (!f || !f->running)
		return;
	pthread_mutex_lock(&f->wait_lock);
	f->stop = true;
	pthread_cond_signal(&f->wait);
	pthread_mutex_unlock(&f->wait_lock);
	pthread_join(f->thread, NULL);
	f->running = false;
}
