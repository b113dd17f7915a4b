/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Takes victims from the classes of one cache in turns. Each class (base/policy.h) has its own
 * order, and victims of different orders cannot be compared. So each class gives victims in
 * proportion to its chunks in the pool. No lock: the caller serializes the calls.
 */
#ifndef KVC_TURNS_H
#define KVC_TURNS_H

#include "replacer.h"
#include "policy.h"

/*
 * The class with the lowest number is next; each victim adds 1 / chunks of its class. Zeroed at
 * first.
 */
struct kvc_turns {
	double at[KVC_CLASSES];
};

/* Returns the class in the mask that is next, or -1 if the mask is empty. */
int kvc_turns_next(const struct kvc_turns *t, unsigned mask);
/* A class gave a victim; `chunks` is the number of its chunks in the pool, including the victim. */
void kvc_turns_advance(struct kvc_turns *t, unsigned class, uint64_t chunks);
/*
 * Returns the id of the next victim and its *class, or 0 if no chunk can be evicted. replacers[]
 * has the replacer of each class, or NULL.
 */
uint64_t kvc_turns_victim(const struct kvc_turns *t,
			  struct kvc_replacer *const replacers[KVC_CLASSES], unsigned *class);

#endif
