/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Setting pins, and finding them again at the start. A chunk's row has until when it is pinned;
 * meta pin:CHUNK has the uid of who did it. A row without that is of an older daemon, and counts to
 * the owner of the chunk's file or folder. What a pin's files take is counted anew here each time;
 * the account is in pin.c.
 */
#include "pinned.h"

#include "folder.h"
#include "pin.h"

#include <inttypes.h>
#include <string.h>

#define BATCH 256
#define ENDS 64 /* pins that end under one hold of the locks */

/* One file of the chunk, or another of its folder. */
static int count_one_both(struct kvc *k, struct kvc_pin *p, uint64_t ino)
{
	struct kvc_node *n = kvc_node_find_locked(k, ino);
	struct kvc_row row;
	int err;

	if (n && S_ISREG(n->row.mode) && n->row.chunk == p->slot.key) {
		kvc_pin_count_locked(k, n);
		return 0;
	}
	if (n)
		return 0;
	err = kvc_row_get(k->cat, ino, &row);
	if (!err && S_ISREG(row.mode) && row.chunk == p->slot.key)
		kvc_pin_disk_locked(k, p, (int64_t)kvc_pin_weight(row.blocks));
	return err == -ENOENT ? 0 : err;
}

static int count_both(struct kvc *k, struct kvc_pin *p, const struct kvc_row *self)
{
	struct kvc_entries e = { 0 };
	int err;

	if (!S_ISDIR(self->mode)) {
		err = count_one_both(k, p, self->ino);
		if (!err && self->container)
			err = count_one_both(k, p, self->container);
		return err;
	}
	err = kvc_entries_in_both(k, self->ino, &e);
	for (size_t i = 0; i < e.n && !err; i++)
		if (S_ISREG(e.v[i].kind))
			err = count_one_both(k, p, e.v[i].ino);
	free(e.v);
	return err;
}

static const char *key_of(uint64_t chunk, char key[40])
{
	snprintf(key, 40, KVC_PIN_KEY "%" PRIx64, chunk);
	return key;
}

static int note_both(struct kvc *k, uint64_t chunk, uint32_t uid)
{
	char key[40], value[16];

	snprintf(value, sizeof value, "%u", uid);
	return kvc_meta_set(k->cat, key_of(chunk, key), value);
}

/* One that is there already: it ends at another time, and may be another user's from now on. */
static int change_both(struct kvc *k, struct kvc_pin *p, uint32_t uid, uint64_t until_ns)
{
	uint32_t was = (uint32_t)p->user->slot.key;
	uint64_t before = p->until_ns;
	int err = kvc_pin_end_locked(k, p, until_ns);

	if (err || was == uid)
		return err;
	if (!(err = kvc_pin_give_locked(k, p, uid)))
		err = kvc_pin_excess_locked(k, p) ?: note_both(k, p->slot.key, uid);
	if (err) {
		kvc_pin_give_locked(k, p, was);
		kvc_pin_end_locked(k, p, before);
	}
	return err;
}

static int new_both(struct kvc *k, uint64_t chunk, uint32_t uid, uint64_t until_ns)
{
	struct kvc_pin *p = kvc_pin_new_locked(k, chunk, uid, until_ns,
					       kvc_chunk_find_locked(k, chunk));
	struct kvc_row self;
	int err = p ? 0 : -ENOMEM;

	err = err ?: kvc_row_of_both(k, chunk, &self) ?: count_both(k, p, &self);
	err = err ?: kvc_pin_excess_locked(k, p) ?: note_both(k, chunk, uid);
	if (err && p)
		kvc_pin_free_locked(k, p);
	return err;
}

int kvc_pin_set_both(struct kvc *k, uint64_t chunk, uint32_t uid, uint64_t until_ns)
{
	struct kvc_pin *p;
	int err;

	kvc_pins_end_both(k);
	if (!until_ns) {
		kvc_pin_forget_both(k, chunk);
		return 0;
	}
	p = kvc_pin_find_locked(k, chunk);
	err = p ? change_both(k, p, uid, until_ns) : new_both(k, chunk, uid, until_ns);
	if (err == -EDQUOT || err == -ENOSPC)
		kvc_count(&k->stats, pin_refusals);
	return err;
}

bool kvc_pins_end_both(struct kvc *k)
{
	struct kvc_pin *p;

	for (unsigned i = 0; i < ENDS; i++) {
		if (!(p = kvc_pin_ended_locked(k)))
			return false;
		kvc_pin_forget_both(k, p->slot.key);
	}
	return true;
}

/* Who has pinned it? */
static int user_both(struct kvc *k, const struct kvc_row *self, uint32_t *uid)
{
	char key[40], value[64];
	int is = kvc_meta_read(k->cat, key_of(self->ino, key), value, sizeof value);

	if (is < 0 || (is && sscanf(value, "%" SCNu32, uid) == 1))
		return is < 0 ? is : 0;
	*uid = self->uid;
	return note_both(k, self->ino, *uid);
}

/* Beyond the bound they are counted all the same: they do not hold, but by and by they may. */
static int load_both(struct kvc *k, const struct kvc_chunk_row *r)
{
	struct kvc_pin *p;
	struct kvc_row self;
	uint32_t uid;
	int err = kvc_row_get(k->cat, r->id, &self);

	if (err) /* its last file has gone */
		return err == -ENOENT ? 0 : err;
	if ((err = user_both(k, &self, &uid)))
		return err;
	p = kvc_pin_new_locked(k, r->id, uid, r->pin_until_ns, NULL);
	return p ? count_both(k, p, &self) : -ENOMEM;
}

/* Names of pins that are no more: of a killed daemon's, or ended in the meantime. */
static int sweep_both(struct kvc *k)
{
	char key[64] = KVC_PIN_KEY, value[16];
	uint64_t id;
	int err;

	while (!(err = kvc_meta_next(k->cat, KVC_PIN_KEY, key, value, sizeof value)))
		if ((sscanf(key, KVC_PIN_KEY "%" SCNx64, &id) != 1 ||
		     !kvc_pin_find_locked(k, id)) &&
		    (err = kvc_meta_del(k->cat, key)))
			return err;
	return err == -ENOENT ? 0 : err;
}

int kvc_pins_load_both(struct kvc *k)
{
	struct kvc_chunk_row v[BATCH];
	uint64_t after = 0;
	size_t n;
	int err;

	do {
		err = kvc_chunk_some_pinned(k->cat, after, BATCH, v, &n);
		for (size_t i = 0; i < n && !err; i++) {
			after = v[i].id;
			err = load_both(k, &v[i]);
		}
	} while (!err && n == BATCH);
	while (!err && kvc_pins_end_both(k))
		;
	return err ?: sweep_both(k);
}
