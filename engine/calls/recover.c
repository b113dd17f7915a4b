/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Start: takes over what an earlier daemon left in the pool, tells the tiers what they hold, and
 * drops files that are unfinished or have lost their only copy. The rules are at the head of
 * objects/node.h. Runs alone, before any thread.
 */
#include "account.h"
#include "calls.h"
#include "clock.h"
#include "commit.h"
#include "drop.h"
#include "file.h"
#include "folder.h"
#include "identity.h"
#include "ino.h"
#include "layers.h"
#include "limit.h"
#include "log.h"
#include "member.h"
#include "pin.h"
#include "pinned.h"
#include "rehead.h"
#include "remove.h"
#include "survey.h"
#include "tierq.h"
#include "unnamed.h"
#include "used.h"

#include <dirent.h>
#include <fcntl.h>
#include <inttypes.h>
#include <string.h>

#define CATALOG_LEAST (256ull << 20)

/*
 * A segment of a file that was open: whole if its time still is the mark. It is made the
 * published one, and keeps the mark, should this start be refused. 1, 0 where it is not what the
 * catalog says, or an error.
 */
static int take_untouched(struct kvc *k, struct kvc_node *n, struct kvc_segment *s,
			  const struct stat *st)
{
	struct kvc_segment to = { 'p', s->ino, s->gen };
	int err;

	if (s->gen != n->object.gen || (uint64_t)st->st_size != n->object.size)
		return 0;
	if ((err = kvc_segment_rename(&k->pool, s, &to)))
		return err;
	*s = to;
	return 1;
}

/* Published, but the catalog had no time to learn of it. */
static void take_newer(struct kvc *k, struct kvc_node *n, uint64_t gen, const struct stat *st)
{
	n->object.gen = gen;
	n->object.has_sum = false;
	kvc_unplace_locked(k, n);
	if (kvc_ns(st->st_mtim) != KVC_MARK_NS) /* else the comparison made it a newer one */
		n->row.mtime_ns = kvc_ns(st->st_mtim);
	n->row.ctime_ns = kvc_ctime(n->row.ctime_ns, n->row.mtime_ns);
}

static bool same_object(const struct kvc_object_row *a, const struct kvc_object_row *b)
{
	return a->gen == b->gen && a->size == b->size && a->lower == b->lower &&
	       a->has_sum == b->has_sum &&
	       (!a->has_sum || !memcmp(a->sum.b, b->sum.b, sizeof a->sum.b));
}

/*
 * Does the node differ from its rows in the catalog? Most segments match their rows, and writing
 * millions of unchanged rows at a restart takes longer than reading them.
 */
static bool differs(const struct kvc_node *n, const struct kvc_row *row,
		    const struct kvc_object_row *object)
{
	return memcmp(&n->row, row, sizeof *row) != 0 || !same_object(&n->object, object) ||
	       (n->has_places && !n->object.lower); /* its placements are stale */
}

/*
 * A segment that seems whole: 1: it is kept, 0: it is of no use; or an error, and nothing is lost.
 */
static int adopt(struct kvc *k, struct kvc_segment *s, const struct stat *st, bool untouched)
{
	struct kvc_object_row object;
	struct kvc_node *n;
	struct kvc_row row;
	int err = kvc_node_get_both(k, s->ino, &n);

	if (err)
		return err == -ENOENT ? 0 : err;
	row = n->row;
	object = n->object;
	err = S_ISREG(n->row.mode) && !kvc_has_segment(n) && s->gen && s->gen >= n->object.gen;
	if (err == 1 && untouched)
		err = take_untouched(k, n, s, st);
	if (err != 1) {
		kvc_node_settle_locked(k, n);
		return err;
	}
	if (s->gen > n->object.gen)
		take_newer(k, n, s->gen, st);
	n->object.size = n->row.size = (uint64_t)st->st_size;
	n->row.blocks = (uint64_t)st->st_blocks;
	n->object.lower = kvc_placed_anywhere(k, n);
	n->verify = n->object.lower && kvc_ns(st->st_mtim) == KVC_MARK_NS;
	kvc_moved_both(k, n);
	if ((err = kvc_chunk_join_both(k, n))) {
		kvc_node_settle_locked(k, n);
		return err;
	}
	kvc_become_locked(k, n, kvc_placed(k, n) ? KVC_BOTH : KVC_RESIDENT);
	if (!n->chunk->use.last_ns)
		kvc_chunk_used_locked(k, n->chunk, false); /* its row was not written yet */
	kvc_room_set_locked(k, n, (uint64_t)st->st_blocks * 512);
	if (differs(n, &row, &object))
		kvc_node_dirty_locked(k, n);
	kvc_count(&k->stats, recovered);
	return 1;
}

/* One name of the pool: 1: it is kept, 0: it is of no use, or an error. */
static int take_over(struct kvc *k, const char *name)
{
	struct kvc_segment s = { 0 };
	struct stat st;

	if (!kvc_segment_parse(name, &s))
		return 0;
	if (fstatat(k->pool.dir, name, &st, AT_SYMLINK_NOFOLLOW))
		return errno == ENOENT ? 0 : -errno;
	if (!S_ISREG(st.st_mode))
		return 0;
	if (s.kind == 'p')
		return adopt(k, &s, &st, false);
	return s.kind == 'o' && kvc_ns(st.st_mtim) == KVC_MARK_NS ? adopt(k, &s, &st, true) : 0;
}

/* A listing that ends early looks whole, and who is not in it would count as lost. */
static int scan_pool(struct kvc *k, char *error)
{
	int fd = openat(k->pool.dir, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC), err = 0;
	DIR *d = fd < 0 ? NULL : fdopendir(fd);
	struct dirent *e;

	if (!d) {
		err = -errno;
		snprintf(error, 512, "cannot read the pool %s: %s", k->pool.path, strerror(-err));
		if (fd >= 0)
			close(fd);
		return err;
	}
	while (!err && (errno = 0, e = readdir(d))) {
		int keep;

		if (e->d_name[0] == '.')
			continue;
		k->pool.warm = true;
		keep = take_over(k, e->d_name);
		if (keep < 0) {
			err = keep;
			snprintf(error, 512, "cannot take over %s of the pool: %s", e->d_name,
				 strerror(-err));
		} else if (!keep) {
			unlinkat(k->pool.dir, e->d_name, 0);
		}
	}
	if (!err && errno) {
		err = -errno;
		snprintf(error, 512, "cannot read all of the pool %s: %s", k->pool.path,
			 strerror(-err));
	}
	closedir(d);
	return err;
}

struct claims {
	struct kvc *k;
	unsigned tier;
	uint64_t *bad;
	size_t n, room;
};

static int claim(void *arg, uint64_t ino, const struct kvc_place *p)
{
	struct claims *c = arg;
	struct kvc_tier *t = c->k->tier[c->tier].t;
	int err = t->ops->claim ? t->ops->claim(t, &p->where) : 0;

	if (!err)
		return 0;
	if (err == -ENOMEM || kvc_grow(&c->bad, c->n, &c->room, sizeof *c->bad))
		return -ENOMEM;
	c->bad[c->n++] = ino;
	return 0;
}

static int claim_all(struct kvc *k, unsigned tier, char *error)
{
	struct claims c = { .k = k, .tier = tier };
	int err = kvc_place_each(k->cat, tier, claim, &c);

	if (err)
		snprintf(error, 512, "cannot read the placements of tier %s: %s",
			 k->tier[tier].t->ops->name, strerror(-err));
	for (size_t i = 0; i < c.n && !err; i++) {
		struct kvc_place left[KVC_TIERS];
		struct kvc_object_row o;

		kvc_warn("tier %s: the placement of inode %" PRIx64
			 " is impossible and is forgotten; run fsck.kvcachefs",
			 k->tier[tier].t->ops->name, c.bad[i]);
		kvc_count(&k->stats, corrupt);
		err = kvc_place_del(k->cat, c.bad[i], tier);
		err = err ?: kvc_object_get(k->cat, c.bad[i], &o);
		if (err == -ENOENT) {
			err = 0;
			continue;
		}
		err = err ?: kvc_place_get(k->cat, c.bad[i], left);
		o.lower = false;
		for (unsigned t = 0; t < KVC_TIERS && !err; t++)
			o.lower |= left[t].gen && left[t].gen == o.gen;
		err = err ?: kvc_object_put(k->cat, c.bad[i], &o);
	}
	free(c.bad);
	return err;
}

/* A file whose bytes are nowhere: it goes, and with its last file the folder of its chunk. */
static int drop_lost(void *arg, uint64_t ino, const struct kvc_object_row *o)
{
	struct kvc *k = arg;
	struct kvc_node *n = kvc_node_find_locked(k, ino), *folder;
	uint64_t chunk;
	int err;

	(void)o;
	if (n && kvc_has_segment(n))
		return 0;
	err = kvc_node_get_both(k, ino, &n);
	if (err == -ENOENT)
		return kvc_row_del(k->cat, ino, NULL);
	if (err)
		return err;
	chunk = n->row.chunk;
	kvc_count(&k->stats, recovery_drops);
	if ((err = kvc_drop_file_both(k, n, NULL)))
		return err;
	if (chunk != ino && !kvc_node_get_both(k, chunk, &folder)) {
		if (kvc_folder_empty_both(k, chunk) == 1)
			kvc_chunk_forget_both(k, chunk);
		kvc_drop_folder_both(k, folder);
	}
	return 0;
}

static int64_t rank_row(struct kvc *k, const struct kvc_chunk_row *r)
{
	return kvc_chunk_rank_row(k, r);
}

static struct kvc *reranking; /* kvc_chunk_rerank takes no argument; recovery runs alone */
static int64_t rerank(const struct kvc_chunk_row *r)
{
	return rank_row(reranking, r);
}

/* What the daemon before has left, and how: *clean. */
static int look_back_both(struct kvc *k, bool *clean)
{
	char text[64], policy[64];
	uint64_t max;
	int is = kvc_meta_read(k->cat, "clean", text, sizeof text), err;

	snprintf(policy, sizeof policy, "%s",
		 kvc_policies[kvc_policy_of(k, KVC_CACHE_POOL, 0)].name);
	if (k->opt.disk_policy)
		snprintf(policy + strlen(policy), sizeof policy - strlen(policy), " %s",
			 kvc_policies[kvc_policy_of(k, KVC_CACHE_DISK, 0)].name);
	*clean = is == 1 && !strcmp(text, "1");
	is = is < 0 ? is : kvc_meta_read(k->cat, "policy", text, sizeof text);
	if (is < 0)
		return is;
	if (!is || strcmp(text, policy)) {
		reranking = k;
		if ((err = kvc_chunk_rerank(k->cat, rerank)
				   ?: kvc_meta_set(k->cat, "policy", policy)))
			return err;
	}
	/*
	 * Frames that were not in the catalog yet, or not any more, may lie in free space: fsck.
	 * Not in a new store.
	 */
	is = kvc_meta_read(k->cat, "next_ino", text, sizeof text);
	if (is < 0 || (err = kvc_row_max(k->cat, &max)))
		return is < 0 ? is : err;
	if (!*clean && (max > KVC_ROOT || is))
		return kvc_meta_set(k->cat, "killed", "1");
	return 0;
}

/*
 * A file is 4 KiB of the pool or 8 KiB of the disk at least and some 1 KiB of the catalog, so what
 * both can have never comes near half of them. What remotes have is not known.
 */
static uint64_t usage_limit(const struct kvc *k)
{
	if (k->opt.catalog_bytes || k->shared)
		return k->opt.catalog_bytes;
	return kvc_max((k->pool.bytes + k->pins->disk_size) / 2, CATALOG_LEAST);
}

int kvc_recover(struct kvc *k, char *error)
{
	bool clean, dropped = false;
	int err;

	kvc_kept_load(k);
	kvc_lock_both(k);
	err = kvc_usage_start(k->cat, usage_limit(k));
	err = err ?: look_back_both(k, &clean) ?: kvc_clock_start_both(k);
	err = err ?: kvc_layers_load_both(k) ?: kvc_written_load_both(k);
	err = err ?: kvc_inos_load_both(k, clean) ?: kvc_unnamed_recover_both(k);
	err = err ?: kvc_drops_recover_both(k, &dropped);
	err = err ?: kvc_quotas_load_both(k, clean && !dropped) ?: kvc_surveys_load_both(k);
	err = err ?: kvc_remove_recover_both(k) ?: kvc_identity_start_both(k);
	err = err ?: kvc_meta_set(k->cat, "clean", "0") ?: kvc_pins_load_both(k);
	kvc_tier_each(k, t)
		if (!err && !(k->tier[t].t->ops->caps & KVC_TIER_SHARED))
			err = claim_all(k, t, error);
	if (!err) {
		kvc_catalog_still(k->cat, true);
		err = scan_pool(k, error);
		kvc_catalog_still(k->cat, false);
	}
	if (!err)
		err = kvc_object_each_unplaced(k->cat, drop_lost, k);
	if (!err)
		err = kvc_chunks_ready_locked(k);
	kvc_unlock_both(k);
	/*
	 * On stable storage before anything is done: a power failure must not take the catalog back
	 * to where it was clean (the numbers that are given out from here on would be given out
	 * again), nor before what a daemon committed that was killed, and whose space is free here.
	 */
	if (!err)
		err = kvc_commit_once(k) ?: kvc_catalog_sync(k->cat);
	if (err && !*error)
		snprintf(error, 512, "the catalog cannot be read or written: %s", strerror(-err));
	if (!err && kvc_counted(&k->stats, recovery_drops))
		kvc_info("%" PRIu64
			 " files were unfinished or had lost their only copy and are dropped",
			 kvc_counted(&k->stats, recovery_drops));
	if (!err && k->pool.warm)
		kvc_info("%" PRIu64 " objects are still in the pool",
			 kvc_counted(&k->stats, recovered));
	return err;
}
