/* SPDX-License-Identifier: Apache-2.0 */
/* What policies and replacer.c share. */
#ifndef KVC_REPLACER_PRIV_H
#define KVC_REPLACER_PRIV_H

#include "chain.h"
#include "replacer.h"
#include "state.h"

/* A policy. What has no need of a call leaves it out, but victim. */
struct kvc_replacer_ops {
	bool ordered, family; /* of the chain */
	/* sets k->own; close comes after a failure too, if that is set */
	int (*open)(struct kvc_replacer *k);
	void (*close)(struct kvc_replacer *k);
	void (*begin)(struct kvc_replacer *k);
	/* Asked for, at `slot` or not here; r->touched has it last. */
	void (*touch)(struct kvc_replacer *k, struct kvc_request *r, uint32_t slot);
	/* Its key, where the chain is ordered, before it is there; and then it is. */
	double (*key)(struct kvc_replacer *k, uint32_t parent, uint64_t bytes);
	void (*add)(struct kvc_replacer *k, struct kvc_request *r, uint32_t slot, uint64_t bytes);
	/* It is in its place, and now this request's (kvc_replacer_claim). */
	void (*claim)(struct kvc_replacer *k, struct kvc_request *r, uint32_t slot, uint64_t bytes);
	void (*follow)(struct kvc_replacer *k, uint32_t slot); /* another than before */
	void (*resize)(struct kvc_replacer *k, uint32_t slot, uint64_t bytes);
	/* kvc_replacer_saved_state; and it is in the chain, with these, or 0 */
	uint64_t (*facts)(const struct kvc_replacer *k, uint32_t slot);
	void (*restore)(struct kvc_replacer *k, uint32_t slot, uint64_t bytes, uint64_t facts);
	/* a piece; true: there are more. And after the last, without the cache, what that leaves */
	bool (*save)(const struct kvc_replacer *k, struct kvc_saving *s);
	void (*saved)(struct kvc_saving *s);
	void (*load)(struct kvc_replacer *k, struct kvc_in *in); /* of one that is new */
	void (*del)(struct kvc_replacer *k, uint32_t slot, bool evicted);
	/* a leaf of no open request; KVC_NO_SLOT: none was found, and any will do */
	uint32_t (*victim)(struct kvc_replacer *k);
	void (*end)(struct kvc_replacer *k, struct kvc_request *r);
	uint64_t (*bytes)(const struct kvc_replacer *k);
	void (*text)(const struct kvc_replacer *k, char *to, size_t capacity);
};

struct kvc_replacer {
	const struct kvc_replacer_ops *ops;
	struct kvc_replacer_conf conf;
	struct kvc_chain chain;
	struct kvc_list requests; /* under way, the oldest first */
	uint32_t now;             /* the number of the newest */
	uint32_t victim;          /* the slot of the last one */
	uint64_t missed;          /* the chunk that was asked for last, where it is not here */
	uint64_t chance;
	void *own;
};

#define X(name) extern const struct kvc_replacer_ops kvc_replacer_##name;
KVC_REPLACERS(X)
#undef X

/* Was it touched last by a request that is under way? */
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

/* A random number below n. */
static inline uint32_t kvc_replacer_draw(struct kvc_replacer *k, uint32_t n)
{
	k->chance ^= k->chance << 13;
	k->chance ^= k->chance >> 7;
	k->chance ^= k->chance << 17;
	return (uint32_t)((k->chance >> 32) * n >> 32);
}

#endif
