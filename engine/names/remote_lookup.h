/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Finding objects that other nodes have stored in shared tiers (remote_lookup.c). k->lock guards
 * the tables.
 */
#ifndef KVC_REMOTE_LOOKUP_H
#define KVC_REMOTE_LOOKUP_H

#include "frame.h"
#include "node.h"
#include "tier_queue.h"

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

/*
 * A job that asks a tier for names, the first member of a struct from malloc, which is freed after
 * the job. It waits in a lane until it is its user's turn.
 */
struct kvc_remote_turn {
	struct kvc_job job;   /* must be first */
	struct kvc_list lane; /* empty: in the tier's own queue, or running */
	uint32_t uid;         /* user of the first call */
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
/*
 * For names that are looked up together (remote_batch.c). is_vain: may no tier be asked for the
 * name, since its form excludes that, or since none had it a moment ago? again: a moment ago does
 * not count. Returns 1 or 0, or an error of the catalog. missed: notes that none has it.
 */
int kvc_remote_lookup_is_vain_both(struct kvc *k, uint64_t parent, const char *name, bool again);
void kvc_remote_lookup_missed_locked(struct kvc *k, uint64_t parent, const char *name);
/*
 * Starts a lookup of the name, unless one is under way, without a call that waits for it. tried: a
 * bit for each tier that does not have the name. counted: the name is in the counter `asks`
 * already. gone: as for kvc_remote_lookup_ask_both. Returns 0, or -ENOENT if no tier may be asked,
 * or -EAGAIN if *gone is not current, or an error.
 */
int kvc_remote_lookup_start_both(struct kvc *k, uint64_t parent, const char *name, uint32_t uid,
				 unsigned tried, bool counted, const struct kvc_peek_gone *gone);
/* Parks the call until the lookup of the name has ended. Returns KVC_WAIT, or 0 if it has. */
int kvc_remote_lookup_wait_locked(struct kvc *k, uint64_t parent, const char *name,
				  struct kvc_wait *w);
/* Cancels the lookup of the name if it has not started, and no call waits for it. */
void kvc_remote_lookup_forget_locked(struct kvc *k, uint64_t parent, const char *name);
/* Returns the time at which a lookup that starts now ends at the latest. */
uint64_t kvc_remote_lookup_deadline_ns(const struct kvc *k);
/*
 * Queues a job of this kind for a tier, behind other lookups there of the same user; turn->uid is
 * set. The job calls turn_ended_locked at its end.
 */
void kvc_remote_lookup_turn_locked(struct kvc *k, struct kvc_remote_turn *turn, unsigned tier,
				   void (*run)(struct kvc *k, struct kvc_job *j));
void kvc_remote_lookup_turn_ended_locked(struct kvc *k, unsigned tier);
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
