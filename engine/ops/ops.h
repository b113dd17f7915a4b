/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Functions that files of ops/ call in other files of ops/, beyond cache.h. Unless a comment says
 * otherwise, they return 0 or a negative errno that the request ends with.
 */
#ifndef KVC_OPS_H
#define KVC_OPS_H

#include "cache.h"
#include "clock.h"
#include "node.h"

/*
 * io.c, for flush: waits until all changes so far are committed, and for two syncs: of the device
 * `of` (objects/commit_sync.h) and of the catalog's log. Returns KVC_WAIT, 0, or an error.
 */
int kvc_io_sync(struct kvc *k, unsigned of, struct kvc_wait *w);
/*
 * entry.c: finds a folder for a call that is about to change `name` in it (NULL: no name). First
 * completes any drop that the call could collide with. Returns -ENOTDIR if ino is not a folder. A
 * dropped folder is revived if `revive` is set, which a call that adds a name does; *folder may
 * then be a different struct kvc_node. Without `revive` a dropped folder gives -ENOENT.
 */
int kvc_entry_folder_both(struct kvc *k, uint64_t ino, const char *name, bool revive,
			  struct kvc_node **folder);
/*
 * entry.c: if `name` is a folder that holds only names of dropped files, deletes these names. For a
 * call that is about to remove or replace the folder. Releases and retakes the locks, so the caller
 * calls it before it reads anything else.
 */
int kvc_entry_purge_both(struct kvc *k, uint64_t parent, const char *name);
/*
 * entry.c: checks that the catalog accepts a change now (kvc_accepts), and reserves memory for all
 * changes of the call, so that it makes all of them or none.
 */
int kvc_entry_may_change_both(struct kvc *k, bool removal);
/*
 * rechunk.c: moves file n, which has just got a name in `folder`, into the chunk and the model of
 * that folder. If the catalog cannot be read, n stays in its chunk and is moved later in the
 * background. The caller first calls kvc_rechunk_prepare_both under the same hold of the locks: it
 * reads the rows that the move needs, and returns an error before anything has changed.
 */
void kvc_rechunk_both(struct kvc *k, struct kvc_node *n, struct kvc_node *folder, const char *name,
		      uint64_t client);
int kvc_rechunk_prepare_both(struct kvc *k, struct kvc_node *n, struct kvc_node *folder);
/*
 * entry.c, for rename.c: removes one of a file's names, `name` in folder `parent`, from its node.
 * The caller first calls _prepare_, which reads the rows that this needs. If `parent` is the file's
 * parent and the file has another name, the folder of that name becomes the parent: _prepare_ sets
 * *left to that folder, with a reference; otherwise to NULL. _apply_both releases the reference, or
 * _cancel_locked if the call fails in between.
 */
int kvc_entry_unlink_prepare_both(struct kvc *k, struct kvc_node *n, uint64_t parent,
				  const char *name, struct kvc_node **left);
void kvc_entry_unlink_cancel_locked(struct kvc *k, uint64_t parent, struct kvc_node *left);
void kvc_entry_unlink_apply_both(struct kvc *k, struct kvc_node *n, uint64_t parent,
				 struct kvc_node *left);
/* The path of a name as shared tiers store it; see entry.c. */
int kvc_entry_shared_path_both(struct kvc *k, uint64_t parent, const char *name, char **path);
/* True if every tier with the current bytes of the file is a shared one. */
bool kvc_entry_only_shared_locked(const struct kvc *k, const struct kvc_node *n);
/*
 * entry.c, for calls that change a name: loads the object if its only copy is stored in a shared
 * tier under that name. Returns 0 if nothing has to be loaded, KVC_WAIT, or an error.
 */
int kvc_entry_load_shared_both(struct kvc *k, struct kvc_node *n, struct kvc_wait *w);
/* The same if the file has another name; a failed load is ignored. Returns 0 or KVC_WAIT. */
int kvc_entry_load_other_name_both(struct kvc *k, struct kvc_node *n, struct kvc_wait *w);
/* entry.c: removes the empty folder n. name is NULL if the caller removes or reuses its name. */
int kvc_entry_rmdir_both(struct kvc *k, struct kvc_node *folder, const char *name,
			 struct kvc_node *n);
/* Values of w->stage for a rename or an unlink: the waits that are over. */
enum { KVC_STAGE_CLOSED = 1, KVC_STAGE_BOTH_CLOSED, KVC_STAGE_LOADED };
/*
 * hit.c: calls on files that are in the pool, under a joint hold of k->lock. They return true if
 * they did the whole call. If they return false, they changed nothing: then do the call with the
 * lock (kvc_lock_unless_joint), and release it with kvc_unlock_to_joint.
 */
bool kvc_hit_open(struct kvc *k, uint64_t ino, int flags, struct kvc_opened *out,
		  const struct kvc_wait *w);
bool kvc_hit_release(struct kvc *k, uint64_t ino, int flags, uint32_t uid);
/* The descriptor of an open file. */
bool kvc_hit_fd(struct kvc *k, uint64_t ino, int *fd);
/* The attributes. looked_up: counts a lookup of the kernel. */
bool kvc_hit_attr(struct kvc *k, uint64_t ino, struct kvc_row *attr, bool looked_up);
/* True if no dropped folder had this name; the caller knows that the catalog does not have it. */
bool kvc_hit_absent(struct kvc *k, uint64_t parent, const char *name, uint64_t hash);
bool kvc_hit_forget(struct kvc *k, uint64_t ino, uint64_t count);
/* For opens with the lock, in open.c. The comments are in hit.c. */
bool kvc_hit_may_pass_through_locked(struct kvc *k, uint64_t model);
void kvc_hit_register_locked(struct kvc *k, struct kvc_node *n, bool writer, bool bare);
/*
 * Sets the access time for an open with these flags, as the options noatime and relatime require.
 */
void kvc_hit_update_atime_locked(struct kvc *k, struct kvc_node *n, int flags);
/* with more registrations than this, closed files do not keep theirs */
#define KVC_BACKINGS_MAX 32768u
/*
 * Same as kvc_lookup, but also finds hidden files (incomplete.h), for the clients that make them.
 */
int kvc_entry_lookup_any(struct kvc *k, uint64_t parent, const char *name, struct kvc_row *attr,
			 struct kvc_wait *w);
/* asked.c: lookups of missing names, for context.c. NULL: no memory. */
struct kvc_asked *kvc_asked_new(void);
void kvc_asked_free(struct kvc_asked *a);
/* asked.c: counts the lookups that no creation has followed. Call it before reading counters. */
void kvc_asked_settle(struct kvc *k);
/*
 * share_retry.c: *err is the result of a call. If it is KVC_OVER_SHARE (user.h), the user's
 * idle objects are released, at most once per call, and the result is true: make the call again.
 * Otherwise false, and *err is the call's final result. The caller holds no lock.
 */
bool kvc_share_retry_call(struct kvc *k, struct kvc_wait *w, int *err);
/* Releases idle objects of a user that is near its share. The caller holds no lock. */
void kvc_share_retry_free_idle(struct kvc *k, uint32_t uid);

/*
 * pages.c: allocating and freeing many pages of a segment in one call; the file says why this needs
 * care.
 */
#define KVC_PAGES_QUICK (8ull << 20) /* bytes that a request handler allocates or frees itself */
/* bytes that are allocated or freed under a lock: the kernel clears each page */
#define KVC_PAGES_HELD (1ull << 20)

/* the locks that the caller holds: k->lock, or the catalog's too */
enum kvc_held { KVC_HELD_ONE, KVC_HELD_BOTH };

/*
 * Calls fallocate on the segment of an OPEN node; fd is its descriptor. A range above
 * KVC_PAGES_HELD is processed without the locks, and the node stays in memory and open for writing
 * until they are taken again. If done is not NULL, *done is the number of bytes from `off` that
 * were processed, also after an error. Returns 0, -ESTALE if the file was destroyed, or another
 * negative errno. The caller settles the node afterwards, because the kernel may have forgotten it.
 */
int kvc_pages_locked(struct kvc *k, struct kvc_node *n, enum kvc_held held, int fd, int mode,
		     uint64_t off, uint64_t len, uint64_t *done);
/* Extends a file to at least this size (bytes). */
int kvc_pages_size(int fd, uint64_t least);
/* Truncates the segment like kvc_pages_locked, without the locks if many pages are freed. */
int kvc_pages_truncate_locked(struct kvc *k, struct kvc_node *n, enum kvc_held held, int fd,
			      uint64_t size);
/*
 * Call it before the only writer of a file closes it. Frees most of the pages that were allocated
 * beyond the end of the file, in steps, and releases k->lock between the steps. Publishing frees
 * the rest at once.
 */
void kvc_pages_trim_locked(struct kvc *k, struct kvc_node *n);
/*
 * True if truncating this node to `size` would free so much that a request handler must not do it.
 */
bool kvc_pages_truncate_is_long_locked(const struct kvc_node *n, uint64_t size);

#endif
