/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Who put a frame: in shared tiers that is what tells a store's own from another's, before
 * something is removed there (remove.c). A store that was copied (cp -a, a snapshot) has the uuid
 * of the first, its next inode number and generations, so there the uuid is not asked but a number
 * that is drawn and kept in the catalog, with whose it is (meta identity), as the mark of a pool
 * has it: another superblock's is given up. So it is by a move to another device, which does no
 * harm: what the store has put is read all the same.
 */
#include "identity.h"

#include "keys.h"
#include "log.h"
#include "owner.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#define KEY "identity"

static void text_of(const struct kvc *k, const struct kvc_owner *o, char text[512])
{
	char *p = text;

	for (int i = 0; i < 16; i++)
		p += snprintf(p, 3, "%02x", k->shared_id[i]);
	snprintf(p, 512 - 32, " %" PRIx64 " %" PRIx64 " %s %s", o->dev, o->ino, o->uuid, o->handle);
}

static bool parse(const char *text, uint8_t id[16], struct kvc_owner *o)
{
	*o = (struct kvc_owner){ .dir = "" };
	for (int i = 0; i < 16; i++) {
		unsigned byte;

		if (strnlen(text, 33) < 33 || sscanf(text + 2 * i, "%2x", &byte) != 1)
			return false;
		id[i] = (uint8_t)byte;
	}
	return sscanf(text + 32, " %" SCNx64 " %" SCNx64 " %36s %299s", &o->dev, &o->ino, o->uuid,
		      o->handle) == 4;
}

int kvc_identity_start_both(struct kvc *k)
{
	struct kvc_owner us, its;
	char text[512];
	int got, err;

	if (!k->shared)
		return 0;
	got = kvc_meta_read(k->cat, KEY, text, sizeof text);
	err = got < 0 ? got : kvc_owner_of(k->store, k->store->lock_fd, &us);
	if (err)
		return err;
	if (got && parse(text, k->shared_id, &its) && kvc_owner_same(&us, &its))
		return 0;
	if ((err = kvc_keys_random(k->shared_id, sizeof k->shared_id)))
		return err;
	if (got)
		kvc_info("the store %s was copied, or is on another device now: in shared tiers it "
			 "has a new identity",
			 k->store->dir);
	text_of(k, &us, text);
	return kvc_meta_set(k->cat, KEY, text);
}
