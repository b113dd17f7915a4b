/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Removes names of files, and of folders that are one chunk (chunking.c; a model with settings
 * keeps its folder), and makes the kernel forget the names that it has cached. chunk_drop.c has the
 * phases of a drop.
 *
 * The kernel caches names and answers from them without a request: a client could find a folder and
 * then none of its files. So a folder is probed first: the kernel is told to forget it and its
 * files, which costs each current user one request. A client that looks the folder up within a
 * moment keeps it, whole. If no client does, no client uses it, and it is dropped in one step.
 * Repeated lookups without any other access do not keep it forever. If the kernel does not know a
 * folder, no client uses it, with one exception: the kernel may just have forgotten it for lack of
 * memory, between a mkdir that returned EEXIST and a lookup of its contents.
 *
 * So the kernel usually no longer knows a dropped folder, and needs no notice; all other cached
 * names stay valid. If a single file is dropped, the kernel is told by its number to ask for the
 * attributes again; the answer, -ESTALE, makes it look the name up again. If the kernel keeps a
 * folder in spite of the probe (it is or was a working directory, or has cached missing names), a
 * second probe invalidates all names at once. This is done before the drop: otherwise the kernel
 * could find the folder by its cached name until the notice arrives, and ask for its contents by
 * number.
 *
 * A call in progress may still use the number of a dropped folder. So the folder stays in a table
 * as long as the kernel references it, and a call that makes something in it revives it. Until then
 * the kernel must not cache its name as missing.
 */
#include "dir_invalidate.h"

#include "arrival.h"
#include "gone.h"
#include "file.h"
#include "folder.h"
#include "notify.h"
#include "pin.h"
#include "chunking.h"

#include <string.h>

/* delay after a probe; longer on kernels that keep names */
#define PROBE_NS 100000000ull
#define PROBES_DELAYED 3 /* from this probe on, a lookup no longer delays the next one */
#define PROBES_MOST 20   /* from this probe on, a lookup no longer cancels it */
#define AT_ONCE 64       /* probes examined under one hold of the lock */

/* A folder that is to be dropped; it may not be in memory. */
struct probe {
	struct kvc_list link; /* in k->drops->probes */
	uint64_t ino;
	uint64_t accessed_ns;       /* last access to the chunk at that time */
	uint64_t probed_ns, notice; /* time and notice of the probe; 0: looked up since */
	uint64_t lookup_ns;
	/* probes since that access; all_names: the second kind, which invalidates all names */
	uint64_t count;
	bool all_names;
	/* bytes that the drop frees in this tier; if tier is -1, the sizes of the files */
	uint64_t bytes;
	int tier;
};

struct kvc_dropped_dir {
	struct kvc_list link; /* in k->drops->dropped */
	struct kvc_node *n;
	char name[256];
};

static struct kvc_list *probe_bucket(struct kvc *k, uint64_t ino)
{
	return &k->drops->probes[ino % KVC_DIR_PROBES];
}

static struct probe *probe_find(struct kvc *k, uint64_t ino)
{
	kvc_list_each(e, probe_bucket(k, ino)) {
		struct probe *x = kvc_of(e, struct probe, link);

		if (x->ino == ino)
			return x;
	}
	return NULL;
}

/*
 * True if a probe told the kernel to ask for all names again, and no client has looked the folder
 * up since.
 */
static bool all_names_invalidated(struct kvc *k, const struct kvc_node *folder)
{
	const struct probe *x = probe_find(k, folder->row.ino);

	return x && x->all_names && x->probed_ns && x->lookup_ns < x->probed_ns;
}

static void notify_removed(struct kvc *k, const struct kvc_node *folder, const struct kvc_node *n)
{
	if (kvc_node_kernel_knows(folder) || kvc_node_kernel_knows(n))
		kvc_notify(k,
			   !kvc_node_kernel_knows(n)     ? KVC_NOTICE_PRUNE
			   : !S_ISDIR(n->row.mode)       ? KVC_NOTICE_FILE
			   : all_names_invalidated(k, n) ? KVC_NOTICE_PRUNE
							 : KVC_NOTICE_FOLDER,
			   kvc_node_kernel_knows(folder) ? folder->row.ino : 0,
			   kvc_node_kernel_knows(n) ? n->row.ino : 0);
}

/*
 * Removes these names of a node, or none: first loads the folders into memory and reserves memory.
 */
static int remove_names_both(struct kvc *k, struct kvc_node *n, const struct kvc_entries *e,
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
			kvc_notify_readers_both(k, KVC_EVENT_RING_dropped, n, e->v[i].parent,
						e->v[i].name);
		if (!err && k->drops->noted_why && (!k->drops->noted || k->drops->noted == n))
			kvc_gone_name_put_locked(k, e->v[i].parent, kvc_name_hash(e->v[i].name),
						 k->drops->noted_why - 1,
						 S_ISDIR(n->row.mode) ? n->row.ino : n->row.chunk);
		if (!err && folder) {
			notify_removed(k, folder, n);
			kvc_folder_touch_locked(k, folder, S_ISDIR(n->row.mode) ? -1 : 0);
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
	n = kvc_node_find_locked(k, one.ino); /* all files of a detached chunk are in memory */
	if (!n || !kvc_node_detached(n))
		return 0;
	snprintf(one.name, sizeof one.name, "%s", name);
	return remove_names_both(k, n, &e, NULL);
}

int kvc_dir_drop_names_in_both(struct kvc *k, struct kvc_node *folder)
{
	struct kvc_entries e = { 0 };
	uint64_t after = 0;
	int more = 1, err = 0;

	kvc_node_ref_locked(folder);
	while (more == 1 && !err && k->drops->ndetached) {
		more = kvc_folder_entries_some_both(k, folder->row.ino, &after, &e);
		err = more < 0 ? more : 0;
		for (size_t i = 0; i < e.n && !err; i++) {
			const struct kvc_node *n = kvc_node_find_locked(k, e.v[i].ino);

			if (!n || !kvc_node_detached(n))
				more = 0; /* the folder is not empty */
			else
				err = kvc_dir_drop_name_both(k, folder->row.ino, e.v[i].name);
		}
		kvc_pause_both(k);
	}
	kvc_node_unref_locked(folder);
	kvc_node_settle_locked(k, folder);
	free(e.v);
	return err;
}

/* Removes all names of a node, or none. */
static int remove_all_names_both(struct kvc *k, struct kvc_node *n, struct kvc_read_ahead *a)
{
	struct kvc_entries e = { 0 };
	int err = kvc_read_ahead_entries_of_both(k, a, n->row.ino, &e)
			  ?: remove_names_both(k, n, &e, a);

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

static struct kvc_list *dropped_bucket(struct kvc *k, uint64_t parent, uint64_t hash)
{
	return &k->drops->dropped[(hash ^ parent) % KVC_DIR_DROPPED];
}

static void dropped_dir_new_locked(struct kvc *k, struct kvc_node *folder, const char *name)
{
	struct kvc_dropped_dir *g = k->started && folder->refs.kernel && !folder->dropped_dir
					    ? malloc(sizeof *g)
					    : NULL;

	if (!g)
		/*
		 * the kernel does not know the folder; or out of memory, and then a call that is
		 * about to make something in the folder fails
		 */
		return;
	g->n = folder;
	snprintf(g->name, sizeof g->name, "%s", name);
	kvc_list_add_tail(dropped_bucket(k, folder->row.parent, kvc_name_hash(name)), &g->link);
	folder->dropped_dir = g;
}

struct kvc_node *kvc_dir_dropped_find_locked(struct kvc *k, uint64_t parent, const char *name,
					     uint64_t hash)
{
	kvc_list_each(e, dropped_bucket(k, parent, hash)) {
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
	if (up->commit.lost)
		return -ENOENT;
	kvc_node_ref_locked(up);
	err = kvc_dir_drop_name_both(k, up->row.ino, n->dropped_dir->name);
	kvc_node_unref_locked(up);
	err = err ?: kvc_name_get(k->cat, up->row.ino, n->dropped_dir->name, &other, &kind);
	if (!err) /* a new folder of this name was made */
		return S_ISDIR(kind) ? kvc_node_get_both(k, other, folder) : -ENOENT;
	if (err == -ENOENT)
		err = kvc_name_put(k->cat, up->row.ino, n->dropped_dir->name, n->row.ino, S_IFDIR);
	if (err)
		return err;
	kvc_node_set_lost_locked(n, false);
	n->row.nlink = 2;
	kvc_node_dirty_locked(k, n);
	kvc_folder_touch_locked(k, up, 1);
	kvc_notify(k, KVC_NOTICE_NAME, up->row.ino, n->row.ino);
	kvc_arrival_named_locked(k, up->row.ino, n->dropped_dir->name);
	kvc_dir_dropped_free_locked(n);
	return 0;
}

static void probe_free(struct probe *x)
{
	kvc_list_del(&x->link);
	free(x);
}

void kvc_dir_probe_file_locked(struct kvc *k, const struct kvc_node *n)
{
	if (kvc_node_kernel_knows(n))
		kvc_notify(k, KVC_NOTICE_PRUNE, 0, n->row.ino);
}

/* Has the kernel received the probe, and have users of the folder had time to look it up? */
static bool probe_settled(struct kvc *k, const struct probe *x, uint64_t now)
{
	return kvc_notify_delivered(k, x->notice) &&
	       now - x->probed_ns >= PROBE_NS + k->ev.name_timeout_ns;
}

/*
 * True if a client has just looked the folder up, and gets time to use it. Repeated lookups get no
 * more time, but the folder is not dropped between a mkdir that returns EEXIST and a lookup of its
 * contents either.
 */
static bool probe_delays_locked(const struct probe *x, uint64_t now)
{
	return x->count < PROBES_DELAYED && now - x->lookup_ns < KVC_YOUNG_NS;
}

int kvc_dir_probe_locked(struct kvc *k, uint64_t folder, uint64_t last_ns, int tier, uint64_t bytes)
{
	struct probe *x = probe_find(k, folder);

	if (!x) {
		if (!(x = calloc(1, sizeof *x)))
			return -ENOMEM;
		x->ino = folder;
		kvc_list_add_tail(probe_bucket(k, folder), &x->link);
	}
	x->accessed_ns = last_ns;
	x->tier = tier;
	x->bytes = bytes;
	x->all_names = x->probed_ns && probe_settled(k, x, kvc_mono_ns());
	x->notice = kvc_notify(k, x->all_names ? KVC_NOTICE_PROBE_ALL : KVC_NOTICE_PROBE, 0,
			       folder);
	x->probed_ns = x->notice ? kvc_mono_ns() : 0;
	if (!x->all_names) {
		x->count++;
		kvc_count(&k->stats, knocks);
	}
	return x->notice ? -EAGAIN : -ENOMEM;
}

bool kvc_dir_probed_locked(struct kvc *k, uint64_t folder, uint64_t last_ns, int tier,
			   uint64_t *bytes)
{
	const struct probe *x = probe_find(k, folder);
	uint64_t now = kvc_mono_ns();

	if (!x || !k->started || k->stopping || x->accessed_ns != last_ns || x->tier != tier ||
	    !x->count)
		return false;
	*bytes = x->bytes;
	return x->probed_ns ? !probe_settled(k, x, now) : probe_delays_locked(x, now);
}

void kvc_dir_forgotten_locked(struct kvc *k, uint64_t folder)
{
	k->drops->forgotten_ns[folder % KVC_DIR_FORGOTTEN] = kvc_mono_ns();
}

/* May return true for a folder with the same slot, which is then probed needlessly. */
static bool forgotten_recently(const struct kvc *k, uint64_t folder, uint64_t now)
{
	uint64_t then = k->drops->forgotten_ns[folder % KVC_DIR_FORGOTTEN];

	return then && now - then < PROBE_NS + k->ev.name_timeout_ns;
}

int kvc_dir_may_drop_locked(struct kvc *k, struct kvc_node *folder, uint64_t last_ns)
{
	struct probe *x = probe_find(k, folder->row.ino);
	uint64_t now = kvc_mono_ns();

	if (!k->started || k->stopping)
		return 0; /* the session has ended */
	if (!x)
		/* if the kernel does not know it, a client has to look it up first */
		return kvc_node_kernel_knows(folder) || forgotten_recently(k, folder->row.ino, now);
	if (x->accessed_ns != last_ns) {
		x->accessed_ns = last_ns;
		x->probed_ns = x->count = 0;
	}
	if (!x->probed_ns && probe_delays_locked(x, now))
		return -EAGAIN;
	if (!x->probed_ns)
		return 1;
	if (!probe_settled(k, x, now))
		return -EAGAIN;
	return k->ev.keeps_used_names && kvc_node_kernel_knows(folder) && !x->all_names;
}

void kvc_dir_looked_up_locked(struct kvc *k, uint64_t folder)
{
	struct probe *x = probe_find(k, folder);

	if (!x)
		return;
	x->lookup_ns = kvc_mono_ns();
	if (x->count < PROBES_MOST)
		x->probed_ns = 0;
}

bool kvc_dir_is_probed(struct kvc *k, uint64_t folder)
{
	return probe_find(k, folder) != NULL;
}

void kvc_dir_probes_free_locked(struct kvc *k, uint64_t older_ns)
{
	uint64_t now = kvc_mono_ns();
	unsigned looks = 0;

	for (size_t i = 0; i < KVC_DIR_PROBES; i++) {
		kvc_list_each_safe(e, &k->drops->probes[i]) {
			struct probe *x = kvc_of(e, struct probe, link);
			uint64_t then = kvc_max(x->probed_ns, x->lookup_ns);

			if (now - kvc_min(then, now) >= older_ns)
				probe_free(x);
			looks++;
		}
		if (looks >= AT_ONCE && older_ns) {
			kvc_pause_locked(k);
			looks = 0;
		}
	}
}

int kvc_dir_unname_both(struct kvc *k, struct kvc_node *folder)
{
	struct kvc_entries e = { 0 };
	struct probe *x;
	int err = kvc_folder_entries_of_both(k, folder->row.ino, &e)
			  ?: remove_names_both(k, folder, &e, NULL);

	if (!err) {
		kvc_row_del(k->cat, folder->row.ino, &folder->paid);
		folder->row.nlink = 0;
		kvc_file_destroy_locked(k, folder);
		if ((x = probe_find(k, folder->row.ino)))
			probe_free(x);
		if (e.n)
			dropped_dir_new_locked(k, folder, e.v[0].name);
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

/* Destroys a file that has no name any more. */
static void destroy_nameless_both(struct kvc *k, struct kvc_node *n)
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
	int err = remove_all_names_both(k, n, a);

	if (!err)
		destroy_nameless_both(k, n);
	return err;
}

int kvc_dir_drop_linked_both(struct kvc *k, struct kvc_node *n, struct kvc_name_at *at,
			     struct kvc_read_ahead *a)
{
	struct kvc_entries e = { 0 };
	int more = kvc_folder_entries_of_some_both(k, n->row.ino, at, &e), err;

	err = more < 0 ? more : remove_names_both(k, n, &e, a);
	free(e.v);
	if (!err && !more)
		destroy_nameless_both(k, n);
	return err ?: more;
}
