/* SPDX-License-Identifier: Apache-2.0 */
/* What learn.c, learn_index.c and learn_save.c share. */
#ifndef KVC_LEARN_PRIV_H
#define KVC_LEARN_PRIV_H

#include "learn.h"

#define NONE UINT32_MAX
#define CLASSES 64 /* weights in a set, of which one applies to a chunk */
#define FACTS 7    /* sets by a fact */
#define AGE 7      /* and two more: by the age's bucket, and by where that is in the rhythm */
#define RHYTHM 8
#define SETS 9
#define NUMBERS 14 /* weights of a number each */
#define RHYTHMS 51
#define LENGTHS 130    /* the last stands for all that are longer */
#define SEEN_MAX 200.f /* more does not make a weight slower: loads change */
#define SCORE_LOW -9.f
#define SCORE_STEP .125f

/* Weights, and how much each has seen. */
struct weights {
	float w[CLASSES], seen[CLASSES];
};

struct record {
	uint64_t id; /* 0: it is over, and goes when it is the first of its queue */
	struct kvc_facts facts;
	uint32_t since; /* the request that used it */
	float weight;
	uint32_t queue, bucket;      /* the next one of each; of a free one: the next free */
	uint32_t turn : 27, age : 5; /* which one it is, round and round; whose queue it is in */
};

#define TURNS ((1u << 27) - 1)
_Static_assert(KVC_AGES == 1 << 5, "record.age");

struct kvc_learn {
	struct weights set[SETS], number;
	struct kvc_index index;
	double edge[KVC_AGES + 1]; /* where a bucket of ages begins */
	float odds[KVC_SCORES];    /* against a use, by the score alone */
	uint8_t count_class[UINT8_MAX + 1], length_class[LENGTHS];
	uint8_t rhythm[KVC_GAPS][KVC_AGES]; /* what kvc_learn_rhythm says */
	struct record *record;
	uint32_t capacity, used, free;
	uint32_t *bucket, nbuckets; /* by id; a power of two */
	uint32_t first[KVC_AGES], last[KVC_AGES];
	uint32_t slice, turns;
	uint32_t row_at, learned; /* when the last row was made anew; examples since */
};

/* A record that is in no queue, or NONE; and it waits for its chunk, in this bucket of ages. */
uint32_t kvc_learn_take_record(struct kvc_learn *l);
void kvc_learn_put_record(struct kvc_learn *l, uint32_t i, const struct record *r, int age);
/* It is over, as if it had not been. */
void kvc_learn_drop_record(struct kvc_learn *l, uint64_t id);
/* learn_index.c: where in its rhythm is a chunk of this age: 20 is one gap after its use. */
uint8_t kvc_learn_rhythm(uint8_t gap, int age);
/* The index of this gap class by the weights of now. */
void kvc_learn_make_row(struct kvc_learn *l, uint8_t gap);

#endif
