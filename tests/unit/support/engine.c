/* SPDX-License-Identifier: Apache-2.0 */
/* An engine in the test's process (engine.h). */
#include "engine.h"

#include "apart.h"
#include "catalog_check.h"
#include "clock.h"

#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/mount.h>
#include <unistd.h>

#include <cmocka.h>

struct kvc *engine;
_Atomic uint64_t engine_later_ns;
struct engine_tier engine_tier;

static char dir[] = "/dev/shm/kvc-engine-XXXXXX";
static struct kvc_store store;
static struct kvc_options options;
static pthread_mutex_t tier_lock = PTHREAD_MUTEX_INITIALIZER;
static uint8_t frames[HOUSE_SLOTS][HOUSE_SLOT] __attribute__((aligned(4096)));

/* The linker reserves these names for programs that use them (--wrap). */
/* NOLINTBEGIN(bugprone-reserved-identifier) */
uint64_t __real_kvc_clock_ns(const struct kvc *k);
uint64_t __wrap_kvc_clock_ns(const struct kvc *k);
uint64_t __wrap_kvc_clock_ns(const struct kvc *k)
{
	return __real_kvc_clock_ns(k) + engine_later_ns;
}
/* NOLINTEND(bugprone-reserved-identifier) */

/* ---- the tier ---- */

static void tier_close(struct kvc_tier *t)
{
	(void)t;
}

static int take(uint64_t slot)
{
	int err;

	pthread_mutex_lock(&tier_lock);
	err = slot >= HOUSE_SLOTS ? -ENOSPC : engine_tier.used[slot] ? -EEXIST : 0;
	if (!err)
		engine_tier.used[slot] = true;
	pthread_mutex_unlock(&tier_lock);
	return err;
}

static void give(uint64_t slot)
{
	pthread_mutex_lock(&tier_lock);
	engine_tier.used[slot] = false;
	pthread_mutex_unlock(&tier_lock);
}

static uint64_t free_slot(void)
{
	uint64_t slot = 0;

	while (take(slot) == -EEXIST)
		slot++;
	return slot;
}

static int tier_claim(struct kvc_tier *t, const struct kvc_where *w)
{
	(void)t;
	return take(w->at / HOUSE_SLOT);
}

static int tier_put(struct kvc_tier *t, const struct kvc_put *p, struct kvc_where *out)
{
	uint64_t slot = free_slot(), len = KVC_FRAME_HEADER + kvc_round_up(p->stored_len, KVC_PAGE);
	void (*hook)(uint64_t) = engine_tier.on_put;
	int (*first)(uint64_t) = engine_tier.on_write;
	int err;

	(void)t;
	if (slot >= HOUSE_SLOTS || len > HOUSE_SLOT)
		return -ENOSPC;
	err = (first ? first(p->ino) : 0)
		      ?: p->read(p->arg, frames[slot] + KVC_FRAME_HEADER, p->stored_len, 0)
		      ?: p->head(p->arg, frames[slot]);
	if (!err && hook)
		hook(p->ino);
	if (err)
		give(slot);
	else
		*out = (struct kvc_where){ .at = slot * HOUSE_SLOT, .len = len };
	return err;
}

static int tier_get(struct kvc_tier *t, const struct kvc_where *w, uint64_t off,
		    const struct iovec *iov, int n)
{
	const uint8_t *from = frames[w->at / HOUSE_SLOT] + off;
	int (*hook)(uint64_t) = engine_tier.on_get;
	int err = hook ? hook(w->at) : 0;

	(void)t;
	for (int i = 0; i < n && !err; i++) {
		memcpy(iov[i].iov_base, from, iov[i].iov_len);
		from += iov[i].iov_len;
	}
	return err;
}

static int tier_rehead(struct kvc_tier *t, const struct kvc_where *w,
		       const uint8_t page[KVC_FRAME_HEADER])
{
	int (*hook)(uint64_t, const struct kvc_frame *) = engine_tier.on_rehead;
	KVC_MEM struct kvc_frame *f = kvc_frame_new();
	int err = f ? kvc_frame_decode(page, f) : -ENOMEM;

	(void)t;
	err = err ?: hook ? hook(w->at, f) : 0;
	if (!err)
		memcpy(frames[w->at / HOUSE_SLOT], page, KVC_FRAME_HEADER);
	engine_tier.reheads++;
	return err;
}

static int tier_remove(struct kvc_tier *t, const struct kvc_where *w)
{
	int (*hook)(uint64_t) = engine_tier.on_remove;
	int err = hook ? hook(w->at) : 0;

	(void)t;
	if (!err)
		give(w->at / HOUSE_SLOT);
	engine_tier.removes++;
	return err;
}

static int tier_sync(struct kvc_tier *t)
{
	(void)t;
	return 0;
}

static void tier_usage(struct kvc_tier *t, struct kvc_tier_usage *u)
{
	(void)t;
	*u = (struct kvc_tier_usage){ .total = HOUSE_SLOTS * HOUSE_SLOT };
	pthread_mutex_lock(&tier_lock);
	for (unsigned i = 0; i < HOUSE_SLOTS; i++)
		u->used += engine_tier.used[i] ? HOUSE_SLOT : 0;
	u->stored = u->used;
	pthread_mutex_unlock(&tier_lock);
}

static const struct kvc_tier_ops tier_ops = {
	.name = "disk",
	.caps = KVC_TIER_DURABLE | KVC_TIER_BOUNDED | KVC_TIER_MEDIA,
	.close = tier_close,
	.claim = tier_claim,
	.put = tier_put,
	.get = tier_get,
	.rehead = tier_rehead,
	.remove = tier_remove,
	.sync = tier_sync,
	.usage = tier_usage,
};
static struct kvc_tier tier = { .ops = &tier_ops, .id = "disk", .codec = KVC_CODEC_CHOICES };

int engine_header(uint64_t at, struct kvc_frame *f)
{
	return kvc_frame_decode(frames[at / HOUSE_SLOT], f);
}

/* ---- opening and closing ---- */

static void open_it(void)
{
	struct kvc_tier *tiers[] = { &tier };
	char error[512] = "";

	/* the engine claims the extents that it knows */
	memset(engine_tier.used, 0, sizeof engine_tier.used);
	if (kvc_store_open(&store, dir, error))
		fail_msg("%s", error);
	if (kvc_cache_open(&engine, &options, &store, tiers, 1, 0, error)) {
		print_message("%s\n", error);
		exit(77);
	}
}

/* Frees jobs that were queued for threads which do not exist. */
static void drop_jobs(void)
{
	for (unsigned t = 0; t <= KVC_COMMON; t++)
		for (int p = 0; p < KVC_PRIORITIES; p++)
			kvc_list_each_safe(e, &engine->tier[t].queue.jobs[p])
				free(kvc_of(e, struct kvc_job, link));
}

static void close_it(bool killed)
{
	if (engine->started) {
		kvc_cache_detach(engine);
		kvc_cache_stop(engine);
	} else {
		if (!killed)
			assert_int_equal(kvc_commit_once(engine), 0);
		drop_jobs();
	}
	kvc_cache_close(engine);
	kvc_store_close(&store);
}

void engine_new(const char *more)
{
	char error[512] = "", text[700], path[1280];

	kvc_apart(); /* for the pool's mount; without root the pool is a folder */
	strcpy(dir, "/dev/shm/kvc-engine-XXXXXX");
	assert_non_null(mkdtemp(dir));
	kvc_options_init(&options);
	snprintf(text, sizeof text, "cpu=64M,prefault=off,settle=0,run=%s/run%s%s", dir,
		 *more ? "," : "", more);
	if (kvc_options_parse(&options, text, error))
		fail_msg("%s", error);
	memset(&store, 0, sizeof store);
	snprintf(store.dir, sizeof store.dir, "%s", dir);
	kvc_super_own(&store, KVC_STORE_MIN_SIZE);
	assert_int_equal(kvc_super_create(&store), 0);
	assert_int_equal(kvc_catalog_create(kvc_super_path(&store, KVC_STORE_CATALOG, path)), 0);
	open_it();
}

void engine_start(void)
{
	assert_int_equal(kvc_cache_start(engine), 0);
}

void engine_again(bool killed)
{
	close_it(killed);
	open_it();
}

static void found(void *arg, bool mended, const char *what)
{
	(void)mended;
	snprintf(arg, 512, "%s", what);
}

void engine_check(void)
{
	struct kvc_catalog *c;
	char what[512] = "", path[1280], error[512];
	uint64_t drops = 0;
	int err;

	close_it(false);
	kvc_super_path(&store, KVC_STORE_CATALOG, path);
	if (kvc_catalog_open(&c, path, error))
		fail_msg("%s", error);
	kvc_catalog_lock(c);
	err = kvc_check_drops(c, false, &drops) ?: kvc_check_rules(c, false, found, what);
	kvc_catalog_unlock(c);
	assert_int_equal(kvc_catalog_close(c), 0);
	open_it();
	if (err || *what || drops)
		fail_msg("%s %s, %d drops", err ? strerror(-err) : "", what, (int)drops);
}

/* A pool with objects is still mounted. */
static int gone(const char *path, const struct stat *st, int type, struct FTW *at)
{
	(void)st;
	(void)type;
	(void)at;
	if (remove(path) && errno == EBUSY && !umount2(path, MNT_DETACH))
		remove(path);
	return 0;
}

void engine_end(void)
{
	close_it(false);
	nftw(dir, gone, 16, FTW_DEPTH | FTW_PHYS);
	if (!access(dir, F_OK))
		print_message("%s stays\n", dir);
}

/* ---- files ---- */

uint64_t engine_folder(uint64_t parent, const char *name)
{
	const struct kvc_caller root = { 0 };
	struct kvc_row r;

	assert_int_equal(kvc_entry_make(engine, parent, name, S_IFDIR | 0755, &root, NULL, 0, &r),
			 0);
	return r.ino;
}

static void fill(uint64_t ino, uint8_t *to)
{
	for (size_t i = 0; i < HOUSE_FILE; i++)
		to[i] = (uint8_t)((ino * 2654435761u + i * 40503u) >> 7);
}

uint64_t engine_file(uint64_t parent, const char *name)
{
	struct kvc_opened o = { 0 };
	struct kvc_wait w = { 0 };
	uint8_t bytes[HOUSE_FILE];
	struct kvc_row r;
	size_t n;

	assert_int_equal(kvc_open_create(engine, parent, name, S_IFREG | 0644, 0, 0,
					 O_RDWR | O_EXCL, &r, &o, &w),
			 0);
	fill(r.ino, bytes);
	assert_int_equal(kvc_io_write(engine, r.ino, bytes, sizeof bytes, 0, O_RDWR, &n, &w), 0);
	kvc_open_release(engine, r.ino, O_RDWR, 0);
	return r.ino;
}

void engine_place(uint64_t ino)
{
	struct kvc_place p = { .where = { free_slot() * HOUSE_SLOT, HOUSE_SLOT, 0 } };
	struct kvc_node *n;

	kvc_lock_both(engine);
	assert_int_equal(kvc_node_get_both(engine, ino, &n), 0);
	p.gen = n->object.gen;
	n->in[0].place = p;
	n->copies.recorded = n->object.lower = true;
	assert_int_equal(kvc_place_put(engine->cat, ino, 0, &p), 0);
	kvc_file_become_locked(engine, n, KVC_BOTH);
	kvc_node_dirty_locked(engine, n);
	kvc_unlock_both(engine);
}

bool engine_has(uint64_t parent, const char *name)
{
	uint8_t want[HOUSE_FILE], got[HOUSE_FILE + 1];
	struct kvc_opened o = { 0 };
	struct kvc_wait w = { 0 };
	struct kvc_row r;
	int err = kvc_lookup(engine, parent, name, &r, NULL), fd;

	if (err) {
		assert_int_equal(err, -ENOENT);
		return false;
	}
	assert_int_equal(kvc_open_file(engine, r.ino, O_RDONLY | O_NOATIME, &o, &w), 0);
	fd = kvc_open_fd(engine, r.ino);
	assert_true(fd >= 0);
	fill(r.ino, want);
	assert_int_equal(pread(fd, got, sizeof got, 0), HOUSE_FILE);
	assert_memory_equal(got, want, HOUSE_FILE);
	kvc_open_release(engine, r.ino, O_RDONLY, 0);
	kvc_entry_forget(engine, r.ino, 1);
	return true;
}

void engine_forget(uint64_t ino)
{
	kvc_entry_forget(engine, ino, UINT32_MAX);
}

void engine_commit(void)
{
	assert_int_equal(kvc_commit_once(engine), 0);
}
