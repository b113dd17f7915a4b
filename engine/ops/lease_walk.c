/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The paths of a lease: walks them from the root with the permissions of the user, who is not the
 * caller of a file call, and adds the objects to the lease. The callers are lease.c, and
 * lease_wait.c for names that are missing at first.
 */
#include "lease_priv.h"

#include "incomplete.h"
#include "user.h"

#include <string.h>

void kvc_lease_add_node_locked(struct kvc *k, struct kvc_lease *l, struct kvc_node *n)
{
	kvc_chunk_mark_busy(n->chunk);
	if (l->mode >= KVC_LEASE_LOOK) {
		/* keeps the node in memory, but not the object in the pool */
		kvc_node_ref_locked(n);
		return;
	}
	kvc_node_leased_locked(n);
	kvc_user_share_add_locked(k, n, l->uid, false);
}

int kvc_lease_share_locked(struct kvc *k, const struct kvc_lease *l, const struct kvc_node *n,
			   uint64_t load)
{
	if (l->mode >= KVC_LEASE_LOOK || kvc_user_share_fits_locked(k, l->uid, n, load))
		return 0;
	kvc_count(&k->stats, share_refusals);
	return -EDQUOT;
}

static bool in_group(const struct kvc_asker *u, uint32_t gid)
{
	bool in = u->gid == gid;

	for (size_t i = 0; i < u->ngroups && !in; i++)
		in = u->groups[i] == gid;
	return in;
}

bool kvc_lease_asker_may(const struct kvc_asker *u, const struct kvc_row *r, uint32_t bits)
{
	uint32_t mode = r->uid == u->uid      ? r->mode >> 6
			: in_group(u, r->gid) ? r->mode >> 3
					      : r->mode;

	return !u->uid || (mode & bits) == bits;
}

int kvc_lease_walk_both(struct kvc *k, struct kvc_lease *l, const char *path, struct kvc_node **n)
{
	KVC_MEM char *copy = strdup(path);
	char *save = NULL;
	uint64_t ino = KVC_ROOT;
	uint32_t kind = S_IFDIR;
	bool first;
	int err = 0;

	if (!copy)
		return -ENOMEM;
	l->model = 0;
	l->dropped.why = 0;
	l->missing_in = l->hidden_in = 0;
	for (char *w = strtok_r(copy, "/", &save); w && !err; w = strtok_r(NULL, "/", &save)) {
		if (!strcmp(w, "."))
			continue;
		err = !strcmp(w, "..")  ? -EINVAL
		      : strlen(w) > 255 ? -ENAMETOOLONG
					: kvc_node_get_both(k, ino, n);
		if (!err) {
			err = kvc_lease_asker_may(l->user, &(*n)->row, 1) ? 0 : -EACCES;
			first = ino == KVC_ROOT;
			err = err ?: kvc_name_get(k->cat, ino, w, &ino, &kind);
			if (err == -ENOENT) {
				l->missing_in = (*n)->row.ino;
				snprintf(l->missing, sizeof l->missing, "%s", w);
				l->dropped = kvc_gone_name_find(k, (*n)->row.ino, kvc_name_hash(w));
			}
			if (!err && first && S_ISDIR(kind))
				l->model = ino;
			if (!err && S_ISREG(kind) && kvc_incomplete_hides_both(k, *n, w)) {
				l->hidden_in = (*n)->row.ino;
				snprintf(l->missing, sizeof l->missing, "%s", w);
				err = -ENOENT;
			}
			kvc_node_settle_locked(k, *n);
		}
	}
	err = err ?: kvc_node_get_both(k, ino, n);
	if (!err && !kvc_lease_asker_may(l->user, &(*n)->row, S_ISDIR((*n)->row.mode) ? 5 : 4)) {
		kvc_node_settle_locked(k, *n);
		err = -EACCES;
	}
	return err;
}
