/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The numbers of tiers. 0 is the disk. A shared tier has the number that it had before, which the
 * catalog remembers by its id (meta tier_N), or the lowest that nobody had. Where each had one, it
 * gets that of a tier that is not here and of which nothing is left: no copy that the catalog knows
 * of, and none that is to be deleted there.
 */
#include "tier_slots.h"

#include "admission.h"
#include "pin.h"
#include "remove.h"
#include "tier_queue.h"
#include "wear.h"

#include <stdio.h>
#include <string.h>

struct seats {
	char id[KVC_TIERS][256]; /* whose it is, from 1 on; "" nobody's */
};

static const char *key_of(unsigned seat, char key[16])
{
	snprintf(key, 16, "tier_%u", seat);
	return key;
}

static int read_seats(struct kvc *k, struct seats *s)
{
	char key[16];
	int err = 0;

	memset(s, 0, sizeof *s);
	for (unsigned t = 1; t < KVC_TIERS && err >= 0; t++)
		err = kvc_meta_read(k->cat, key_of(t, key), s->id[t], sizeof s->id[t]);
	return err < 0 ? err : 0;
}

static unsigned seat_of(const struct seats *s, const char *id)
{
	unsigned t = 1;

	while (t < KVC_TIERS && strcmp(s->id[t], id))
		t++;
	return t;
}

static bool is_here(struct kvc_tier **tiers, unsigned n, const char *id)
{
	for (unsigned i = 0; i < n; i++)
		if (!strcmp(tiers[i]->id, id))
			return true;
	return false;
}

static int found(void *arg, uint64_t ino, const struct kvc_place *p)
{
	(void)arg;
	(void)ino;
	(void)p;
	return -EEXIST;
}

/* 0; -EEXIST: something of its tier is left. */
static int vacate(struct kvc *k, unsigned seat)
{
	int err = kvc_place_each(k->cat, seat, found, NULL) ?: kvc_remove_waits_both(k, seat);

	return err ?: kvc_wear_forget_both(k, seat);
}

/* One for a tier that has none yet; KVC_TIERS: there is none. */
static int new_seat(struct kvc *k, struct kvc_tier **tiers, unsigned n, struct seats *s,
		    unsigned *seat)
{
	int err = 0;

	*seat = seat_of(s, "");
	for (unsigned t = 1; t < KVC_TIERS && *seat == KVC_TIERS; t++) {
		if (is_here(tiers, n, s->id[t]))
			continue;
		if (!(err = vacate(k, t)))
			*seat = t;
		else if (err != -EEXIST)
			return err;
	}
	return 0;
}

static void take(struct kvc *k, struct kvc_tier *t, unsigned seat)
{
	k->tier[seat].t = t;
	k->order[k->ntiers++] = seat;
	if (k->tier_slots <= seat)
		k->tier_slots = seat + 1;
}

static int take_shared(struct kvc *k, struct kvc_tier **tiers, unsigned n, struct kvc_tier *t,
		       struct seats *s, char *error)
{
	unsigned seat = seat_of(s, t->id);
	char key[16];
	int err = 0;

	if (seat == KVC_TIERS)
		err = new_seat(k, tiers, n, s, &seat);
	if (err)
		return err;
	if (seat == KVC_TIERS) {
		snprintf(error, 512,
			 "option remote: this store knows %d remotes already, and has copies "
			 "in each: none can be forgotten for %s. Drop what it has in one of "
			 "them, or use a new store",
			 KVC_TIERS - 1, t->id);
		return -EINVAL;
	}
	if (k->tier[seat].t) {
		snprintf(error, 512, "option remote: %s is given twice", t->id);
		return -EINVAL;
	}
	if ((err = kvc_meta_set(k->cat, key_of(seat, key), t->id)))
		return err;
	snprintf(s->id[seat], sizeof s->id[seat], "%s", t->id);
	take(k, t, seat);
	k->shared = true;
	return 0;
}

int kvc_tier_slots_take(struct kvc *k, struct kvc_tier **tiers, unsigned n, char *error)
{
	struct seats s;
	int err;

	kvc_lock_both(k);
	err = read_seats(k, &s);
	*error = 0;
	k->tier_slots = 1;
	/* as far as one has a number, whether it is here or not, there may be placements in it */
	for (unsigned t = 1; t < KVC_TIERS && !err; t++)
		if (*s.id[t])
			k->tier_slots = t + 1;
	for (unsigned i = 0; i < n && !err; i++) {
		struct kvc_tier_usage u;

		if (tiers[i]->ops->caps & KVC_TIER_SHARED) {
			err = take_shared(k, tiers, n, tiers[i], &s, error);
			continue;
		}
		tiers[i]->ops->usage(tiers[i], &u);
		k->pins->disk_size = u.total;
		take(k, tiers[i], KVC_DISK);
	}
	kvc_unlock_both(k);
	if (err && !*error)
		snprintf(error, 512, "the catalog cannot be read: %s", strerror(-err));
	return err;
}
