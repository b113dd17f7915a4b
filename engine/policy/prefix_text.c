/* SPDX-License-Identifier: Apache-2.0 */
/* The state of the policy `prefix` as text: the guard's choice and its reasons, and the weights. */
#include "prefix_priv.h"

#include <stdio.h>

void kvc_prefix_text(const struct kvc_replacer *k, char *to, size_t capacity)
{
	const struct prefix *p = k->own;
	bool loose = kvc_prefix_is_loose(p);
	int n = snprintf(to, capacity,
			 "by %s\nguard %s\nloose %.4f\nshadow_hits_index %.4f\n"
			 "shadow_hits_use %.4f\nshadow_chunks %u %u\nsample %u\nswitches %llu\n",
			 p->by_use || loose ? "use" : "index",
			 loose       ? "loose"
			 : p->by_use ? "use"
				     : "index",
			 p->loose, p->asked > 0 ? p->shadow[0].hits / p->asked : 0,
			 p->asked > 0 ? p->shadow[1].hits / p->asked : 0, p->shadow[0].chain.n,
			 p->shadow[1].chain.n, p->sample, (unsigned long long)p->switches);

	if (n > 0 && (size_t)n < capacity)
		kvc_learn_text(p->learn, to + n, capacity - (size_t)n);
}
