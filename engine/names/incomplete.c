/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Incomplete chunks. A model can declare how many files its chunks have (user.kvcachefs.layers). A
 * chunk's folder with fewer is incomplete. With partial=miss its files are then hidden: from
 * lookups, listings and leases, and from opens of inodes that the kernel still knows. The folder
 * itself is always visible, so that its files can be made in it, with any names and flags.
 *
 * A file counts if it is regular, was published with data, and does not have a temporary name
 * (kvc_incomplete_temporary). Temporary names are never hidden, because the final rename must find
 * them.
 *
 * The files are counted on demand, up to the number of a complete chunk, and the result is cached
 * in the node of the folder (n->content.published) until a name in the folder changes or a file in
 * it is published. The catalog stores none of it, so a start has nothing to recover.
 *
 * The kernel may not cache names in an incomplete folder, neither existing nor missing. So all
 * files appear together when the last one is published, and only cached listings have to be
 * invalidated. In the other direction, when a complete chunk loses a file, all its names are
 * invalidated.
 */
#include "incomplete.h"

#include "arrival.h"
#include "file.h"
#include "folder.h"
#include "notify.h"
#include "chunking.h"

#include <string.h>

#define AT_ONCE 256 /* hash buckets per hold of the lock */

bool kvc_incomplete_temporary(const char *name)
{
	return *name == '.' || strstr(name, ".tmp");
}

void kvc_incomplete_named_locked(struct kvc_node *n, const char *name)
{
	kvc_file_set_temporary_locked(n, kvc_incomplete_temporary(name) ? kvc_mono_ns() : 0);
}

static bool is_published_both(struct kvc *k, uint64_t ino, int *err)
{
	const struct kvc_node *n = kvc_node_find_locked(k, ino);
	struct kvc_object_row o = { 0 };

	if (n)
		return n->object.gen && n->object.size && !n->segment.never_published &&
		       !kvc_node_gone(n);
	*err = kvc_object_get(k->cat, ino, &o);
	*err = *err == -ENOENT ? 0 : *err;
	return !*err && o.gen && o.size;
}

/*
 * The number of files in the folder that count, at most `want` (files beyond that are not
 * examined), or an error.
 */
static int count_published_both(struct kvc *k, struct kvc_node *folder, unsigned want)
{
	struct kvc_entries e = { 0 };
	int more = 1, err = 0;
	uint64_t after = 0;
	unsigned n = 0;

	if (folder->content.published > want ||
	    (folder->content.published &&
	     folder->content.published <= folder->content.published_of))
		return (int)kvc_min(folder->content.published - 1, want);
	while (more == 1 && n < want && !err) {
		more = kvc_folder_entries_some_both(k, folder->row.ino, &after, &e);
		err = more < 0 ? more : 0;
		for (size_t i = 0; i < e.n && n < want && !err; i++)
			n += S_ISREG(e.v[i].kind) && !kvc_incomplete_temporary(e.v[i].name) &&
			     is_published_both(k, e.v[i].ino, &err);
	}
	free(e.v);
	if (!err)
		kvc_folder_counted_locked(folder, n, want);
	return err ?: (int)n;
}

int kvc_incomplete_is_both(struct kvc *k, struct kvc_node *folder)
{
	uint64_t model;
	unsigned want;
	int err;

	if (!kvc_model_layers_any(k) || !S_ISDIR(folder->row.mode) || folder->row.ino == KVC_ROOT)
		return 0;
	err = kvc_node_model_both(k, folder->row.ino, &model);
	want = err || model == folder->row.ino ? 0 : kvc_model_layers_of_locked(k, model);
	if (!want)
		return err == -ENOENT ? 0 : err;
	if ((err = kvc_chunking_whole_both(k, folder)) != 1)
		return err;
	err = count_published_both(k, folder, want);
	return err < 0 ? err : (unsigned)err < want;
}

bool kvc_incomplete_both(struct kvc *k, struct kvc_node *folder)
{
	return kvc_incomplete_is_both(k, folder) != 0; /* an error counts as a miss */
}

bool kvc_incomplete_hides_both(struct kvc *k, struct kvc_node *folder, const char *name)
{
	return kvc_incomplete_on(k) && !kvc_incomplete_temporary(name) &&
	       kvc_incomplete_both(k, folder);
}

static int not_only_here(void *arg, const struct kvc_name *n)
{
	return n->parent != *(const uint64_t *)arg || kvc_incomplete_temporary(n->name);
}

bool kvc_incomplete_hidden_both(struct kvc *k, struct kvc_node *n)
{
	uint64_t parent = n->row.parent;
	struct kvc_node *folder;
	bool hidden;

	if (!kvc_incomplete_on(k) || n->unnamed || n->commit.lost ||
	    kvc_node_get_both(k, parent, &folder))
		return false;
	hidden = kvc_incomplete_both(k, folder) &&
		 !kvc_name_of(k->cat, n->row.ino, not_only_here, &parent);
	kvc_node_settle_locked(k, folder);
	return hidden;
}

void kvc_incomplete_published_locked(struct kvc *k, struct kvc_node *n)
{
	struct kvc_node *folder = kvc_model_layers_any(k) ? kvc_node_find_locked(k, n->row.parent)
							  : NULL;

	if (!folder || !kvc_model_layers_of_locked(k, n->model))
		return;
	kvc_folder_uncounted_locked(folder);
	kvc_arrival_shown_locked(k, folder->row.ino);
	if (k->opt.partial != KVC_INCOMPLETE_MISS || !kvc_node_kernel_knows(folder))
		return;
	/*
	 * It may be the last file, so cached listings are invalidated. Or it was emptied, and
	 * hidden again.
	 */
	kvc_folder_touch_locked(k, folder, 0);
	if (n->object.size)
		kvc_notify(k, KVC_NOTICE_PRUNE, folder->row.ino, 0);
	else
		kvc_notify(k, KVC_NOTICE_FOLDER, 0, folder->row.ino);
}

bool kvc_incomplete_was_whole_both(struct kvc *k, struct kvc_node *folder)
{
	return kvc_incomplete_on(k) && !kvc_incomplete_both(k, folder);
}

void kvc_incomplete_after_both(struct kvc *k, struct kvc_node *folder, bool whole)
{
	if (whole && !folder->commit.lost && kvc_incomplete_both(k, folder))
		kvc_notify(k, KVC_NOTICE_FOLDER, 0, folder->row.ino);
}

void kvc_incomplete_moved_both(struct kvc *k, struct kvc_node *n, struct kvc_node *to)
{
	if (!kvc_incomplete_on(k) || !kvc_node_kernel_knows(n))
		return;
	if (S_ISDIR(n->row.mode))
		kvc_notify(k, KVC_NOTICE_FOLDER, 0, n->row.ino);
	else if (S_ISREG(n->row.mode) && kvc_incomplete_both(k, to))
		kvc_notify(k, KVC_NOTICE_NAME, 0, n->row.ino);
}

void kvc_incomplete_set_both(struct kvc *k, struct kvc_node *model)
{
	if (k->opt.partial == KVC_INCOMPLETE_MISS)
		kvc_notify(k, KVC_NOTICE_FOLDER, 0, model->row.ino);
}

void kvc_incomplete_listings(struct kvc *k)
{
	if (k->opt.partial != KVC_INCOMPLETE_MISS)
		return;
	kvc_lock(k);
	for (size_t b = 0; b < k->nodes->table.buckets; b++) {
		for (struct kvc_slot *s = kvc_table_bucket(&k->nodes->table, b); s; s = s->next) {
			struct kvc_node *n = kvc_of(s, struct kvc_node, slot);

			if (!S_ISDIR(n->row.mode) || !kvc_node_kernel_knows(n))
				continue;
			/* invalidates cached listings; not worth a row in the catalog */
			n->row.mtime_ns++;
			kvc_notify(k, KVC_NOTICE_PRUNE, n->row.ino, 0);
		}
		if (b % AT_ONCE == AT_ONCE - 1)
			kvc_pause_locked(k);
	}
	kvc_unlock(k);
}
