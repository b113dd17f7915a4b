/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What is one chunk, by behaviour and at any depth.
 *
 * A folder is one chunk while its files come in one burst, soon after it was made: each within
 * GAP_NS of the one before, all within SPAN_NS, not more than KVC_UNIT_FILES of them nor more bytes
 * than a quarter of the pool. Then its files are dropped together, and the folder with them, since
 * an engine takes the folder for a hit. The first file that comes late or is one too many, or a
 * folder made inside, shows that it is a container (row.container, for ever): its files are chunks
 * of their own, the cache never removes it, and those that came before are split off in the
 * background (regroup).
 *
 * Engines that spread files over buckets make those in one go, and never again. So folders that
 * one thread makes one after the other in the same place, RUN of them without a file in any, are
 * containers from the start, and so are the next ones. Others make them as they need them and never
 * look again, in two levels named by a few hex digits each: once TREE of the upper ones are there,
 * all folders of the lower level are containers (KVC_BUCKETS of the folder above both).
 *
 * In a container a file NAME.EXT that comes after NAME is its companion (an engine's metadata
 * beside its data): both are one chunk, NAME's, so that what only one of them is read for stays
 * with the other.
 *
 * user.kvcachefs.unit on the folder or the nearest one above that has it, then layers of the
 * model, which says that its folders are chunks, then unit= of the mount, go before all that. What
 * is set on a model (quota, policy, codec, shared, ttl, layers) makes its folder a container.
 *
 * What a folder has seen is in its node while that is in memory; else its names are counted and its
 * times tell how long ago it was made and last changed. Files taken in from a shared tier come in
 * no order of time, so only their number and their bytes tell.
 */
#include "chunking.h"

#include "account.h"
#include "commit_batch.h"
#include "folder.h"
#include "model_layers.h"
#include "log.h"
#include "membership.h"
#include "model.h"
#include "node.h"
#include "pin.h"
#include "tier_queue.h"

#include <string.h>

#define GAP_NS 5000000000ull
#define SPAN_NS 60000000000ull
#define RUN 16
#define RUNS 64
#define TREE 3
#define TREES 16
#define DIGITS 4
#define AGAIN_NS 1000000000ull
#define AGAIN_MOST 6
#define BATCH 32  /* names of a folder that is regrouped, read under one hold of the locks */
#define AT_ONCE 8 /* files of them that are, since each takes a handful of rows */

/* Folders that a thread made one after the other in the same place. */
struct kvc_run {
	uint64_t parent;
	uint32_t pid;
	bool told; /* those in it are known as containers */
	unsigned n;
	uint64_t ino[RUN]; /* the last of them */
};

/* Folders named by a few hex digits, with such folders in them. */
struct kvc_tree {
	uint64_t top;
	unsigned n;
	uint64_t ino[TREE];
};

static struct kvc_run *run_of(struct kvc *k, uint64_t parent)
{
	if (!k->chunking->runs)
		/* without it no bucket is known early */
		k->chunking->runs = calloc(RUNS, sizeof *k->chunking->runs);
	return k->chunking->runs ? &k->chunking->runs[parent % RUNS] : NULL;
}

static struct kvc_tree *tree_of(struct kvc *k, uint64_t top)
{
	if (!k->chunking->trees)
		k->chunking->trees = calloc(TREES, sizeof *k->chunking->trees);
	return k->chunking->trees ? &k->chunking->trees[top % TREES] : NULL;
}

static const char *const names[] = { "dir", "file", NULL }; /* enum kvc_unit */

const char *kvc_chunking_text(int unit)
{
	return names[unit];
}

int kvc_chunking_get_both(struct kvc *k, struct kvc_node *folder)
{
	char text[32] = "";
	size_t len = sizeof text - 1;

	if (!folder->unit_set) {
		int err = kvc_xattr_get(k->cat, folder->row.ino, KVC_UNIT_ATTR, text, &len);

		if (err && err != -ENOENT)
			return err;
		folder->unit_set = 1;
		for (int i = 0; !err && names[i]; i++)
			if (!strcmp(names[i], text))
				folder->unit_set = (int8_t)(i + 2);
	}
	return folder->unit_set == 1 ? KVC_UNIT_NONE : folder->unit_set - 2;
}

/* A model that says how many files a chunk has says that its folders are chunks: 1. */
static int layered_both(struct kvc *k, const struct kvc_node *folder)
{
	uint64_t model;
	int err;

	if (!kvc_layers_any(k))
		return 0;
	err = kvc_node_model_both(k, folder->row.ino, &model);
	return err ?: kvc_layers_of_locked(k, model) != 0;
}

/* What is asked for the folder, by an attribute on it or above, by layers, or by unit=. */
static int asked_both(struct kvc *k, struct kvc_node *folder)
{
	int unit = kvc_chunking_get_both(k, folder), err;

	for (uint64_t up = folder->row.parent, depth = 0; unit == KVC_UNIT_NONE && depth < 4096;
	     depth++) {
		struct kvc_node *n;

		if ((err = kvc_node_get_both(k, up, &n)))
			return err;
		unit = kvc_chunking_get_both(k, n);
		if (up == KVC_ROOT)
			break;
		up = n->row.parent;
		kvc_node_settle_locked(k, n);
	}
	if (unit == KVC_UNIT_NONE && (err = layered_both(k, folder)))
		return err < 0 ? err : KVC_UNIT_DIR;
	return unit == KVC_UNIT_NONE && k->opt.unit ? (int)k->opt.unit - 1 : unit;
}

/*
 * What the catalog says of the folder: whether something is set on it as on a model, and its unit.
 */
static int told_both(struct kvc *k, struct kvc_node *folder, bool *set, int *unit)
{
	int is = folder->row.ino == KVC_ROOT ? 1 : kvc_model_set_both(k, folder);

	if (is < 0)
		return is;
	*set = is;
	*unit = folder->row.ino == KVC_ROOT ? KVC_UNIT_FILE : asked_both(k, folder);
	return *unit < 0 && *unit != KVC_UNIT_NONE ? *unit : 0;
}

static bool whole(const struct kvc_node *folder, bool set, int unit)
{
	if (set)
		return false;
	return unit == KVC_UNIT_NONE ? !(folder->row.container & KVC_CONTAINER)
				     : unit == KVC_UNIT_DIR;
}

int kvc_chunking_whole_both(struct kvc *k, struct kvc_node *folder)
{
	bool set;
	int unit, err = told_both(k, folder, &set, &unit);

	return err ?: whole(folder, set, unit);
}

static int count_name(void *arg, const struct kvc_name *n)
{
	unsigned *files = arg;

	(void)n;
	return ++*files > KVC_UNIT_FILES;
}

static uint64_t ago(uint64_t mono, uint64_t wall, uint64_t then)
{
	uint64_t age = (int64_t)then < (int64_t)wall ? wall - then : 0;

	return mono > age ? mono - age : 1;
}

/* Fills in what the node does not know because it was not in memory. */
static int recall_both(struct kvc *k, struct kvc_node *folder)
{
	uint64_t mono = kvc_mono_ns(), wall = kvc_now_ns();
	unsigned files = 0;
	int err;

	if (folder->made_ns)
		return 0;
	err = kvc_name_each(k->cat, folder->row.ino, 0, count_name, &files);
	if (err < 0)
		return err;
	folder->made_ns = ago(mono, wall, folder->row.btime_ns);
	folder->filled_ns = ago(mono, wall, kvc_later(folder->row.btime_ns, folder->row.mtime_ns));
	folder->files = files;
	return 0;
}

int kvc_chunking_known_both(struct kvc *k, struct kvc_node *folder)
{
	bool set;
	int unit;

	if (folder->row.ino == KVC_ROOT)
		return 0;
	return recall_both(k, folder) ?: told_both(k, folder, &set, &unit);
}

bool kvc_chunking_filled_both(struct kvc *k, struct kvc_node *folder)
{
	return !recall_both(k, folder) && folder->files;
}

void kvc_chunking_made_locked(struct kvc_node *folder)
{
	folder->made_ns = folder->filled_ns = kvc_mono_ns();
	folder->unit_set = 1; /* nobody can have set any */
}

static bool bursting(const struct kvc *k, const struct kvc_node *folder, bool here)
{
	uint64_t now = kvc_mono_ns();

	if (folder->files >= KVC_UNIT_FILES || folder->fill_bytes > k->pool.bytes / 4)
		return false;
	return !here || (now - folder->filled_ns <= GAP_NS && now - folder->made_ns <= SPAN_NS);
}

static void container_locked(struct kvc *k, struct kvc_node *folder)
{
	if ((folder->row.container & KVC_CONTAINER) || folder->row.ino == KVC_ROOT)
		return;
	folder->row.container |= KVC_CONTAINER;
	kvc_node_dirty_locked(k, folder);
	if (folder->files)
		kvc_chunking_regroup_locked(k, folder);
}

/*
 * The file in this folder whose companion n is by its name, or 0 in *found. Its chunk must be its
 * own, or about to be; and its owner n's, for who owns a file may drop its whole chunk.
 */
static int head_both(struct kvc *k, struct kvc_node *folder, struct kvc_node *n, const char *name,
		     uint64_t *found)
{
	const char *dot = strrchr(name, '.');
	char base[256];
	struct kvc_node *head, *other;
	uint64_t ino = 0;
	uint32_t kind = 0;
	int err;

	*found = 0;
	if (!dot || dot == name || strstr(name, ".tmp"))
		return 0;
	snprintf(base, sizeof base, "%.*s", (int)(dot - name), name);
	err = kvc_name_get(k->cat, folder->row.ino, base, &ino, &kind);
	if (!err && (!S_ISREG(kind) || ino == n->row.ino))
		return 0;
	err = err ?: kvc_node_get_both(k, ino, &head);
	if (err)
		return err == -ENOENT ? 0 : err;
	bool own = head->row.uid == n->row.uid &&
		   (head->row.chunk == ino || head->row.chunk == folder->row.ino);

	if (own && head->row.container && head->row.container != n->row.ino) {
		err = kvc_node_get_both(k, head->row.container, &other);
		own = err == -ENOENT; /* else it has one */
		err = own ? 0 : err;
		if (!own && !err)
			kvc_node_settle_locked(k, other);
	}
	if (own) {
		head->row.container = n->row.ino;
		kvc_node_dirty_locked(k, head);
		*found = ino;
	}
	kvc_node_settle_locked(k, head);
	return err;
}

int kvc_chunking_join_both(struct kvc *k, struct kvc_node *folder, struct kvc_node *n,
			   const char *name, bool here, uint64_t *chunk)
{
	struct kvc_run *run = run_of(k, folder->row.parent);
	int err, unit;
	bool set;

	*chunk = 0;
	if (folder->row.ino == KVC_ROOT)
		return 0;
	if ((err = recall_both(k, folder) ?: told_both(k, folder, &set, &unit)))
		return err;
	for (unsigned i = 0; run && run->parent == folder->row.parent && i < kvc_min(run->n, RUN);
	     i++)
		if (run->ino[i] == folder->row.ino)
			run->n = 0; /* it is no row of empty folders any more */
	if (unit == KVC_UNIT_NONE && !(folder->row.container & KVC_CONTAINER) &&
	    !bursting(k, folder, here))
		container_locked(k, folder);
	folder->files++;
	folder->filled_ns = kvc_mono_ns();
	if (whole(folder, set, unit))
		*chunk = folder->row.ino;
	else if (n && name)
		err = head_both(k, folder, n, name, chunk);
	return err;
}

void kvc_chunking_folder_arrived_both(struct kvc *k, struct kvc_node *parent)
{
	if (!(parent->row.container & KVC_CONTAINER) && !recall_both(k, parent))
		container_locked(k, parent);
}

static bool few_digits(const char *name)
{
	size_t n = strspn(name, "0123456789abcdef");

	return n && n <= DIGITS && !name[n];
}

static int is_few_digits(void *arg, const struct kvc_name *n)
{
	(void)arg;
	return few_digits(n->name);
}

/* The next few folders in this one are buckets. 1: there are more names; 0; or an error. */
static int buckets_some_both(struct kvc *k, uint64_t ino, uint64_t *after)
{
	struct kvc_entries e = { 0 };
	struct kvc_node *n;
	int more = kvc_folder_entries_some_both(k, ino, after, &e);

	for (size_t i = 0; i < e.n && more >= 0; i++)
		if (S_ISDIR(e.v[i].kind) && !kvc_node_get_both(k, e.v[i].ino, &n)) {
			container_locked(k, n);
			kvc_node_settle_locked(k, n);
		}
	free(e.v);
	return more;
}

static void buckets_run(struct kvc *k, struct kvc_job *j)
{
	uint64_t after = 0;
	int more = 1;

	while (more == 1 && !kvc_stopping(k)) {
		kvc_lock_both(k);
		more = buckets_some_both(k, j->node->row.ino, &after);
		kvc_unlock_both(k);
		kvc_lock_pause(&k->lock);
		kvc_catalog_pause(k->cat);
	}
}

/*
 * All folders in this one are buckets: the first few at once, the others by a job, since a user may
 * have made a million names there. If that has no memory, or the daemon is killed, their files show
 * what they are.
 */
static void buckets_both(struct kvc *k, uint64_t ino)
{
	uint64_t after = 0;
	struct kvc_node *n;

	if (buckets_some_both(k, ino, &after) != 1 || kvc_node_get_both(k, ino, &n))
		return;
	kvc_tier_job_add_locked(k, KVC_P_URGENT, buckets_run, n, KVC_COMMON, 0, NULL);
	kvc_node_settle_locked(k, n);
}

/* A folder was made in one that is named by a few digits, as it is itself. */
static void branch_both(struct kvc *k, struct kvc_node *top, struct kvc_node *parent)
{
	struct kvc_tree *t = tree_of(k, top->row.ino);

	if (!t)
		return;
	if (t->top != top->row.ino)
		*t = (struct kvc_tree){ .top = top->row.ino };
	for (unsigned i = 0; i < t->n; i++)
		if (t->ino[i] == parent->row.ino)
			return;
	t->ino[t->n++] = parent->row.ino;
	if (t->n < TREE)
		return;
	top->row.container |= KVC_BUCKETS;
	kvc_node_dirty_locked(k, top);
	while (t->n)
		buckets_both(k, t->ino[--t->n]);
}

/* Is it the lower level of a tree of buckets? */
static void tree_both(struct kvc *k, struct kvc_node *parent, struct kvc_node *folder,
		      const char *name)
{
	struct kvc_node *top;

	if (parent->row.ino == KVC_ROOT || !few_digits(name) ||
	    kvc_node_get_both(k, parent->row.parent, &top))
		return;
	if (!(top->row.container & KVC_BUCKETS) &&
	    kvc_name_of(k->cat, parent->row.ino, is_few_digits, NULL) == 1)
		branch_both(k, top, parent);
	if (top->row.container & KVC_BUCKETS)
		container_locked(k, folder);
	kvc_node_settle_locked(k, top);
}

void kvc_chunking_folder_made_both(struct kvc *k, struct kvc_node *parent, struct kvc_node *folder,
				   const char *name, uint32_t pid)
{
	struct kvc_run *run = run_of(k, parent->row.ino);
	struct kvc_node *n;

	kvc_chunking_folder_arrived_both(k, parent);
	tree_both(k, parent, folder, name);
	if (!run)
		return;
	if (run->parent != parent->row.ino || run->pid != pid)
		*run = (struct kvc_run){ .parent = parent->row.ino, .pid = pid };
	run->told = run->told && run->n;
	run->ino[run->n++ % RUN] = folder->row.ino;
	if (run->n < RUN)
		return;
	container_locked(k, folder);
	for (unsigned i = 0; i < RUN && !run->told; i++)
		if (!kvc_node_get_both(k, run->ino[i], &n)) {
			if (S_ISDIR(n->row.mode))
				container_locked(k, n);
			kvc_node_settle_locked(k, n);
		}
	run->told = true;
}

/* The file belongs to another chunk from now on, and takes use and ttl of its old one along. */
static int rechunk_both(struct kvc *k, struct kvc_node *n, uint64_t chunk)
{
	struct kvc_chunk *c = n->chunk ? n->chunk : kvc_chunk_find_locked(k, n->row.chunk);
	struct kvc_chunk_row row = { 0 };
	bool has = kvc_has_segment(n), known;
	int err = 0;

	if (c)
		kvc_chunk_row(k, c, &row);
	else if ((err = kvc_chunk_get(k->cat, n->row.chunk, &row)) && err != -ENOENT)
		return err;
	known = c || !err;
	if ((err = kvc_membership_change_both(k, n, chunk, n->row.chunk == n->row.ino)))
		return err;
	kvc_node_dirty_locked(k, n);
	if (known && !n->chunk->use.created_ns) { /* a new one, of an old file */
		n->chunk->ttl_s = row.ttl_s;
		n->chunk->expires_ns = row.expires_ns;
	}
	kvc_chunk_take_access_locked(k, n->chunk, &row);
	kvc_membership_ordered_locked(k, n, known ? &row : NULL);
	if (has)
		kvc_chunk_add_locked(k, n);
	return 0;
}

int kvc_chunking_part_both(struct kvc *k, struct kvc_node *n)
{
	struct kvc_node *other;
	int err;

	if (!S_ISREG(n->row.mode) || !n->row.container)
		return 0;
	err = kvc_node_get_both(k, n->row.container, &other);
	if (!err) {
		if (other->row.chunk == n->row.ino &&
		    (err = rechunk_both(k, other, other->row.ino)))
			kvc_chunking_keeps_locked(k, other,
						  kvc_node_find_locked(k, other->row.parent));
		kvc_node_settle_locked(k, other);
	}
	n->row.container = 0;
	return err == -ENOENT ? 0 : err;
}

struct some {
	struct kvc_entry v[BATCH];
	uint64_t hash; /* of the last one */
	size_t n;
};

/* A batch ends between two hashes, so that none is passed over. */
static int take(void *arg, const struct kvc_name *name)
{
	struct some *s = arg;

	if (s->n >= BATCH / 2 && (name->hash != s->hash || s->n == BATCH))
		return 1;
	s->v[s->n].ino = name->ino;
	snprintf(s->v[s->n].name, sizeof s->v[s->n].name, "%s", name->name);
	s->v[s->n++].kind = name->kind;
	s->hash = name->hash;
	return 0;
}

static int regroup_one_both(struct kvc *k, struct kvc_node *folder, uint64_t model, bool in_whole,
			    const struct kvc_entry *e)
{
	struct kvc_node *n;
	uint64_t want = folder->row.ino;
	int err = kvc_node_get_both(k, e->ino, &n);

	if (err)
		return err == -ENOENT ? 0 : err;
	if (!in_whole) {
		err = head_both(k, folder, n, e->name, &want);
		want = want ?: n->row.ino;
	}
	if (!err && n->row.parent == folder->row.ino && n->state != KVC_GONE && !n->lost) {
		bool came = n->model != model; /* where the catalog could not say that it did */

		if (came)
			kvc_account_quota_move_locked(k, n, model);
		err = n->row.chunk != want ? rechunk_both(k, n, want)
		      : came               ? kvc_membership_moved_both(k, n)
					   : 0;
	}
	kvc_node_settle_locked(k, n);
	return err;
}

/*
 * Some of a folder's files join another chunk than they are in. Subfolders are added to *deeper
 * where they may follow. 1: there are more of them, 0: that were all, or an error. Where one keeps
 * the chunk that it had, that chunk stays, and *err says why.
 */
static int regroup_some_both(struct kvc *k, struct kvc_node *folder, uint64_t after, struct some *s,
			     struct kvc_stack *deeper, int *err)
{
	uint64_t model = 0;
	int is_whole = kvc_chunking_whole_both(k, folder), more, e;
	unsigned done = 0;

	s->n = 0;
	more = is_whole < 0 ? is_whole : kvc_node_model_both(k, folder->row.ino, &model);
	more = more ?: kvc_name_each(k->cat, folder->row.ino, after, take, s);
	folder->refs++; /* others are let in */
	for (size_t i = 0; i < s->n && more >= 0; i++) {
		if (S_ISREG(s->v[i].kind) && done++ == AT_ONCE) {
			kvc_pause_both(k);
			is_whole = kvc_chunking_whole_both(k, folder);
			e = is_whole < 0 ? is_whole
					 : kvc_node_model_both(k, folder->row.ino, &model);
			more = e ?: more;
			done = 1;
			if (e)
				break;
		}
		e = S_ISREG(s->v[i].kind)   ? regroup_one_both(k, folder, model, is_whole, &s->v[i])
		    : S_ISDIR(s->v[i].kind) ? kvc_stack_push(deeper, s->v[i].ino)
					    : 0;
		*err = e ?: *err;
	}
	folder->refs--;
	if (!more && !*err && !is_whole)
		kvc_chunk_forget_both(k, folder->row.ino);
	folder->splitting = more == 1;
	return more;
}

static int regroup_folder(struct kvc *k, uint64_t ino, struct kvc_stack *deeper)
{
	struct some s = { 0 };
	struct kvc_node *folder;
	int more = 1, err = 0;

	while (more == 1 && !kvc_stopping(k)) {
		kvc_commit_gate(k);
		kvc_lock_both(k);
		more = kvc_node_get_both(k, ino, &folder);
		if (!more) {
			more = regroup_some_both(k, folder, s.hash, &s, deeper, &err);
			kvc_node_settle_locked(k, folder);
		}
		kvc_unlock_both(k);
		kvc_lock_pause(&k->lock);
		kvc_catalog_pause(k->cat);
	}
	return more == -ENOENT ? 0 : more < 0 ? more : err; /* it may go meanwhile */
}

/* Where it meets an error it is tried again, later each time, and not for ever. */
static void regroup_run(struct kvc *k, struct kvc_job *j)
{
	struct kvc_stack deeper = { 0 };
	struct kvc_node *top = j->node;
	struct kvc_job *again;
	uint64_t ino;
	bool anew;
	int err, e;

	do {
		kvc_lock(k);
		top->regroup_again = false;
		ino = top->row.ino;
		kvc_unlock(k);
		deeper.n = 0;
		err = 0;
		do {
			e = regroup_folder(k, ino, &deeper);
			err = e ?: err;
		} while (kvc_stack_pop(&deeper, &ino) && !kvc_stopping(k));
		kvc_lock(k);
		anew = top->regroup_again && !k->stopping;
		top->regroup = top->splitting = anew;
		/* as a copy: an unmount does not wait for its time */
		if (err && !anew && j->tried < AGAIN_MOST &&
		    !kvc_tier_job_add_locked(k, KVC_P_SPILL, regroup_run, top, KVC_COMMON,
					     kvc_mono_ns() + (AGAIN_NS << j->tried), &again))
			again->tried = j->tried + 1;
		kvc_unlock(k);
	} while (anew);
	if (err && !j->tried)
		kvc_warn("files in and below inode %llx keep their old chunks: %s",
			 (unsigned long long)top->row.ino, strerror(-err));
	free(deeper.v);
}

void kvc_chunking_regroup_locked(struct kvc *k, struct kvc_node *folder)
{
	/* one job, however often it is asked for: it begins anew */
	folder->regroup_again = true;
	/* not as what the one thread takes that is kept for fsyncs (tier_queue.c) */
	if (!folder->regroup &&
	    !kvc_tier_job_add_locked(k, KVC_P_URGENT, regroup_run, folder, KVC_COMMON, 0, NULL))
		folder->regroup = folder->splitting = true;
}

void kvc_chunking_keeps_locked(struct kvc *k, const struct kvc_node *n, struct kvc_node *folder)
{
	kvc_warn("inode %llx keeps its old chunk", (unsigned long long)n->row.ino);
	if (folder && !folder->lost)
		kvc_chunking_regroup_locked(k, folder);
}

int kvc_chunking_set_both(struct kvc *k, struct kvc_node *folder, const char *text)
{
	int v = -1, err;

	for (int i = 0; text && names[i]; i++)
		if (!strcmp(names[i], text))
			v = i;
	if (text && v < 0)
		return -EINVAL;
	err = text ? kvc_xattr_set(k->cat, folder->row.ino, KVC_UNIT_ATTR, text, strlen(text))
		   : kvc_xattr_del(k->cat, folder->row.ino, KVC_UNIT_ATTR);
	folder->unit_set = err ? 0 : (int8_t)(v + 2);
	if (!err)
		kvc_chunking_regroup_locked(k, folder);
	return err;
}
