/* SPDX-License-Identifier: Apache-2.0 */
/* Declarations that prefix*.c share. */
#ifndef KVC_PREFIX_PRIV_H
#define KVC_PREFIX_PRIV_H

#include "ghosts.h"
#include "replacer_priv.h"
#include "learn.h"
#include "chain.h"

#define SHADOWS 2
#define NO_MEAN 255  /* value of `mean` for a chunk that was accessed once */
#define MEAN_STEPS 8 /* steps of `mean` per doubling of the gap */
#define SIZES 256
#define KVC_PREFIX_USES 4096u /* accesses in the mean of the loose share, at most */
#define SAMPLE_FROM 4096u     /* smallest number of chunks in a shadow before ids are sampled */

/* The inputs of a chunk's index in one struct, because 64 of them are read to find a victim. */
struct worth {
	uint32_t score : 7, gap : 5;
	uint32_t outlook : 4;         /* as a client reported it (replacer.h) */
	uint32_t size : 8, count : 8; /* not used in shadows; count: accesses */
};

_Static_assert(sizeof(struct worth) == 4 && KVC_SCORES <= 128 && KVC_GAPS <= 32 &&
		       KVC_OUTLOOKS <= 16,
	       "struct worth");

/* renamed chunks not accessed yet: many clients may make chunks at once */
#define RENAMES 64

#define BEST 8

/* A leaf that was drawn, with its state at that time. */
struct leaf {
	uint32_t slot, last;
	float index;
};

/* The leaves with the lowest index among those that request `nr` has drawn, lowest first. */
struct drawn {
	uint32_t nr, n;
	uint32_t up;  /* the parent of the last victim */
	bool is_next; /* the next victim is known: no more leaves need be drawn for it */
	struct leaf best[BEST];
};

#define OLDEST 64

struct old_leaf {
	uint32_t slot, last;
};

/* The oldest of the leaves that were drawn at random (prefix_pick.c), the oldest last. */
struct oldest {
	unsigned n;
	struct old_leaf v[OLDEST];
};

struct shadow {
	struct kvc_chain chain;
	struct worth *worth; /* a column, as all arrays by slot */
	double hits;         /* recent mean per request */
};

struct prefix {
	struct worth *worth;
	uint8_t *mean, *kids;
	struct kvc_learn *learn;
	const struct kvc_index *index;
	struct kvc_ghosts ghosts;
	struct oldest oldest;
	/* the time and the parent of the last victim that was chosen by age */
	uint32_t old_nr, old_up;
	struct drawn drawn[2];         /* leaves of the cache; of the first shadow */
	struct shadow shadow[SHADOWS]; /* evicts by index; evicts by last access */
	uint32_t sample;
	uint64_t fits;     /* chunks that fit into the cache, as the evictions show */
	bool full;         /* the cache has evicted or refused a chunk */
	double lead;       /* recent mean lead of the shadow whose order is not used, in hits */
	double asked;      /* recent mean of chunks per request */
	uint32_t accesses; /* accesses in the mean of `loose`, up to KVC_PREFIX_USES */
	double loose;      /* share of accesses in requests whose chunks have no known order */
	double uses;       /* accesses to chunks in shadows: the clock of their keys */
	bool by_use;       /* the guard's choice; it applies if chains are known */
	/*
	 * last result of kvc_prefix_score_now, its request and access; scored_nr 0: no valid result
	 */
	uint32_t scored_nr, scored_n;
	uint8_t scored;
	/* ghosts of renamed chunks that were not accessed since; their ids are not in the sample */
	struct {
		uint64_t id; /* 0: free */
		struct kvc_ghost ghost;
	} renamed[RENAMES];
	unsigned nrenamed, renamed_next;
	uint64_t switches;
	float per_size[SIZES];
};

/* True if too few parents are known to evict by index. */
static inline bool kvc_prefix_is_loose(const struct prefix *p)
{
	return p->loose > 1 / 8.;
}

static inline uint32_t kvc_prefix_age(uint32_t now, uint32_t last)
{
	return (int32_t)(now - last) > 0 ? now - last : 1;
}

/* Returns the index of a chunk of `c`, which is the cache's chain or a shadow's. */
static inline float kvc_prefix_index(const struct kvc_replacer *k, const struct kvc_chain *c,
				     const struct worth *w, uint32_t slot)
{
	const struct prefix *p = k->own;

	return kvc_learn_index_of(p->index, w[slot].gap, w[slot].score,
				  kvc_prefix_age(k->now, c->last[slot])) *
	       p->per_size[w[slot].size];
}

/*
 * Returns the facts of a chunk that is `distance` chunks from the end of a request of `length`
 * chunks.
 */
static inline struct kvc_facts kvc_prefix_facts(const struct kvc_request *r,
						const struct kvc_touched *t, uint32_t length,
						uint32_t distance)
{
	return (struct kvc_facts){
		.fresh = (uint16_t)kvc_min(r->fresh, UINT16_MAX),
		.length = (uint16_t)kvc_min(length, UINT16_MAX),
		.count = t->count,
		.deepest = r->deepest,
		.kids = t->count == 1 ? 0 : t->kids,
		.gap = t->gap,
		.tail = !distance,
		.distance = (uint8_t)kvc_min(distance, 2),
		.continues = r->continues,
		.outlook = r->outlook,
	};
}

/* Returns the score of the chunk accessed last, as if the request continued after it. */
static inline uint8_t kvc_prefix_score_now(struct prefix *p, const struct kvc_request *r)
{
	if (p->scored_nr != r->nr || p->scored_n != r->n) {
		struct kvc_facts f = kvc_prefix_facts(r, &r->touched[r->n - 1], r->n, 1);

		p->scored = kvc_learn_score(p->learn, &f);
		p->scored_nr = r->nr;
		p->scored_n = r->n;
	}
	return p->scored;
}

/*
 * prefix_pick.c: choose a victim in the cache; choose one in the shadow that evicts by index. Both
 * return a slot, or KVC_NO_SLOT.
 */
uint32_t kvc_prefix_victim(struct kvc_replacer *k);
uint32_t kvc_prefix_shadow_victim(struct kvc_replacer *k);
/*
 * Is the chunk that the request accessed last worth less than the next victim of the cache, or of
 * that shadow? The next victim is not changed by this.
 */
bool kvc_prefix_refuses(struct kvc_replacer *k, const struct kvc_request *r, uint64_t bytes);
bool kvc_prefix_shadow_refuses(struct kvc_replacer *k, const struct kvc_request *r);

/* prefix_shadow.c: true if this id belongs to the sample of ids that the shadows hold. */
bool kvc_prefix_in_shadow(const struct prefix *p, uint64_t id);
/* Passes the chunk accessed last to the shadows. */
void kvc_prefix_shadow_touch(struct kvc_replacer *k, struct kvc_request *r);
/* kvc_replacer_rename */
void kvc_prefix_shadow_rename(struct prefix *p, uint64_t from, uint64_t to);
/* At the end of a request: decides which of the two orders evicts. */
void kvc_prefix_guard(struct prefix *p, const struct kvc_request *r);
/*
 * Returns the largest power of two, at most `most`, by which n can be divided so that at least
 * `least` remain; 1 if n is smaller.
 */
uint32_t kvc_prefix_sample(uint64_t n, uint64_t least, uint32_t most);
/* Moves both samples one step towards their target values. */
void kvc_prefix_resample(struct prefix *p);

/* prefix_save.c: the class of a chunk's size */
uint8_t kvc_prefix_size(uint64_t bytes);
/* A chunk was added without a request. */
void kvc_prefix_add_unrequested(struct kvc_replacer *k, uint32_t slot, uint64_t bytes);
uint64_t kvc_prefix_saved_state(const struct kvc_replacer *k, uint32_t slot);
void kvc_prefix_restore(struct kvc_replacer *k, uint32_t slot, uint64_t bytes, uint64_t facts);
bool kvc_prefix_save(const struct kvc_replacer *k, struct kvc_saving *s);
void kvc_prefix_saved(struct kvc_saving *s);
void kvc_prefix_load(struct kvc_replacer *k, struct kvc_in *in);

#endif
