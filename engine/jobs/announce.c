/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tells other nodes which objects this node has, in the pool or on the disk, through a tier that
 * keeps a list of them (kvc_tier_ops.announce). A thread reads the changes from the ring of events,
 * and walks over all inodes:
 *
 *   - at the start of the mount, after the ring has overwritten unread changes, after the renaming
 *     of a folder with subfolders or many files, and if the tier has lost earlier announcements.
 *     Until the end of the walk, the announcements are incomplete, and other nodes ask this one for
 *     every object
 *   - every REFRESH_NS, because the entries expire
 *
 * So the memory for changes is that of the ring, however long the tier does not answer. The walk
 * reads WALK inodes in a tick. Their rows and names are read without locks; an object that is
 * evicted in between has an event after it.
 *
 * A dropped folder has one event. The entries of the files in it stay until they expire, or until
 * another node asks for the files here and does not find them; `asked` has up to ASKED paths of
 * such requests.
 *
 * The folders above an object are announced with it, once in each walk. `folders` has hashes of the
 * announced ones. An empty folder is not announced.
 */
#include "announce.h"

#include "committer.h"
#include "folder.h"
#include "kvc.h"
#include "node.h"
#include "path.h"
#include "rings.h"
#include "serve.h"
#include "tier_queue.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#define TICK_NS 100000000ull
#define FAILED_NS 1000000000ull
#define REFRESH_NS (6 * 3600 * 1000000000ull)
#define CHANGES 256u /* events that are announced at once */
#define RENAMED 128u /* files of a renamed folder that are announced at once */
#define SOME 64u     /* inodes that are read at once */
#define WALK 192u    /* inodes in one tick */
#define FOLDERS 4096u
#define ASKED 512u
#define DEPTH 64u /* folders above an object that are announced */

struct kvc_announcer {
	struct kvc *k;
	struct kvc_tier *t;
	pthread_t thread;
	pthread_mutex_t lock; /* guards stop and asked; no other lock is taken under it */
	pthread_cond_t cond;
	bool stop;
	char *asked[ASKED]; /* each from malloc */
	size_t nasked;
	uint64_t at; /* position in the ring of events */
	/* changes that are not announced yet; path[i] is from malloc */
	const char *path[KVC_ANNOUNCE_MOST];
	bool has[KVC_ANNOUNCE_MOST];
	size_t n;
	bool complete; /* as in struct kvc_announcement */
	bool walks;    /* a walk is under way, and has visited the inodes up to `ino` */
	bool ended;    /* it has ended, and its last objects are not announced yet */
	uint64_t ino;
	/* the walk begins when this transaction is committed; 0: not known yet */
	uint64_t txn;
	uint64_t walk_ns; /* when the last walk began (kvc_mono_ns) */
	uint64_t walk;    /* its number */
	uint64_t folders[FOLDERS];
	/* the folder of the last file of the walk, and its path */
	uint64_t folder;
	char folder_path[KVC_FRAME_PATH_MAX + 1];
};

/* ---- the list of changes ---- */

static bool list_has_space(const struct kvc_announcer *a)
{
	return a->n + DEPTH + 1 < KVC_ANNOUNCE_MOST;
}

/* Without memory the change is lost, and all objects are announced again. */
static void list_add(struct kvc_announcer *a, const char *path, size_t len, bool has)
{
	char *copy = strndup(path, len);

	if (!copy) {
		a->complete = a->walks = a->ended = false;
		a->walk_ns = 0;
		return;
	}
	a->path[a->n] = copy;
	a->has[a->n++] = has;
}

static void list_clear(struct kvc_announcer *a)
{
	while (a->n)
		free((void *)(uintptr_t)a->path[--a->n]);
}

static uint64_t *folder_slot(struct kvc_announcer *a, const char *path, size_t len, uint64_t *hash)
{
	char folder[KVC_FRAME_PATH_MAX + 1];

	snprintf(folder, sizeof folder, "%.*s", (int)len, path);
	*hash = kvc_name_hash(folder) ^ a->walk * 0x9e3779b97f4a7c15ull;
	return &a->folders[*hash % FOLDERS];
}

/* Adds an object, and the folders above it. The list has space. */
static void list_object(struct kvc_announcer *a, const char *path, bool has)
{
	uint64_t hash, *slot;
	unsigned depth = 0;

	for (const char *p = path; has && (p = strchr(p, '/')) && depth < DEPTH; p++, depth++) {
		slot = folder_slot(a, path, (size_t)(p - path), &hash);
		if (*slot != hash)
			list_add(a, path, (size_t)(p - path), true);
		*slot = hash;
	}
	if (!has) { /* it may be a folder */
		slot = folder_slot(a, path, strlen(path), &hash);
		*slot = *slot == hash ? 0 : *slot;
	}
	list_add(a, path, strlen(path), has);
}

/* All objects are announced again. restart: what was announced before is not complete. */
static void walk_begin(struct kvc_announcer *a, bool restart)
{
	if (restart) {
		a->complete = false;
		kvc_count(&a->k->stats, announce_restarts);
	}
	a->walks = true;
	a->ended = false;
	a->ino = a->txn = 0;
	a->walk_ns = kvc_mono_ns();
	a->walk++;
}

/* ---- changes ---- */

/* Adds a path with its current state: an earlier change of it may be outdated. */
static void change_add_both(struct kvc_announcer *a, const char *path)
{
	if (*path)
		list_object(a, path, kvc_serve_may_have_both(a->k, path));
}

/*
 * Adds the files of a folder, which has another path now. Returns false if it has too many, or
 * subfolders.
 */
static bool renamed_folder_both(struct kvc_announcer *a, uint64_t ino)
{
	struct kvc *k = a->k;
	char path[KVC_FRAME_PATH_MAX + 1];
	struct kvc_entries e = { 0 };
	uint64_t after = 0;
	bool all = !kvc_folder_entries_some_both(k, ino, &after, &e) && e.n <= RENAMED;

	for (size_t i = 0; i < e.n && all; i++) {
		all = S_ISREG(e.v[i].kind) && list_has_space(a);
		if (all && !kvc_path_in_both(k, ino, e.v[i].name, path))
			change_add_both(a, path);
	}
	free(e.v);
	return all;
}

/* Returns false if all objects must be announced again. */
static bool change_take_both(struct kvc_announcer *a, const struct kvc_event_ring_item *v,
			     uint64_t number)
{
	struct kvc *k = a->k;
	const char *gone = kvc_event_ring_path_locked(k, v->ino, number);
	char now[KVC_FRAME_PATH_MAX + 1];

	if (v->gone)
		change_add_both(a, v->gone);
	if (v->what == KVC_EVENT_RING_dropped)
		return true;
	if (v->folder && v->what == KVC_EVENT_RING_renamed)
		return renamed_folder_both(a, v->ino);
	if (gone || !kvc_path_both(k, v->ino, now))
		change_add_both(a, gone ?: now);
	return true;
}

/* Takes changes from the ring. Returns true if there may be more. */
static bool changes_take(struct kvc_announcer *a)
{
	struct kvc *k = a->k;
	struct kvc_event_ring_item v;
	uint64_t number, lost, all_lost = 0;
	bool restart = false, more = true;

	kvc_lock_both(k);
	for (unsigned i = 0; i < CHANGES && list_has_space(a); i++) {
		if (i % 8 == 7)
			kvc_pause_both(k);
		more = kvc_event_ring_take_locked(k, &a->at, &v, &number, &lost);
		all_lost += lost;
		if (!more)
			break;
		if (!change_take_both(a, &v, number))
			restart = true;
	}
	kvc_unlock_both(k);
	if (all_lost || restart)
		walk_begin(a, true);
	return more;
}

void kvc_announce_missing(struct kvc *k, const char *paths, size_t n, const uint8_t *bits)
{
	struct kvc_announcer *a;

	kvc_lock(k);
	a = k->announcer;
	if (a)
		pthread_mutex_lock(&a->lock);
	for (size_t i = 0; a && i < n && a->nasked < ASKED; i++, paths += strlen(paths) + 1) {
		char *copy = bits && bits[i / 8] & 1u << i % 8 ? NULL : strdup(paths);

		if (copy)
			a->asked[a->nasked++] = copy;
	}
	if (a)
		pthread_mutex_unlock(&a->lock);
	kvc_unlock(k);
}

/* Adds the paths for which this node was asked, and which it did not have. */
static void asked_take(struct kvc_announcer *a)
{
	struct kvc *k = a->k;
	char *path[ASKED];
	size_t n = 0;

	pthread_mutex_lock(&a->lock);
	while (a->nasked && a->n + n + DEPTH + 2 < KVC_ANNOUNCE_MOST)
		path[n++] = a->asked[--a->nasked];
	pthread_mutex_unlock(&a->lock);
	if (!n)
		return;
	kvc_lock_both(k);
	for (size_t i = 0; i < n; i++) {
		if (i % 8 == 7)
			kvc_pause_both(k);
		if (!kvc_serve_may_have_both(k, path[i]))
			list_object(a, path[i], false);
		free(path[i]);
	}
	kvc_unlock_both(k);
}

/* ---- the walk ---- */

/* Does this node have the file, whose rows were read before? */
static bool walk_has(struct kvc *k, const struct kvc_peeked_object *p)
{
	const struct kvc_place *disk = &p->is.place[KVC_DISK];
	const struct kvc_node *n;
	bool has;

	kvc_lock(k);
	n = kvc_node_find_locked(k, p->is.ino);
	has = n ? kvc_serve_may_locked(k, n) != -ENOENT
		: k->tier[KVC_DISK].t && disk->gen && disk->gen == p->is.object.gen;
	kvc_unlock(k);
	return has;
}

static void walk_file(struct kvc_announcer *a, const struct kvc_peeked_object *p,
		      struct kvc_peek_names *names)
{
	const struct kvc_name_at first = { 0 };
	char path[2 * KVC_FRAME_PATH_MAX];
	struct kvc *k = a->k;

	if (!walk_has(k, p) || kvc_peek_names(k->cat, p->is.ino, &first, names))
		return;
	for (size_t i = 0; i < names->n && list_has_space(a); i++) {
		uint64_t folder = names->v[i].parent;
		int err = 0;

		if (a->folder != folder) {
			kvc_lock_both(k);
			err = kvc_path_both(k, folder, a->folder_path);
			kvc_unlock_both(k);
			a->folder = err ? 0 : folder;
		}
		if (err || (!*a->folder_path && folder != KVC_ROOT))
			continue;
		snprintf(path, sizeof path, "%s%s%s", a->folder_path, *a->folder_path ? "/" : "",
			 names->v[i].name);
		if (strlen(path) <= KVC_FRAME_PATH_MAX)
			list_object(a, path, true);
	}
}

/*
 * Visits the next inodes. Returns false at the end of the walk, or if they cannot be read now. A
 * file that was made since the walk began has an event.
 */
static bool walk_some(struct kvc_announcer *a)
{
	struct kvc_peeked rows[SOME];
	struct kvc_peeked_object v[SOME];
	struct kvc_peek_names names = { 0 };
	size_t n = 0, files = 0;

	if (kvc_peek_rows(a->k->cat, a->ino, INT64_MAX, SOME, rows, &n))
		return false;
	for (size_t i = 0; i < n; i++)
		if (S_ISREG(rows[i].row.mode) && rows[i].row.nlink)
			v[files++].is.ino = rows[i].row.ino;
	if (files && kvc_peek_objects(a->k->cat, v, files))
		return false;
	for (size_t i = 0; i < files; i++) {
		if (!list_has_space(a)) {
			a->ino = v[i].is.ino - 1;
			break;
		}
		a->ino = v[i].is.ino;
		walk_file(a, &v[i], &names);
	}
	free(names.v);
	if (n && list_has_space(a))
		a->ino = rows[n - 1].row.ino;
	a->walks = n;
	a->ended = !n;
	return n;
}

/* Are all inodes so far committed? The walk sees no others, and their events may be over. */
static bool walk_may_begin(struct kvc_announcer *a)
{
	struct kvc *k = a->k;
	bool may;

	kvc_lock_both(k);
	a->txn = a->txn ? a->txn : kvc_catalog_txn(k->cat);
	may = k->committer->committed >= a->txn;
	if (!may)
		kvc_committer_wake_locked(k, true);
	kvc_unlock_both(k);
	return may;
}

static void walk(struct kvc_announcer *a)
{
	if (!a->ino && !walk_may_begin(a))
		return;
	a->folder = 0; /* it may have been renamed */
	for (unsigned i = 0; i < WALK / SOME && list_has_space(a) && walk_some(a); i++)
		;
}

/* ---- the thread ---- */

/* Announces the list. Returns false if that failed, and the list is kept. */
static bool list_announce(struct kvc_announcer *a)
{
	const struct kvc_announcement what = {
		.path = a->path,
		.has = a->has,
		.n = a->n,
		.complete = a->complete,
	};
	size_t has = 0;
	int err = a->t->ops->announce(a->t, &what);

	if (err && err != -ESTALE) {
		kvc_count_by(&a->k->stats, announce_failures, err != -EAGAIN);
		return false;
	}
	for (size_t i = 0; i < a->n; i++)
		has += a->has[i];
	kvc_count_by(&a->k->stats, announces, has);
	list_clear(a);
	a->complete = a->complete || a->ended;
	a->ended = false;
	if (err)
		walk_begin(a, true);
	return true;
}

/* Waits for the next tick, or for the end. Returns false at the end. */
static bool announcer_wait(struct kvc_announcer *a, uint64_t ns)
{
	struct timespec until = kvc_timespec(kvc_mono_ns() + ns);
	bool stop;

	pthread_mutex_lock(&a->lock);
	while (ns && !a->stop && !pthread_cond_timedwait(&a->cond, &a->lock, &until))
		;
	stop = a->stop;
	pthread_mutex_unlock(&a->lock);
	return !stop;
}

static void *announcer(void *arg)
{
	struct kvc_announcer *a = arg;
	bool more = false, sent = true;

	while (announcer_wait(a, !sent ? FAILED_NS : more ? 0 : TICK_NS)) {
		if (sent) {
			asked_take(a);
			more = changes_take(a);
			if (!a->walks && kvc_mono_ns() - a->walk_ns > REFRESH_NS)
				walk_begin(a, !a->complete);
			if (a->walks && !more)
				walk(a);
		}
		sent = list_announce(a);
	}
	return NULL;
}

static void announcer_free(struct kvc_announcer *a)
{
	list_clear(a);
	while (a->nasked)
		free(a->asked[--a->nasked]);
	pthread_mutex_destroy(&a->lock);
	pthread_cond_destroy(&a->cond);
	free(a);
}

/* Returns the tier that tells other nodes, or NULL. */
static struct kvc_tier *announcing_tier(struct kvc *k)
{
	kvc_tier_each(k, t)
		if (k->tier[t].t->announces)
			return k->tier[t].t;
	return NULL;
}

int kvc_announce_start(struct kvc *k)
{
	struct kvc_tier *t = announcing_tier(k);
	pthread_condattr_t clock;
	struct kvc_announcer *a;
	int err;

	if (!t)
		return 0;
	if (!(a = calloc(1, sizeof *a)))
		return -ENOMEM;
	a->k = k;
	a->t = t;
	pthread_condattr_init(&clock);
	pthread_condattr_setclock(&clock, CLOCK_MONOTONIC);
	pthread_mutex_init(&a->lock, NULL);
	pthread_cond_init(&a->cond, &clock);
	pthread_condattr_destroy(&clock);
	walk_begin(a, false);
	kvc_lock(k);
	err = kvc_event_ring_open_locked(k, &a->at);
	kvc_unlock(k);
	if (!err && (err = -pthread_create(&a->thread, NULL, announcer, a))) {
		kvc_lock(k);
		kvc_event_ring_close_locked(k);
		kvc_unlock(k);
	}
	if (err) {
		announcer_free(a);
		return err;
	}
	kvc_lock(k);
	k->announcer = a;
	kvc_unlock(k);
	return 0;
}

void kvc_announce_stop(struct kvc *k)
{
	struct kvc_announcer *a;

	kvc_lock(k);
	a = k->announcer;
	k->announcer = NULL;
	kvc_unlock(k);
	if (!a)
		return;
	pthread_mutex_lock(&a->lock);
	a->stop = true;
	pthread_cond_signal(&a->cond);
	pthread_mutex_unlock(&a->lock);
	pthread_join(a->thread, NULL);
	kvc_lock(k);
	kvc_event_ring_close_locked(k);
	kvc_unlock(k);
	announcer_free(a);
}
