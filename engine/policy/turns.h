/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Whose turn it is. The classes of one cache (base/policy.h) have an order each, and victims of
 * different orders do not compare: so they give in turns, in proportion to the chunks that they
 * have in the pool. Nothing here has a lock.
 */
#ifndef KVC_TURNS_H
#define KVC_TURNS_H

#include "replacer.h"
#include "policy.h"

/* The lowest gives next; each victim moves it on by its part of the class. Zeroed at first. */
struct kvc_turns {
	double at[KVC_CLASSES];
};

/* Of the classes in the mask the one that gives next; -1: none. */
int kvc_turns_next(const struct kvc_turns *t, unsigned mask);
/* It gave one, of so many that it has in the pool, with that one. */
void kvc_turns_gave(struct kvc_turns *t, unsigned class, uint64_t chunks);
/* Who goes next of all, and *class, its own; 0: nobody can. keep: NULL where there is none. */
uint64_t kvc_turns_victim(const struct kvc_turns *t, struct kvc_replacer *const keep[KVC_CLASSES],
			  unsigned *class);

#endif
