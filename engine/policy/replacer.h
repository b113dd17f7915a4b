/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Choosing what to keep: a policy at work on the chunks of one cache (a pool, or a tier). It is
 * told what is asked for, what came and what went, and says who goes next. Whatever the policy, a
 * chunk is not evicted while one that follows it is here.
 *
 * What is used together is a request: the chunks of one prompt, in the order of the prefix. Several
 * may be under way at once, each with a struct kvc_request of the caller's; a chunk that was
 * touched last by one of them is nobody's victim until it has ended.
 *
 * A chunk is known by an id, any 64 bits but 0, that is its own over time. Nothing here has a lock,
 * waits, or takes longer where there are more chunks, but by logarithms.
 */
#ifndef KVC_REPLACER_H
#define KVC_REPLACER_H

#include "util.h"

#define KVC_REPLACERS(X) X(lru) X(fifo) X(lfu) X(mru) X(s3fifo) X(arc) X(gdsf) X(leaf) X(prefix)

extern const char *const kvc_replacer_names[]; /* the rows, ended by NULL */

struct kvc_replacer;

struct kvc_replacer_conf {
	unsigned policy; /* a row of KVC_REPLACERS */
	uint64_t chunks; /* about how many fit, of a usual size: what is remembered goes by that */
	uint64_t seed;
};

struct kvc_touched {
	uint64_t id;
	uint32_t slot;                  /* where it was, or was put */
	uint32_t shadow[2];             /* the same, of each shadow (prefix.c) */
	uint8_t count, gap, kids, mean; /* see prefix.c */
	bool known;
};

struct kvc_request {
	uint32_t nr; /* 0: not under way */
	struct kvc_list link;
	struct kvc_touched *touched; /* in the order of the prefix */
	uint32_t n, capacity;
	/*
	 * the caller's, once it has begun: what follows what in it is not known, so what it uses is
	 * in the order of the uses, and may go while it is under way
	 */
	bool loose;
	/* the policy's, as far as it has gone */
	uint32_t fresh;           /* not known before */
	uint8_t deepest, follows; /* uses of the deepest known, and the class of its gap */
	bool continues;
	uint64_t sampled[2]; /* of each shadow (prefix.c): the last chunk that it looks at, */
	uint32_t at[2];      /* its slot, if it is there, */
	bool broken[2];      /* has it missed, */
	uint32_t hits[2];    /* or what did it hit */
};

/* 0, -ENOMEM. */
int kvc_replacer_open(struct kvc_replacer **out, const struct kvc_replacer_conf *conf);
void kvc_replacer_close(struct kvc_replacer *k);

/* A request begins. r is zeroed, or one that has ended. */
void kvc_replacer_begin(struct kvc_replacer *k, struct kvc_request *r);
/* It asks for a chunk: is it here? Without memory it is not part of the request. */
bool kvc_replacer_access(struct kvc_replacer *k, struct kvc_request *r, uint64_t id);
/* It is over. */
void kvc_replacer_end(struct kvc_replacer *k, struct kvc_request *r);
void kvc_replacer_request_free(struct kvc_request *r); /* its memory; it has ended */

/*
 * A chunk is here now, after `parent` (0, or one that is not here: it begins a chain), because this
 * request (or NULL) stored or loaded it: 0, -ENOMEM, -EEXIST.
 */
int kvc_replacer_add(struct kvc_replacer *k, struct kvc_request *r, uint64_t id, uint64_t parent,
		     uint64_t bytes);
/*
 * A chunk that came without a request turns out to be this one's, which asked for it and stored it:
 * it keeps its place. One that is not here is touched and added. As kvc_replacer_add.
 */
int kvc_replacer_claim(struct kvc_replacer *k, struct kvc_request *r, uint64_t id, uint64_t parent,
		       uint64_t bytes);
bool kvc_replacer_has(const struct kvc_replacer *k, uint64_t id);
/*
 * A chunk that is here follows `parent`, as has turned out by now (0: it follows none). Where
 * parent is not here, or follows it, nothing changes.
 */
void kvc_replacer_set_parent(struct kvc_replacer *k, uint64_t id, uint64_t parent);
/* How many that are here follow it at once. */
uint32_t kvc_replacer_children(const struct kvc_replacer *k, uint64_t id);
/* A chunk that is here takes so much now. */
void kvc_replacer_resize(struct kvc_replacer *k, uint64_t id, uint64_t bytes);
/*
 * It cannot go now, being open, pinned or under way: it is nobody's victim, and neither is what it
 * follows, until it is put back. Twice aside counts once.
 */
void kvc_replacer_exclude(struct kvc_replacer *k, uint64_t id, bool aside);
/*
 * What survives a restart is 64 bits for each chunk, which the caller keeps beside it, and the rest
 * in one piece (kvc_replacer_save). 0: nothing is known. They change with uses, at the end of the
 * chunk's request, and in some policies when others go: what was read a while ago is a little off,
 * and no harm.
 */
uint64_t kvc_replacer_saved_state(const struct kvc_replacer *k, uint64_t id);
/*
 * After kvc_replacer_load and before the first request: a chunk is here as it was, in no order.
 * Where its parent is not here yet it follows none until kvc_replacer_set_parent says so: call that
 * for all when all are here. Any facts will do, those of another policy say nonsense. As
 * kvc_replacer_add.
 */
int kvc_replacer_restore(struct kvc_replacer *k, uint64_t id, uint64_t parent, uint64_t bytes,
			 uint64_t facts);
/*
 * All that is not of one chunk that is here: *out, of *len bytes, at most some MB, is the caller's,
 * who frees it. 0 or -ENOMEM.
 */
int kvc_replacer_save(const struct kvc_replacer *k, void **out, size_t *len);
/*
 * The same in pieces, however large the cache is, each as short as some thousand uses: in between
 * all may be done with the cache but to close it. *s is NULL before the first. 1: there are more,
 * 0: that was the last, or -ENOMEM. kvc_replacer_save_between makes room for what comes, which
 * takes longer than to fill it. In any case kvc_replacer_save_end frees it and has the result.
 * These two do not look at the cache.
 */
struct kvc_saving;
int kvc_replacer_save_piece(const struct kvc_replacer *k, struct kvc_saving **s);
void kvc_replacer_save_between(struct kvc_saving *s);
int kvc_replacer_save_end(struct kvc_saving *s, void **out, size_t *len);
/*
 * Before the first chunk. 0, -ENOMEM, or -EINVAL: it is not what this policy saved; then nothing
 * has changed. What was saved by a cache of another size is taken as far as it fits.
 */
int kvc_replacer_load(struct kvc_replacer *k, const void *blob, size_t len);

/* It is here no more; `evicted`, it is remembered. */
void kvc_replacer_del(struct kvc_replacer *k, uint64_t id, bool evicted);
/* Who goes next; 0: nobody can. */
uint64_t kvc_replacer_victim(struct kvc_replacer *k);

uint64_t kvc_replacer_chunks(const struct kvc_replacer *k);
uint64_t kvc_replacer_bytes(const struct kvc_replacer *k); /* of memory that it has */
/* What there is to say of its state, lines of text; empty for most. */
void kvc_replacer_text(const struct kvc_replacer *k, char *to, size_t capacity);

#endif
