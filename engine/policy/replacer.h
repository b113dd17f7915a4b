/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A replacer: the state of an eviction policy for the chunks of one cache (the pool, or a tier).
 * The caller reports which chunks are requested, added and deleted, and asks for victims. Under
 * every policy, a chunk is not evicted while it has a child in the cache.
 *
 * Accesses that belong together are a request: the chunks of one prompt, in the order of the
 * prefix. Several requests may be in progress at a time, each with a struct kvc_request that the
 * caller owns. A chunk that a request in progress accessed last is not chosen as a victim before
 * that request has ended.
 *
 * A chunk is known by an id: any 64 bits except 0, never used for another chunk. A chunk that was
 * deleted and is made again may get another id (kvc_replacer_rename). A replacer has no
 * lock: the caller serializes the calls. No call blocks. The time of a call grows at most with the
 * logarithm of the cache's size.
 *
 * A cache with more than one policy has a replacer for each, which give victims in turns
 * (kvc_replacer_turns).
 */
#ifndef KVC_REPLACER_H
#define KVC_REPLACER_H

#include "policy.h"
#include "util.h"

struct kvc_replacer;

/*
 * What a client knows about the next request of a prompt's session. KVC_OUTLOOK_RETURNS and above:
 * the approximate time until it comes is known (kvc_replacer_returns).
 */
enum {
	KVC_OUTLOOK_NONE,
	KVC_OUTLOOK_TOOL,   /* the answer ended with a call of a tool */
	KVC_OUTLOOK_TURN,   /* the answer ended the turn: a person reads it */
	KVC_OUTLOOK_CLOSED, /* the session is closed */
	KVC_OUTLOOK_RETURNS,
};
#define KVC_OUTLOOKS 16u

/* Returns the outlook "the session returns after about this many seconds". */
static inline uint8_t kvc_replacer_returns(uint64_t seconds)
{
	unsigned log2 = 63 - (unsigned)__builtin_clzll(seconds | 1);

	return (uint8_t)(KVC_OUTLOOK_RETURNS +
			 kvc_min(log2, KVC_OUTLOOKS - KVC_OUTLOOK_RETURNS - 1));
}

struct kvc_replacer_conf {
	unsigned policy; /* index into kvc_policy_table */
	/*
	 * approximate number of chunks of usual size that fit; it decides how much history is kept
	 */
	uint64_t chunks;
	uint64_t seed;
};

struct kvc_touched {
	uint64_t id;
	uint32_t slot;                  /* slot of the chunk, or KVC_NO_SLOT */
	uint32_t shadow[2];             /* its slot in each shadow (prefix.c) */
	uint8_t count, gap, kids, mean; /* see prefix.c */
	bool known;
};

struct kvc_request {
	uint32_t nr; /* 0: not in progress */
	struct kvc_list link;
	struct kvc_touched *touched; /* in the order of the prefix */
	uint32_t n, capacity;
	/*
	 * set by the caller after the request has begun: the parents of its chunks are not known.
	 * Then the order of the accesses is used, and they may be evicted during the request
	 */
	bool loose;
	/* state of the policy, for the chunks accessed so far */
	uint32_t fresh; /* chunks that were not known */
	/* accesses to the deepest known chunk, and the class of its gap */
	uint8_t deepest, follows;
	bool continues;
	uint8_t outlook; /* as a client reported it, for all chunks of the request */
	/* a new chunk was worth less than the chunks in the cache, so the rest is not kept either
	 */
	bool refused;
	/* for each shadow (prefix.c): the last accessed chunk that belongs to its sample */
	uint64_t sampled[2];
	uint32_t at[2];   /* the slot of that chunk, or KVC_NO_SLOT */
	bool broken[2];   /* a chunk was not in the shadow */
	uint32_t hits[2]; /* hits before that chunk */
};

/* Makes an empty replacer. Returns 0 or -ENOMEM. kvc_replacer_close frees it; NULL is allowed. */
int kvc_replacer_open(struct kvc_replacer **out, const struct kvc_replacer_conf *conf);
void kvc_replacer_close(struct kvc_replacer *k);

/*
 * Begins a request. *r is zeroed, or a request that has ended. now_ms: the time on a clock that
 * does not go back, such as the monotonic one; 0 if it is not known. Ages are counted in ticks.
 * There is one tick for each request and one for each 300 ms; a pause counts as at most 60 s. So
 * ages grow with the number of requests when the load is high, and with time when it is low.
 */
void kvc_replacer_begin(struct kvc_replacer *k, struct kvc_request *r, uint64_t now_ms);
/*
 * The caller is about to access these chunks, in any order. The call changes nothing but the speed:
 * it starts to load the data of many chunks into the processor's caches at once.
 */
#define KVC_REPLACER_EXPECT 32u /* chunks of one call, at most */
void kvc_replacer_expect(const struct kvc_replacer *k, const uint64_t *id, uint32_t n);
/*
 * The request accesses a chunk. Returns true if it is in the cache. If memory is short, the access
 * is not recorded.
 */
bool kvc_replacer_access(struct kvc_replacer *k, struct kvc_request *r, uint64_t id);
/* Ends a request. The policy learns from it. */
void kvc_replacer_end(struct kvc_replacer *k, struct kvc_request *r);
/* frees the memory of a request that has ended */
void kvc_replacer_request_free(struct kvc_request *r);

/*
 * Adds a chunk whose parent is `parent` (0, or a chunk that is not in the cache: it begins a
 * chain), stored or loaded by this request (NULL: by none). Returns 0, -ENOMEM, or -EEXIST if it is
 * in the cache already.
 */
int kvc_replacer_add(struct kvc_replacer *k, struct kvc_request *r, uint64_t id, uint64_t parent,
		     uint64_t bytes);
/*
 * Assigns a chunk that was added without a request to the request that stored it; its place in the
 * order stays. A chunk that is not in the cache is accessed and added. Returns as kvc_replacer_add
 * does.
 */
int kvc_replacer_claim(struct kvc_replacer *k, struct kvc_request *r, uint64_t id, uint64_t parent,
		       uint64_t bytes);
bool kvc_replacer_has(const struct kvc_replacer *k, uint64_t id);
/*
 * Changes the parent of a chunk in the cache (0: none). Does nothing if the new parent is not in
 * the cache or is a descendant of the chunk.
 */
void kvc_replacer_set_parent(struct kvc_replacer *k, uint64_t id, uint64_t parent);
/* Returns the number of children in the cache. */
uint32_t kvc_replacer_children(const struct kvc_replacer *k, uint64_t id);
/*
 * The chunk `from`, which is not in the cache any more, was made again with another id: what the
 * policy remembers of it belongs to the chunk `to` now, which may have been added without a
 * request, but was not accessed yet. Does nothing if `from` is in the cache.
 */
void kvc_replacer_rename(struct kvc_replacer *k, uint64_t from, uint64_t to);
/* Sets the size of a chunk in the cache. */
void kvc_replacer_resize(struct kvc_replacer *k, uint64_t id, uint64_t bytes);
/*
 * Excludes a chunk that cannot be evicted now, because it is open, pinned or in a request, or ends
 * the exclusion. An excluded chunk and its ancestors are not chosen as victims. Repeated calls
 * count once. A chunk that is not in the cache is ignored.
 */
void kvc_replacer_exclude(struct kvc_replacer *k, uint64_t id, bool exclude);
/*
 * Returns the state of one chunk that is to survive a restart: 64 bits, which the caller stores
 * beside the chunk; 0 means that nothing is known. (kvc_replacer_save saves the rest.) The state
 * changes with accesses, at the end of the chunk's request and, in some policies, when other chunks
 * are evicted. State that was read some time ago is slightly out of date, which does no harm.
 */
uint64_t kvc_replacer_saved_state(const struct kvc_replacer *k, uint64_t id);
/*
 * Adds a chunk with its saved state, in any order of chunks. Call it after kvc_replacer_load and
 * before the first request. If the parent is not in the cache yet, the chunk has none: call
 * kvc_replacer_set_parent for all chunks after all are restored. Any bits are accepted; those of
 * another policy mean nothing. Returns as kvc_replacer_add does.
 */
int kvc_replacer_restore(struct kvc_replacer *k, uint64_t id, uint64_t parent, uint64_t bytes,
			 uint64_t facts);
/*
 * Saves the state that does not belong to a chunk in the cache. *out is a buffer of *len bytes, at
 * most a few MB, which the caller frees. Returns 0 or -ENOMEM.
 */
int kvc_replacer_save(const struct kvc_replacer *k, void **out, size_t *len);
/*
 * Saves the same in pieces. Each piece takes as long as a few thousand accesses, however large the
 * cache is. Between pieces the cache may be used, but not closed. *s is NULL before the first
 * piece. kvc_replacer_save_piece returns 1 if more pieces follow, 0 after the last, or -ENOMEM.
 * kvc_replacer_save_between allocates memory for the next piece, which takes longer than to fill
 * it. Call kvc_replacer_save_end in any case: it frees *s and returns the result. The last two
 * functions do not read the cache, so they need no lock.
 */
struct kvc_saving;
int kvc_replacer_save_piece(const struct kvc_replacer *k, struct kvc_saving **s);
void kvc_replacer_save_between(struct kvc_saving *s);
int kvc_replacer_save_end(struct kvc_saving *s, void **out, size_t *len);
/*
 * Loads saved state. Call it before the first chunk is added. Returns 0, -ENOMEM, or -EINVAL if the
 * blob was not saved by this policy; then nothing has changed. State from a cache of another size
 * is used as far as it fits.
 */
int kvc_replacer_load(struct kvc_replacer *k, const void *blob, size_t len);

/*
 * A full cache is about to take a new chunk of `bytes` bytes, which is the last that this request
 * has accessed. Returns true if the policy refuses it: it is worth less than the next victim, or an
 * earlier chunk of the request was refused. If the chunk is in the cache nevertheless, for example
 * because its file is written already, the caller adds it and makes it the first victim.
 */
bool kvc_replacer_refuses(struct kvc_replacer *k, struct kvc_request *r, uint64_t bytes);
/*
 * A client reported the outlook of a prompt to which this chunk belongs. The outlook holds until
 * the next access to the chunk. The policy learns what it means. If a request in progress accessed
 * this chunk last, the outlook holds for all chunks of the request.
 */
void kvc_replacer_tell(struct kvc_replacer *k, uint64_t id, uint8_t outlook);
/* Deletes a chunk. `evicted`: the policy may remember it. */
void kvc_replacer_del(struct kvc_replacer *k, uint64_t id, bool evicted);
/* Returns the id of the next victim, or 0 if no chunk can be evicted. Does not delete it. */
uint64_t kvc_replacer_victim(struct kvc_replacer *k);

/*
 * Returns a number that is higher after each call that changed the state to be saved: it tells
 * whether the last save is up to date. Exclusions are not saved.
 */
uint64_t kvc_replacer_changes(const struct kvc_replacer *k);
uint64_t kvc_replacer_chunks(const struct kvc_replacer *k);
uint64_t kvc_replacer_bytes(const struct kvc_replacer *k); /* memory in use, in bytes */
/* Writes the policy's state as lines of text; empty for most policies. */
void kvc_replacer_text(const struct kvc_replacer *k, char *to, size_t capacity);

/*
 * Turns between the replacers of one cache. Each class (base/policy.h) has its own replacer, and
 * victims of different replacers cannot be compared. So each class gives victims in proportion to
 * its chunks in the pool: the class with the lowest at[] is next, and each victim adds
 * 1 / (1 + chunks of its class) to it. Zeroed at first.
 */
struct kvc_replacer_turns {
	double at[KVC_CLASSES];
};

/* Returns the class in the mask that is next, or -1 if the mask is empty. */
int kvc_replacer_turns_next(const struct kvc_replacer_turns *t, unsigned mask);
/* A class gave a victim; `chunks` is the number of its chunks in the pool, including the victim. */
void kvc_replacer_turns_advance(struct kvc_replacer_turns *t, unsigned class, uint64_t chunks);
/*
 * Returns the id of the next victim and its *class, or 0 if no chunk can be evicted. replacers[]
 * has the replacer of each class, or NULL.
 */
uint64_t kvc_replacer_turns_victim(const struct kvc_replacer_turns *t,
				   struct kvc_replacer *const replacers[KVC_CLASSES],
				   unsigned *class);

#endif
