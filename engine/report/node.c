/* SPDX-License-Identifier: Apache-2.0 */
/* The engine's part of the state of a node, for POST /status and kvcachectl cluster. */
#include "cache.h"
#include "gauges.h"
#include "model_stats.h"
#include "tier_queue.h"

#include <inttypes.h>
#include <stdlib.h>

static uint64_t opens_from(struct kvc *k, unsigned place)
{
	struct kvc_histogram sum = { 0 };
	uint64_t n = 0;

	kvc_stats_took(&k->stats, KVC_OP_open, place, &sum);
	for (unsigned i = 0; i < KVC_SPANS; i++)
		n += kvc_gauges_read(&sum.n[i]);
	return n;
}

void kvc_text_node(struct kvc *k, FILE *out)
{
	struct kvc_tier_gauges tier[KVC_TIERS];
	struct kvc_top_models_list list;

	if (!kvc_top_models(k, &list)) {
		if (list.counted)
			fprintf(out, "files %" PRIu64 "\nbytes %" PRIu64 "\n", list.all_use.files,
				list.all_use.bytes);
		free(list.v);
	}
	kvc_tier_gauges(k, tier);
	fprintf(out, "opens_cpu %" PRIu64 "\n", opens_from(k, KVC_OF_POOL));
	kvc_tier_each(k, t)
		fprintf(out, "opens_%s %" PRIu64 "\n", t == KVC_DISK ? "disk" : "remote",
			opens_from(k, t));
	kvc_text_stats(k, out);
}
