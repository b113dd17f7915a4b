/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Learns from accesses to chunks how likely a chunk is to be accessed again, and when (learn.c).
 * For each half-octave of a chunk's age, counted in ticks, it estimates the chance of an access
 * from the facts that were known at the last access. It learns from all requested chunks, including
 * those that are not in the cache. It has no lock.
 */
#ifndef KVC_LEARN_H
#define KVC_LEARN_H

#include "state.h"

/* buckets of age; bucket b begins at 2^(1 + b/2) ticks (replacer.h), bucket 0 at 0 */
#define KVC_AGES 32
/* classes of the usual gap between accesses: 0 is unknown, else 1 + 1.5 log2(gap / 2 ticks) */
#define KVC_GAPS 24
#define KVC_SCORES 96

/* The facts about a chunk when its request ends. They are compared with memcmp. */
struct kvc_facts {
	uint16_t fresh;  /* chunks of the request so far that were not known */
	uint16_t length; /* chunks of the request so far */
	uint8_t count;   /* accesses to the chunk, including this one; 255 means 255 or more */
	uint8_t deepest; /* accesses to the deepest chunk of the request that was known */
	uint8_t kids;    /* children that were seen */
	/* class of its usual gap; a new chunk has the class of the deepest known chunk */
	uint8_t gap;
	uint8_t tail;      /* the chunk is the last of its request */
	uint8_t distance;  /* from the end of the request: 0, 1, 2 (2 or more) */
	uint8_t continues; /* the request contains a known chunk */
	uint8_t outlook;   /* as a client reported it (replacer.h) */
};

#define KVC_LOGS 1024

/* The index for all gap classes, scores and ages (kvc_learn_index_of). */
struct kvc_index {
	float of[KVC_GAPS][KVC_SCORES][KVC_AGES + 1];
	float log2[KVC_LOGS]; /* logarithms of small numbers */
};

struct kvc_learn;

struct kvc_learn *kvc_learn_new(void);
void kvc_learn_free(struct kvc_learn *l);
/* Returns the score: the sum of weights for these facts, as a step from 0 to KVC_SCORES - 1. */
uint8_t kvc_learn_score(const struct kvc_learn *l, const struct kvc_facts *f);
/*
 * A run of `chunks` chunks with equal facts was accessed at time `now`; `id` is the last of them.
 * If memory is short, nothing is learned from the run.
 */
void kvc_learn_track(struct kvc_learn *l, uint64_t id, const struct kvc_facts *f, uint32_t now,
		     uint32_t chunks);
/* A request of this many chunks has ended. Call it before kvc_learn_track for its runs. */
void kvc_learn_length(struct kvc_learn *l, uint32_t chunks);
/* A tracked chunk has another id now. */
void kvc_learn_rename(struct kvc_learn *l, uint64_t from, uint64_t to);
/* A client reported the outlook of a chunk that was tracked. */
void kvc_learn_tell(struct kvc_learn *l, uint64_t id, uint8_t outlook);
/* Returns the score of a chunk whose outlook changes. */
uint8_t kvc_learn_score_told(const struct kvc_learn *l, uint8_t score, uint8_t from, uint8_t to);
/*
 * The n chunks will be accessed soon: starts to load what kvc_learn_used needs into the processor's
 * caches.
 */
void kvc_learn_expect(const struct kvc_learn *l, const uint64_t *id, uint32_t n);
/* The chunk is accessed again, at time `now`. */
void kvc_learn_used(struct kvc_learn *l, uint64_t id, uint32_t now);
/*
 * A request begins at time `now`. Learns from the chunks that were not accessed in time, and
 * computes a part of the index table again.
 */
void kvc_learn_advance(struct kvc_learn *l, uint32_t now);
/* Returns the index table. kvc_learn_advance changes it. */
const struct kvc_index *kvc_learn_index(const struct kvc_learn *l);
/* log2 of an age in units of two ticks; 0 for ages below. */
float kvc_learn_log2_age(uint32_t ticks);
uint8_t kvc_learn_gap(float log2_age);
uint64_t kvc_learn_bytes(const struct kvc_learn *l);
/*
 * Writes the weights as text, one line for each kind, without weights that no example has changed.
 */
void kvc_learn_text(const struct kvc_learn *l, char *to, size_t capacity);
/*
 * Saving: kvc_learn_save writes the weights and the index, kvc_learn_save_records gathers records
 * in parts (true: more parts follow), and kvc_learn_saved, when all are gathered, sorts them and
 * writes the newest.
 */
void kvc_learn_save(const struct kvc_learn *l, struct kvc_saving *s);
bool kvc_learn_save_records(const struct kvc_learn *l, struct kvc_saving *s);
void kvc_learn_saved(struct kvc_saving *s);
/* Loads saved state into a new learner. Sets in->bad if the state is invalid. */
void kvc_learn_load(struct kvc_learn *l, struct kvc_in *in);

/* log2 of a number from 1 on, accurate to one part in a thousand. */
static inline float kvc_learn_index_log2(const struct kvc_index *x, uint32_t n)
{
	int shift = n < KVC_LOGS ? 0 : 22 - __builtin_clz(n);

	return (float)shift + x->log2[n >> shift];
}

/*
 * Gittins index: over all times to hold the chunk, the best ratio of the chance that it is accessed
 * in that time to the expected time that it is held. A higher index is worth more. `age` is in
 * ticks, from 1 on.
 */
static inline float kvc_learn_index_of(const struct kvc_index *x, uint8_t gap, uint8_t score,
				       uint32_t age)
{
	float at = 2 * kvc_learn_index_log2(x, age < 2 ? 2 : age) - 2;
	const float *row = x->of[gap][score];
	int b = (int)at < KVC_AGES ? (int)at : KVC_AGES - 1;
	float part = at - (float)b;

	return row[b] + (row[b + 1] - row[b]) * (part < 1 ? part : 1);
}

#endif
