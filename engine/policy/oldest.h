/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The leaf that was used longest ago, nearly, without an order of all: of those that were drawn at
 * random the oldest are kept for the next time, so that soon all of them are among the oldest there
 * are. What was used since, or is no leaf any more, is left out when its turn comes.
 */
#ifndef KVC_OLDEST_H
#define KVC_OLDEST_H

#include "chain.h"

#define KVC_OLDEST 64

struct kvc_old {
	uint32_t slot, last;
};

struct kvc_oldest {
	unsigned n;
	struct kvc_old v[KVC_OLDEST]; /* the oldest last */
};

/* A leaf that was drawn. */
void kvc_oldest_offer(struct kvc_oldest *o, const struct kvc_chain *c, uint32_t slot);
/* Takes the oldest out; KVC_NO_SLOT: there is none. Who has another go offers it again. */
uint32_t kvc_oldest_take(struct kvc_oldest *o, const struct kvc_chain *c);

#endif
