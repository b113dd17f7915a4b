/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What other nodes stored opens here too (remote_lookup.c). Both locks; the tables are under
 * k->lock.
 */
#ifndef KVC_REMOTE_LOOKUP_H
#define KVC_REMOTE_LOOKUP_H

#include "frame.h"
#include "node.h"

#define KVC_REMOTE_LOOKUP_BUCKETS 1024u
#define KVC_REMOTE_LOOKUP_LANES 16u
#define KVC_REMOTE_LOOKUP_TEMPS 64u

/* The questions that wait for one tier. */
struct kvc_remote_lookup_queue {
	/* by the user who asked first; served in turn */
	struct kvc_list lanes[KVC_REMOTE_LOOKUP_LANES];
	unsigned turn;  /* the lane served last */
	unsigned given; /* questions in the tier's own queue, or being asked */
};

struct kvc_remote_lookup {
	struct kvc_list asks[KVC_REMOTE_LOOKUP_BUCKETS]; /* all questions, by folder and name */
	struct kvc_remote_lookup_queue queues[KVC_TIERS];
	/* names that no shared tier had a moment ago; NULL: none yet */
	struct kvc_miss *misses;
	/* models in which files with temporary names are made; the root's number for the root */
	uint64_t temps[KVC_REMOTE_LOOKUP_TEMPS];
};

/* Before the first call, and after the last thread of a tier. */
void kvc_remote_lookup_init(struct kvc_remote_lookup *s);
void kvc_remote_lookup_fini(struct kvc_remote_lookup *s);

/*
 * Asks the shared tiers for a name that is not in the catalog. KVC_WAIT: parked, look again after;
 * -ENOENT: no tier has it, or the call has no place to wait in (caller.h); -EAGAIN: it would have
 * to wait, without w; or the catalog's error.
 */
int kvc_remote_lookup_ask_both(struct kvc *k, uint64_t parent, const char *name,
			       struct kvc_wait *w);
/* A file of that name was made in the model (0: directly in the root). k->lock. */
void kvc_remote_lookup_made_locked(struct kvc *k, uint64_t model, const char *name);
/*
 * Reads the header that a shared tier has for a path, and believes it (kvc_proof_found): 0 with *f,
 * -ENOENT, -ENOKEY, -EBADMSG, or the tier's error. page is KVC_FRAME_HEADER bytes, of a page's
 * alignment. Without locks, and blocks.
 */
int kvc_remote_lookup_head(struct kvc *k, unsigned tier, const char *path, uint8_t *page,
			   struct kvc_frame *f);
/*
 * Makes a node for a frame that a shared tier has; 0, -EEXIST, -EBADMSG (not one of ours to take),
 * or another.
 */
int kvc_remote_lookup_adopt_both(struct kvc *k, unsigned tier, uint64_t parent, const char *name,
				 const struct kvc_where *w, const struct kvc_frame *f);
/* The file lost this path by a caller's doing (unlink, rename): see user.kvcachefs.shared. */
void kvc_remote_lookup_unshare_both(struct kvc *k, struct kvc_node *n, const char *path,
				    bool moved);

#endif
