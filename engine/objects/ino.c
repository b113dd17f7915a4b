/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Inode numbers. The catalog stores a number above all numbers that may be in use (meta: next_ino).
 * It is raised in steps, ahead of need, since a number is issued only if it is below a committed
 * value. A clean unmount lowers it to the first number that was not used. After a kill or a power
 * failure, frames may exist whose inodes are missing in the catalog, so the next start skips
 * another step of numbers.
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
		return err ?: -EAGAIN; /* half a million creates without a commit */
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

	if (err && err != -ENOENT) /* a store of an earlier version has none */
		return err;
	if ((err = kvc_row_max(k->cat, &max)))
		return err;
	k->inos->next = kvc_max(max + 1, strtoull(text, NULL, 10)) + (clean ? 0 : INO_STEP);
	return reserve_inos_both(k);
}
