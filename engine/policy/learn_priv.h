/* SPDX-License-Identifier: Apache-2.0 */
/* Declarations that learn.c and learn_save.c share. */
#ifndef KVC_LEARN_PRIV_H
#define KVC_LEARN_PRIV_H

#include "learn.h"

#define NONE UINT32_MAX
#define CLASSES 64 /* weights in a set; one of them applies to a chunk */
#define FACTS 8    /* sets that belong to a fact; two more sets follow */
#define AGE 8      /* set of the bucket of age; set RHYTHM: of the age relative to the usual gap */
#define RHYTHM 9
#define SETS 10
#define OUTLOOK 7  /* the set of the outlook */
#define NUMBERS 14 /* weights that are multiplied by a number */
#define RHYTHMS 51
#define LENGTHS 130 /* the last class stands for all longer ones */
/* upper limits of `seen`: the rate stays high enough to follow changes of the load */
#define SEEN_MAX 300.f
#define SEEN_MAX_NUMBER 1000.f /* for the weights of numbers, which all examples change */
#define LENGTH_OF 1000u        /* requests in the mean length of requests */
#define LENGTH_FIRST 25.       /* the mean before the first request */
#define LENGTH_MOST 65536.     /* larger means are invalid */
#define SCORE_LOW -9.f
#define SCORE_STEP .125f

#define CELLS (KVC_GAPS * KVC_AGES)

/* Weights, and the number of examples that each has seen (a sum of curvatures). */
struct weights {
	float w[CLASSES], seen[CLASSES];
};

/* A weight for each pair of a gap class and an age; the last one stays 0. */
struct cells {
	float w[CELLS + 1], seen[CELLS + 1];
};

struct record {
	uint64_t id; /* 0: the record is finished; it is freed when it is the first of its queue */
	struct kvc_facts facts;
	uint32_t since; /* time of the access */
	float weight;
	/* next record in the queue and in the hash bucket; of a free record: the next free one */
	uint32_t queue, bucket;
	/* serial number, which wraps around; bucket of age, whose queue the record is in */
	uint32_t turn : 27, age : 5;
};

#define TURNS ((1u << 27) - 1)
_Static_assert(KVC_AGES == 1 << 5, "record.age");

struct kvc_learn {
	struct weights set[SETS], number;
	struct cells cells;
	struct kvc_index index;
	double edge[KVC_AGES + 1]; /* the age in ticks at which each bucket begins */
	float odds[KVC_SCORES];    /* odds against an access, by the score alone */
	uint8_t count_class[UINT8_MAX + 1], length_class[LENGTHS];
	uint8_t rhythm[KVC_GAPS][KVC_AGES]; /* results of rhythm_of */
	struct record *record;
	uint32_t capacity, used, free;
	/* hash table by id (linear hashing); level: the largest power of two up to nbuckets */
	uint32_t *bucket, nbuckets, level;
	uint32_t first[KVC_AGES], last[KVC_AGES];
	/*
	 * a bit for each queue whose first record is known not to be finished; its time of access
	 */
	uint32_t waits, waits_since[KVC_AGES];
	uint32_t slice, turns;
	uint32_t row_at, learned; /* time of the last computed row; examples learned since */
	/* mean number of chunks of the last requests, and how many of them it counts, up to
	 * LENGTH_OF */
	double length;
	uint32_t lengths;
};

/*
 * Allocates a record that is in no queue; NONE if memory is short. kvc_learn_put_record copies *r
 * to it and puts it into the queue of bucket `age`.
 */
uint32_t kvc_learn_take_record(struct kvc_learn *l);
void kvc_learn_put_record(struct kvc_learn *l, uint32_t i, const struct record *r, int age);
/* Removes the record of this chunk without learning from it. */
void kvc_learn_drop_record(struct kvc_learn *l, uint64_t id);

#endif
