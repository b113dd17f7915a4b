/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How much is written to each tier, since flash wears by it: every frame that was put there, be it
 * of use afterwards or not. A day begins at midnight UTC by the store's clock. Kept in the catalog
 * (meta written:TIER: DAY TODAY ALL) together with that clock.
 */
#include "written.h"

#include "clock.h"
#include "tierq.h"

#include <inttypes.h>
#include <stdio.h>

#define DAY_NS 86400000000000ull
#define KEY "written:"

struct kvc_written kvc_written_show_locked(struct kvc *k, unsigned tier)
{
	struct kvc_written w = k->tier[tier].written;
	uint64_t day = kvc_clock_ns(k) / DAY_NS;

	if (w.day != day)
		w.today = 0;
	w.day = day;
	return w;
}

void kvc_written_add_locked(struct kvc *k, unsigned tier, uint64_t bytes)
{
	struct kvc_written w = kvc_written_show_locked(k, tier);

	w.today += bytes;
	w.all += bytes;
	k->tier[tier].written = w;
}

void kvc_written_save_both(struct kvc *k)
{
	char key[32], value[80];

	kvc_tier_each(k, t) {
		const struct kvc_written *w = &k->tier[t].written;

		snprintf(key, sizeof key, KEY "%u", t);
		snprintf(value, sizeof value, "%" PRIu64 " %" PRIu64 " %" PRIu64, w->day, w->today,
			 w->all);
		if (w->all)
			kvc_meta_set(k->cat, key, value);
	}
}

int kvc_written_load_both(struct kvc *k)
{
	char key[32], value[80];
	int err = 0;

	kvc_tier_each(k, t) {
		struct kvc_written w;

		snprintf(key, sizeof key, KEY "%u", t);
		err = err ?: kvc_meta_get(k->cat, key, value, sizeof value);
		if (!err && sscanf(value, "%" SCNu64 " %" SCNu64 " %" SCNu64, &w.day, &w.today,
				   &w.all) == 3)
			k->tier[t].written = w;
		err = err == -ENOENT ? 0 : err;
	}
	return err;
}

int kvc_written_forget_both(struct kvc *k, unsigned tier)
{
	char key[32];

	snprintf(key, sizeof key, KEY "%u", tier);
	return kvc_meta_del(k->cat, key);
}
