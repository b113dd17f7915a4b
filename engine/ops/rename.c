/* SPDX-License-Identifier: Apache-2.0 */
/* Renames: to a free name, over an existing one, and the exchange of two. */
#include "account.h"
#include "arrival.h"
#include "cache.h"
#include "ops.h"
#include "committer.h"
#include "file.h"
#include "folder.h"
#include "gone.h"
#include "model_quota.h"
#include "model.h"
#include "model_count.h"
#include "dir_invalidate.h"
#include "incomplete.h"
#include "header_rewrite.h"
#include "remote_lookup.h"
#include "notify.h"
#include "latency.h"
#include "chunking.h"
#include "access.h"

#include <sys/stat.h>

/* Checks that n may replace the inode at the target. If that is an empty folder, removes it. */
static int replace_both(struct kvc *k, struct kvc_node *n, struct kvc_node *folder,
			const char *name, uint64_t old_ino, struct kvc_node **left,
			struct kvc_wait *w)
{
	struct kvc_node *old;
	int err = kvc_node_get_both(k, old_ino, &old);

	if (err)
		return err;
	if (S_ISDIR(n->row.mode) && !S_ISDIR(old->row.mode))
		return -ENOTDIR;
	if (!S_ISDIR(n->row.mode) && S_ISDIR(old->row.mode))
		return -EISDIR;
	if (S_ISDIR(old->row.mode))
		return kvc_entry_rmdir_both(k, folder, NULL, old);
	return kvc_entry_load_other_name_both(k, old, w)
		       ?: kvc_entry_unlink_prepare_both(k, old, folder->row.ino, name, left);
}

/*
 * A folder does not move into or out of a model with a quota or policy of its own, because all its
 * files would have to be counted again, and all its chunks would get another policy class
 * (base/policy.h). A file moves if the quota has space for its `bytes`.
 */
static int may_move_both(struct kvc *k, struct kvc_node *n, uint64_t bytes, uint64_t parent,
			 uint64_t to)
{
	uint64_t from_model, to_model;
	int apart, err = kvc_node_model_both(k, parent, &from_model)
				 ?: kvc_node_model_both(k, to, &to_model);

	if (err)
		return err;
	if (S_ISDIR(n->row.mode)) { /* a folder in the root is a model itself */
		from_model = parent == KVC_ROOT ? n->row.ino : from_model;
		to_model = to == KVC_ROOT ? n->row.ino : to_model;
	}
	if (from_model == to_model)
		return 0;
	if (S_ISDIR(n->row.mode)) {
		apart = kvc_model_apart_both(k, from_model) ?: kvc_model_apart_both(k, to_model);
		return apart > 0 ? -EXDEV : apart;
	}
	return S_ISREG(n->row.mode) ? kvc_quota_allows_locked(k, to_model, bytes) : 0;
}

/* A folder has moved: the figures of its files move to its new model. */
static void folder_moved_both(struct kvc *k, struct kvc_node *n, uint64_t from, uint64_t to)
{
	if (S_ISDIR(n->row.mode) && from != to)
		kvc_model_count_moved_both(k, n->row.ino, from, to);
}

static int rename_both(struct kvc *k, uint64_t parent, const char *name, uint64_t to,
		       const char *to_name, unsigned flags, struct kvc_wait *w)
{
	KVC_MEM char *path = NULL;
	struct kvc_node *from_folder, *to_folder, *n, *old, *left = NULL;
	uint64_t ino, old_ino = 0;
	uint32_t kind, old_kind;
	bool whole, to_whole;
	int err = kvc_entry_folder_both(k, parent, name, false, &from_folder)
			  ?: kvc_entry_folder_both(k, to, to_name, true, &to_folder);

	if (!err) {
		to = to_folder->row.ino;
		err = kvc_name_get(k->cat, parent, name, &ino, &kind)
			      ?: kvc_node_get_both(k, ino, &n);
	}
	if (!err)
		err = kvc_entry_may_change_both(k, false)
			      ?: may_move_both(k, n, kvc_account_quota_bytes(n), parent, to);
	if (err)
		return err;
	err = kvc_name_get(k->cat, to, to_name, &old_ino, &old_kind);
	if (err && err != -ENOENT)
		return err;
	if (!err && (flags & RENAME_NOREPLACE))
		return -EEXIST;
	if (!err && old_ino == ino)
		return 0;
	if ((err = kvc_entry_load_shared_both(k, n, w)) ||
	    (err = kvc_entry_shared_path_both(k, parent, name, &path)) ||
	    (err = kvc_rechunk_prepare_both(k, n, to_folder)) ||
	    (old_ino && (err = replace_both(k, n, to_folder, to_name, old_ino, &left, w))))
		return err;
	if (path)
		kvc_remote_lookup_unshare_both(k, n, path, true);
	whole = kvc_incomplete_was_whole_both(k, from_folder);
	to_whole = kvc_incomplete_was_whole_both(k, to_folder);
	err = kvc_name_del(k->cat, parent, name) ?: kvc_name_put(k->cat, to, to_name, ino, kind);
	if (err) {
		kvc_entry_unlink_cancel_locked(k, to, left);
		return err;
	}
	kvc_arrival_named_locked(k, to, to_name);
	if (old_ino && !S_ISDIR(old_kind) && !kvc_node_get_both(k, old_ino, &old)) {
		kvc_file_set_unshared_locked(n, n->copies.unshared && old->copies.unshared);
		kvc_notify_readers_both(k, KVC_EVENT_RING_dropped, old, to, to_name);
		kvc_entry_unlink_apply_both(k, old, to, left);
		kvc_node_settle_locked(k, old);
	}
	kvc_gone_name_made_locked(k, to, kvc_name_hash(to_name), ino);
	kvc_access_renamed_locked(k, ino);
	kvc_notify_readers_both(k, KVC_EVENT_RING_renamed, n, parent, name);
	n->row.ctime_ns = kvc_now_ns();
	n->row.parent = to;
	kvc_incomplete_named_locked(n, to_name);
	if (S_ISREG(n->row.mode))
		kvc_rechunk_both(k, n, to_folder, to_name, w->client);
	else if (!S_ISLNK(n->row.mode))
		kvc_chunking_folder_arrived_both(k, to_folder);
	kvc_node_dirty_locked(k, n);
	kvc_header_rewrite_both(k, n);
	folder_moved_both(k, n, parent, to);
	kvc_folder_touch_locked(k, from_folder, S_ISDIR(kind) ? -1 : 0);
	kvc_folder_touch_locked(k, to_folder, S_ISDIR(kind) ? 1 : 0);
	kvc_incomplete_after_both(k, from_folder, whole);
	kvc_incomplete_after_both(k, to_folder, to_whole);
	if (from_folder != to_folder)
		kvc_incomplete_moved_both(k, n, to_folder);
	kvc_node_settle_locked(k, n);
	return 0;
}

/* Completes the move of n, one of two exchanged nodes, to `folder`. */
static void exchanged_both(struct kvc *k, struct kvc_node *n, struct kvc_node *folder)
{
	kvc_access_renamed_locked(k, n->row.ino);
	kvc_file_set_temporary_locked(n, 0);
	n->row.ctime_ns = kvc_now_ns();
	n->row.parent = folder->row.ino;
	if (S_ISREG(n->row.mode))
		kvc_rechunk_both(k, n, folder, NULL, 0);
	else if (!S_ISLNK(n->row.mode))
		kvc_chunking_folder_arrived_both(k, folder);
	kvc_node_dirty_locked(k, n);
	kvc_header_rewrite_both(k, n);
	kvc_node_settle_locked(k, n);
}

/*
 * Checks that both files or folders of an exchange may move. Between two models each file makes
 * space for the other.
 */
static int may_exchange_both(struct kvc *k, struct kvc_node *a, struct kvc_node *b, uint64_t from,
			     uint64_t to)
{
	uint64_t a_bytes = kvc_account_quota_bytes(a), b_bytes = kvc_account_quota_bytes(b),
		 less = kvc_min(a_bytes, b_bytes);

	return may_move_both(k, a, a_bytes - less, from, to)
		       ?: may_move_both(k, b, b_bytes - less, to, from);
}

/* If both have to be loaded before the exchange, can the pool hold both? */
static bool pool_fits_both_locked(const struct kvc *k, const struct kvc_node *a,
				  const struct kvc_node *b)
{
	if ((kvc_node_has_segment(a) && kvc_node_has_segment(b)) ||
	    !kvc_entry_only_shared_locked(k, a) || !kvc_entry_only_shared_locked(k, b))
		return true;
	return (a->row.blocks + b->row.blocks) * 512 <= k->pool.bytes / 100 * k->opt.high_pct;
}

/* RENAME_EXCHANGE: swaps two names in one step. */
static int exchange_both(struct kvc *k, uint64_t parent, const char *name, uint64_t to,
			 const char *to_name, struct kvc_wait *w)
{
	KVC_MEM char *a_path = NULL;
	KVC_MEM char *b_path = NULL;
	struct kvc_node *from_folder, *to_folder, *a, *b;
	uint64_t a_ino, b_ino;
	uint32_t a_kind, b_kind;
	int err = kvc_entry_folder_both(k, parent, name, false, &from_folder)
			  ?: kvc_entry_folder_both(k, to, to_name, false, &to_folder);

	err = err ?: kvc_name_get(k->cat, parent, name, &a_ino, &a_kind);
	err = err ?: kvc_name_get(k->cat, to, to_name, &b_ino, &b_kind);
	err = err ?: kvc_node_get_both(k, a_ino, &a) ?: kvc_node_get_both(k, b_ino, &b);
	if (err || a == b)
		return err;
	err = kvc_entry_may_change_both(k, false) ?: may_exchange_both(k, a, b, parent, to);
	if (!err && !pool_fits_both_locked(k, a, b))
		err = -ENOSPC;
	err = err ?: kvc_entry_load_shared_both(k, a, w) ?: kvc_entry_load_shared_both(k, b, w);
	if (err)
		return err;
	err = kvc_entry_shared_path_both(k, parent, name, &a_path)
		      ?: kvc_entry_shared_path_both(k, to, to_name, &b_path);
	err = err ?: kvc_rechunk_prepare_both(k, a, to_folder);
	err = err ?: kvc_rechunk_prepare_both(k, b, from_folder);
	if (err)
		return err;
	if (a_path)
		kvc_remote_lookup_unshare_both(k, a, a_path, true);
	if (b_path)
		kvc_remote_lookup_unshare_both(k, b, b_path, true);
	err = kvc_name_put(k->cat, parent, name, b_ino, b_kind);
	if (!err && (err = kvc_name_put(k->cat, to, to_name, a_ino, a_kind)))
		kvc_name_put(k->cat, parent, name, a_ino, a_kind);
	if (err)
		return err;
	kvc_arrival_named_locked(k, parent, name);
	kvc_arrival_named_locked(k, to, to_name);
	int moved = S_ISDIR(a_kind) - S_ISDIR(b_kind); /* net number of folders that move */

	kvc_notify_readers_both(k, KVC_EVENT_RING_renamed, a, parent, name);
	kvc_notify_readers_both(k, KVC_EVENT_RING_renamed, b, to, to_name);
	kvc_incomplete_moved_both(k, a, to_folder);
	kvc_incomplete_moved_both(k, b, from_folder);

	kvc_file_set_unshared_locked(a, a->copies.unshared && b->copies.unshared);
	kvc_file_set_unshared_locked(b, a->copies.unshared);
	exchanged_both(k, a, to_folder);
	exchanged_both(k, b, from_folder);
	folder_moved_both(k, a, parent, to);
	folder_moved_both(k, b, to, parent);
	kvc_folder_touch_locked(k, from_folder, -moved);
	kvc_folder_touch_locked(k, to_folder, moved);
	return 0;
}

/*
 * A close() followed by a rename(): the kernel sends the close and does not wait for the reply, so
 * the rename may arrive first. An unfinished file must not replace a finished one (a kill at that
 * moment would lose both), so the rename waits a short time for the close. If the file really stays
 * open, the wait ends and the rename proceeds.
 */
#define CLOSE_WAIT_NS 50000000ull

static bool replaces_unfinished_both(struct kvc *k, uint64_t parent, const char *name, uint64_t to,
				     const char *to_name, struct kvc_node **n)
{
	uint64_t ino, old;
	uint32_t kind;

	return !kvc_name_get(k->cat, to, to_name, &old, &kind) &&
	       !kvc_name_get(k->cat, parent, name, &ino, &kind) &&
	       (*n = kvc_node_find_locked(k, ino)) && (*n)->state == KVC_OPEN &&
	       (*n)->segment.fresh && old != ino;
}

int kvc_rename(struct kvc *k, uint64_t parent, const char *name, uint64_t to, const char *to_name,
	       unsigned flags, struct kvc_wait *w)
{
	bool exchange = flags == RENAME_EXCHANGE;
	struct kvc_node *n;
	int err;

	if (!w->begun_ns)
		w->begun_ns = kvc_mono_ns();
	if (flags & ~(unsigned)RENAME_NOREPLACE && !exchange)
		return -EINVAL;
	kvc_lock_both(k);
	if ((err = kvc_entry_purge_both(k, to, to_name))) {
		kvc_unlock_both(k);
		return err;
	}
	if ((w->stage < KVC_STAGE_CLOSED &&
	     replaces_unfinished_both(k, parent, name, to, to_name, &n)) ||
	    (w->stage < KVC_STAGE_BOTH_CLOSED && exchange &&
	     replaces_unfinished_both(k, to, to_name, parent, name, &n))) {
		w->stage++;
		w->deadline_ns = kvc_mono_ns() + CLOSE_WAIT_NS;
		err = kvc_node_park_locked(k, n, w);
	} else {
		err = exchange ? exchange_both(k, parent, name, to, to_name, w)
			       : rename_both(k, parent, name, to, to_name, flags, w);
	}
	kvc_unlock_both(k);
	if (!err)
		kvc_latency_record(k, KVC_OP_rename, KVC_OF_POOL, 0, w->begun_ns);
	return err;
}
