/* SPDX-License-Identifier: Apache-2.0 */
/* What prefix*.c share. */
#ifndef KVC_PREFIX_PRIV_H
#define KVC_PREFIX_PRIV_H

#include "ghosts.h"
#include "replacer_priv.h"
#include "learn.h"
#include "oldest.h"

#define SHADOWS 2
#define NO_MEAN 255  /* used once */
#define MEAN_STEPS 8 /* to a doubling of the gap */
#define SIZES 256
#define BLOCKS 32         /* that the guard looks back */
#define SAMPLE_FROM 4096u /* chunks in a shadow, at least, before ids are left out */

/* What a chunk's index goes by, in one piece: 64 of them are looked at for a victim. */
struct worth {
	uint8_t score, gap, size; /* of a shadow's all sizes are 0 */
	uint8_t count;            /* uses; not in shadows */
};

#define KEPT 8

/* A leaf that was drawn, as it was then. */
struct leaf {
	uint32_t slot, last;
	float index;
};

/* Those of the leaves that request `nr` has drawn that go first, in that order. */
struct drawn {
	uint32_t nr, n;
	uint32_t up; /* what the last victim followed */
	struct leaf kept[KEPT];
};

struct shadow {
	struct kvc_chain chain;
	struct worth *worth; /* by slot, as all columns */
	double hits;         /* per request, lately */
};

/*
 * How far the index's shadow is ahead of the other, in hits of a block of requests; and how long
 * there have been blocks, as far as it is counted.
 */
struct guard {
	double now;          /* of the block that has not ended */
	double lead, spread; /* the mean of those before, and their variance: the newer the more */
	double recent;       /* the mean of the last few, but what was won before a loss */
	uint32_t requests;   /* of the block that has not ended */
	uint32_t blocks;
};

struct prefix {
	struct worth *worth;
	uint8_t *mean, *kids;
	struct kvc_learn *learn;
	const struct kvc_index *index;
	struct kvc_ghosts ghosts;
	struct kvc_oldest oldest;
	uint32_t old_up;               /* what the last of those followed */
	struct drawn drawn[2];         /* of the chunks that are here, and of the first shadow's */
	struct shadow shadow[SHADOWS]; /* by the index, and by the last use */
	uint32_t sample;
	uint64_t fits; /* chunks, as it turned out */
	double asked;  /* chunks per request, lately */
	double loose;  /* share of uses in requests of which nobody knows what follows what */
	double uses;   /* of chunks in shadows */
	struct guard guard;
	bool by_use; /* the guard's choice, where chains are known */
	/* what score_now said last, and of which touch; 0: none since */
	uint32_t scored_nr, scored_n;
	uint8_t scored;
	uint64_t switches;
	float per_size[SIZES];
};

/* Is too little known of what follows what? */
static inline bool kvc_prefix_is_loose(const struct prefix *p)
{
	return p->loose > 1 / 8.;
}

static inline uint32_t kvc_prefix_age(uint32_t now, uint32_t last)
{
	return (int32_t)(now - last) > 0 ? now - last : 1;
}

/* Of a chunk of `c`, which is ours or a shadow's. */
static inline float kvc_prefix_index(const struct kvc_replacer *k, const struct kvc_chain *c,
				     const struct worth *w, uint32_t slot)
{
	const struct prefix *p = k->own;

	return kvc_index_of(p->index, w[slot].gap, w[slot].score,
			    kvc_prefix_age(k->now, c->last[slot])) *
	       p->per_size[w[slot].size];
}

/* prefix_score.c: of a chunk of a request of `length`, `distance` from its end */
struct kvc_facts kvc_prefix_learned(const struct kvc_request *r, const struct kvc_touched *t,
				    uint32_t length, uint32_t distance);
/* Of what was touched last, as if the request went on */
uint8_t kvc_prefix_score_now(struct prefix *p, const struct kvc_request *r);

/* prefix_pick.c */
uint32_t kvc_prefix_victim(struct kvc_replacer *k);
uint32_t kvc_prefix_shadow_victim(struct kvc_replacer *k);

/* prefix_shadow.c */
bool kvc_prefix_in_shadow(const struct prefix *p, uint64_t id);
/* What was touched last is asked of the shadows too. */
void kvc_prefix_shadow_touch(struct kvc_replacer *k, struct kvc_request *r);
/* By which of the two is more hit? At a request's end. */
void kvc_prefix_guard(struct prefix *p, const struct kvc_request *r);
/* Of n the one in so many (a power of two, 1 up to `most`) that leaves `least` of them. */
uint32_t kvc_prefix_sample(uint64_t n, uint64_t least, uint32_t most);
/* The samples go one step towards what they are to be. */
void kvc_prefix_resample(struct prefix *p);

/* prefix_text.c: what kvc_replacer_text says of it */
void kvc_prefix_text(const struct kvc_replacer *k, char *to, size_t capacity);

/* prefix_save.c */
uint8_t kvc_prefix_size(uint64_t bytes);
/* A chunk has come, and not by a request. */
void kvc_prefix_came(struct kvc_replacer *k, uint32_t slot, uint64_t bytes);
uint64_t kvc_prefix_facts(const struct kvc_replacer *k, uint32_t slot);
void kvc_prefix_restore(struct kvc_replacer *k, uint32_t slot, uint64_t bytes, uint64_t facts);
bool kvc_prefix_save(const struct kvc_replacer *k, struct kvc_saving *s);
void kvc_prefix_saved(struct kvc_saving *s);
void kvc_prefix_load(struct kvc_replacer *k, struct kvc_in *in);

#endif
