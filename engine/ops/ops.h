/* SPDX-License-Identifier: Apache-2.0 */
/* What the files of this floor have of each other beyond cache.h. */
#ifndef KVC_OPS_H
#define KVC_OPS_H

#include "cache.h"
#include "clock.h"
#include "node.h"

/*
 * entry.c: a folder by its number, for a call that is about to change this name in it (NULL: none):
 * -ENOENT where it is gone, -ENOTDIR. With anew, where something is to be made in it, a dropped one
 * comes back. What a drop has not removed yet is out of the call's way then.
 */
int kvc_entry_folder_both(struct kvc *k, uint64_t ino, const char *name, bool anew,
			  struct kvc_node **folder);
/*
 * Before a folder is removed or replaced, if this name is one: removes names of dropped files from
 * it if it has no others. Gives the locks back in between, so call it before anything was looked
 * at.
 */
int kvc_entry_empty_both(struct kvc *k, uint64_t parent, const char *name);
/* kvc_takes, and what the call then does to the catalog it does whole. */
int kvc_entry_takes_both(struct kvc *k, bool removal);
/*
 * rechunk.c: a file that came to this folder belongs to the chunk there. Where the
 * catalog errs it stays whole in the one that it had, and changes in the background. Before
 * anything is done, the other tells whether what has to be known for that can be: 0, or what the
 * call fails with.
 */
void kvc_rechunk_both(struct kvc *k, struct kvc_node *n, struct kvc_node *folder, const char *name,
		      uint64_t client);
int kvc_rechunk_known_both(struct kvc *k, struct kvc_node *n, struct kvc_node *folder);
/*
 * entry.c, for rename.c: a file lost one of its names, in folder `parent`. Before that it is to be
 * known where it is then: *left is held for the one of the others, or NULL. 0, or what the call
 * fails with.
 */
int kvc_entry_unlinked_known_both(struct kvc *k, struct kvc_node *n, uint64_t parent,
				  const char *name, struct kvc_node **left);
void kvc_entry_unlinked_not_locked(struct kvc *k, uint64_t parent, struct kvc_node *left);
void kvc_entry_unlinked_both(struct kvc *k, struct kvc_node *n, uint64_t parent,
			     struct kvc_node *left);
/* The same, each with its comment there. */
int kvc_entry_shared_path_both(struct kvc *k, uint64_t parent, const char *name, char **path);
/* Has no tier but shared ones the file as it is? */
bool kvc_entry_only_shared_locked(const struct kvc *k, const struct kvc_node *n);
int kvc_entry_at_hand_both(struct kvc *k, struct kvc_node *n, struct kvc_wait *w);
int kvc_entry_keep_at_hand_both(struct kvc *k, struct kvc_node *n, struct kvc_wait *w);
int kvc_entry_rmdir_both(struct kvc *k, struct kvc_node *folder, const char *name,
			 struct kvc_node *n);
/* How far the wait of a rename or an unlink has come (w->stage). */
enum { KVC_STAGE_CLOSED = 1, KVC_STAGE_BOTH_CLOSED, KVC_STAGE_LOADED };
/* The same as kvc_lookup, and hidden files too (incomplete.h): for who makes them. */
int kvc_entry_lookup_any(struct kvc *k, uint64_t parent, const char *name, struct kvc_row *attr,
			 struct kvc_wait *w);
/*
 * share_retry.c: a call ended with *err. Where that is KVC_OVER_SHARE (user_share.h), what its user
 * holds and does not need is looked for, once; true: make the call again. False, and *err is what
 * it ends with. Without locks.
 */
bool kvc_share_retry_call(struct kvc *k, struct kvc_wait *w, int *err);
/* The same without a call: where he holds much. */
void kvc_share_retry_free_idle(struct kvc *k, uint32_t uid);
/* recover.c: takes over what an earlier daemon left. */
int kvc_recover(struct kvc *k, char *error);
/*
 * pool_scan.c: takes over the segments of a pool that an earlier daemon left, and removes those
 * that are of no use. Before any thread; with both locks held. 0, or an error with its text in
 * error[512], and no segment of a published file is lost. *threads: how many read the pool and the
 * catalog.
 */
int kvc_pool_scan_both(struct kvc *k, unsigned *threads, char *error);
/* sweep.c: after k->stopping was set. */
void kvc_sweep_stop(struct kvc *k);

#endif
