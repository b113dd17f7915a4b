/* SPDX-License-Identifier: Apache-2.0 */
/* The oldest leaves of those drawn at random (oldest.h): a short sorted array. */
#include "oldest.h"

#include <string.h>

static bool is_newer(const struct kvc_old *a, const struct kvc_old *b)
{
	int32_t by = (int32_t)(a->last - b->last);

	/* on a tie the lower slot is older, so that the choice is reproducible */
	return by > 0 || (!by && a->slot > b->slot);
}

void kvc_oldest_offer(struct kvc_oldest *o, const struct kvc_chain *c, uint32_t slot)
{
	struct kvc_old x = { slot, c->last[slot] };
	unsigned at = 0;

	if (o->n == KVC_OLDEST && !is_newer(&o->v[0], &x))
		return;
	while (at < o->n && is_newer(&o->v[at], &x))
		at++;
	if (at < o->n && o->v[at].slot == slot && o->v[at].last == x.last)
		return;
	if (o->n == KVC_OLDEST) {
		at--;
		memmove(&o->v[0], &o->v[1], at * sizeof x);
	} else {
		memmove(&o->v[at + 1], &o->v[at], (o->n++ - at) * sizeof x);
	}
	o->v[at] = x;
}

uint32_t kvc_oldest_take(struct kvc_oldest *o, const struct kvc_chain *c)
{
	while (o->n) {
		const struct kvc_old *x = &o->v[--o->n];

		if (c->id[x->slot] && kvc_chain_is_leaf(c, x->slot) && c->last[x->slot] == x->last)
			return x->slot;
	}
	return KVC_NO_SLOT;
}
