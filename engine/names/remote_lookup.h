/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Finding objects that other nodes have stored in shared tiers (remote_lookup.c). k->lock guards
 * the tables.
 */
#ifndef KVC_REMOTE_LOOKUP_H
#define KVC_REMOTE_LOOKUP_H

#include "frame.h"
#include "node.h"

#define KVC_REMOTE_LOOKUP_BUCKETS 1024u
#define KVC_REMOTE_LOOKUP_LANES 16u
#define KVC_REMOTE_LOOKUP_TEMPS 64u

/* The lookups that wait for one tier. */
struct kvc_remote_lookup_queue {
	/* waiting lookups by the user of the first caller; served in turn */
	struct kvc_list lanes[KVC_REMOTE_LOOKUP_LANES];
	unsigned turn;  /* the lane that was served last */
	unsigned given; /* lookups in the tier's own queue or running */
};

struct kvc_remote_lookup {
	struct kvc_list asks[KVC_REMOTE_LOOKUP_BUCKETS]; /* all lookups, by folder and name */
	struct kvc_remote_lookup_queue queues[KVC_TIERS];
	/* names that no shared tier had a moment ago; NULL before the first */
	struct kvc_miss *misses;
	/* models in which files with temporary names are made; the root's number for the root */
	uint64_t temps[KVC_REMOTE_LOOKUP_TEMPS];
};

/* init before the first call, fini after the last thread of a tier has ended. */
void kvc_remote_lookup_init(struct kvc_remote_lookup *s);
void kvc_remote_lookup_fini(struct kvc_remote_lookup *s);

/*
 * Looks up a name that is not in the catalog in the shared tiers. Returns KVC_WAIT if the call is
 * parked (then look in the catalog again), -ENOENT if no tier has the name or the call may not wait
 * (caller.h), -EAGAIN if w is NULL and the call would have to wait, or the catalog's error.
 * -EINPROGRESS: call kvc_peek_gone for *path without the locks, then this function again. gone:
 * zero at first, then the result of that call.
 */
int kvc_remote_lookup_ask_both(struct kvc *k, uint64_t parent, const char *name, struct kvc_wait *w,
			       const struct kvc_peek_gone *gone, struct kvc_where *path);
/* A file of this name was made in the model (0: directly in the root). */
void kvc_remote_lookup_made_locked(struct kvc *k, uint64_t model, const char *name);
/*
 * Reads the header of the frame that a shared tier stores at a path, and checks it
 * (kvc_proof_found). page: KVC_FRAME_HEADER bytes, aligned to a page. Returns 0 and *f, or -ENOENT,
 * -ENOKEY, -EBADMSG, or the tier's error. Blocks; the caller holds no lock.
 */
int kvc_remote_lookup_head(struct kvc *k, unsigned tier, const char *path, uint8_t *page,
			   struct kvc_frame *f);
/*
 * Makes a node for a frame in a shared tier. Returns 0, -EEXIST, -EBADMSG if the frame is not
 * acceptable, or another error.
 */
int kvc_remote_lookup_adopt_both(struct kvc *k, unsigned tier, uint64_t parent, const char *name,
				 const struct kvc_where *w, const struct kvc_frame *f);
/*
 * A client has removed or renamed this path of the file. Removes the copies in shared tiers if
 * user.kvcachefs.shared says so, and records the path as gone, so that lookups do not find it
 * again. moved: the file was renamed, or has other names.
 */
void kvc_remote_lookup_unshare_both(struct kvc *k, struct kvc_node *n, const char *path,
				    bool moved);

#endif
