/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Completes drops that a kill has interrupted. The mark of each (KVC_DROP_KEY) is in meta; the
 * remains of the chunk are deleted at the next start, before any other recovery. See chunk_drop.c.
 */
#include "dir_invalidate.h"
#include "folder.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>

static int recover_file_both(struct kvc *k, uint64_t ino)
{
	struct kvc_entries e = { 0 };
	int err = kvc_folder_entries_of_both(k, ino, &e);

	for (size_t i = 0; i < e.n && !err; i++)
		err = kvc_name_del(k->cat, e.v[i].parent, e.v[i].name);
	free(e.v);
	kvc_count(&k->stats, drops);
	return err ?: kvc_row_del(k->cat, ino, NULL);
}

static int recover_chunk_both(struct kvc *k, uint64_t id)
{
	struct kvc_entries e = { 0 };
	struct kvc_row self;
	int err = kvc_row_get(k->cat, id, &self);

	if (!err && S_ISREG(self.mode)) { /* a file with many names */
		uint64_t also = self.container;

		err = recover_file_both(k, id);
		if (!err && also && !kvc_row_get(k->cat, also, &self) && self.chunk == id)
			err = recover_file_both(k, also);
		return err;
	}
	/* the row of the folder may be deleted already */
	err = err == -ENOENT ? 0 : err;
	err = err ?: kvc_folder_entries_in_both(k, id, &e);
	for (size_t i = 0; i < e.n && !err; i++) {
		struct kvc_row row;

		if (S_ISREG(e.v[i].kind) && !(err = kvc_row_get(k->cat, e.v[i].ino, &row)) &&
		    row.chunk == id)
			err = recover_file_both(k, e.v[i].ino);
		err = err == -ENOENT ? 0 : err;
	}
	free(e.v);
	return err;
}

int kvc_chunk_drop_recover_both(struct kvc *k, bool *any)
{
	char key[64] = KVC_DROP_KEY, value[8];
	int err;

	*any = false;
	while (!(err = kvc_meta_next(k->cat, KVC_DROP_KEY, key, value, sizeof value))) {
		uint64_t id;

		*any = true;
		if (sscanf(key, KVC_DROP_KEY "%" SCNx64, &id) == 1)
			err = recover_chunk_both(k, id);
		if (err || (err = kvc_meta_del(k->cat, key)))
			return err;
	}
	return err == -ENOENT ? 0 : err;
}
