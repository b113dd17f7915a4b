/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Choosing what to keep: a policy at work on the chunks of one cache (a pool, or a tier). It is
 * told what is asked for, what came and what went, and says who goes next. Whatever the policy, a
 * chunk is not evicted while one that follows it is here.
 *
 * What is used together is a request: the chunks of one prompt, in the order of the prefix. Several
 * may be under way at once, each with a struct kvc_request of the caller's; a chunk that was
 * touched by one of them is nobody's victim until it has ended.
 *
 * A chunk is known by an id, any 64 bits but 0, that is its own over time. Nothing here has a lock,
 * waits, or takes longer where there are more chunks, but by logarithms.
 */
#ifndef KVC_KEEP_H
#define KVC_KEEP_H

#include "util.h"

#define KVC_KEEPS(X) X(lru) X(fifo) X(lfu) X(mru) X(s3fifo) X(arc) X(gdsf) X(leaf) X(prefix)

extern const char *const kvc_keep_names[]; /* the rows, ended by NULL */

struct kvc_keep;

struct kvc_keep_conf {
	unsigned policy; /* a row of KVC_KEEPS */
	uint64_t chunks; /* about how many fit, of a usual size: what is remembered goes by that */
	uint64_t seed;
};

struct kvc_touched {
	uint64_t id;
	uint32_t slot;                  /* where it was, or was put */
	uint8_t count, gap, kids, mean; /* see prefix.c */
	bool known;
};

struct kvc_request {
	uint32_t nr; /* 0: not under way */
	struct kvc_list link;
	struct kvc_touched *touched; /* in the order of the prefix */
	uint32_t n, room;
	/* the policy's, as far as it has gone */
	uint32_t fresh;           /* not known before */
	uint8_t deepest, follows; /* uses of the deepest known, and the class of its gap */
	bool continues;
	uint64_t sampled[2]; /* of each shadow (prefix.c): the last chunk that it looks at, */
	bool broken[2];      /* has it missed, */
	uint32_t hits[2];    /* or what did it hit */
};

/* 0, -ENOMEM. */
int kvc_keep_open(struct kvc_keep **out, const struct kvc_keep_conf *conf);
void kvc_keep_close(struct kvc_keep *k);

/* A request begins. r is zeroed, or one that has ended. */
void kvc_keep_begin(struct kvc_keep *k, struct kvc_request *r);
/* It asks for a chunk: is it here? Without memory it is not part of the request. */
bool kvc_keep_touch(struct kvc_keep *k, struct kvc_request *r, uint64_t id);
/* It is over. */
void kvc_keep_end(struct kvc_keep *k, struct kvc_request *r);
void kvc_request_free(struct kvc_request *r); /* its memory; it has ended */

/*
 * A chunk is here now, after `parent` (0, or one that is not here: it begins a chain), because this
 * request (or NULL) stored or loaded it: 0, -ENOMEM, -EEXIST.
 */
int kvc_keep_add(struct kvc_keep *k, struct kvc_request *r, uint64_t id, uint64_t parent,
		 uint64_t bytes);
/* It is here no more; `evicted`, it is remembered. */
void kvc_keep_del(struct kvc_keep *k, uint64_t id, bool evicted);
/* Who goes next; 0: nobody can. */
uint64_t kvc_keep_victim(struct kvc_keep *k);
/* Is what this request touched last, of so many bytes, worth more than this one? */
bool kvc_keep_wants(struct kvc_keep *k, const struct kvc_request *r, uint64_t bytes,
		    uint64_t victim);

uint64_t kvc_keep_chunks(const struct kvc_keep *k);
uint64_t kvc_keep_bytes(const struct kvc_keep *k); /* of memory that it has */
/* What there is to say of its state, lines of text; empty for most. */
void kvc_keep_text(const struct kvc_keep *k, char *to, size_t room);

#endif
