/* SPDX-License-Identifier: Apache-2.0 */
/* What prefix.c and prefix_save.c share. */
#ifndef KVC_PREFIX_PRIV_H
#define KVC_PREFIX_PRIV_H

#include "ghosts.h"
#include "keep_priv.h"
#include "learn.h"
#include "oldest.h"

#define SHADOWS 2
#define NO_MEAN 255  /* used once */
#define MEAN_STEPS 8 /* to a doubling of the gap */
#define SIZES 256

/* What a chunk's index goes by, in one piece: 64 of them are looked at for a victim. */
struct worth {
	uint8_t score, gap, size; /* of a shadow's all sizes are 0 */
	uint8_t count;            /* uses; not in shadows */
};

struct shadow {
	struct kvc_chain chain;
	struct worth *worth; /* by slot, as all columns */
	double hits;         /* per request, lately */
};

struct prefix {
	struct worth *worth;
	uint8_t *mean, *kids;
	struct kvc_learn *learn;
	const struct kvc_index *index;
	struct kvc_ghosts ghosts;
	struct kvc_oldest oldest;
	struct shadow shadow[SHADOWS]; /* by the index, and by the last use */
	uint32_t sample;
	uint64_t fits; /* chunks, as it turned out */
	double asked;  /* chunks per request, lately */
	double loose;  /* of these, in requests of which nobody knows what follows what */
	double uses;   /* of chunks in shadows */
	bool by_use;   /* the guard's choice, where chains are known */
	/* what score_now said last, and of which touch; 0: none since */
	uint32_t scored_nr, scored_n;
	uint8_t scored;
	uint64_t switches;
	float per_size[SIZES];
};

/* Is too little known of what follows what? */
static inline bool kvc_prefix_is_loose(const struct prefix *p)
{
	return p->loose > p->asked / 8;
}

/* prefix_text.c: what kvc_keep_text says of it */
void kvc_prefix_text(const struct kvc_keep *k, char *to, size_t room);

/* prefix_save.c */
uint8_t kvc_prefix_size(uint64_t bytes);
/* A chunk has come, and not by a request. */
void kvc_prefix_came(struct kvc_keep *k, uint32_t slot, uint64_t bytes);
uint64_t kvc_prefix_facts(const struct kvc_keep *k, uint32_t slot);
void kvc_prefix_restore(struct kvc_keep *k, uint32_t slot, uint64_t bytes, uint64_t facts);
void kvc_prefix_save(const struct kvc_keep *k, struct kvc_out *o);
void kvc_prefix_load(struct kvc_keep *k, struct kvc_in *in);

#endif
