/* SPDX-License-Identifier: Apache-2.0 */
/* Turns of the classes of one cache (turns.h). */
#include "turns.h"

int kvc_turns_next(const struct kvc_turns *t, unsigned mask)
{
	int best = -1;

	for (int i = 0; i < KVC_CLASSES; i++)
		if ((mask & (1u << i)) && (best < 0 || t->at[i] < t->at[best]))
			best = i;
	return best;
}

void kvc_turns_advance(struct kvc_turns *t, unsigned class, uint64_t chunks)
{
	/* a class without victims for a while does not make up for that time */
	for (int i = 0; i < KVC_CLASSES; i++)
		t->at[i] = t->at[i] > t->at[class] ? t->at[i] : t->at[class];
	t->at[class] += 1.0 / (double)(1 + chunks);
}

uint64_t kvc_turns_victim(const struct kvc_turns *t,
			  struct kvc_replacer *const replacers[KVC_CLASSES], unsigned *class)
{
	unsigned mask = 0;
	int next;

	for (unsigned i = 0; i < KVC_CLASSES; i++)
		mask |= replacers[i] && kvc_replacer_chunks(replacers[i]) ? 1u << i : 0;
	while ((next = kvc_turns_next(t, mask)) >= 0) {
		uint64_t id = kvc_replacer_victim(replacers[next]);

		if (id) {
			*class = (unsigned)next;
			return id;
		}
		mask &= ~(1u << next);
	}
	return 0;
}
