/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The hints of clients about a chunk, and their effect on its eviction. The state is in the chunk;
 * objects/hinted.c changes it. All code that chooses victims calls kvc_hints_worth, which alone
 * interprets the state.
 */
#ifndef KVC_HINTS_H
#define KVC_HINTS_H

#include "util.h"

struct kvc_hints {
	/* in the pool: on k->chunks->finished, ->unwanted or ->victims */
	struct kvc_list link;
	bool finished;     /* it is not needed any more, until it is used again */
	bool refused;      /* it leaves the pool because the policy refused it */
	bool entered;      /* it entered the pool's order and no request has used it since */
	bool judged;       /* a request used it since it left the pool: do not judge it again */
	bool paused;       /* until_ns ends with the next use, because the session goes on */
	uint64_t until_ns; /* it should stay in the pool until then; 0: no hint */
};

/* KVC_WORTH_FIRST: evicted before all others. KVC_WORTH_LATER: after all others. */
enum kvc_worth { KVC_WORTH_FIRST, KVC_WORTH_NORMAL, KVC_WORTH_LATER };

static inline enum kvc_worth kvc_hints_worth(const struct kvc_hints *h, uint64_t now_ns)
{
	if (h->finished)
		return KVC_WORTH_FIRST;
	return h->until_ns > now_ns ? KVC_WORTH_LATER : KVC_WORTH_NORMAL;
}

#endif
