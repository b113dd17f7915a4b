/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Assigns the numbers of tiers. 0 is the disk. A shared tier gets the number under which the
 * catalog stores its id (meta tier_N), or the lowest unused number. If all are used, it gets the
 * number of a tier that is not in this mount and has no remains: no copy in the catalog and no
 * pending removal.
 */
#include "context.h"

#include "admission.h"
#include "pin.h"
#include "remove.h"
#include "tier_queue.h"
#include "wear.h"

#include <stdio.h>
#include <string.h>

struct slots {
	char id[KVC_TIERS][256]; /* id of the tier with this number, from 1 on; "": unused */
};

static const char *slot_key(unsigned slot, char key[16])
{
	snprintf(key, 16, "tier_%u", slot);
	return key;
}

static int read_slots(struct kvc *k, struct slots *s)
{
	char key[16];
	int err = 0;

	memset(s, 0, sizeof *s);
	for (unsigned t = 1; t < KVC_TIERS && err >= 0; t++)
		err = kvc_meta_read(k->cat, slot_key(t, key), s->id[t], sizeof s->id[t]);
	return err < 0 ? err : 0;
}

static unsigned slot_of(const struct slots *s, const char *id)
{
	unsigned t = 1;

	while (t < KVC_TIERS && strcmp(s->id[t], id))
		t++;
	return t;
}

static bool in_mount(struct kvc_tier **tiers, unsigned n, const char *id)
{
	for (unsigned i = 0; i < n; i++)
		if (!strcmp(tiers[i]->id, id))
			return true;
	return false;
}

static int found_placement(void *arg, uint64_t ino, const struct kvc_place *p)
{
	(void)arg;
	(void)ino;
	(void)p;
	return -EEXIST;
}

/* Returns 0, or -EEXIST if something of its tier is left. */
static int free_slot(struct kvc *k, unsigned slot)
{
	int err = kvc_place_each(k->cat, slot, found_placement, NULL)
			  ?: kvc_remove_waits_both(k, slot);

	return err ?: kvc_wear_forget_both(k, slot);
}

/* Finds a number for a new tier; KVC_TIERS if all are in use. */
static int new_slot(struct kvc *k, struct kvc_tier **tiers, unsigned n, struct slots *s,
		    unsigned *slot)
{
	int err = 0;

	*slot = slot_of(s, "");
	for (unsigned t = 1; t < KVC_TIERS && *slot == KVC_TIERS; t++) {
		if (in_mount(tiers, n, s->id[t]))
			continue;
		if (!(err = free_slot(k, t)))
			*slot = t;
		else if (err != -EEXIST)
			return err;
	}
	return 0;
}

static void assign(struct kvc *k, struct kvc_tier *t, unsigned slot)
{
	k->tier[slot].t = t;
	k->order[k->ntiers++] = slot;
	k->ntakers += kvc_tier_takes(t);
	if (k->tier_slots <= slot)
		k->tier_slots = slot + 1;
}

static int assign_shared(struct kvc *k, struct kvc_tier **tiers, unsigned n, struct kvc_tier *t,
			 struct slots *s, char *error)
{
	unsigned slot = slot_of(s, t->id);
	char key[16];
	int err = 0;

	if (slot == KVC_TIERS)
		err = new_slot(k, tiers, n, s, &slot);
	if (err)
		return err;
	if (slot == KVC_TIERS) {
		snprintf(error, 512,
			 "option remote: this store already has copies in %d remotes, so there is "
			 "no place for %s. Remove the copies from one remote with kvcachectl evict "
			 "--from, or use a new store",
			 KVC_TIERS - 1, t->id);
		return -EINVAL;
	}
	if (k->tier[slot].t) {
		snprintf(error, 512, "option remote: %s is given twice", t->id);
		return -EINVAL;
	}
	if ((err = kvc_meta_set(k->cat, slot_key(slot, key), t->id)))
		return err;
	snprintf(s->id[slot], sizeof s->id[slot], "%s", t->id);
	assign(k, t, slot);
	k->shared = true;
	return 0;
}

int kvc_tier_slots_assign(struct kvc *k, struct kvc_tier **tiers, unsigned n, char *error)
{
	struct slots s;
	int err;

	kvc_lock_both(k);
	err = read_slots(k, &s);
	*error = 0;
	k->tier_slots = 1;
	/* placements may refer to any assigned number, also of a tier that is not in this mount */
	for (unsigned t = 1; t < KVC_TIERS && !err; t++)
		if (*s.id[t])
			k->tier_slots = t + 1;
	for (unsigned i = 0; i < n && !err; i++) {
		struct kvc_tier_usage u;

		if (tiers[i]->ops->caps & KVC_TIER_SHARED) {
			err = assign_shared(k, tiers, n, tiers[i], &s, error);
			continue;
		}
		tiers[i]->ops->usage(tiers[i], &u);
		k->pins->disk_size = u.total;
		assign(k, tiers[i], KVC_DISK);
	}
	kvc_unlock_both(k);
	if (err && !*error)
		snprintf(error, 512, "the catalog cannot be read: %s", strerror(-err));
	return err;
}
