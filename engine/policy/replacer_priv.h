/* SPDX-License-Identifier: Apache-2.0 */
/* The interface between replacer.c and the policies. */
#ifndef KVC_REPLACER_PRIV_H
#define KVC_REPLACER_PRIV_H

#include "chain.h"
#include "replacer.h"
#include "state.h"

/*
 * The functions of a policy. All but `victim`, `saved_state`, `restore`,
 * `save` and `load` may be NULL.
 */
struct kvc_replacer_ops {
	bool ordered, family; /* arguments of kvc_chain_init */
	/* sets k->own; `close` is also called after a failure if k->own is set */
	int (*open)(struct kvc_replacer *k);
	void (*close)(struct kvc_replacer *k);
	void (*begin)(struct kvc_replacer *k);
	/* kvc_replacer_expect; slot[i]: where each chunk is, or KVC_NO_SLOT */
	void (*expect)(const struct kvc_replacer *k, const uint64_t *id, const uint32_t *slot,
		       uint32_t n);
	/* A chunk at `slot`, or not in the cache, is accessed; it is the last of r->touched. */
	void (*touch)(struct kvc_replacer *k, struct kvc_request *r, uint32_t slot);
	/*
	 * Ordered chains only: returns the key of a chunk that is about to be added. Then `add` is
	 * called for the chunk, which is in the chain.
	 */
	double (*key)(struct kvc_replacer *k, uint32_t parent, uint64_t bytes);
	void (*add)(struct kvc_replacer *k, struct kvc_request *r, uint32_t slot, uint64_t bytes);
	/* The chunk is in the cache, and now belongs to this request (kvc_replacer_claim). */
	void (*claim)(struct kvc_replacer *k, struct kvc_request *r, uint32_t slot, uint64_t bytes);
	void (*set_parent)(struct kvc_replacer *k, uint32_t slot); /* the parent has changed */
	void (*resize)(struct kvc_replacer *k, uint32_t slot, uint64_t bytes);
	/* kvc_replacer_saved_state; and restoring: the chunk is in the chain, `facts` may be 0 */
	uint64_t (*saved_state)(const struct kvc_replacer *k, uint32_t slot);
	void (*restore)(struct kvc_replacer *k, uint32_t slot, uint64_t bytes, uint64_t facts);
	/*
	 * Writes a piece; returns true if more follow. `saved` finishes after the last piece,
	 * without access to the cache.
	 */
	bool (*save)(const struct kvc_replacer *k, struct kvc_saving *s);
	void (*saved)(struct kvc_saving *s);
	void (*load)(struct kvc_replacer *k, struct kvc_in *in); /* into a new replacer */
	void (*del)(struct kvc_replacer *k, uint32_t slot, bool evicted);
	/* a leaf that belongs to no request in progress; KVC_NO_SLOT: none was found, use any */
	uint32_t (*victim)(struct kvc_replacer *k);
	/* Is the chunk that was accessed last worth less than the next victim? */
	bool (*refuses)(struct kvc_replacer *k, const struct kvc_request *r, uint64_t bytes);
	/* kvc_replacer_rename; `from` is not in the cache */
	void (*rename)(struct kvc_replacer *k, uint64_t from, uint64_t to);
	/* slot: KVC_NO_SLOT if the chunk is not in the cache */
	void (*tell)(struct kvc_replacer *k, uint64_t id, uint32_t slot, uint8_t outlook);
	void (*end)(struct kvc_replacer *k, struct kvc_request *r);
	uint64_t (*bytes)(const struct kvc_replacer *k);
	void (*text)(const struct kvc_replacer *k, char *to, size_t capacity);
};

struct kvc_replacer {
	const struct kvc_replacer_ops *ops;
	struct kvc_replacer_conf conf;
	struct kvc_chain chain;
	struct kvc_list requests; /* in progress, the oldest first */
	uint32_t now;     /* the clock in ticks, which is the number of the newest request */
	uint64_t now_ms;  /* when that request began; 0: not known */
	uint32_t rest_ms; /* time since the last tick for time, in ms */
	uint32_t victim;  /* slot of the last victim */
	/* id of the last requested chunk if it is not in the cache, else 0 */
	uint64_t missed;
	uint64_t chance;
	uint64_t changes; /* kvc_replacer_changes */
	void *own;
};

#define X(name, rank, by_rank, by_chain) extern const struct kvc_replacer_ops kvc_replacer_##name;
KVC_POLICIES(X)
#undef X

/* True if a request in progress was the last to access the chunk. */
static inline bool kvc_replacer_busy(const struct kvc_replacer *k, uint32_t slot)
{
	uint32_t last = k->chain.last[slot];

	kvc_list_each(e, &k->requests) {
		const struct kvc_request *r = kvc_of(e, struct kvc_request, link);

		if ((int32_t)(r->nr - last) >= 0)
			return r->nr == last;
	}
	return false;
}

#define KVC_REPLACER_STEPS 131072u

/*
 * Returns the number of leaves for which one search may call kvc_replacer_busy: that takes a step
 * for each request in progress.
 */
static inline uint32_t kvc_replacer_looks(const struct kvc_replacer *k)
{
	uint32_t requests = 1;

	kvc_list_each(e, &k->requests)
		requests++;
	return KVC_REPLACER_STEPS / requests;
}

/* Returns a random number below n, and changes the state of the generator, which is not 0. */
static inline uint32_t kvc_replacer_draw_from(uint64_t *chance, uint32_t n)
{
	*chance ^= *chance << 13;
	*chance ^= *chance >> 7;
	*chance ^= *chance << 17;
	return (uint32_t)((*chance >> 32) * n >> 32);
}

static inline uint32_t kvc_replacer_draw(struct kvc_replacer *k, uint32_t n)
{
	return kvc_replacer_draw_from(&k->chance, n);
}

#endif
