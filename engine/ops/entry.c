/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Names: lookup, folders, links, removal; renames are in rename.c. A call that changes names holds
 * the catalog's lock from its check to its last change, so that other calls see it as one step. The
 * kernel has checked permissions and the lengths of names, and holds the locks of the folders.
 */
#include "account.h"
#include "arrival.h"
#include "cache.h"
#include "ops.h"
#include "committer.h"
#include "dir_invalidate.h"
#include "file.h"
#include "folder.h"
#include "gone.h"
#include "ino.h"
#include "model_quota.h"
#include "load.h"
#include "model.h"
#include "incomplete.h"
#include "path.h"
#include "header_rewrite.h"
#include "remote_lookup.h"
#include "notify.h"
#include "tier_queue.h"
#include "buckets.h"
#include "chunking.h"
#include "tmpfile.h"

#include <string.h>
#include <sys/stat.h>

int kvc_entry_folder_both(struct kvc *k, uint64_t ino, const char *name, bool revive,
			  struct kvc_node **folder)
{
	int err = kvc_node_get_both(k, ino, folder);

	if (!err && !S_ISDIR((*folder)->row.mode))
		err = -ENOTDIR;
	/* remains of a dropped chunk must not collide with the new name */
	if (!err && k->drops->ndetached)
		err = kvc_chunk_drop_finish_both(k, *folder);
	if (!err && (*folder)->commit.lost)
		err = revive ? kvc_dir_dropped_revive_both(k, folder) : -ENOENT;
	if (!err && name && k->drops->ndetached) {
		kvc_node_ref_locked(*folder);
		err = kvc_dir_drop_name_both(k, (*folder)->row.ino, name);
		kvc_node_unref_locked(*folder);
	}
	return err;
}

int kvc_entry_purge_both(struct kvc *k, uint64_t parent, const char *name)
{
	struct kvc_node *n;
	uint64_t ino;
	uint32_t kind;
	int err;

	if (!k->drops->ndetached)
		return 0;
	err = kvc_name_get(k->cat, parent, name, &ino, &kind);
	if (err || !S_ISDIR(kind))
		return err == -ENOENT ? 0 : err;
	err = kvc_node_get_both(k, ino, &n);
	return err ? (err == -ENOENT ? 0 : err) : kvc_dir_drop_names_in_both(k, n);
}

int kvc_entry_may_change_both(struct kvc *k, bool removal)
{
	return kvc_accepts(k, removal) ?: kvc_catalog_spare(k->cat, KVC_SPARES);
}

static void count_lookup_locked(struct kvc *k, struct kvc_node *n, struct kvc_row *attr)
{
	if (S_ISDIR(n->row.mode))
		kvc_dir_looked_up_locked(k, n->row.ino);
	kvc_node_looked_up_locked(n);
	kvc_node_attr_locked(k, n, attr);
}

/* The data that a lookup has read without the locks. */
struct looked {
	const struct kvc_peek *name; /* NULL: the name was not read */
	struct kvc_peek_gone gone;
	struct kvc_where path; /* its path, if the call must read `gone` first */
};

/* A lookup under both locks. Returns -EINPROGRESS if l->gone must be read first. */
static int lookup_once(struct kvc *k, uint64_t parent, const char *name, uint64_t hash,
		       struct looked *l, struct kvc_row *attr, struct kvc_wait *w)
{
	const struct kvc_peek *p = l->name;
	struct kvc_node *n;
	uint64_t ino;
	uint32_t kind;
	int err;

	kvc_lock_both(k);
	if (p && kvc_peek_holds(k->cat, parent, name, hash, p)) {
		err = kvc_node_get_peeked_both(k, p, &n);
	} else {
		err = p && kvc_peek_absent_holds(k->cat, parent, name, hash, p)
			      ? -ENOENT
			      : kvc_name_get_hashed(k->cat, parent, name, hash, &ino, &kind);
		if (!err)
			err = kvc_node_get_both(k, ino, &n);
		else if (err == -ENOENT && k->shared)
			err = kvc_remote_lookup_ask_both(k, parent, name, w, &l->gone, &l->path);
	}
	if (err == -ENOENT && (n = kvc_dir_dropped_find_locked(k, parent, name, hash)))
		attr->ino = n->row.ino;
	if (!err)
		count_lookup_locked(k, n, attr);
	kvc_unlock_both(k);
	return err;
}

/*
 * The same, with the needed reads of SQLite between two holds of the locks. p: the name and the
 * node, which were read without the locks; or NULL.
 */
static int lookup_any(struct kvc *k, uint64_t parent, const char *name, uint64_t hash,
		      const struct kvc_peek *p, struct kvc_row *attr, struct kvc_wait *w)
{
	struct looked l = { .name = p };
	int err;

	while ((err = lookup_once(k, parent, name, hash, &l, attr, w)) == -EINPROGRESS)
		if ((err = kvc_peek_gone(k->cat, &l.path, kvc_clock_ns(k), &l.gone)))
			break;
	return err;
}

int kvc_entry_lookup_any(struct kvc *k, uint64_t parent, const char *name, struct kvc_row *attr,
			 struct kvc_wait *w)
{
	uint64_t hash = kvc_name_hash(name);
	bool absent = kvc_name_absent(k->cat, parent, hash); /* without the catalog's lock */
	struct kvc_node *n;
	struct kvc_peek p;
	int err;

	kvc_count(&k->stats, lookups);
	attr->ino = 0;
	if (absent && !k->shared) {
		if (kvc_lock_unless_joint(k, kvc_hit_absent(k, parent, name, hash)))
			return -ENOENT;
		if ((n = kvc_dir_dropped_find_locked(k, parent, name, hash)))
			attr->ino = n->row.ino;
		kvc_unlock_to_joint(k);
		return -ENOENT;
	}
	if (absent) /* a shared tier has to be asked */
		return lookup_any(k, parent, name, hash, NULL, attr, w);
	err = kvc_peek_name(k->cat, parent, name, hash, &p);
	if (w && w->err) { /* the shared tier has answered */
		err = err ?: kvc_peek_node(k->cat, &p);
		return lookup_any(k, parent, name, hash, err && err != -ENOENT ? NULL : &p, attr,
				  w);
	}
	if (err && (err != -ENOENT || k->shared))
		return lookup_any(k, parent, name, hash, err == -ENOENT ? &p : NULL, attr, w);
	if (kvc_lock_unless_joint(k, err ? kvc_hit_absent(k, parent, name, hash)
					 : kvc_hit_attr(k, p.ino, attr, true)))
		return err;
	if (err && (n = kvc_dir_dropped_find_locked(k, parent, name, hash)))
		attr->ino = n->row.ino;
	n = err ? NULL : kvc_node_find_locked(k, p.ino);
	if (n && (n->commit.lost || kvc_node_gone(n)))
		n = NULL; /* it was dropped just now */
	if (n)
		count_lookup_locked(k, n, attr);
	kvc_unlock_to_joint(k);
	if (err || n)
		return err;
	err = kvc_peek_node(k->cat, &p);
	return err ?: lookup_any(k, parent, name, hash, &p, attr, w);
}

void kvc_entry_forget(struct kvc *k, uint64_t ino, uint64_t count)
{
	struct kvc_node *n;
	bool both;

	if (kvc_lock_unless_joint(k, kvc_hit_forget(k, ino, count)))
		return;
	n = kvc_tmpfile_find_locked(k, ino, &both);
	if (n) {
		kvc_node_forgotten_locked(n, count);
		if (!n->refs.kernel && S_ISDIR(n->row.mode))
			kvc_dir_forgotten_locked(k, ino);
		if (!n->refs.kernel && !kvc_list_empty(&n->linger.link))
			kvc_file_destroy_locked(k, n);
		if (both)
			kvc_tmpfile_settle_both(k, n);
		kvc_node_settle_locked(k, n);
	}
	kvc_unlock_to_joint(k);
	if (both)
		kvc_catalog_unlock(k->cat);
}

int kvc_entry_getattr(struct kvc *k, uint64_t ino, struct kvc_row *attr)
{
	struct kvc_node *n;
	int err = 0;

	kvc_count(&k->stats, getattrs);
	if (kvc_lock_unless_joint(k, kvc_hit_attr(k, ino, attr, false)))
		return 0;
	n = kvc_node_find_locked(k, ino);
	if (n && (n->dropped || kvc_node_detached(n))) {
		err = -ESTALE;
	} else if (n) {
		if (S_ISDIR(n->row.mode))
			kvc_dir_looked_up_locked(k, ino);
		kvc_node_attr_locked(k, n, attr);
	}
	kvc_unlock_to_joint(k);
	if (!n) { /* the kernel asks only for the root without an earlier lookup */
		kvc_lock_both(k);
		err = kvc_node_get_both(k, ino, &n);
		if (!err)
			kvc_node_attr_locked(k, n, attr);
		kvc_unlock_both(k);
	}
	return err;
}

int kvc_entry_make(struct kvc *k, uint64_t parent, const char *name, uint32_t mode,
		   const struct kvc_caller *caller, const char *target, uint64_t rdev,
		   struct kvc_row *attr)
{
	struct kvc_node *folder, *n = NULL;
	uint64_t now = kvc_now_ns(), ino;
	uint32_t kind;
	int err;

	kvc_lock_both(k);
	err = kvc_entry_folder_both(k, parent, name, true, &folder);
	if (!err) {
		parent = folder->row.ino;
		err = kvc_name_get(k->cat, parent, name, &ino, &kind);
		err = !err ? -EEXIST : err == -ENOENT ? 0 : err;
	}
	err = err ?: kvc_entry_may_change_both(k, false);
	err = err ?: kvc_usage_allows(k->cat, caller->uid, true, 0);
	err = err ?: kvc_ino_new_both(k, &ino);
	if (!err) {
		struct kvc_row row = {
			.ino = ino,
			.mode = mode,
			.uid = caller->uid,
			.gid = caller->gid,
			.nlink = S_ISDIR(mode) ? 2 : 1,
			.size = target ? strlen(target) : rdev,
			.atime_ns = now,
			.mtime_ns = now,
			.ctime_ns = now,
			.btime_ns = now,
			.parent = parent,
		};

		if (folder->row.mode & S_ISGID) {
			row.gid = folder->row.gid;
			if (S_ISDIR(mode))
				row.mode |= S_ISGID;
		}
		n = kvc_node_new_locked(k, &row);
		if (!n)
			err = -ENOMEM;
	}
	if (n && target)
		err = kvc_target_put(k->cat, n->row.ino, target);
	if (n && !err)
		err = kvc_name_put(k->cat, parent, name, n->row.ino, mode & S_IFMT);
	if (n && !err) {
		kvc_arrival_named_locked(k, parent, name);
		kvc_gone_name_made_locked(k, parent, kvc_name_hash(name), n->row.ino);
		kvc_node_looked_up_locked(n);
		kvc_node_dirty_locked(k, n);
		kvc_folder_touch_locked(k, folder, S_ISDIR(mode) ? 1 : 0);
		if (S_ISDIR(mode)) {
			kvc_chunking_made_locked(n);
			kvc_buckets_folder_made_both(k, folder, n, name, caller->pid);
		} else if (!target) { /* no engine makes fifos or devices in a chunk */
			kvc_chunking_folder_arrived_both(k, folder);
		}
		*attr = n->row;
	} else if (n) {
		kvc_node_settle_locked(k, n);
	}
	kvc_unlock_both(k);
	return err;
}

int kvc_entry_readlink(struct kvc *k, uint64_t ino, char *target, size_t capacity)
{
	int err;

	kvc_catalog_lock(k->cat);
	err = kvc_target_get(k->cat, ino, target, capacity);
	kvc_catalog_unlock(k->cat);
	return err == -ENOENT ? -EINVAL : err;
}

int kvc_entry_link(struct kvc *k, uint64_t ino, uint64_t parent, const char *name, uint64_t client,
		   struct kvc_row *attr)
{
	struct kvc_node *folder, *n;
	uint64_t other, model;
	uint32_t kind;
	int err;

	kvc_lock_both(k);
	err = kvc_entry_folder_both(k, parent, name, true, &folder);
	if (!err) {
		parent = folder->row.ino;
		err = kvc_node_get_both(k, ino, &n);
	}
	if (!err && (n->commit.lost || (!n->row.nlink && !n->unnamed)))
		err = -ENOENT;
	if (!err && S_ISREG(n->row.mode) && (err = kvc_node_model_both(k, parent, &model)) == 0 &&
	    model != n->model) {
		err = kvc_model_apart_both(k, model) ?: kvc_model_apart_both(k, n->model);
		err = err > 0 ? -EXDEV : err;
	}
	if (!err) {
		err = kvc_name_get(k->cat, parent, name, &other, &kind);
		err = !err ? -EEXIST : err == -ENOENT ? 0 : err;
	}
	err = err ?: kvc_entry_may_change_both(k, false);
	err = err ?: kvc_usage_allows(k->cat, n->row.uid, true, 0);
	if (!err && n->row.nlink >= 65000)
		err = -EMLINK;
	err = err ?: kvc_rechunk_prepare_both(k, n, folder);
	if (!err)
		err = kvc_name_put(k->cat, parent, name, ino, n->row.mode & S_IFMT);
	if (!err) {
		kvc_arrival_named_locked(k, parent, name);
		n->row.nlink++;
		n->row.parent = parent;
		n->row.ctime_ns = kvc_now_ns();
		kvc_node_looked_up_locked(n);
		kvc_rechunk_both(k, n, folder, name, n->unnamed ? client : 0);
		if (n->unnamed) {
			kvc_tmpfile_named_both(k, n);
			kvc_header_rewrite_both(k, n);
		}
		kvc_node_dirty_locked(k, n);
		kvc_folder_touch_locked(k, folder, 0);
		kvc_node_attr_locked(k, n, attr);
	}
	kvc_unlock_both(k);
	return err;
}

struct other {
	uint64_t parent, left;
	const char *name;
};

static int other_name(void *arg, const struct kvc_name *n)
{
	struct other *o = arg;

	if (n->parent == o->parent && !strcmp(n->name, o->name))
		return 0;
	o->left = n->parent;
	return 1;
}

int kvc_entry_unlink_prepare_both(struct kvc *k, struct kvc_node *n, uint64_t parent,
				  const char *name, struct kvc_node **left)
{
	struct other o = { parent, 0, name };
	struct kvc_row other;
	int err;

	*left = NULL;
	if (n->row.nlink > 1 && n->row.parent == parent) {
		err = kvc_name_of(k->cat, n->row.ino, other_name, &o);
		err = err == 1 ? kvc_node_get_both(k, o.left, left) : err ?: -ENOENT;
		if (!err) {
			kvc_node_ref_locked(*left);
			err = kvc_rechunk_prepare_both(k, n, *left);
		}
		if (err) {
			kvc_entry_unlink_cancel_locked(k, parent, *left);
			*left = NULL;
		}
	} else if (n->row.nlink > 1 || !S_ISREG(n->row.mode) || !n->row.container) {
		return 0;
	} else {
		err = kvc_node_row_both(k, n->row.container, &other);
	}
	return err == -ENOENT ? 0 : err; /* a missing row must not prevent the removal of a name */
}

void kvc_entry_unlink_cancel_locked(struct kvc *k, uint64_t parent, struct kvc_node *left)
{
	if (!left)
		return;
	kvc_node_unref_locked(left);
	if (left->row.ino != parent) /* the caller holds a pointer to that folder */
		kvc_node_settle_locked(k, left);
}

void kvc_entry_unlink_apply_both(struct kvc *k, struct kvc_node *n, uint64_t parent,
				 struct kvc_node *left)
{
	n->row.nlink--;
	n->row.ctime_ns = kvc_now_ns();
	if (n->row.nlink) {
		if (left) {
			n->row.parent = left->row.ino;
			kvc_rechunk_both(k, n, left, NULL, 0);
		}
		kvc_entry_unlink_cancel_locked(k, parent, left);
		kvc_node_dirty_locked(k, n);
		kvc_header_rewrite_both(k, n);
		return;
	}
	bool parted = !kvc_chunking_part_both(k, n);

	kvc_row_del(k->cat, n->row.ino, &n->paid);
	if (parted && n->row.chunk == n->row.ino)
		kvc_chunk_forget_both(k, n->row.ino);
	if (!n->refs.opens && !n->refs.leases && !kvc_file_should_linger_locked(k, n)) {
		kvc_file_destroy_locked(k, n);
		return;
	}
	/* It is open, or about to be opened: it stays in the pool until the last close. */
	if (!n->refs.opens && !n->refs.leases)
		kvc_file_linger_locked(k, n);
	kvc_node_set_lost_locked(n, true);
	kvc_node_wake_sync_locked(k, n, 0); /* no copy will be made */
	kvc_account_quota_count_locked(k, n);
	kvc_node_clean_locked(k, n);
	kvc_file_unplace_locked(k, n);
	if (n->state == KVC_BOTH)
		kvc_file_become_locked(k, n, KVC_RESIDENT);
	kvc_committer_wake_locked(k, false);
}

/*
 * The path of a name that a client removes and that shared tiers may store too; the caller passes
 * it to kvc_remote_lookup_unshare_both and frees it. NULL if no shared tier can have the name. An
 * error means that the name must not be removed now. One such error is that the catalog cannot tell
 * whether the model is shared (user.kvcachefs.shared): the request to remove the name from the
 * shared tiers would be lost with the name.
 */
int kvc_entry_shared_path_both(struct kvc *k, uint64_t parent, const char *name, char **path)
{
	uint64_t model;
	int shared, err;

	if (!k->shared)
		return 0;
	if (!(*path = malloc(KVC_FRAME_PATH_MAX + 1)))
		return -ENOMEM;
	err = kvc_path_in_both(k, parent, name, *path);
	if (err == -ENAMETOOLONG) { /* no frame has a name of this length */
		free(*path);
		*path = NULL;
		return 0;
	}
	return err ?: kvc_node_model_both(k, parent, &model)
	       ?: kvc_model_attr_both(k, model, KVC_MODEL_SHARED, &shared);
}

bool kvc_entry_only_shared_locked(const struct kvc *k, const struct kvc_node *n)
{
	if (!k->shared || !S_ISREG(n->row.mode))
		return false;
	kvc_tier_each(k, t)
		if (!(k->tier[t].t->ops->caps & KVC_TIER_SHARED) && n->in[t].place.gen &&
		    n->in[t].place.gen == n->object.gen)
			return false;
	return true;
}

/*
 * A shared tier stores an object under its name. If that is the only copy, the next object with
 * that name would overwrite it, so the object is loaded before its name changes. (Objects below a
 * renamed folder are not loaded; they may be lost, which is a miss.) If a call needs two objects in
 * the pool, loading one may evict the other, again and again, so both loads share one deadline.
 */
int kvc_entry_load_shared_both(struct kvc *k, struct kvc_node *n, struct kvc_wait *w)
{
	uint64_t now = kvc_mono_ns(), each = k->opt.deadline_ms * 1000000;
	int err;

	if ((n->state != KVC_LOWER && n->state != KVC_LOADING) ||
	    !kvc_entry_only_shared_locked(k, n))
		return 0;
	if (w->stage == KVC_STAGE_LOADED && w->err)
		return w->err;
	if (!w->begun_ns)
		w->begun_ns = now;
	if (now >= w->begun_ns + 2 * each)
		return -ETIMEDOUT;
	w->stage = KVC_STAGE_LOADED;
	w->deadline_ns = kvc_min(now + each, w->begun_ns + 2 * each);
	err = kvc_load_start_locked(k, n, false);
	return err == -ENOENT ? -EIO : err ?: kvc_node_park_locked(k, n, w);
}

/*
 * The same for a file that loses one name and keeps another. A failed load is ignored: a tier that
 * does not answer delays the removal of a name, but does not prevent it. Returns KVC_WAIT or 0.
 */
int kvc_entry_load_other_name_both(struct kvc *k, struct kvc_node *n, struct kvc_wait *w)
{
	return n->row.nlink > 1 && kvc_entry_load_shared_both(k, n, w) == KVC_WAIT ? KVC_WAIT : 0;
}

int kvc_entry_unlink(struct kvc *k, uint64_t parent, const char *name, struct kvc_wait *w)
{
	KVC_MEM char *path = NULL;
	struct kvc_node *folder, *n, *left;
	uint64_t ino;
	uint32_t kind;
	bool whole;
	int err;

	kvc_lock_both(k);
	err = kvc_entry_folder_both(k, parent, name, false, &folder)
		      ?: kvc_entry_may_change_both(k, true);
	if (!err)
		err = kvc_name_get(k->cat, parent, name, &ino, &kind);
	if (!err && S_ISDIR(kind))
		err = -EISDIR;
	if (!err)
		err = kvc_node_get_both(k, ino, &n);
	if (!err && k->shared)
		err = kvc_entry_load_other_name_both(k, n, w)
			      ?: kvc_entry_shared_path_both(k, parent, name, &path);
	err = err ?: kvc_entry_unlink_prepare_both(k, n, parent, name, &left);
	if (!err) {
		whole = kvc_incomplete_was_whole_both(k, folder);
		if ((err = kvc_name_del(k->cat, parent, name)))
			kvc_entry_unlink_cancel_locked(k, parent, left);
	}
	if (!err) {
		if (path)
			kvc_remote_lookup_unshare_both(k, n, path, n->row.nlink > 1);
		kvc_notify_readers_both(k, KVC_EVENT_RING_dropped, n, parent, name);
		kvc_entry_unlink_apply_both(k, n, parent, left);
		kvc_folder_touch_locked(k, folder, 0);
		kvc_incomplete_after_both(k, folder, whole);
		kvc_node_settle_locked(k, n);
	}
	kvc_unlock_both(k);
	return err;
}

/* An incomplete chunk looks empty, so rmdir works on it: removes its hidden files. */
static int remove_hidden_both(struct kvc *k, struct kvc_node *folder)
{
	struct kvc_entries e = { 0 };
	uint64_t ino = folder->row.ino;
	int err = kvc_folder_entries_in_both(k, ino, &e);

	for (size_t i = 0; i < e.n && !err; i++)
		if (!S_ISREG(e.v[i].kind) || kvc_incomplete_temporary(e.v[i].name))
			err = -ENOTEMPTY;
	for (size_t i = 0; i < e.n && !err; i++) {
		KVC_MEM char *path = NULL;
		struct kvc_node *n, *left = NULL;

		if ((err = kvc_node_get_both(k, e.v[i].ino, &n)))
			break;
		err = kvc_entry_shared_path_both(k, ino, e.v[i].name, &path);
		err = err ?: kvc_entry_unlink_prepare_both(k, n, ino, e.v[i].name, &left);
		if (!err && (err = kvc_name_del(k->cat, ino, e.v[i].name)))
			kvc_entry_unlink_cancel_locked(k, ino, left);
		if (!err && path)
			kvc_remote_lookup_unshare_both(k, n, path, n->row.nlink > 1);
		if (!err) {
			kvc_notify_readers_both(k, KVC_EVENT_RING_dropped, n, ino, e.v[i].name);
			kvc_entry_unlink_apply_both(k, n, ino, left);
		}
		kvc_node_settle_locked(k, n);
	}
	free(e.v);
	return err;
}

int kvc_entry_rmdir_both(struct kvc *k, struct kvc_node *folder, const char *name,
			 struct kvc_node *n)
{
	KVC_MEM char *path = NULL;
	int err = kvc_incomplete_on(k) ? kvc_incomplete_is_both(k, n) : 0;

	if (err < 0 || (err && (err = remove_hidden_both(k, n))))
		return err;
	err = kvc_folder_empty_both(k, n->row.ino);

	if (err != 1)
		return err ?: -ENOTEMPTY;
	if (name && (err = kvc_entry_shared_path_both(k, folder->row.ino, name, &path)
				   ?: kvc_name_del(k->cat, folder->row.ino, name)))
		return err;
	if (path)
		kvc_remote_lookup_unshare_both(k, n, path, false);
	kvc_model_quota_set_both(k, n->row.ino, 0);
	kvc_model_layers_set_both(k, n->row.ino, 0);
	kvc_row_del(k->cat, n->row.ino, &n->paid);
	kvc_chunk_forget_both(k, n->row.ino);
	n->row.nlink = 0;
	kvc_file_destroy_locked(k, n);
	kvc_folder_touch_locked(k, folder, -1);
	kvc_node_settle_locked(k, n);
	return 0;
}

int kvc_entry_rmdir(struct kvc *k, uint64_t parent, const char *name)
{
	struct kvc_node *folder, *n;
	uint64_t ino;
	uint32_t kind;
	int err;

	kvc_lock_both(k);
	err = kvc_entry_purge_both(k, parent, name);
	err = err ?: kvc_entry_folder_both(k, parent, name, false, &folder);
	err = err ?: kvc_entry_may_change_both(k, true);
	if (!err)
		err = kvc_name_get(k->cat, parent, name, &ino, &kind);
	if (!err && !S_ISDIR(kind))
		err = -ENOTDIR;
	if (!err)
		err = kvc_node_get_both(k, ino, &n);
	if (!err)
		err = kvc_entry_rmdir_both(k, folder, name, n);
	kvc_unlock_both(k);
	return err;
}

int kvc_entry_parent(struct kvc *k, uint64_t ino, uint64_t *parent)
{
	struct kvc_row row;
	int err = kvc_entry_getattr(k, ino, &row);

	if (!err)
		*parent = row.parent;
	return err;
}
