/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Lookups in chunks that are not complete yet, whose files are hidden (names/incomplete.c). The
 * kernel caches no name of such a folder, neither existing nor missing, so each lookup arrives
 * here.
 */
#include "cache.h"
#include "ops.h"
#include "incomplete.h"

/*
 * Is the folder an incomplete chunk, whose files are hidden? *hidden: the file of this name, if
 * any.
 */
static bool hides_files(struct kvc *k, uint64_t parent, const char *name, uint64_t *hidden)
{
	struct kvc_node *folder;
	uint64_t ino;
	uint32_t kind;
	bool is = false;

	kvc_lock_both(k);
	if (!kvc_node_get_both(k, parent, &folder)) {
		is = kvc_incomplete_both(k, folder);
		if (is && name && !kvc_incomplete_temporary(name) &&
		    !kvc_name_get(k->cat, parent, name, &ino, &kind) && S_ISREG(kind))
			*hidden = ino;
		kvc_node_settle_locked(k, folder);
	}
	kvc_unlock_both(k);
	return is;
}

bool kvc_lookup_uncacheable(struct kvc *k, uint64_t parent)
{
	return kvc_incomplete_on(k) && hides_files(k, parent, NULL, NULL);
}

int kvc_lookup(struct kvc *k, uint64_t parent, const char *name, struct kvc_row *attr,
	       struct kvc_wait *w)
{
	uint64_t hidden = 0;
	bool partial = kvc_incomplete_on(k) && hides_files(k, parent, name, &hidden);
	int err = hidden ? -ENOENT : kvc_entry_lookup_any(k, parent, name, attr, w);

	if (hidden)
		attr->ino = hidden;
	else if (err == -ENOENT && partial && !attr->ino)
		attr->ino = parent;
	return err;
}
