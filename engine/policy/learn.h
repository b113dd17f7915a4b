/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Learns from the uses of chunks how likely one is to be used again, and when (learn.c): the chance
 * of a use in each half-octave of its age (in requests), from what was known of it at its last use.
 * It learns from all that is asked for, also from what is not in the cache.
 */
#ifndef KVC_LEARN_H
#define KVC_LEARN_H

#include "state.h"

#define KVC_AGES 32 /* buckets of age: 2^(b/2) requests and more */
#define KVC_GAPS 24 /* classes of the usual gap between uses: 0 unknown, else 1 + 1.5 log2 */
#define KVC_SCORES 96

/* What is known of a chunk when its request is over. All bytes of it are compared. */
struct kvc_facts {
	uint16_t fresh;    /* chunks of the request so far that were not known */
	uint16_t length;   /* of the request so far */
	uint8_t count;     /* uses of the chunk, this one too; 255: or more */
	uint8_t deepest;   /* uses of the deepest chunk of the request that was known */
	uint8_t kids;      /* chunks that were seen to follow it */
	uint8_t gap;       /* its class; of a new one that of the deepest known */
	uint8_t tail;      /* it ends the request */
	uint8_t distance;  /* from the request's end: 0, 1, 2 or more */
	uint8_t continues; /* the request began with what was known */
	uint8_t zero;
};

#define KVC_LOGS 1024

/* The index of all that there can be (kvc_index_of). */
struct kvc_index {
	float of[KVC_GAPS][KVC_SCORES][KVC_AGES + 1];
	float log2[KVC_LOGS]; /* of small numbers */
};

struct kvc_learn;

struct kvc_learn *kvc_learn_new(void);
void kvc_learn_free(struct kvc_learn *l);
/* A sum of weights, as a step of 0 to KVC_SCORES - 1. */
uint8_t kvc_learn_score(const struct kvc_learn *l, const struct kvc_facts *f);
/*
 * A run of `chunks` chunks with these facts was used at request `now`; the last is `id`. Without
 * memory nothing is learned from it.
 */
void kvc_learn_track(struct kvc_learn *l, uint64_t id, const struct kvc_facts *f, uint32_t now,
		     uint32_t chunks);
/* This one is used again. */
void kvc_learn_used(struct kvc_learn *l, uint64_t id, uint32_t now);
/*
 * Request `now` begins: what was not used by now is learned from, and a part of the table is made
 * anew.
 */
void kvc_learn_advance(struct kvc_learn *l, uint32_t now);
/* It changes by kvc_learn_advance. */
const struct kvc_index *kvc_learn_index(const struct kvc_learn *l);
uint8_t kvc_learn_gap(float log2_gap);
uint64_t kvc_learn_bytes(const struct kvc_learn *l);
/* Its weights, a line for each kind, but those of which nothing was seen so far. */
void kvc_learn_text(const struct kvc_learn *l, char *to, size_t capacity);
/*
 * What it has learned, and of what it waits for the newest: that a piece at a time (true: there are
 * more), and sorted when all are there.
 */
void kvc_learn_save(const struct kvc_learn *l, struct kvc_saving *s);
bool kvc_learn_save_records(const struct kvc_learn *l, struct kvc_saving *s);
void kvc_learn_saved(struct kvc_saving *s);
/* Into one that is new. */
void kvc_learn_load(struct kvc_learn *l, struct kvc_in *in);

/* Of a number from 1 on, to a part in a thousand. */
static inline float kvc_index_log2(const struct kvc_index *x, uint32_t n)
{
	int shift = n < KVC_LOGS ? 0 : 22 - __builtin_clz(n);

	return (float)shift + x->log2[n >> shift];
}

/*
 * Gittins' index: of all times to hold it, the best ratio of the chance that it is used by then to
 * the time that it is held. Higher is worth more. age: from 1 on.
 */
static inline float kvc_index_of(const struct kvc_index *x, uint8_t gap, uint8_t score,
				 uint32_t age)
{
	float at = 2 * kvc_index_log2(x, age);
	const float *row = x->of[gap][score];
	int b = (int)at < KVC_AGES ? (int)at : KVC_AGES - 1;
	float part = at - (float)b;

	return row[b] + (row[b + 1] - row[b]) * (part < 1 ? part : 1);
}

#endif
