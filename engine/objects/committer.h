/* SPDX-License-Identifier: Apache-2.0 */
/* What the next commit is to write, and who waits for it. All under k->lock. */
#ifndef KVC_COMMITTER_H
#define KVC_COMMITTER_H

#include "chunk.h"
#include "wear.h"

/* An access as access_state.h keeps it: what the chunk's row lacked when it was saved. */
struct kvc_access_record {
	uint64_t id, created_ns, last_ns, hits;
	uint64_t facts[KVC_CACHES];
};

/*
 * Chunks that have a row which lacks their latest accesses, by dirty_link. A chunk is on one of
 * these lists (chunk->later is set) or on kvc_committer.chunks, never on both.
 */
struct kvc_accesses {
	struct kvc_list wanted;   /* a trimmer met the old rank: written without regard to credit */
	struct kvc_list released; /* nothing refers to the chunk: it is freed once it is written */
	struct kvc_list held;     /* in memory for other reasons */
	size_t nreleased;
	int64_t credit;     /* bytes that may be written now; negative after a large transaction */
	uint64_t credit_ns; /* when credit was last added */
	uint64_t turn_ns;   /* when access_save.c last looked at the lists */
	struct kvc_wear written;          /* bytes written for accesses */
	struct kvc_access_record *loaded; /* of an earlier mount, by id (access_state.c); or NULL */
	size_t nloaded;
};

struct kvc_chunk;

struct kvc_committer {
	struct kvc_list nodes, chunks; /* by dirty_link: changes that the next commit writes */
	size_t nnodes;                 /* dirty nodes */
	struct kvc_accesses accesses;  /* access_save.h: no part of that commit */
	struct kvc_list sync_waiters;  /* fsyncs: for the commit, and then for the disk */
	struct kvc_list lingering[2];  /* since this commit, and since the one before (file.h) */
	uint64_t committed;            /* the last committed transaction */
	pthread_cond_t cond;           /* the committer's */
	pthread_cond_t committed_cond; /* committed went up */
	bool soon, now;
	/* of recent commits: ns for 1024 changes; 0: not known */
	uint64_t each_ns;
};

/*
 * How many changes a commit may have so that it takes about COMMIT_NS on this machine. Work that
 * nobody waits for makes no more (kvc_commit_gate); stores of users are paced beyond twice that.
 */
size_t kvc_committer_batch_max_locked(const struct kvc *k);
/* About how many the next commit will have. */
size_t kvc_committer_changes_locked(const struct kvc *k);

/* There is something to commit: within commit=, or now. */
void kvc_committer_wake_locked(struct kvc *k, bool now);

/* The chunk, which has a row and is on no list of dirty chunks, was used: its row is to follow. */
void kvc_committer_access_held_locked(struct kvc *k, struct kvc_chunk *c);
/* A walk by rank met the row's old rank: the row is written soon, whatever that costs. */
void kvc_committer_access_want_locked(struct kvc *k, struct kvc_chunk *c);
/*
 * Nothing refers to the dirty chunk any more. True: it is clean now and may be freed, since its
 * accesses are not worth a write. False: it has to stay until it is written.
 */
bool kvc_committer_access_release_locked(struct kvc *k, struct kvc_chunk *c);
/* Takes the chunk off whichever list of dirty chunks it is on; it is not dirty afterwards. */
void kvc_committer_access_unlink_locked(struct kvc *k, struct kvc_chunk *c);
/*
 * Is the chunk's row worth a write? It is if the row's time is behind by more than a PART-th of the
 * chunk's age, or if chunk->due is set.
 */
bool kvc_committer_access_due(const struct kvc_chunk *c);

#endif
