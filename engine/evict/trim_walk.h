/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The order in which a trimmer visits its victims (trim_walk.c), and the state of a trimmer. Only
 * trimmer.c uses this header.
 */
#ifndef KVC_TRIM_WALK_H
#define KVC_TRIM_WALK_H

#include "chunk.h"
#include "replacers.h"

#define KVC_TRIM_PROBED 256 /* chunk folders that may be probed at once */
/* size of a table by id; of two ids in the same place, the table keeps the later one */
#define KVC_TRIM_SPARED 4096

struct kvc_trim_excluded {
	struct kvc_chunk_row row;
	bool taken;
};

/* A walk over the catalog's chunks, the first victim first. */
struct kvc_trim_walk {
	struct kvc_chunk_row head[KVC_CLASSES]; /* the next victim of each class */
	enum { KVC_TRIM_UNKNOWN, KVC_TRIM_FOUND, KVC_TRIM_NONE } head_state[KVC_CLASSES];
	struct kvc_replacer_turns turns; /* kept from one walk to the next */
	uint64_t freed;                  /* bytes freed since the walk began */
	/*
	 * for a model: KVC_TRIM_UNKNOWN at first; KVC_TRIM_FOUND while the replacer of its class is
	 * walked; KVC_TRIM_NONE while its rows are walked
	 */
	int replacer_state;
	unsigned class;  /* for a model: the class of its chunks */
	unsigned others; /* chunks of other models that this walk has passed over */
	enum kvc_cache cache;
	bool of_disk;      /* it visits the chunks that the disk's policy has given up */
	uint64_t given_up; /* the latest of them */
	/*
	 * The parents of chunks that stay. Used for classes in the catalog's order, since the
	 * catalog does not protect parents.
	 */
	uint64_t spared[KVC_TRIM_SPARED];
	bool has_spared, spares_none;
	bool has_young; /* some of the chunks that stay may soon be dropped */
	/* so may some of the chunks that the disk's policy has given up */
	bool awaits_given_up;
	/*
	 * By class, the lowest rank in memory of the chunks that this walk skipped because the
	 * catalog has an older rank. The walk does not go beyond it: those chunks are next.
	 */
	int64_t skipped[KVC_CLASSES];
	/* walks have ended at that rank and freed nothing since this time; 0: they free some */
	uint64_t blocked_since_ns;
	/* walks have spared chunks and freed nothing since this time; 0: they free some */
	uint64_t fruitless_since_ns;
	/* with replacers: chunks excluded or taken out, to be restored */
	struct kvc_trim_excluded *excluded;
	size_t nexcluded, excluded_capacity;
};

struct kvc_trim_probed {
	struct kvc_chunk_row row;
	uint64_t bytes;
};

struct kvc_trimmer {
	struct kvc *k;
	unsigned tier;
	/*
	 * the model or tenant (KVC_TRIM_TENANT) above its quota; 0: this is the trimmer of a tier
	 */
	uint64_t model;
	bool hopeful; /* chunks that stay now may be dropped soon */
	bool filling; /* the replacers are not complete yet */
	struct kvc_trim_walk walk;
	struct kvc_trim_probed probed[KVC_TRIM_PROBED];
	size_t nprobed;
};

/* Begins a walk. whole: the previous walk reached its end, and no victim is being probed. */
void kvc_trim_walk_begin(struct kvc_trimmer *t, bool whole);
/*
 * Sets *r to the next victim. While chunks that the policies have given up will leave in a moment,
 * they give up no others, unless the tier is full. Returns 0; -ENOENT if there is none; -EAGAIN if
 * only chunks of other models were found so far; or another error, and the victim is unknown for
 * now. The caller holds the catalog's lock.
 */
int kvc_trim_walk_next(struct kvc_trimmer *t, struct kvc_chunk_row *r);
/*
 * Removes the victim from its replacer, so that its parent can be a victim. err is the result of
 * the drop: with -EAGAIN the chunk will be dropped soon, otherwise it is dropped or does not exist.
 */
void kvc_trim_walk_remove(struct kvc_trimmer *t, const struct kvc_chunk_row *r, int err);
/* Does the chunk stay in this walk, because another one stays? */
bool kvc_trim_walk_spares(const struct kvc_trimmer *t, uint64_t id);
/* The chunk stays for now, and with it its parent. */
void kvc_trim_walk_spare(struct kvc_trimmer *t, const struct kvc_chunk_row *r);
/*
 * Spares the chunks whose ranks are too low because recent accesses to their descendants are not
 * stamped yet.
 */
void kvc_trim_walk_spare_waiting(struct kvc_trimmer *t);
/*
 * Does a skipped chunk precede this one? Then the walk ends, and the next walk finds both in order,
 * once the committer has written the row (kvc_committer_access_want_locked). If walks free nothing
 * for two seconds they ignore the order: a full tier must not depend on these rows.
 */
bool kvc_trim_walk_is_blocked(struct kvc_trimmer *t, const struct kvc_chunk_row *r);
/*
 * If the disk's policy has given up this chunk, which stays: unless it may be dropped soon, the
 * next walk returns it to its replacer, because the policy must count its space.
 */
void kvc_trim_walk_given_up_stays(struct kvc_trimmer *t, const struct kvc_chunk_row *r, bool soon);
/* Restores the victims of a walk that stay. */
void kvc_trim_walk_put_back_locked(struct kvc_trimmer *t);

#endif
