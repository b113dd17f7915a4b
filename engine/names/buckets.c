/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Recognizes the folders that engines make as buckets, and marks them as containers (chunking.c)
 * before their first file arrives.
 *
 * Some engines spread files over buckets that they make in one go. So if one thread makes RUN
 * folders in a row in the same place, with no file in any, these folders and the next ones are
 * buckets. Other engines make buckets on demand, in two levels that are named by a few hex digits
 * each: once TREE folders of the upper level exist, all folders of the lower level are buckets
 * (KVC_BUCKETS of the folder above both).
 *
 * Both tables have a fixed number of places, which later folders take over. Callers hold both
 * locks.
 */
#include "buckets.h"

#include "chunking.h"
#include "folder.h"
#include "node.h"
#include "tier_queue.h"

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#define RUN 16
#define RUNS 64
#define TREE 3
#define TREES 16
#define DIGITS 4

/* Folders that a thread made in a row in the same place. */
struct kvc_run {
	uint64_t parent;
	uint32_t pid;
	bool marked; /* the folders in ino are marked as containers */
	unsigned n;
	uint64_t ino[RUN]; /* the last RUN folders */
};

/* Folders named by a few hex digits that contain such folders. */
struct kvc_tree {
	uint64_t top;
	unsigned n;
	uint64_t ino[TREE];
};

static struct kvc_run *run_of(struct kvc *k, uint64_t parent)
{
	if (!k->chunking->runs)
		/* if memory is short, buckets are recognized later, by their files */
		k->chunking->runs = calloc(RUNS, sizeof *k->chunking->runs);
	return k->chunking->runs ? &k->chunking->runs[parent % RUNS] : NULL;
}

static struct kvc_tree *tree_of(struct kvc *k, uint64_t top)
{
	if (!k->chunking->trees)
		k->chunking->trees = calloc(TREES, sizeof *k->chunking->trees);
	return k->chunking->trees ? &k->chunking->trees[top % TREES] : NULL;
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

/*
 * Marks the next few folders in this one as buckets. Returns 1 if more names follow, 0, or an
 * error.
 */
static int mark_some_buckets_both(struct kvc *k, uint64_t ino, uint64_t *after)
{
	struct kvc_entries e = { 0 };
	struct kvc_node *n;
	int more = kvc_folder_entries_some_both(k, ino, after, &e);

	for (size_t i = 0; i < e.n && more >= 0; i++)
		if (S_ISDIR(e.v[i].kind) && !kvc_node_get_both(k, e.v[i].ino, &n)) {
			kvc_chunking_make_container_locked(k, n);
			kvc_node_settle_locked(k, n);
		}
	free(e.v);
	return more;
}

static void mark_buckets_run(struct kvc *k, struct kvc_job *j)
{
	uint64_t after = 0;
	int more = 1;

	while (more == 1 && !kvc_stopping(k)) {
		kvc_lock_both(k);
		more = mark_some_buckets_both(k, j->node->row.ino, &after);
		kvc_unlock_both(k);
		kvc_lock_pause(&k->lock);
		kvc_catalog_pause(k->cat);
	}
}

/*
 * Marks all folders in this one as buckets: the first few at once, the others in a job, because a
 * user may have made a million of them. If the job fails for lack of memory, or the daemon is
 * killed, the folders are recognized by their files.
 */
static void mark_buckets_both(struct kvc *k, uint64_t ino)
{
	uint64_t after = 0;
	struct kvc_node *n;

	if (mark_some_buckets_both(k, ino, &after) != 1 || kvc_node_get_both(k, ino, &n))
		return;
	kvc_tier_job_add_locked(k, KVC_P_URGENT, mark_buckets_run, n, KVC_COMMON, 0, NULL);
	kvc_node_settle_locked(k, n);
}

/* A folder named by a few digits was made in a folder that is named like that too. */
static void tree_add_both(struct kvc *k, struct kvc_node *top, struct kvc_node *parent)
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
		mark_buckets_both(k, t->ino[--t->n]);
}

/* Marks the folder as a bucket if it is the lower level of a tree of buckets. */
static void tree_check_both(struct kvc *k, struct kvc_node *parent, struct kvc_node *folder,
			    const char *name)
{
	struct kvc_node *top;

	if (parent->row.ino == KVC_ROOT || !few_digits(name) ||
	    kvc_node_get_both(k, parent->row.parent, &top))
		return;
	if (!(top->row.container & KVC_BUCKETS) &&
	    kvc_name_of(k->cat, parent->row.ino, is_few_digits, NULL) == 1)
		tree_add_both(k, top, parent);
	if (top->row.container & KVC_BUCKETS)
		kvc_chunking_make_container_locked(k, folder);
	kvc_node_settle_locked(k, top);
}

void kvc_buckets_folder_made_both(struct kvc *k, struct kvc_node *parent, struct kvc_node *folder,
				  const char *name, uint32_t pid)
{
	struct kvc_run *run = run_of(k, parent->row.ino);
	struct kvc_node *n;

	kvc_chunking_folder_arrived_both(k, parent);
	tree_check_both(k, parent, folder, name);
	if (!run)
		return;
	if (run->parent != parent->row.ino || run->pid != pid)
		*run = (struct kvc_run){ .parent = parent->row.ino, .pid = pid };
	run->marked = run->marked && run->n;
	run->ino[run->n++ % RUN] = folder->row.ino;
	if (run->n < RUN)
		return;
	kvc_chunking_make_container_locked(k, folder);
	for (unsigned i = 0; i < RUN && !run->marked; i++)
		if (!kvc_node_get_both(k, run->ino[i], &n)) {
			if (S_ISDIR(n->row.mode))
				kvc_chunking_make_container_locked(k, n);
			kvc_node_settle_locked(k, n);
		}
	run->marked = true;
}

void kvc_buckets_filled_both(struct kvc *k, const struct kvc_node *folder)
{
	struct kvc_run *run = run_of(k, folder->row.parent);

	for (unsigned i = 0; run && run->parent == folder->row.parent && i < kvc_min(run->n, RUN);
	     i++)
		if (run->ino[i] == folder->row.ino)
			run->n = 0; /* this is no longer a row of empty folders */
}
