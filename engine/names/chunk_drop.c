/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Drops whole chunks: their files with names, rows, segments and extents, and the folder if it is
 * one chunk (dir_invalidate.c). A chunk can have a thousand files, but one hold of the locks must
 * not last that long. So the files are processed in batches of AT_ONCE, and the drop is one step
 * for clients all the same. Its phases:
 *
 *   scan    Loads the files into memory, counts and references them. A file in use ends the drop
 *           with -EBUSY. c->idle is set first; a call that opens, leases, loads, waits for, makes
 *           or renames a file of the chunk (kvc_chunk_mark_busy) clears it, also after that file
 *           was scanned.
 *   probe   Probes a folder (dir_invalidate.c); the drop starts again some time later (-EAGAIN).
 *   detach  One hold, whatever the number of files. If the chunk is still idle, no client uses it.
 *           The names and row of the folder and the row of the chunk are deleted, c->detached is
 *           set, and dropping:INO is written to meta. All of that is one transaction.
 *   remove  Removes the files in batches, and then the folder if it still has a name.
 *   end     Under the hold that removes the last file, dropping:INO is deleted.
 *
 *   event               before the detach           between detach and end
 *   lookup, open        as usual                    the files do not exist (kvc_node_gone); -ESTALE
 *                                                   for an open by inode number
 *   readdir             as usual                    the files are left out; a dropped folder is
 *                                                   empty
 *   a create or rename  as if scanned too late:     completes the removal itself, then proceeds as
 *   in the folder       -EBUSY                      usual: the folder is revived, empty, with its
 *                                                   number (kvc_chunk_drop_finish_both)
 *   the same in         as usual                    first removes that one name, if it is a name of
 *   another folder                                  such a file (kvc_dir_drop_name_both)
 *   a kill              nothing has changed         the next start finds dropping:INO and deletes
 *                                                   the files before any other recovery; fsck -y
 *                                                   does so too
 *   an error            nothing has changed         the rest is invisible; the quota keeper tries
 *                                                   again, or the next start does
 *   unmount             the drop is completed, because the dropping threads are joined
 *
 * No file joins a detached chunk: a name in its folder is made only after the end. Names of its
 * files can be in other folders (hard links). They are invisible there, and a call that makes or
 * changes such a name removes it first; rmdir removes all of them in its folder. So a call waits
 * for the names that it uses, and not for the end of a drop elsewhere.
 *
 * A chunk of at most AT_ONCE files with at most NAMES names is removed under one hold, and needs no
 * mark, unless an error stops the removal halfway.
 *
 * Threads: any number may drop, each with its own struct kvc_drop, but only one per folder
 * (node->drop). After the detach any thread with both locks may remove files. The thread that began
 * the drop frees it; if it has abandoned the drop after an error, the thread that ends it does.
 * Both locks guard all state.
 */
#include "read_ahead.h"
#include "clock.h"
#include "commit_batch.h"
#include "committer.h"
#include "dir_invalidate.h"
#include "file.h"
#include "model_stats.h"
#include "gone.h"
#include "folder.h"
#include "replacers.h"
#include "log.h"
#include "membership.h"
#include "rings.h"
#include "notify.h"
#include "pin.h"
#include "tier_queue.h"
#include "deferred_free.h"
#include "chunking.h"

#include <inttypes.h>
#include <string.h>

#define AT_ONCE 16 /* files per batch */
#define NAMES 32   /* a chunk with more names than this is removed in batches too */

struct kvc_drop {
	struct kvc_list link;    /* in k->drops->detached */
	struct kvc_node *self;   /* the folder or the single file; referenced, as are its members */
	struct kvc_chunk *c;     /* kept in memory by c->refs */
	struct kvc_node **files; /* its files that are not removed yet */
	size_t count, capacity;
	/* the tier to remove copies from; negative: all (dir_invalidate.h) */
	int tier;
	/* remove all copies in the tier or none; a shared tier is allowed */
	bool all_or_none;
	bool only_copy; /* a file has its only copy in that tier */
	bool any_copy;  /* a file has a copy in that tier */
	bool others;    /* the folder contains more than this chunk */
	enum kvc_reason why;
	uint64_t names;               /* of all files */
	struct kvc_name_at next_name; /* position in the names of the last file */
	/* state of the drop; abandoned: by the thread that began it */
	bool detached, ended, abandoned;
	unsigned batch;               /* files processed under the current hold */
	struct kvc_read_ahead *ahead; /* owned by the thread that began; NULL: out of memory */
	uint64_t bytes;
};

static const char *drop_key(uint64_t ino, char key[40])
{
	snprintf(key, 40, KVC_DROP_KEY "%" PRIx64, ino);
	return key;
}

static bool drops_folder(const struct kvc_drop *d)
{
	return S_ISDIR(d->self->row.mode);
}

/* One more file was processed. */
static void count_held(struct kvc *k, struct kvc_drop *d)
{
	k->drops->most = kvc_max(k->drops->most, ++d->batch);
}

static void count_and_pause_both(struct kvc *k, struct kvc_drop *d)
{
	count_held(k, d);
	if (d->batch < AT_ONCE)
		return;
	kvc_pause_both(k);
	d->batch = 0;
}

/* ---- scan ---- */

static bool file_busy(const struct kvc_node *n)
{
	return n->refs.opens || n->refs.leases || n->refs.waiting || n->state == KVC_OPEN ||
	       n->state == KVC_LOADING || n->segment.snapshot;
}

/* Does the file have a copy in a tier of this mount other than `tier`? */
static bool has_copy_elsewhere(const struct kvc *k, const struct kvc_node *n, int tier)
{
	kvc_tier_each(k, t)
		if ((int)t != tier && kvc_file_placed_in(n, t))
			return true;
	return false;
}

/*
 * Is the copy in `tier` the file's only one? The copy in the pool does not count while unmounting,
 * unless it is still being copied to another tier: the pool ends with the mount.
 */
static bool is_only_copy(const struct kvc *k, const struct kvc_node *n, int tier)
{
	bool pool_ends = n->state == KVC_BOTH && k->stopping && tier >= 0 &&
			 !(n->copying & ~(1u << tier));

	return (n->state == KVC_LOWER || pool_ends) && !has_copy_elsewhere(k, n, tier);
}

/* Adds a file of the chunk, and references it. */
static int add_file_both(struct kvc *k, struct kvc_drop *d, struct kvc_node *n)
{
	int err = kvc_grow(&d->files, d->count, &d->capacity, sizeof *d->files)
			  ?: kvc_membership_join_both(k, n);

	if (err) {
		kvc_node_settle_locked(k, n);
		return err;
	}
	kvc_node_ref_locked(n);
	d->files[d->count++] = n;
	d->only_copy |= is_only_copy(k, n, d->tier);
	d->any_copy |= d->tier < 0 || n->in[d->tier].place.gen;
	d->names += n->row.nlink;
	d->bytes += d->tier < 0                ? n->row.blocks * 512
		    : n->in[d->tier].place.gen ? n->in[d->tier].place.where.len
					       : 0;
	return file_busy(n) ? -EBUSY : 0;
}

static int scan_file_both(struct kvc *k, struct kvc_drop *d, uint64_t ino)
{
	struct kvc_node *n;
	int err = kvc_read_ahead_node_both(k, d->ahead, ino, &n);

	if (err)
		return err;
	if (n->row.chunk == d->c->id)
		return add_file_both(k, d, n);
	d->others = true;
	kvc_node_settle_locked(k, n);
	return 0;
}

/* Reads the files of these names before they are scanned. */
static int read_ahead_both(struct kvc *k, struct kvc_drop *d, const struct kvc_entries *e)
{
	uint64_t ino[KVC_READ_AHEAD_MAX];
	size_t n = 0;

	for (size_t i = 0; i < e->n && n < KVC_READ_AHEAD_MAX; i++)
		if (S_ISREG(e->v[i].kind))
			ino[n++] = e->v[i].ino;
	if (kvc_read_ahead_nodes_both(k, d->ahead, ino, n))
		d->batch = 0;
	return d->c->idle ? 0 : -EBUSY; /* the list of names may be out of date */
}

static int scan_folder_both(struct kvc *k, struct kvc_drop *d)
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
			err = scan_file_both(k, d, e.v[i].ino);
			err = err == -ENOENT ? -EBUSY : err; /* the file was deleted just now */
			if (!err)
				count_and_pause_both(k, d);
			if (!err && !d->c->idle)
				err = -EBUSY; /* the list of names may be out of date */
		}
	}
	free(e.v);
	return err;
}

/* Scans a single file, and its companion, which may have been deleted. */
static int scan_single_both(struct kvc *k, struct kvc_drop *d)
{
	int err = scan_file_both(k, d, d->c->id);

	if (!err && d->self->row.container)
		err = scan_file_both(k, d, d->self->row.container);
	return err == -ENOENT ? 0 : err;
}

/* Reads the current row of the chunk. Returns -ESTALE if it was accessed after `seen` was read. */
static int current_row_both(struct kvc *k, uint64_t id, const struct kvc_chunk_row *seen,
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

static int drop_node_both(struct kvc *k, struct kvc_drop *d, uint64_t id, struct kvc_node **self)
{
	int err = kvc_read_ahead_node_both(k, d->ahead, id, self);

	if (!err && (*self)->commit.lost)
		err = -ENOENT;
	if (err == -ENOENT)
		kvc_chunk_forget_both(k, id);
	if (!err && ((*self)->refs.waiting || (*self)->chunking.splitting || (*self)->drop))
		err = -EBUSY;
	return err;
}

static bool pinned_locked(struct kvc *k, const struct kvc_drop *d, uint64_t id, uint64_t until_ns)
{
	return kvc_pin_protects_locked(k, id, until_ns,
				       d->tier == KVC_DROP_FOR_POOL      ? KVC_PIN_POOL
				       : d->tier >= 0 && !d->all_or_none ? KVC_PIN_DISK
									 : KVC_PIN_ALL);
}

/* May the chunk be dropped? If so, d references its node and its chunk until drop_release_both. */
static int drop_begin_both(struct kvc *k, struct kvc_drop *d, uint64_t id,
			   const struct kvc_chunk_row *seen)
{
	struct kvc_chunk_row row;
	struct kvc_node *self = NULL;
	int err = current_row_both(k, id, seen, &row);

	if (!err && (kvc_chunk_young(k, row.last_ns) || pinned_locked(k, d, id, row.pin_until_ns)))
		err = -EBUSY;
	err = err ?: drop_node_both(k, d, id, &self);
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
	d->c->refs++;
	d->c->idle = true;
	d->self = self;
	kvc_node_ref_locked(self);
	if (drops_folder(d))
		self->drop = d;
	return 0;
}

/* Ends a drop that has removed nothing, or only copies. */
static void drop_release_both(struct kvc *k, struct kvc_drop *d)
{
	if (drops_folder(d))
		d->self->drop = NULL;
	while (d->count) {
		struct kvc_node *n = d->files[--d->count];

		kvc_node_unref_locked(n);
		kvc_node_settle_locked(k, n);
		count_and_pause_both(k, d);
	}
	d->c->refs--;
	kvc_chunk_settle_locked(k, d->c);
	kvc_node_unref_locked(d->self);
	kvc_node_settle_locked(k, d->self);
}

/* ---- removing copies in one tier: the chunk is also in the pool or in another tier ---- */

static int remove_copy_both(struct kvc *k, struct kvc_node *n, unsigned tier, bool shared)
{
	int err = kvc_place_del(k->cat, n->row.ino, tier);

	if (err)
		return err; /* the copy still exists, and the catalog says so */
	if (shared)
		kvc_deferred_free_shared_locked(k, tier, n->row.ino, &n->in[tier].place);
	kvc_file_set_old_name_locked(n, tier, false);
	kvc_deferred_free_extent_locked(k, tier, &n->in[tier].place);
	kvc_file_set_place_locked(k, n, tier, NULL);
	kvc_event_ring_put_locked(k, KVC_EVENT_RING_evicted, (int)tier, n);
	kvc_file_update_lower_locked(k, n);
	if (n->state == KVC_BOTH && !kvc_file_placed(k, n))
		kvc_file_become_locked(k, n, KVC_RESIDENT);
	kvc_file_set_verify_locked(n, n->segment.verify && n->object.lower);
	kvc_node_dirty_locked(k, n);
	return 0;
}

static bool has_copy(const struct kvc_drop *d, unsigned tier)
{
	for (size_t i = 0; i < d->count; i++)
		if (kvc_file_placed_in(d->files[i], tier))
			return true;
	return false;
}

/* Checks each file again, because the locks were released. */
static int remove_copies_both(struct kvc *k, struct kvc_drop *d)
{
	bool shared = d->all_or_none && (k->tier[d->tier].t->ops->caps & KVC_TIER_SHARED);

	d->bytes = 0;
	for (size_t i = 0; i < d->count; i++) {
		struct kvc_node *n = d->files[i];
		uint64_t len = n->in[d->tier].place.where.len;

		if (n->in[d->tier].place.gen && !n->commit.lost && n->chunk == d->c &&
		    !file_busy(n) && !is_only_copy(k, n, d->tier) &&
		    !remove_copy_both(k, n, (unsigned)d->tier, shared))
			d->bytes += len;
		count_and_pause_both(k, d);
	}
	if (d->tier == (int)KVC_DISK && d->count <= AT_ONCE && !has_copy(d, KVC_DISK))
		d->c->on_disk = false; /* a larger chunk counts as one that the disk has in part */
	return d->bytes ? 0 : -EBUSY;
}

/* ---- detach ---- */

static int probe_all_both(struct kvc *k, struct kvc_drop *d)
{
	for (size_t i = 0; i < d->count; i++) {
		kvc_dir_probe_file_locked(k, d->files[i]);
		count_and_pause_both(k, d);
	}
	return kvc_dir_probe_locked(k, d->c->id, d->c->use.last_ns, d->tier, d->bytes);
}

/* Called under the hold that scanned the last file, or a later one. */
static int may_detach_both(struct kvc *k, struct kvc_drop *d, bool whole)
{
	int err = 0;

	if (!d->c->idle || d->self->refs.waiting || d->self->chunking.splitting ||
	    d->self->commit.lost || pinned_locked(k, d, d->c->id, d->c->pin_until_ns) ||
	    kvc_chunk_young(k, d->c->use.last_ns))
		return -EBUSY;
	if (whole)
		err = kvc_dir_may_drop_locked(k, d->self, d->c->use.last_ns);
	return err == 1 ? probe_all_both(k, d) : err;
}

/* Makes the files invisible. */
static void detach_both(struct kvc *k, struct kvc_drop *d)
{
	kvc_chunk_detach_locked(k, d->c, true);
	d->detached = true;
	kvc_list_add_tail(&k->drops->detached, &d->link);
	k->drops->ndetached++;
	/*
	 * a folder that stays is not notified by its name, so all its names are invalidated at once
	 */
	if (!d->self->commit.lost && kvc_node_kernel_knows(d->self))
		kvc_notify(k, drops_folder(d) ? KVC_NOTICE_FOLDER : KVC_NOTICE_FILE, 0,
			   d->self->row.ino);
}

/* Detaches a chunk with many files or names. After an error nothing has changed. */
static int detach_large_both(struct kvc *k, struct kvc_drop *d, bool whole)
{
	char key[40];
	int err = kvc_meta_set(k->cat, drop_key(d->c->id, key), "1");

	if (!err && whole && !d->others && (err = kvc_dir_unname_both(k, d->self)))
		kvc_meta_del(k->cat, key);
	if (err)
		return err;
	/* listings that the kernel has cached become out of date */
	if (drops_folder(d))
		kvc_folder_touch_locked(k, d->self, 0);
	kvc_chunk_forget_both(k, d->c->id);
	detach_both(k, d);
	return 0;
}

/* Removes a chunk with few files and names. The kernel forgets a folder after its files. */
static int drop_small_both(struct kvc *k, struct kvc_drop *d)
{
	size_t before = d->count;
	char key[40];
	int err = 0;

	while (d->count && !err &&
	       !(err = kvc_dir_drop_file_both(k, d->files[d->count - 1], d->ahead))) {
		struct kvc_node *n = d->files[--d->count];

		kvc_node_unref_locked(n);
		kvc_node_settle_locked(k, n);
		count_held(k, d);
	}
	if (err && d->count == before)
		return err;
	kvc_chunk_forget_both(k, d->c->id);
	if (!err && drops_folder(d))
		kvc_dir_drop_folder_both(k, d->self);
	if (err) { /* hide the remaining files */
		kvc_meta_set(k->cat, drop_key(d->c->id, key), "1");
		kvc_dir_unname_both(k, d->self);
		detach_both(k, d);
	}
	return 0;
}

/*
 * Reads the names of the next files, and their folders. Releases the locks in between. `a` belongs
 * to the calling thread.
 */
static void read_names_ahead_both(struct kvc *k, const struct kvc_drop *d, struct kvc_read_ahead *a)
{
	uint64_t ino[AT_ONCE];
	size_t n = 0;

	for (; n < AT_ONCE && n < d->count; n++)
		ino[n] = d->files[d->count - 1 - n]->row.ino;
	kvc_read_ahead_names_both(k, a, ino, n, &d->next_name);
}

static int drop_start_both(struct kvc *k, struct kvc_drop *d)
{
	int whole = drops_folder(d) ? kvc_chunking_whole_both(k, d->self) : 0, err;
	bool large = d->count > AT_ONCE || d->names > NAMES;

	err = whole < 0 ? whole : may_detach_both(k, d, whole);
	if (!err && !large) {
		read_names_ahead_both(k, d, d->ahead);
		d->batch = 0;
		whole = drops_folder(d) ? kvc_chunking_whole_both(k, d->self) : 0;
		err = whole < 0 ? whole : may_detach_both(k, d, whole);
	}
	err = err ?: kvc_catalog_spare(k->cat, KVC_SPARES);
	if (err)
		return err;
	k->drops->noted = d->others ? NULL : d->self;
	k->drops->noted_why = d->why + 1u;
	err = large ? detach_large_both(k, d, whole) : drop_small_both(k, d);
	k->drops->noted_why = 0;
	if (!err)
		kvc_count(&k->stats, dropped_chunks);
	return err;
}

/* ---- remove, and end ---- */

static void drop_free(struct kvc_drop *d)
{
	free(d->files);
	kvc_read_ahead_free(d->ahead);
	free(d);
}

/* Ends a drop that has no file left. */
static int drop_end_both(struct kvc *k, struct kvc_drop *d)
{
	struct kvc_node *self = d->self;
	char key[40];
	int err = kvc_meta_del(k->cat, drop_key(d->c->id, key));

	if (err)
		return err;
	kvc_chunk_detach_locked(k, d->c, false);
	kvc_list_del(&d->link);
	k->drops->ndetached--;
	d->ended = true;
	if (drops_folder(d) && !self->commit.lost)
		kvc_dir_drop_folder_both(k, self);
	else if (drops_folder(d) && kvc_node_kernel_knows(self))
		/* its files kept it in the kernel's cache */
		kvc_notify(k, KVC_NOTICE_PRUNE, 0, self->row.ino);
	drop_release_both(k, d);
	if (d->abandoned)
		drop_free(d);
	return 0;
}

/* Returns 1 if the file still has names. */
static int remove_file_both(struct kvc *k, struct kvc_drop *d, struct kvc_node *n,
			    struct kvc_read_ahead *a)
{
	int err = n->row.nlink > NAMES ? kvc_dir_drop_linked_both(k, n, &d->next_name, a)
				       : kvc_dir_drop_file_both(k, n, a);

	if (!err)
		d->next_name = (struct kvc_name_at){ 0 };
	return err;
}

/*
 * Removes one batch. Returns 1 if files are left, 0 if the drop has ended, or an error, after which
 * it can be tried again.
 */
static int remove_batch_both(struct kvc *k, struct kvc_drop *d, struct kvc_read_ahead *a)
{
	uint64_t names = 0;
	int err = 0;

	for (unsigned i = 0; i < AT_ONCE && d->count && !err; i++) {
		struct kvc_node *n = d->files[d->count - 1];

		names += n->row.nlink;
		if (i && names > NAMES)
			break;
		if (!n->commit.lost && (err = remove_file_both(k, d, n, a)))
			break;
		d->count--;
		kvc_node_unref_locked(n);
		kvc_node_settle_locked(k, n);
		count_held(k, d);
	}
	d->batch = 0;
	kvc_committer_wake_locked(k, false);
	return err ?: d->count ? 1 : drop_end_both(k, d);
}

/* Removes all files; called by the thread that began the drop. */
static void remove_all_both(struct kvc *k, struct kvc_drop *d)
{
	int more = 1;

	while (more == 1 && !d->ended) {
		kvc_unlock_both(k);
		kvc_commit_gate(k);
		kvc_lock_both(k);
		if (d->ended)
			break;
		read_names_ahead_both(k, d, d->ahead);
		if (!d->ended)
			more = remove_batch_both(k, d, d->ahead);
	}
	if (d->ended)
		return;
	d->abandoned = true;
	kvc_error("inode %llx: the rest of its chunk cannot be dropped now: %s; the daemon retries",
		  (unsigned long long)d->self->row.ino, strerror(-more));
}

bool kvc_chunk_drop_is_detached(const struct kvc_node *folder)
{
	return folder->drop && folder->drop->detached;
}

int kvc_chunk_drop_finish_both(struct kvc *k, struct kvc_node *folder)
{
	struct kvc_read_ahead *a;
	int err = 0;

	if (!kvc_chunk_drop_is_detached(folder))
		return 0;
	a = kvc_read_ahead_new();
	kvc_node_ref_locked(folder);
	while (err >= 0 && kvc_chunk_drop_is_detached(folder)) {
		read_names_ahead_both(k, folder->drop, a);
		if (kvc_chunk_drop_is_detached(folder))
			err = remove_batch_both(k, folder->drop, a);
	}
	kvc_node_unref_locked(folder);
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

		if (!d->abandoned) {
			e = e->next;
			continue;
		}
		err = remove_batch_both(k, d, a);
		if (err == 1)
			read_names_ahead_both(k, d, a);
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

/* Gets the model of the chunk. An empty folder is part of the model of the folder above. */
static int drop_model_both(struct kvc *k, const struct kvc_drop *d, uint64_t *model)
{
	if (d->count || !drops_folder(d)) {
		*model = d->count ? d->files[0]->model : d->self->model;
		return 0;
	}
	return kvc_node_files_model_both(k, d->self->row.ino, 0, model, NULL);
}

static int drop_chunk(struct kvc *k, uint64_t id, int tier, bool all_or_none, enum kvc_reason why,
		      const struct kvc_chunk_row *seen, uint64_t *bytes)
{
	struct kvc_drop *d;
	int err;

	/* freed space is available after a commit, which would fail now */
	if (kvc_catalog_accepts(k->cat, false))
		return -EBUSY;
	if (!(d = calloc(1, sizeof *d)))
		return -ENOMEM;
	kvc_commit_gate(k);
	d->tier = tier;
	d->all_or_none = all_or_none;
	d->why = why;
	d->ahead = kvc_read_ahead_new();
	kvc_read_ahead_nodes(k, d->ahead, &id, 1);
	kvc_lock_both(k);
	err = drop_begin_both(k, d, id, seen);
	if (!err) {
		uint64_t model = 0;

		err = drops_folder(d) ? scan_folder_both(k, d) : scan_single_both(k, d);
		err = err ?: drop_model_both(k, d, &model);
		if (!err && !d->any_copy && tier >= 0)
			err = -ENOENT;
		if (!err && all_or_none && d->only_copy)
			err = -ENODATA;
		if (!err)
			err = tier < 0 || d->only_copy ? drop_start_both(k, d)
						       : remove_copies_both(k, d);
		if (!err)
			kvc_clock_since(k, &k->stats.eviction_age, d->c->use.created_ns);
		if (!err && (tier < 0 || d->only_copy))
			kvc_gone_dropped(k, why, d->bytes);
		if (!err)
			kvc_model_stats_evicted_locked(k, model, why);
		if (!err && tier >= 0 && !all_or_none)
			kvc_replacers_evicted(k, KVC_FOR_tier, tier, d->c->policy);
		if (!d->detached)
			drop_release_both(k, d);
		kvc_committer_wake_locked(k, false);
	}
	if (bytes)
		*bytes = d->bytes;
	if (d->detached)
		remove_all_both(k, d);
	if (!d->abandoned)
		drop_free(d);
	kvc_unlock_both(k);
	return err;
}

int kvc_chunk_drop(struct kvc *k, uint64_t id, int tier, enum kvc_reason why,
		   const struct kvc_chunk_row *seen, uint64_t *bytes)
{
	return drop_chunk(k, id, tier, false, why, seen, bytes);
}

int kvc_chunk_drop_tier(struct kvc *k, uint64_t id, unsigned tier)
{
	return drop_chunk(k, id, (int)tier, true, KVC_FOR_demote, NULL, NULL);
}
