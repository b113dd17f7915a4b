/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Inode numbers. The catalog has a number above all that may have been given out (meta: next_ino),
 * which moves on in steps, ahead of the need: a number is given out only below one that is
 * committed. A clean unmount takes it back to what was used. Frames of numbers that a kill or a
 * power failure took from the catalog may lie about: a start after one stays clear of as many
 * again.
 */
#include "ino.h"

#include "committer.h"

#include <inttypes.h>

#define INO_STEP (1u << 20)

static int reserve_inos_both(struct kvc *k)
{
	char text[32];
	int err;

	snprintf(text, sizeof text, "%" PRIu64, k->inos->next + INO_STEP);
	err = kvc_meta_set(k->cat, "next_ino", text);
	if (err)
		return err;
	k->inos->reserved = k->inos->next + INO_STEP;
	k->inos->txn = kvc_catalog_txn(k->cat);
	kvc_committer_wake_locked(k, false);
	return 0;
}

int kvc_ino_new_both(struct kvc *k, uint64_t *ino)
{
	int err = 0;

	if (k->inos->reserved > k->inos->limit && k->committer->committed >= k->inos->txn)
		k->inos->limit = k->inos->reserved;
	if (k->inos->reserved - k->inos->next < INO_STEP / 2)
		err = reserve_inos_both(k);
	if (k->inos->next >= k->inos->limit)
		return err ?: -EAGAIN; /* half a million creates, and not one commit */
	*ino = k->inos->next++;
	return 0;
}

void kvc_ino_save_both(struct kvc *k)
{
	char text[32];

	snprintf(text, sizeof text, "%" PRIu64, k->inos->next);
	kvc_meta_set(k->cat, "next_ino", text);
}

int kvc_inos_load_both(struct kvc *k, bool clean)
{
	char text[32] = "";
	uint64_t max;
	int err = kvc_meta_get(k->cat, "next_ino", text, sizeof text);

	if (err && err != -ENOENT) /* a store of before has none */
		return err;
	if ((err = kvc_row_max(k->cat, &max)))
		return err;
	k->inos->next = kvc_max(max + 1, strtoull(text, NULL, 10)) + (clean ? 0 : INO_STEP);
	return reserve_inos_both(k);
}
