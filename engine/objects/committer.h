/* SPDX-License-Identifier: Apache-2.0 */
/* The changes that the next commit writes, and the callers that wait for it. All under k->lock. */
#ifndef KVC_COMMITTER_H
#define KVC_COMMITTER_H

#include "chunk.h"
#include "commit_sync.h"
#include "wear.h"

/* The accesses of one chunk that its row lacked when they were saved (access_state.h). */
struct kvc_access_record {
	uint64_t id, created_ns, last_ns, hits;
	uint64_t facts[KVC_CACHES]; /* the state that each cache's policy keeps (c->saved_state) */
};

/*
 * Chunks whose row lacks their latest accesses, linked by dirty_link. A chunk is either on one of
 * these lists (then chunk->accesses_only is set) or on kvc_committer.chunks, never on both.
 */
struct kvc_accesses {
	struct kvc_list wanted;   /* a trimmer needs the new rank: written regardless of credit */
	struct kvc_list released; /* chunks without references, freed once they are written */
	struct kvc_list held;     /* all others */
	size_t nreleased;
	int64_t credit;     /* bytes that may be written now; negative after a large transaction */
	uint64_t credit_ns; /* when credit was last added */
	uint64_t turn_ns;   /* when access_save.c last looked at the lists */
	struct kvc_wear written; /* bytes written for accesses */
	/* saved by an earlier mount, sorted by id (access_state.h); or NULL */
	struct kvc_access_record *loaded;
	size_t nloaded;
};

struct kvc_chunk;

struct kvc_committer {
	struct kvc_list nodes, chunks; /* by dirty_link: changes that the next commit writes */
	size_t nnodes;                 /* dirty nodes */
	struct kvc_accesses accesses;  /* written in transactions of their own (access_save.h) */
	struct kvc_list sync_waiters;  /* fsyncs that wait for the commit, and then for syncs */
	struct kvc_commit_sync syncs;  /* those whose commit was written */
	/* lingering nodes (file.h): [0] since the last commit, [1] since the one before */
	struct kvc_list lingering[2];
	uint64_t committed;            /* number of the last committed transaction */
	pthread_cond_t cond;           /* wakes the committer thread */
	pthread_cond_t committed_cond; /* `committed` was increased */
	/* a commit was requested: within commit= milliseconds; at once */
	bool soon, now;
	/* average time of 1024 changes in recent commits, in ns; 0: not known */
	uint64_t each_ns;
};

/*
 * Returns the number of changes with which a commit takes about 15 ms on this machine.
 * Background work adds no more changes than this (kvc_commit_gate); stores of users are throttled
 * at twice this number.
 */
size_t kvc_committer_batch_max_locked(const struct kvc *k);
/* Returns about how many changes the next commit will have. */
size_t kvc_committer_changes_locked(const struct kvc *k);

/* Wakes the committer: it commits within commit=, or at once if `now` is set. */
void kvc_committer_wake_locked(struct kvc *k, bool now);

/* Queues the accesses of a chunk that has a row and is on no list of dirty chunks. */
void kvc_committer_access_held_locked(struct kvc *k, struct kvc_chunk *c);
/*
 * A walk by rank in the catalog found this chunk's row with an old rank: the row is written soon,
 * regardless of the credit. Does nothing if the next commit writes or deletes the whole row.
 */
void kvc_committer_access_want_locked(struct kvc *k, struct kvc_chunk *c);
/*
 * Called when nothing refers to a dirty chunk any more. Returns true if it is clean now and may be
 * freed, because its accesses are not worth a write; false if it must stay until it is written.
 */
bool kvc_committer_access_release_locked(struct kvc *k, struct kvc_chunk *c);
/* Removes the chunk from its list of dirty chunks, whichever that is, and marks it clean. */
void kvc_committer_access_unlink_locked(struct kvc *k, struct kvc_chunk *c);
/*
 * Returns true if the chunk's row is worth a write: chunk->due is set, or the row's time of use is
 * behind by more than an eighth of the chunk's age or more than ten minutes.
 */
bool kvc_committer_access_due(const struct kvc_chunk *c);

#endif
