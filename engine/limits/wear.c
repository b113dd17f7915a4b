/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Wear of flash: the bytes of every frame that was written to each tier, used later or not, and the
 * bytes written to store accesses (access_save.c, replacer_save.c). A day begins at midnight UTC by
 * the store's clock. The figures are stored in the catalog (meta written:TIER, with DAY TODAY ALL)
 * together with that clock.
 */
#include "wear.h"

#include "clock.h"
#include "committer.h"
#include "tier_queue.h"

#include <inttypes.h>
#include <stdio.h>

#define DAY_NS 86400000000000ull
#define KEY "written:"
#define ACCESS_KEY KEY "accesses"

static struct kvc_wear wear_now(const struct kvc *k, struct kvc_wear w)
{
	uint64_t day = kvc_clock_ns(k) / DAY_NS;

	if (w.day != day)
		w.today = 0;
	w.day = day;
	return w;
}

static void wear_add(const struct kvc *k, struct kvc_wear *w, uint64_t bytes)
{
	*w = wear_now(k, *w);
	w->today += bytes;
	w->all += bytes;
}

struct kvc_wear kvc_wear_show_locked(struct kvc *k, unsigned tier)
{
	return wear_now(k, k->tier[tier].wear);
}

void kvc_wear_add_locked(struct kvc *k, unsigned tier, uint64_t bytes)
{
	wear_add(k, &k->tier[tier].wear, bytes);
}

struct kvc_wear kvc_wear_access_show_locked(struct kvc *k)
{
	return wear_now(k, k->committer->accesses.written);
}

void kvc_wear_access_add_locked(struct kvc *k, uint64_t bytes)
{
	wear_add(k, &k->committer->accesses.written, bytes);
}

static void wear_save(struct kvc *k, const char *key, const struct kvc_wear *w)
{
	char value[80];

	snprintf(value, sizeof value, "%" PRIu64 " %" PRIu64 " %" PRIu64, w->day, w->today, w->all);
	if (w->all)
		kvc_meta_set(k->cat, key, value);
}

void kvc_wear_save_both(struct kvc *k)
{
	char key[32];

	kvc_tier_each(k, t) {
		snprintf(key, sizeof key, KEY "%u", t);
		wear_save(k, key, &k->tier[t].wear);
	}
	wear_save(k, ACCESS_KEY, &k->committer->accesses.written);
}

static int wear_load(struct kvc *k, const char *key, struct kvc_wear *to)
{
	char value[80];
	struct kvc_wear w;
	int err = kvc_meta_get(k->cat, key, value, sizeof value);

	if (!err &&
	    sscanf(value, "%" SCNu64 " %" SCNu64 " %" SCNu64, &w.day, &w.today, &w.all) == 3)
		*to = w;
	return err == -ENOENT ? 0 : err;
}

int kvc_wear_load_both(struct kvc *k)
{
	char key[32];
	int err = wear_load(k, ACCESS_KEY, &k->committer->accesses.written);

	kvc_tier_each(k, t) {
		snprintf(key, sizeof key, KEY "%u", t);
		err = err ?: wear_load(k, key, &k->tier[t].wear);
	}
	return err;
}

int kvc_wear_forget_both(struct kvc *k, unsigned tier)
{
	char key[32];

	snprintf(key, sizeof key, KEY "%u", tier);
	return kvc_meta_del(k->cat, key);
}
