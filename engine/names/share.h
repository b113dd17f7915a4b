/* SPDX-License-Identifier: Apache-2.0 */
/* What other nodes stored opens here too (share.c). Both locks; the tables are under k->lock. */
#ifndef KVC_SHARE_H
#define KVC_SHARE_H

#include "frame.h"
#include "node.h"

#define KVC_ASK_BUCKETS 1024u
#define KVC_ASK_LANES 16u
#define KVC_SHARE_TEMPS 64u

/* The questions that wait for one tier. */
struct kvc_ask_queue {
	struct kvc_list lanes[KVC_ASK_LANES]; /* by the user who asked first; served in turn */
	unsigned turn;                        /* the lane served last */
	unsigned given; /* questions in the tier's own queue, or being asked */
};

struct kvc_share {
	struct kvc_list asks[KVC_ASK_BUCKETS]; /* all questions, by folder and name */
	struct kvc_ask_queue queues[KVC_TIERS];
	/* names that no shared tier had a moment ago; NULL: none yet */
	struct kvc_miss *misses;
	/* models in which files with temporary names are made; the root's number for the root */
	uint64_t temps[KVC_SHARE_TEMPS];
};

/* Before the first call, and after the last thread of a tier. */
void kvc_share_init(struct kvc_share *s);
void kvc_share_fini(struct kvc_share *s);

/*
 * Asks the shared tiers for a name that is not in the catalog. KVC_WAIT: parked, look again after;
 * -ENOENT: no tier has it, or the call has no place to wait in (caller.h); -EAGAIN: it would have
 * to wait, without w; or the catalog's error.
 */
int kvc_ask_both(struct kvc *k, uint64_t parent, const char *name, struct kvc_wait *w);
/* A file of that name was made in the model (0: directly in the root). k->lock. */
void kvc_share_made_locked(struct kvc *k, uint64_t model, const char *name);
/*
 * Reads the header that a shared tier has for a path, and believes it (kvc_proof_found): 0 with *f,
 * -ENOENT, -ENOKEY, -EBADMSG, or the tier's error. page is KVC_FRAME_HEADER bytes, of a page's
 * alignment. Without locks, and blocks.
 */
int kvc_share_head(struct kvc *k, unsigned tier, const char *path, uint8_t *page,
		   struct kvc_frame *f);
/*
 * Makes a node for a frame that a shared tier has; 0, -EEXIST, -EBADMSG (not one of ours to take),
 * or another.
 */
int kvc_adopt_both(struct kvc *k, unsigned tier, uint64_t parent, const char *name,
		   const struct kvc_where *w, const struct kvc_frame *f);
/* The file lost this path by a caller's doing (unlink, rename): see user.kvcachefs.shared. */
void kvc_unshare_both(struct kvc *k, struct kvc_node *n, const char *path, bool moved);

#endif
