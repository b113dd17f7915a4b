/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A chunk is dropped: it goes whole, with its files' names, rows, segments and extents, and with
 * its folder where that is one chunk (dir_invalidate.c). A chunk can have a thousand files, and no
 * hold of the locks is to last that long: so it goes in turns of AT_ONCE files, and yet in one
 * step.
 *
 *   look   The files are brought into memory, counted and held; what is in use ends it (-EBUSY).
 *          chunk->quiet is set before the first: who opens, leases, loads or waits for one of them
 *          after it was looked at, makes, takes or renames one (kvc_chunk_mark_busy), unsets it.
 *   knock  At a folder (dir_invalidate.c), and all is looked at anew some time later (-EAGAIN).
 *   cut    One hold, whatever the number of files. Where the chunk is still quiet, nobody has any
 *          of it in hand: the folder's name and row go, and the chunk's; chunk->cut is set; meta
 *          dropping:INO is written. All of that is in one transaction, or in none.
 *   bury   The files go, in turns, the chunk's folder with them where it was kept from that.
 *   end    After the last, in one hold with it: dropping:INO is deleted.
 *
 *   what happens      before the cut             from the cut to the end
 *   lookup, open      as ever                    the files are not there (kvc_node_gone); ESTALE
 *                                                for who comes by number
 *   readdir           as ever                    without them; nothing in a folder that went
 *   a create or the   it is as if looked at too  buries the rest itself, and is then as ever: the
 *   like in it        late: -EBUSY               folder comes back empty, by the same number
 *                                                (kvc_chunk_drop_finish_both)
 *   the same in some  as ever                    removes that one name first, if it is a name of
 *   other folder                                 such a file (kvc_dir_drop_name_both)
 *   a kill            nothing has happened       the next start finds dropping:INO and deletes all
 *                                                files of that chunk before anything is taken over;
 *                                                fsck knows them, and -y does the same
 *   an error          nothing has happened       nobody sees the rest; the keeper tries again, or
 *                                                the next start does
 *   the end           the drop is finished, since the threads that drop are waited for
 *
 * Nobody joins a chunk that is cut: a name in its folder is made after the end only. Names of its
 * files can be in other folders (hard links). Nobody sees them there, and a call that makes or
 * changes such a name removes it first; rmdir removes all of them in its folder. So a call waits
 * for the names that it asks for, and not for the end of a drop elsewhere.
 *
 * What has AT_ONCE files at most is looked at and goes in one hold, and needs no mark.
 *
 * Threads: those that drop, any number; each has its own struct kvc_drop. Of a folder only one at a
 * time (node->drop). After the cut whoever has both locks may bury; only who began frees it, or, if
 * he has left it because of an error, who ends it. All under both locks.
 */
#include "read_ahead.h"
#include "clock.h"
#include "commit_batch.h"
#include "committer.h"
#include "dir_invalidate.h"
#include "file.h"
#include "folder.h"
#include "replacers.h"
#include "log.h"
#include "membership.h"
#include "event_ring.h"
#include "notify.h"
#include "pin.h"
#include "tier_queue.h"
#include "deferred_free.h"
#include "chunking.h"

#include <inttypes.h>
#include <string.h>

#define AT_ONCE 16 /* files */
#define NAMES 32   /* of its files: with more they go in turns too */

struct kvc_drop {
	struct kvc_list link;  /* in k->drops->cut */
	struct kvc_node *self; /* the folder, or the one file; held, as are its members */
	struct kvc_chunk *c;   /* kept by c->inflight */
	struct kvc_node **n;   /* the files of it that are still there */
	size_t count, capacity;
	int tier;                     /* whose copies are to go; below 0: all (dir_invalidate.h) */
	bool only;                    /* they go, or nothing does; and from a shared tier for all */
	bool needed;                  /* some file has no copy but there */
	bool placed;                  /* some file has one there */
	bool others;                  /* the folder has more in it than this chunk */
	bool linked;                  /* some file has another name */
	uint64_t names;               /* of all files */
	struct kvc_name_at at;        /* where the names of the last file are */
	bool cut, ended, left;        /* how far it is; left: by who began it */
	bool shown;                   /* names of it are in folders that stay */
	unsigned held;                /* files worked on under this hold */
	struct kvc_read_ahead *ahead; /* of the thread that began; NULL: without memory */
	uint64_t bytes;
};

static const char *key_of(uint64_t ino, char key[40])
{
	snprintf(key, 40, KVC_DROP_KEY "%" PRIx64, ino);
	return key;
}

static bool is_folder(const struct kvc_drop *d)
{
	return S_ISDIR(d->self->row.mode);
}

/* One more file was worked on: after some of them others are let in. */
static void count_held(struct kvc *k, struct kvc_drop *d)
{
	k->drops->most = kvc_max(k->drops->most, ++d->held);
}

static void step_both(struct kvc *k, struct kvc_drop *d)
{
	count_held(k, d);
	if (d->held < AT_ONCE)
		return;
	kvc_pause_both(k);
	d->held = 0;
}

/* ---- look ---- */

static bool busy(const struct kvc_node *n)
{
	return n->nopen || n->leases || n->waiting || n->state == KVC_OPEN ||
	       n->state == KVC_LOADING || n->snapshot;
}

/* A copy of it in a tier that is here now, other than this one. */
static bool elsewhere(const struct kvc *k, const struct kvc_node *n, int tier)
{
	kvc_tier_each(k, t)
		if ((int)t != tier && kvc_placed_in(n, t))
			return true;
	return false;
}

/* The file is one of the chunk. It is held from now on. */
static int add_both(struct kvc *k, struct kvc_drop *d, struct kvc_node *n)
{
	int err = kvc_grow(&d->n, d->count, &d->capacity, sizeof *d->n)
			  ?: kvc_membership_join_both(k, n);

	if (err) {
		kvc_node_settle_locked(k, n);
		return err;
	}
	n->refs++;
	d->n[d->count++] = n;
	d->needed |= n->state == KVC_LOWER && !elsewhere(k, n, d->tier);
	d->placed |= d->tier < 0 || n->in[d->tier].place.gen;
	d->names += n->row.nlink;
	d->bytes += d->tier < 0                ? n->row.blocks * 512
		    : n->in[d->tier].place.gen ? n->in[d->tier].place.where.len
					       : 0;
	return busy(n) ? -EBUSY : 0;
}

static int look_at_both(struct kvc *k, struct kvc_drop *d, uint64_t ino)
{
	struct kvc_node *n;
	int err = kvc_read_ahead_node_both(k, d->ahead, ino, &n);

	if (err)
		return err;
	if (n->row.chunk == d->c->id)
		return add_both(k, d, n);
	d->others = true;
	kvc_node_settle_locked(k, n);
	return 0;
}

/* The files among these names are read before they are looked at. */
static int read_ahead_both(struct kvc *k, struct kvc_drop *d, const struct kvc_entries *e)
{
	uint64_t ino[KVC_READ_AHEAD_MAX];
	size_t n = 0;

	for (size_t i = 0; i < e->n && n < KVC_READ_AHEAD_MAX; i++)
		if (S_ISREG(e->v[i].kind))
			ino[n++] = e->v[i].ino;
	if (kvc_read_ahead_nodes_both(k, d->ahead, ino, n))
		d->held = 0;
	return d->c->idle ? 0 : -EBUSY; /* else what was listed may be no more */
}

static int look_in_folder_both(struct kvc *k, struct kvc_drop *d)
{
	struct kvc_entries e = { 0 };
	uint64_t after = 0;
	int more = 1, err = 0;

	while (more == 1 && !err) {
		more = kvc_folder_entries_some_both(k, d->c->id, &after, &e);
		err = more < 0 ? more : read_ahead_both(k, d, &e);
		for (size_t i = 0; i < e.n && !err; i++) {
			if (!S_ISREG(e.v[i].kind)) {
				d->others = true;
				continue;
			}
			err = look_at_both(k, d, e.v[i].ino);
			err = err == -ENOENT ? -EBUSY : err; /* it goes this moment */
			if (!err)
				step_both(k, d);
			if (!err && !d->c->idle)
				err = -EBUSY; /* and what was listed may be no more */
		}
	}
	free(e.v);
	return err;
}

/* A file, and its companion, which may have been deleted. */
static int look_at_file_both(struct kvc *k, struct kvc_drop *d)
{
	int err = look_at_both(k, d, d->c->id);

	if (!err && d->self->row.container)
		err = look_at_both(k, d, d->self->row.container);
	return err == -ENOENT ? 0 : err;
}

/* The chunk's row as of now. -ESTALE: the walk that found `seen` did not know of its last use. */
static int row_both(struct kvc *k, uint64_t id, const struct kvc_chunk_row *seen,
		    struct kvc_chunk_row *row)
{
	struct kvc_chunk *c = kvc_chunk_find_locked(k, id);
	int err;

	if (!c) {
		err = kvc_chunk_get(k->cat, id, row);
		return err ?: seen && seen->rank != row->rank ? -ESTALE : 0;
	}
	kvc_chunk_row(k, c, row);
	if (!seen || seen->rank == c->rank)
		return 0;
	kvc_committer_access_want_locked(k, c);
	return -ESTALE;
}

static int node_of_both(struct kvc *k, struct kvc_drop *d, uint64_t id, struct kvc_node **self)
{
	int err = kvc_read_ahead_node_both(k, d->ahead, id, self);

	if (!err && (*self)->lost)
		err = -ENOENT;
	if (err == -ENOENT)
		kvc_chunk_forget_both(k, id);
	if (!err && ((*self)->waiting || (*self)->splitting || (*self)->drop))
		err = -EBUSY;
	return err;
}

static bool pinned_locked(struct kvc *k, const struct kvc_drop *d, uint64_t id, uint64_t until_ns)
{
	return kvc_pin_holds_locked(k, id, until_ns,
				    d->tier == KVC_DROP_FOR_POOL ? KVC_PIN_POOL
				    : d->tier >= 0 && !d->only   ? KVC_PIN_DISK
								 : KVC_PIN_ALL);
}

/* Is it one to be dropped? Then d has its node and its chunk, until it is let go. */
static int begin_both(struct kvc *k, struct kvc_drop *d, uint64_t id,
		      const struct kvc_chunk_row *seen)
{
	struct kvc_chunk_row row;
	struct kvc_node *self = NULL;
	int err = row_both(k, id, seen, &row);

	if (!err && (kvc_chunk_young(k, row.last_ns) || pinned_locked(k, d, id, row.pin_until_ns)))
		err = -EBUSY;
	err = err ?: node_of_both(k, d, id, &self);
	if (!err && S_ISDIR(self->row.mode) &&
	    kvc_dir_probed_locked(k, id, row.last_ns, d->tier, &d->bytes))
		err = -EAGAIN;
	if (!err) {
		d->bytes = 0;
		d->c = kvc_chunk_find_locked(k, id) ?: kvc_chunk_new_locked(k, id, &row);
		err = d->c ? 0 : -ENOMEM;
	}
	if (err) {
		if (self)
			kvc_node_settle_locked(k, self);
		return err;
	}
	d->c->inflight++;
	d->c->idle = true;
	d->self = self;
	self->refs++;
	if (is_folder(d))
		self->drop = d;
	return 0;
}

/* It stays, or only some copies of it went. */
static void let_go_both(struct kvc *k, struct kvc_drop *d)
{
	if (is_folder(d))
		d->self->drop = NULL;
	while (d->count) {
		struct kvc_node *n = d->n[--d->count];

		n->refs--;
		kvc_node_settle_locked(k, n);
		step_both(k, d);
	}
	d->c->inflight--;
	kvc_chunk_settle_locked(k, d->c);
	d->self->refs--;
	kvc_node_settle_locked(k, d->self);
}

/* ---- only this tier's copies go: all of the chunk is in the pool or in another tier ---- */

static int forget_copy_both(struct kvc *k, struct kvc_node *n, unsigned tier, bool shared)
{
	int err = kvc_place_del(k->cat, n->row.ino, tier);

	if (err)
		return err; /* it is there still, and the catalog says so */
	if (shared)
		kvc_deferred_free_shared_locked(k, tier, n->row.ino, &n->in[tier].place);
	n->left &= ~(1u << tier);
	kvc_deferred_free_extent_locked(k, tier, &n->in[tier].place);
	n->in[tier].place = (struct kvc_place){ 0 };
	kvc_event_ring_put_locked(k, KVC_EVENT_RING_evicted, (int)tier, n);
	n->object.lower = kvc_file_placed_anywhere(k, n);
	if (n->state == KVC_BOTH && !kvc_file_placed(k, n))
		kvc_file_become_locked(k, n, KVC_RESIDENT);
	n->verify = n->verify && n->object.lower;
	kvc_node_dirty_locked(k, n);
	return 0;
}

/* Each file as it is when its turn comes. */
static int forget_both(struct kvc *k, struct kvc_drop *d)
{
	bool shared = d->only && (k->tier[d->tier].t->ops->caps & KVC_TIER_SHARED);

	d->bytes = 0;
	for (size_t i = 0; i < d->count; i++) {
		struct kvc_node *n = d->n[i];
		uint64_t len = n->in[d->tier].place.where.len;

		if (n->in[d->tier].place.gen && !n->lost && n->chunk == d->c && !busy(n) &&
		    (n->state != KVC_LOWER || elsewhere(k, n, d->tier)) &&
		    !forget_copy_both(k, n, (unsigned)d->tier, shared))
			d->bytes += len;
		step_both(k, d);
	}
	return d->bytes ? 0 : -EBUSY;
}

/* ---- cut ---- */

static int knock_both(struct kvc *k, struct kvc_drop *d)
{
	for (size_t i = 0; i < d->count; i++) {
		kvc_dir_probe_file_locked(k, d->n[i]);
		step_both(k, d);
	}
	return kvc_dir_probe_locked(k, d->c->id, d->c->use.last_ns, d->tier, d->bytes);
}

/* Under the hold that saw the last file, or a later one. */
static int may_both(struct kvc *k, struct kvc_drop *d, bool whole)
{
	int err = 0;

	if (!d->c->idle || d->self->waiting || d->self->splitting || d->self->lost ||
	    pinned_locked(k, d, d->c->id, d->c->pin_until_ns) ||
	    kvc_chunk_young(k, d->c->use.last_ns))
		return -EBUSY;
	if (whole)
		err = kvc_dir_may_drop_locked(k, d->self, d->c->use.last_ns);
	return err == 1 ? knock_both(k, d) : err;
}

/* From here on nobody sees the files. */
static void hide_both(struct kvc *k, struct kvc_drop *d)
{
	kvc_chunk_detach_locked(k, d->c, true);
	d->cut = true;
	kvc_list_add_tail(&k->drops->detached, &d->link);
	k->drops->ndetached++;
	/* a folder that stays is not told by its name, so it is by all names at once */
	if (!d->self->lost && kvc_kernel_knows(d->self))
		kvc_notify(k, is_folder(d) ? KVC_TELL_FOLDER : KVC_TELL_FILE, 0, d->self->row.ino);
}

/* What has many files or names: the folder first. With an error nothing has changed. */
static int cut_large_both(struct kvc *k, struct kvc_drop *d, bool whole)
{
	char key[40];
	int err = kvc_meta_set(k->cat, key_of(d->c->id, key), "1");

	if (!err && whole && !d->others && (err = kvc_dir_unname_both(k, d->self)))
		kvc_meta_del(k->cat, key);
	if (err)
		return err;
	/* what the kernel has listed of it is old, whenever it asks */
	if (is_folder(d))
		kvc_touch_folder_locked(k, d->self, 0);
	kvc_chunk_forget_both(k, d->c->id);
	hide_both(k, d);
	return 0;
}

/* What has few: all of it. The kernel lets a folder go after its files. */
static int cut_small_both(struct kvc *k, struct kvc_drop *d)
{
	size_t files = d->count;
	char key[40];
	int err = 0;

	while (d->count && !err &&
	       !(err = kvc_dir_drop_file_both(k, d->n[d->count - 1], d->ahead))) {
		struct kvc_node *n = d->n[--d->count];

		n->refs--;
		kvc_node_settle_locked(k, n);
		count_held(k, d);
	}
	if (err && d->count == files)
		return err;
	kvc_chunk_forget_both(k, d->c->id);
	if (!err && is_folder(d))
		kvc_dir_drop_folder_both(k, d->self);
	if (err) { /* nobody shall see the others */
		kvc_meta_set(k->cat, key_of(d->c->id, key), "1");
		kvc_dir_unname_both(k, d->self);
		hide_both(k, d);
	}
	return 0;
}

/*
 * The names of the files that go next are read, and their folders; the locks are given back
 * meanwhile. `a` is the caller's own.
 */
static void names_ahead_both(struct kvc *k, const struct kvc_drop *d, struct kvc_read_ahead *a)
{
	uint64_t ino[AT_ONCE];
	size_t n = 0;

	for (; n < AT_ONCE && n < d->count; n++)
		ino[n] = d->n[d->count - 1 - n]->row.ino;
	kvc_read_ahead_names_both(k, a, ino, n, &d->at);
}

static int cut_both(struct kvc *k, struct kvc_drop *d)
{
	int whole = is_folder(d) ? kvc_chunking_whole_both(k, d->self) : 0, err;
	bool large = d->count > AT_ONCE || d->names > NAMES;

	err = whole < 0 ? whole : may_both(k, d, whole);
	if (!err && !large) {
		names_ahead_both(k, d, d->ahead);
		d->held = 0;
		whole = is_folder(d) ? kvc_chunking_whole_both(k, d->self) : 0;
		err = whole < 0 ? whole : may_both(k, d, whole);
	}
	err = err ?: kvc_catalog_spare(k->cat, KVC_SPARES);
	if (err)
		return err;
	err = large ? cut_large_both(k, d, whole) : cut_small_both(k, d);
	if (!err)
		kvc_count(&k->stats, dropped_chunks);
	return err;
}

/* ---- bury, and the end ---- */

static void drop_free(struct kvc_drop *d)
{
	free(d->n);
	kvc_read_ahead_free(d->ahead);
	free(d);
}

/* No file is left. */
static int end_both(struct kvc *k, struct kvc_drop *d)
{
	struct kvc_node *self = d->self;
	char key[40];
	int err = kvc_meta_del(k->cat, key_of(d->c->id, key));

	if (err)
		return err;
	kvc_chunk_detach_locked(k, d->c, false);
	kvc_list_del(&d->link);
	k->drops->ndetached--;
	d->ended = true;
	if (is_folder(d) && !self->lost)
		kvc_dir_drop_folder_both(k, self);
	else if (is_folder(d) && kvc_kernel_knows(self))
		kvc_notify(k, KVC_TELL_PRUNE, 0, self->row.ino); /* its files held it */
	let_go_both(k, d);
	if (d->left)
		drop_free(d);
	return 0;
}

/* 1: this file still has names. */
static int bury_file_both(struct kvc *k, struct kvc_drop *d, struct kvc_node *n,
			  struct kvc_read_ahead *a)
{
	int err = n->row.nlink > NAMES ? kvc_dir_drop_linked_both(k, n, &d->at, a)
				       : kvc_dir_drop_file_both(k, n, a);

	if (!err)
		d->at = (struct kvc_name_at){ 0 };
	return err;
}

/* One turn. 1: there is more to do; 0: it has ended; or an error, and it can be tried again. */
static int bury_both(struct kvc *k, struct kvc_drop *d, struct kvc_read_ahead *a)
{
	uint64_t names = 0;
	int err = 0;

	for (unsigned i = 0; i < AT_ONCE && d->count && !err; i++) {
		struct kvc_node *n = d->n[d->count - 1];

		names += n->row.nlink;
		if (i && names > NAMES)
			break;
		if (!n->lost && (err = bury_file_both(k, d, n, a)))
			break;
		d->count--;
		n->refs--;
		kvc_node_settle_locked(k, n);
		count_held(k, d);
	}
	d->held = 0;
	kvc_committer_wake_locked(k, false);
	return err ?: d->count ? 1 : end_both(k, d);
}

/* By who began it. */
static void bury_all_both(struct kvc *k, struct kvc_drop *d)
{
	int more = 1;

	while (more == 1 && !d->ended) {
		kvc_unlock_both(k);
		kvc_commit_gate(k);
		kvc_lock_both(k);
		if (d->ended)
			break;
		names_ahead_both(k, d, d->ahead);
		if (!d->ended)
			more = bury_both(k, d, d->ahead);
	}
	if (d->ended)
		return;
	d->left = true;
	kvc_error("inode %llx: what is left of its chunk cannot be dropped now: %s; tried again",
		  (unsigned long long)d->self->row.ino, strerror(-more));
}

bool kvc_chunk_drop_is_detached(const struct kvc_node *folder)
{
	return folder->drop && folder->drop->cut;
}

int kvc_chunk_drop_finish_both(struct kvc *k, struct kvc_node *folder)
{
	struct kvc_read_ahead *a;
	int err = 0;

	if (!kvc_chunk_drop_is_detached(folder))
		return 0;
	a = kvc_read_ahead_new();
	folder->refs++;
	while (err >= 0 && kvc_chunk_drop_is_detached(folder)) {
		names_ahead_both(k, folder->drop, a);
		if (kvc_chunk_drop_is_detached(folder))
			err = bury_both(k, folder->drop, a);
	}
	folder->refs--;
	kvc_read_ahead_free(a);
	return err < 0 ? err : 0;
}

void kvc_chunk_drop_resume(struct kvc *k)
{
	struct kvc_read_ahead *a = kvc_read_ahead_new();
	int err = 0;

	kvc_lock_both(k);
	for (struct kvc_list *e = k->drops->detached.next; err >= 0 && e != &k->drops->detached;) {
		struct kvc_drop *d = kvc_of(e, struct kvc_drop, link);

		if (!d->left) {
			e = e->next;
			continue;
		}
		err = bury_both(k, d, a);
		if (err == 1)
			names_ahead_both(k, d, a);
		else
			kvc_pause_both(k);
		e = k->drops->detached.next;
	}
	kvc_unlock_both(k);
	kvc_read_ahead_free(a);
}

void kvc_chunk_drop_free(struct kvc *k)
{
	kvc_list_each_safe(e, &k->drops->detached)
		drop_free(kvc_of(e, struct kvc_drop, link));
}

static int drop(struct kvc *k, uint64_t id, int tier, bool only, const struct kvc_chunk_row *seen,
		uint64_t *bytes)
{
	struct kvc_drop *d;
	int err;

	/* what it frees comes with a commit, and that fails now */
	if (kvc_catalog_takes(k->cat, false))
		return -EBUSY;
	if (!(d = calloc(1, sizeof *d)))
		return -ENOMEM;
	kvc_commit_gate(k);
	d->tier = tier;
	d->only = only;
	d->ahead = kvc_read_ahead_new();
	kvc_read_ahead_nodes(k, d->ahead, &id, 1);
	kvc_lock_both(k);
	err = begin_both(k, d, id, seen);
	if (!err) {
		err = is_folder(d) ? look_in_folder_both(k, d) : look_at_file_both(k, d);
		if (!err && !d->placed && tier >= 0)
			err = -ENOENT;
		if (!err && only && d->needed)
			err = -ENODATA;
		if (!err)
			err = tier < 0 || d->needed ? cut_both(k, d) : forget_both(k, d);
		if (!err)
			kvc_clock_since(k, &k->stats.eviction_age, d->c->use.created_ns);
		if (!err && tier >= 0 && !only)
			kvc_replacers_evicted(k, KVC_FOR_tier, tier, d->c->policy);
		if (!d->cut)
			let_go_both(k, d);
		kvc_committer_wake_locked(k, false);
	}
	if (bytes)
		*bytes = d->bytes;
	if (d->cut)
		bury_all_both(k, d);
	if (!d->left)
		drop_free(d);
	kvc_unlock_both(k);
	return err;
}

int kvc_chunk_drop(struct kvc *k, uint64_t id, int tier, const struct kvc_chunk_row *seen,
		   uint64_t *bytes)
{
	return drop(k, id, tier, false, seen, bytes);
}

int kvc_chunk_drop_tier(struct kvc *k, uint64_t id, unsigned tier)
{
	return drop(k, id, (int)tier, true, NULL, NULL);
}
