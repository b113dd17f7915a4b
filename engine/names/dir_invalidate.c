/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Names that go, and what the kernel knows of them: of files, and of folders that are one chunk
 * (chunking.c; what is set on a model keeps its folder). How a chunk goes whole is in chunk_drop.c.
 *
 * The kernel remembers names and answers from them without asking: a client could find the folder
 * and then none of its files. So a folder is knocked at first: the kernel is told to forget it and
 * its files, which costs those who use it a request each. Who looks within a moment keeps the
 * folder, whole; if nobody does, nobody has it in hand, and it goes in one step. Where somebody
 * only looks, again and again, it goes all the same. A folder that the kernel does not know nobody
 * has in hand, but where it let go of it this moment, as it does when memory is short: between a
 * mkdir that said EEXIST and a look at what is there.
 *
 * So a folder that goes is mostly one that the kernel no longer knows, and then nothing has to be
 * told: all other names stay as they are. A file that goes by itself is told by its number: its
 * attributes are to be asked for, and that answer, ESTALE, has the kernel look the name up again.
 * Only where the kernel holds on to a folder in spite of the knock (somebody is in it or was just
 * then, or it keeps names missing there) are all names made old at once, by a second knock: before
 * it goes, since until the kernel is told of the end it would find the folder by the name that it
 * has, and ask us for what is left by number.
 *
 * A call that was on its way in may still name a folder that has gone, by its number. So it stays a
 * ghost as long as the kernel holds it: whoever makes something in it brings it back. Meanwhile the
 * kernel may not remember that its name is missing.
 */
#include "dir_invalidate.h"

#include "file.h"
#include "folder.h"
#include "notify.h"
#include "pin.h"
#include "name_events.h"
#include "chunking.h"

#include <string.h>

/* from the knock on; and on kernels that keep names, so much longer */
#define KNOCK_NS 100000000ull
#define KNOCKS 3 /* with time in between where somebody looks; then so many at once: */
#define KNOCKS_MOST 20
#define LOOKS 64 /* at knocks under one hold of the lock */

/* A folder that is about to go; it need not be in memory. */
struct knock {
	struct kvc_list link; /* in k->drops->knocks */
	uint64_t ino;
	uint64_t use_ns;    /* the chunk's last use as of then */
	uint64_t at_ns, nr; /* when, and its notice; 0: somebody looked since */
	uint64_t looked_ns;
	uint64_t n; /* how often since that use; all: the second time, by all names */
	bool all;
	/* what goes with the folder, of this tier (-1: of the files) */
	uint64_t bytes;
	int tier;
};

struct kvc_dropped_dir {
	struct kvc_list link; /* in k->drops->ghosts */
	struct kvc_node *n;
	char name[256];
};

static struct kvc_list *knock_bucket(struct kvc *k, uint64_t ino)
{
	return &k->drops->probes[ino % KVC_DIR_PROBES];
}

static struct knock *knock_find(struct kvc *k, uint64_t ino)
{
	kvc_list_each(e, knock_bucket(k, ino)) {
		struct knock *x = kvc_of(e, struct knock, link);

		if (x->ino == ino)
			return x;
	}
	return NULL;
}

/* By a knock, after which nobody looked, the kernel was told to ask for all names. */
static bool asks_for(struct kvc *k, const struct kvc_node *folder)
{
	const struct knock *x = knock_find(k, folder->row.ino);

	return x && x->all && x->at_ns && x->looked_ns < x->at_ns;
}

static void tell_gone(struct kvc *k, const struct kvc_node *folder, const struct kvc_node *n)
{
	if (kvc_kernel_knows(folder) || kvc_kernel_knows(n))
		kvc_notify(k,
			   !kvc_kernel_knows(n)    ? KVC_TELL_PRUNE
			   : !S_ISDIR(n->row.mode) ? KVC_TELL_FILE
			   : asks_for(k, n)        ? KVC_TELL_PRUNE
						   : KVC_TELL_FOLDER,
			   kvc_kernel_knows(folder) ? folder->row.ino : 0,
			   kvc_kernel_knows(n) ? n->row.ino : 0);
}

/*
 * Takes these names off a node, or none: the folders come into memory, and memory is put by, before
 * the first goes.
 */
static int unname_these_both(struct kvc *k, struct kvc_node *n, const struct kvc_entries *e,
			     struct kvc_read_ahead *a)
{
	struct kvc_node *folder;
	size_t i;
	int err = kvc_catalog_spare(k->cat, e->n + KVC_SPARES);

	for (i = 0; i < e->n && !err; i++) {
		err = kvc_read_ahead_node_both(k, a, e->v[i].parent, &folder);
		err = err == -ENOENT ? 0 : err;
	}
	while (i-- > 0) {
		folder = kvc_node_find_locked(k, e->v[i].parent);
		err = err ?: kvc_name_del(k->cat, e->v[i].parent, e->v[i].name);
		if (!err)
			kvc_name_events_tell_both(k, KVC_EVENT_RING_dropped, n, e->v[i].parent,
						  e->v[i].name);
		if (!err && folder) {
			tell_gone(k, folder, n);
			kvc_touch_folder_locked(k, folder, S_ISDIR(n->row.mode) ? -1 : 0);
		}
		if (folder)
			kvc_node_settle_locked(k, folder);
	}
	return err;
}

int kvc_dir_drop_name_both(struct kvc *k, uint64_t parent, const char *name)
{
	struct kvc_entry one = { .parent = parent };
	struct kvc_entries e = { .v = &one, .n = 1 };
	struct kvc_node *n;
	int err;

	if (!k->drops->ndetached)
		return 0;
	if ((err = kvc_name_get(k->cat, parent, name, &one.ino, &one.kind)))
		return err == -ENOENT ? 0 : err;
	n = kvc_node_find_locked(k, one.ino); /* all files of a chunk that is cut are in memory */
	if (!n || !kvc_node_cut(n))
		return 0;
	snprintf(one.name, sizeof one.name, "%s", name);
	return unname_these_both(k, n, &e, NULL);
}

int kvc_dir_drop_names_in_both(struct kvc *k, struct kvc_node *folder)
{
	struct kvc_entries e = { 0 };
	uint64_t after = 0;
	int more = 1, err = 0;

	folder->refs++;
	while (more == 1 && !err && k->drops->ndetached) {
		more = kvc_folder_entries_some_both(k, folder->row.ino, &after, &e);
		err = more < 0 ? more : 0;
		for (size_t i = 0; i < e.n && !err; i++) {
			const struct kvc_node *n = kvc_node_find_locked(k, e.v[i].ino);

			if (!n || !kvc_node_cut(n))
				more = 0; /* the folder is not empty */
			else
				err = kvc_dir_drop_name_both(k, folder->row.ino, e.v[i].name);
		}
		kvc_pause_both(k);
	}
	folder->refs--;
	kvc_node_settle_locked(k, folder);
	free(e.v);
	return err;
}

/* Takes every name off a node, or none. */
static int unname_both(struct kvc *k, struct kvc_node *n, struct kvc_read_ahead *a)
{
	struct kvc_entries e = { 0 };
	int err = kvc_read_ahead_entries_of_both(k, a, n->row.ino, &e)
			  ?: unname_these_both(k, n, &e, a);

	free(e.v);
	return err;
}

void kvc_dir_dropped_free_locked(struct kvc_node *folder)
{
	if (!folder->dropped_dir)
		return;
	kvc_list_del(&folder->dropped_dir->link);
	free(folder->dropped_dir);
	folder->dropped_dir = NULL;
}

static struct kvc_list *bucket(struct kvc *k, uint64_t parent, const char *name)
{
	return &k->drops->dropped[(kvc_name_hash(name) ^ parent) % KVC_DIR_DROPPED];
}

static void ghost_new_locked(struct kvc *k, struct kvc_node *folder, const char *name)
{
	struct kvc_dropped_dir *g = k->started && folder->nlookup && !folder->dropped_dir
					    ? malloc(sizeof *g)
					    : NULL;

	if (!g)
		/* nobody can know it; or no memory, and then a create in that very moment fails */
		return;
	g->n = folder;
	snprintf(g->name, sizeof g->name, "%s", name);
	kvc_list_add_tail(bucket(k, folder->row.parent, name), &g->link);
	folder->dropped_dir = g;
}

struct kvc_node *kvc_dir_dropped_find_locked(struct kvc *k, uint64_t parent, const char *name)
{
	kvc_list_each(e, bucket(k, parent, name)) {
		struct kvc_dropped_dir *g = kvc_of(e, struct kvc_dropped_dir, link);

		if (g->n->row.parent == parent && !strcmp(g->name, name))
			return g->n;
	}
	return NULL;
}

int kvc_dir_dropped_revive_both(struct kvc *k, struct kvc_node **folder)
{
	struct kvc_node *n = *folder, *up;
	uint64_t other;
	uint32_t kind;
	int err;

	if (!n->dropped_dir)
		return -ENOENT;
	if ((err = kvc_node_get_both(k, n->row.parent, &up)))
		return err;
	if (up->lost)
		return -ENOENT;
	up->refs++;
	err = kvc_dir_drop_name_both(k, up->row.ino, n->dropped_dir->name);
	up->refs--;
	err = err ?: kvc_name_get(k->cat, up->row.ino, n->dropped_dir->name, &other, &kind);
	if (!err) /* made again meanwhile */
		return S_ISDIR(kind) ? kvc_node_get_both(k, other, folder) : -ENOENT;
	if (err == -ENOENT)
		err = kvc_name_put(k->cat, up->row.ino, n->dropped_dir->name, n->row.ino, S_IFDIR);
	if (err)
		return err;
	n->lost = false;
	n->row.nlink = 2;
	kvc_node_dirty_locked(k, n);
	kvc_touch_folder_locked(k, up, 1);
	kvc_notify(k, KVC_TELL_NAME, up->row.ino, n->row.ino);
	kvc_dir_dropped_free_locked(n);
	return 0;
}

static void knock_free(struct knock *x)
{
	kvc_list_del(&x->link);
	free(x);
}

void kvc_dir_probe_file_locked(struct kvc *k, const struct kvc_node *n)
{
	if (kvc_kernel_knows(n))
		kvc_notify(k, KVC_TELL_PRUNE, 0, n->row.ino);
}

/* Was the kernel told, and who uses the folder had the time to come? */
static bool knocked_long_ago(struct kvc *k, const struct knock *x, uint64_t now)
{
	return kvc_notify_delivered(k, x->nr) && now - x->at_ns >= KNOCK_NS + k->ev.kept_ns;
}

/*
 * Somebody has just looked at it, and is given the time to use it. Who looks again and again gets
 * no more time, but it still is not taken away under his eyes: between a mkdir that says EEXIST and
 * a look at what is there.
 */
static bool waits_locked(const struct knock *x, uint64_t now)
{
	return x->n < KNOCKS && now - x->looked_ns < KVC_YOUNG_NS;
}

int kvc_dir_probe_locked(struct kvc *k, uint64_t folder, uint64_t last_ns, int tier, uint64_t bytes)
{
	struct knock *x = knock_find(k, folder);

	if (!x) {
		if (!(x = calloc(1, sizeof *x)))
			return -ENOMEM;
		x->ino = folder;
		kvc_list_add_tail(knock_bucket(k, folder), &x->link);
	}
	x->use_ns = last_ns;
	x->tier = tier;
	x->bytes = bytes;
	x->all = x->at_ns && knocked_long_ago(k, x, kvc_mono_ns());
	x->nr = kvc_notify(k, x->all ? KVC_TELL_KNOCK_ALL : KVC_TELL_KNOCK, 0, folder);
	x->at_ns = x->nr ? kvc_mono_ns() : 0;
	if (!x->all) {
		x->n++;
		kvc_count(&k->stats, knocks);
	}
	return x->nr ? -EAGAIN : -ENOMEM;
}

bool kvc_dir_probed_locked(struct kvc *k, uint64_t folder, uint64_t last_ns, int tier,
			   uint64_t *bytes)
{
	const struct knock *x = knock_find(k, folder);
	uint64_t now = kvc_mono_ns();

	if (!x || !k->started || k->stopping || x->use_ns != last_ns || x->tier != tier || !x->n)
		return false;
	*bytes = x->bytes;
	return x->at_ns ? !knocked_long_ago(k, x, now) : waits_locked(x, now);
}

void kvc_dir_forgotten_locked(struct kvc *k, uint64_t folder)
{
	k->drops->forgotten_ns[folder % KVC_DIR_FORGOTTEN] = kvc_mono_ns();
}

/* Or another one of the same place was: then it is knocked at in vain. */
static bool forgotten_lately(const struct kvc *k, uint64_t folder, uint64_t now)
{
	uint64_t then = k->drops->forgotten_ns[folder % KVC_DIR_FORGOTTEN];

	return then && now - then < KNOCK_NS + k->ev.kept_ns;
}

int kvc_dir_may_drop_locked(struct kvc *k, struct kvc_node *folder, uint64_t last_ns)
{
	struct knock *x = knock_find(k, folder->row.ino);
	uint64_t now = kvc_mono_ns();

	if (!k->started || k->stopping)
		return 0; /* nobody asks us any more */
	if (!x)
		/* who wants it has to ask us first, where the kernel does not know it */
		return kvc_kernel_knows(folder) || forgotten_lately(k, folder->row.ino, now);
	if (x->use_ns != last_ns) {
		x->use_ns = last_ns;
		x->at_ns = x->n = 0;
	}
	if (!x->at_ns && waits_locked(x, now))
		return -EAGAIN;
	if (!x->at_ns)
		return 1;
	if (!knocked_long_ago(k, x, now))
		return -EAGAIN;
	return k->ev.holds_names && kvc_kernel_knows(folder) && !x->all;
}

void kvc_dir_looked_up_locked(struct kvc *k, uint64_t folder)
{
	struct knock *x = knock_find(k, folder);

	if (!x)
		return;
	x->looked_ns = kvc_mono_ns();
	if (x->n < KNOCKS_MOST)
		x->at_ns = 0;
}

void kvc_dir_probes_free_locked(struct kvc *k, uint64_t older_ns)
{
	uint64_t now = kvc_mono_ns();
	unsigned looks = 0;

	for (size_t i = 0; i < KVC_DIR_PROBES; i++) {
		kvc_list_each_safe(e, &k->drops->probes[i]) {
			struct knock *x = kvc_of(e, struct knock, link);
			uint64_t then = kvc_max(x->at_ns, x->looked_ns);

			if (now - kvc_min(then, now) >= older_ns)
				knock_free(x);
			looks++;
		}
		if (looks >= LOOKS && older_ns) {
			kvc_pause_locked(k);
			looks = 0;
		}
	}
}

int kvc_dir_unname_both(struct kvc *k, struct kvc_node *folder)
{
	struct kvc_entries e = { 0 };
	struct knock *x;
	int err = kvc_folder_entries_of_both(k, folder->row.ino, &e)
			  ?: unname_these_both(k, folder, &e, NULL);

	if (!err) {
		kvc_row_del(k->cat, folder->row.ino, &folder->paid);
		folder->row.nlink = 0;
		kvc_file_destroy_locked(k, folder);
		if ((x = knock_find(k, folder->row.ino)))
			knock_free(x);
		if (e.n)
			ghost_new_locked(k, folder, e.v[0].name);
	}
	free(e.v);
	return err;
}

void kvc_dir_drop_folder_both(struct kvc *k, struct kvc_node *folder)
{
	if (kvc_chunking_whole_both(k, folder) == 1 &&
	    kvc_folder_empty_both(k, folder->row.ino) == 1)
		kvc_dir_unname_both(k, folder);
	kvc_node_settle_locked(k, folder);
}

/* It has no name any more. */
static void unnamed_gone_both(struct kvc *k, struct kvc_node *n)
{
	kvc_row_del(k->cat, n->row.ino, &n->paid);
	if (n->row.chunk == n->row.ino)
		kvc_pin_forget_both(k, n->row.ino);
	kvc_file_destroy_locked(k, n);
	n->row.nlink = 0;
	n->dropped = true;
	kvc_count(&k->stats, drops);
	kvc_node_settle_locked(k, n);
}

int kvc_dir_drop_file_both(struct kvc *k, struct kvc_node *n, struct kvc_read_ahead *a)
{
	int err = unname_both(k, n, a);

	if (!err)
		unnamed_gone_both(k, n);
	return err;
}

int kvc_dir_drop_linked_both(struct kvc *k, struct kvc_node *n, struct kvc_name_at *at,
			     struct kvc_read_ahead *a)
{
	struct kvc_entries e = { 0 };
	int more = kvc_folder_entries_of_some_both(k, n->row.ino, at, &e), err;

	err = more < 0 ? more : unname_these_both(k, n, &e, a);
	free(e.v);
	if (!err && !more)
		unnamed_gone_both(k, n);
	return err ?: more;
}
