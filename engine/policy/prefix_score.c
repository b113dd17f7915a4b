/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The facts and the score of a chunk for the policy `prefix`: at the end of a request, and for the
 * chunk accessed last, as if the request continued after it.
 */
#include "prefix_priv.h"

struct kvc_facts kvc_prefix_learned(const struct kvc_request *r, const struct kvc_touched *t,
				    uint32_t length, uint32_t distance)
{
	return (struct kvc_facts){
		.fresh = (uint16_t)kvc_min(r->fresh, UINT16_MAX),
		.length = (uint16_t)kvc_min(length, UINT16_MAX),
		.count = t->count,
		.deepest = r->deepest,
		.kids = t->count == 1 ? 0 : t->kids,
		.gap = t->gap,
		.tail = !distance,
		.distance = (uint8_t)kvc_min(distance, 2),
		.continues = r->continues,
	};
}

uint8_t kvc_prefix_score_now(struct prefix *p, const struct kvc_request *r)
{
	if (p->scored_nr != r->nr || p->scored_n != r->n) {
		struct kvc_facts f = kvc_prefix_learned(r, &r->touched[r->n - 1], r->n, 1);

		p->scored = kvc_learn_score(p->learn, &f);
		p->scored_nr = r->nr;
		p->scored_n = r->n;
	}
	return p->scored;
}
