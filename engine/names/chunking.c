/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Decides which files form a chunk, from how they arrive, at any depth.
 *
 * A folder is one chunk while its files arrive in one burst soon after it was made: each within
 * GAP_NS of the previous one, all within SPAN_NS, at most KVC_UNIT_FILES of them, and at most a
 * quarter of the pool in bytes. Its files are then dropped together, and the folder with them,
 * because an engine takes the folder for a hit. The first file that is late or one too many, or a
 * folder made inside, shows that the folder is a container (row.container, permanently). Files of a
 * container are chunks of their own, and the cache never removes a container. Files that arrived
 * earlier are split off in the background (regroup).
 *
 * Folders that engines make as buckets are containers from the start (buckets.c).
 *
 * A file with a cache salt in its name (objects/tenant_set.h) makes its folder a container, because
 * files of different salts belong to different customers.
 *
 * In a container, a file NAME.EXT that arrives after NAME is its companion (an engine's metadata
 * beside its data). Both are one chunk, the chunk of NAME, so that neither is evicted without the
 * other.
 *
 * Three settings take precedence over this inference, in this order: user.kvcachefs.unit on the
 * folder or on the nearest ancestor that has it; layers of the model, which says that its folders
 * are chunks; unit= of the mount. The folder of a model with a setting (quota, policy, codec,
 * shared, ttl, layers) is a container.
 *
 * The history of a folder is in its node. If the node was not in memory, its names are counted, and
 * its times tell how long ago it was made and last changed. Files adopted from a shared tier arrive
 * in no order, so only their number and bytes count.
 */
#include "chunking.h"

#include "account.h"
#include "commit_batch.h"
#include "folder.h"
#include "log.h"
#include "membership.h"
#include "model.h"
#include "node.h"
#include "pin.h"
#include "tenant_set.h"
#include "tier_queue.h"

#include <string.h>

#define GAP_NS 5000000000ull
#define SPAN_NS 60000000000ull
#define RETRY_NS 1000000000ull
#define RETRIES_MOST 6
/* names of a folder that are read under one hold of the locks, when it is regrouped */
#define BATCH 32
#define AT_ONCE 8 /* files among them; each takes several rows */

static const char *const names[] = { "dir", "file", NULL }; /* indexed by enum kvc_unit */

const char *kvc_chunking_text(int unit)
{
	return names[unit];
}

int kvc_chunking_get_both(struct kvc *k, struct kvc_node *folder)
{
	char text[32] = "";
	size_t len = sizeof text - 1;

	if (!folder->chunking.unit_set) {
		int err = kvc_xattr_get(k->cat, folder->row.ino, KVC_UNIT_ATTR, text, &len);

		if (err && err != -ENOENT)
			return err;
		folder->chunking.unit_set = 1;
		for (int i = 0; !err && names[i]; i++)
			if (!strcmp(names[i], text))
				folder->chunking.unit_set = (int8_t)(i + 2);
	}
	return folder->chunking.unit_set == 1 ? KVC_UNIT_NONE : folder->chunking.unit_set - 2;
}

/*
 * Returns 1 if the folder's model has a number of layers, which makes its folders chunks; or 0 or
 * an error.
 */
static int model_has_layers_both(struct kvc *k, const struct kvc_node *folder)
{
	uint64_t model;
	int err;

	if (!kvc_model_layers_any(k))
		return 0;
	err = kvc_node_model_both(k, folder->row.ino, &model);
	return err ?: kvc_model_layers_of_locked(k, model) != 0;
}

/*
 * The unit that is set for the folder: by the attribute on it or above it, by layers, or by unit=.
 */
static int set_unit_both(struct kvc *k, struct kvc_node *folder)
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
	if (unit == KVC_UNIT_NONE && (err = model_has_layers_both(k, folder)))
		return err < 0 ? err : KVC_UNIT_DIR;
	return unit == KVC_UNIT_NONE && k->opt.unit ? (int)k->opt.unit - 1 : unit;
}

/* Reads from the catalog whether the folder has the settings of a model, and which unit is set. */
static int settings_both(struct kvc *k, struct kvc_node *folder, bool *set, int *unit)
{
	int is = folder->row.ino == KVC_ROOT ? 1 : kvc_model_set_both(k, folder);

	if (is < 0)
		return is;
	*set = is;
	*unit = folder->row.ino == KVC_ROOT ? KVC_UNIT_FILE : set_unit_both(k, folder);
	return *unit < 0 && *unit != KVC_UNIT_NONE ? *unit : 0;
}

static bool is_chunk(const struct kvc_node *folder, bool set, int unit)
{
	if (set)
		return false;
	return unit == KVC_UNIT_NONE ? !(folder->row.container & KVC_CONTAINER)
				     : unit == KVC_UNIT_DIR;
}

int kvc_chunking_whole_both(struct kvc *k, struct kvc_node *folder)
{
	bool set;
	int unit, err = settings_both(k, folder, &set, &unit);

	return err ?: is_chunk(folder, set, unit);
}

static int count_name(void *arg, const struct kvc_name *n)
{
	unsigned *files = arg;

	(void)n;
	return ++*files > KVC_UNIT_FILES;
}

static uint64_t mono_time_of(uint64_t mono, uint64_t wall, uint64_t then)
{
	uint64_t age = (int64_t)then < (int64_t)wall ? wall - then : 0;

	return mono > age ? mono - age : 1;
}

/* Fills in the history of a node that was not in memory. */
static int load_history_both(struct kvc *k, struct kvc_node *folder)
{
	uint64_t mono = kvc_mono_ns(), wall = kvc_now_ns();
	unsigned files = 0;
	int err;

	if (folder->chunking.made_ns)
		return 0;
	err = kvc_name_each(k->cat, folder->row.ino, 0, count_name, &files);
	if (err < 0)
		return err;
	folder->chunking.made_ns = mono_time_of(mono, wall, folder->row.btime_ns);
	folder->chunking.filled_ns =
		mono_time_of(mono, wall, kvc_later(folder->row.btime_ns, folder->row.mtime_ns));
	folder->chunking.files = files;
	return 0;
}

int kvc_chunking_known_both(struct kvc *k, struct kvc_node *folder)
{
	bool set;
	int unit;

	if (folder->row.ino == KVC_ROOT)
		return 0;
	return load_history_both(k, folder) ?: settings_both(k, folder, &set, &unit);
}

bool kvc_chunking_filled_both(struct kvc *k, struct kvc_node *folder)
{
	return !load_history_both(k, folder) && folder->chunking.files;
}

void kvc_chunking_made_locked(struct kvc_node *folder)
{
	folder->chunking.made_ns = folder->chunking.filled_ns = kvc_mono_ns();
	folder->chunking.unit_set = 1; /* a new folder has no attribute */
}

static bool in_burst(const struct kvc *k, const struct kvc_node *folder, bool here)
{
	uint64_t now = kvc_mono_ns();

	if (folder->chunking.files >= KVC_UNIT_FILES || folder->content.bytes > k->pool.bytes / 4)
		return false;
	return !here || (now - folder->chunking.filled_ns <= GAP_NS &&
			 now - folder->chunking.made_ns <= SPAN_NS);
}

void kvc_chunking_make_container_locked(struct kvc *k, struct kvc_node *folder)
{
	if ((folder->row.container & KVC_CONTAINER) || folder->row.ino == KVC_ROOT)
		return;
	folder->row.container |= KVC_CONTAINER;
	kvc_node_dirty_locked(k, folder);
	if (folder->chunking.files)
		kvc_chunking_regroup_locked(k, folder);
}

/*
 * Finds the file whose companion n is by its name; *found is 0 if there is no such file. It must be
 * a chunk of its own, or about to become one, and belong to the owner of n, because the owner of a
 * file may drop its whole chunk.
 */
static int find_companion_of_both(struct kvc *k, struct kvc_node *folder, struct kvc_node *n,
				  const char *name, uint64_t *found)
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
		own = err == -ENOENT; /* otherwise it has a companion already */
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

static bool is_salted(const char *name)
{
	char salt[KVC_TENANT_NAME];

	return name && kvc_tenant_salt(name, salt);
}

void kvc_chunking_named_both(struct kvc *k, struct kvc_node *folder, const char *name)
{
	bool set;
	int unit;

	if (is_salted(name) && folder->row.ino != KVC_ROOT &&
	    !(folder->row.container & KVC_CONTAINER) && !load_history_both(k, folder) &&
	    !settings_both(k, folder, &set, &unit) && unit == KVC_UNIT_NONE)
		kvc_chunking_make_container_locked(k, folder);
}

int kvc_chunking_join_both(struct kvc *k, struct kvc_node *folder, struct kvc_node *n,
			   const char *name, bool here, uint64_t *chunk)
{
	int err, unit;
	bool set;

	*chunk = 0;
	if (folder->row.ino == KVC_ROOT)
		return 0;
	if ((err = load_history_both(k, folder) ?: settings_both(k, folder, &set, &unit)))
		return err;
	if (unit == KVC_UNIT_NONE && !(folder->row.container & KVC_CONTAINER) &&
	    (is_salted(name) || !in_burst(k, folder, here)))
		kvc_chunking_make_container_locked(k, folder);
	folder->chunking.files++;
	folder->chunking.filled_ns = kvc_mono_ns();
	if (is_chunk(folder, set, unit))
		*chunk = folder->row.ino;
	else if (n && name)
		err = find_companion_of_both(k, folder, n, name, chunk);
	return err;
}

void kvc_chunking_folder_arrived_both(struct kvc *k, struct kvc_node *parent)
{
	if (!(parent->row.container & KVC_CONTAINER) && !load_history_both(k, parent))
		kvc_chunking_make_container_locked(k, parent);
}

/* Moves the file to another chunk, which inherits the accesses and ttl of its old one. */
static int rechunk_both(struct kvc *k, struct kvc_node *n, uint64_t chunk)
{
	struct kvc_chunk *c = n->chunk ? n->chunk : kvc_chunk_find_locked(k, n->row.chunk);
	struct kvc_chunk_row row = { 0 };
	bool has = kvc_node_has_segment(n), known;
	int err = 0;

	if (c)
		kvc_chunk_row(k, c, &row);
	else if ((err = kvc_chunk_get(k->cat, n->row.chunk, &row)) && err != -ENOENT)
		return err;
	known = c || !err;
	if ((err = kvc_membership_change_both(k, n, chunk, n->row.chunk == n->row.ino)))
		return err;
	kvc_node_dirty_locked(k, n);
	if (known && !n->chunk->use.created_ns) { /* a new chunk for an old file */
		n->chunk->ttl_s = row.ttl_s;
		n->chunk->expires_ns = row.expires_ns;
	}
	kvc_chunk_merge_access_locked(k, n->chunk, &row);
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

struct entry_batch {
	struct kvc_entry v[BATCH];
	uint64_t hash; /* hash of the last name */
	size_t n;
};

/* Ends a batch between two different hashes, so that the next batch skips no name. */
static int add_entry(void *arg, const struct kvc_name *name)
{
	struct entry_batch *s = arg;

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
		err = find_companion_of_both(k, folder, n, e->name, &want);
		want = want ?: n->row.ino;
	}
	if (!err && n->row.parent == folder->row.ino && n->state != KVC_GONE && !n->commit.lost) {
		bool moved = n->model != model; /* an earlier move could not read the model */

		if (moved)
			kvc_account_quota_move_locked(k, n, model);
		err = n->row.chunk != want ? rechunk_both(k, n, want)
		      : moved              ? kvc_membership_moved_both(k, n)
					   : 0;
	}
	kvc_node_settle_locked(k, n);
	return err;
}

/*
 * Moves some of a folder's files to the chunks that they should be in. Adds subfolders to *deeper
 * if memory allows. Returns 1 if more files follow, 0 at the end, or an error. If a file could not
 * be moved, its chunk stays, and *err is set.
 */
static int regroup_some_both(struct kvc *k, struct kvc_node *folder, uint64_t after,
			     struct entry_batch *s, struct kvc_stack *deeper, int *err)
{
	uint64_t model = 0;
	int is_whole = kvc_chunking_whole_both(k, folder), more, e;
	unsigned done = 0;

	s->n = 0;
	more = is_whole < 0 ? is_whole : kvc_node_model_both(k, folder->row.ino, &model);
	more = more ?: kvc_name_each(k->cat, folder->row.ino, after, add_entry, s);
	kvc_node_ref_locked(folder); /* the locks are released */
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
	kvc_node_unref_locked(folder);
	if (!more && !*err && !is_whole)
		kvc_chunk_forget_both(k, folder->row.ino);
	folder->chunking.splitting = more == 1;
	return more;
}

static int regroup_folder(struct kvc *k, uint64_t ino, struct kvc_stack *deeper)
{
	struct entry_batch s = { 0 };
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
	return more == -ENOENT ? 0 : more < 0 ? more : err; /* the folder may have been deleted */
}

/*
 * The job that regroups a folder and all folders below it. After an error the job is queued again,
 * with growing delays, at most RETRIES_MOST times.
 */
static void regroup_run(struct kvc *k, struct kvc_job *j)
{
	struct kvc_stack deeper = { 0 };
	struct kvc_node *top = j->node;
	struct kvc_job *retry;
	uint64_t ino;
	bool restart;
	int err, e;

	do {
		kvc_lock(k);
		top->chunking.regroup_again = false;
		ino = top->row.ino;
		kvc_unlock(k);
		deeper.n = 0;
		err = 0;
		do {
			e = regroup_folder(k, ino, &deeper);
			err = e ?: err;
		} while (kvc_stack_pop(&deeper, &ino) && !kvc_stopping(k));
		kvc_lock(k);
		restart = top->chunking.regroup_again && !k->stopping;
		top->chunking.regroup = top->chunking.splitting = restart;
		/* queued like a spill, so that an unmount does not wait for it */
		if (err && !restart && j->tried < RETRIES_MOST &&
		    !kvc_tier_job_add_locked(k, KVC_P_SPILL, regroup_run, top, KVC_COMMON,
					     kvc_mono_ns() + (RETRY_NS << j->tried), &retry))
			retry->tried = j->tried + 1;
		kvc_unlock(k);
	} while (restart);
	if (err && !j->tried)
		kvc_warn("files in and below inode %llx keep their old chunks: %s",
			 (unsigned long long)top->row.ino, strerror(-err));
	free(deeper.v);
}

void kvc_chunking_regroup_locked(struct kvc *k, struct kvc_node *folder)
{
	/* one job, however often it is requested: it starts again */
	folder->chunking.regroup_again = true;
	/* a higher priority would also occupy the thread that makes no copies (tier_queue.c) */
	if (!folder->chunking.regroup &&
	    !kvc_tier_job_add_locked(k, KVC_P_URGENT, regroup_run, folder, KVC_COMMON, 0, NULL))
		folder->chunking.regroup = folder->chunking.splitting = true;
}

void kvc_chunking_keeps_locked(struct kvc *k, const struct kvc_node *n, struct kvc_node *folder)
{
	kvc_warn("inode %llx keeps its old chunk", (unsigned long long)n->row.ino);
	if (folder && !folder->commit.lost)
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
	folder->chunking.unit_set = err ? 0 : (int8_t)(v + 2);
	if (!err)
		kvc_chunking_regroup_locked(k, folder);
	return err;
}
