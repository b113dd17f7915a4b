/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Dropping: a chunk goes whole, with its files' names, rows, segments and extents, and with its folder when that is empty then. A
 * model's folder stays, for what is set on it.
 *
 * Engines make a chunk's folder if it is not there, and then files in it; a drop can come between. So a folder that was
 * dropped stays a ghost: whoever looks its name up is still shown it until a moment after the kernel was told (makedirs looks again, after
 * "exists already"), and whoever makes something in it brings it back, then and as long as the kernel holds it. Meanwhile the kernel may not
 * remember that the name is missing.
 */
#include "core.h"

#include <string.h>

#define SHOWN_NS 300000000ull       /* from when the kernel was told, or the last look */
#define SHOWN_MOST_NS 1000000000ull /* from when it was told */

struct kvc_ghost {
	struct kvc_list link; /* in k->ghosts */
	struct kvc_list told_link; /* in k->untold until the kernel is told, then in k->told while it is shown; the node is held so long */
	struct kvc_node *n;
	uint64_t since_ns, until_ns; /* told, and shown until; 0 before that: then it is shown */
	char name[256];
};

/* The members of a chunk: the files of its folder that belong to it, or the one file. */
struct members {
	struct kvc_node **n;
	size_t count;
};

/* Takes every name off a node. */
static int unname_both(struct kvc *k, struct kvc_node *n)
{
	struct kvc_entries e = { 0 };
	int err = kvc_entries_of_both(k, n->row.ino, &e);

	for (size_t i = 0; i < e.n && !err; i++) {
		struct kvc_node *folder;

		err = kvc_name_del(k->cat, e.v[i].parent, e.v[i].name);
		if (!err)
			kvc_notify_gone(k, e.v[i].parent, n->row.ino, e.v[i].name);
		if (!err && !kvc_node_get_both(k, e.v[i].parent, &folder)) {
			kvc_touch_folder_locked(k, folder, S_ISDIR(n->row.mode) ? -1 : 0);
			kvc_node_settle_locked(k, folder);
		}
	}
	free(e.v);
	return err;
}

void kvc_ghost_free_locked(struct kvc_node *folder)
{
	if (!folder->ghost)
		return;
	kvc_list_del(&folder->ghost->link);
	kvc_list_del(&folder->ghost->told_link);
	free(folder->ghost);
	folder->ghost = NULL;
}

static struct kvc_list *bucket(struct kvc *k, uint64_t parent, const char *name)
{
	return &k->ghosts[(kvc_name_hash(name) ^ parent) % KVC_GHOSTS];
}

static void ghost_new_locked(struct kvc *k, struct kvc_node *folder, const char *name)
{
	struct kvc_ghost *g = k->started && !folder->ghost ? malloc(sizeof *g) : NULL;

	if (!g)
		return; /* nobody can know it; or no memory, and then a create in that very moment fails */
	folder->holds++;
	g->n = folder;
	g->since_ns = g->until_ns = 0;
	snprintf(g->name, sizeof g->name, "%s", name);
	kvc_list_add_tail(bucket(k, folder->row.parent, name), &g->link);
	kvc_list_add_tail(&k->untold, &g->told_link);
	folder->ghost = g;
}

void kvc_ghosts_told_locked(struct kvc *k, struct kvc_list *told)
{
	uint64_t now = kvc_mono_ns();

	while (!kvc_list_empty(told)) {
		struct kvc_ghost *g = kvc_of(told->next, struct kvc_ghost, told_link);

		kvc_list_del(&g->told_link);
		kvc_list_add_tail(&k->told, &g->told_link);
		g->since_ns = now;
		g->until_ns = now + k->ev.kept_ns + SHOWN_NS;
	}
}

static void unhold_locked(struct kvc_ghost *g)
{
	kvc_list_del(&g->told_link);
	kvc_list_init(&g->told_link);
	g->n->holds--;
}

void kvc_ghosts_expire_locked(struct kvc *k)
{
	uint64_t now = kvc_mono_ns();

	kvc_list_each_safe(e, &k->told) {
		struct kvc_ghost *g = kvc_of(e, struct kvc_ghost, told_link);

		if (g->until_ns < now) {
			unhold_locked(g);
			kvc_node_settle_locked(k, g->n);
		}
	}
}

struct kvc_node *kvc_ghost_find_locked(struct kvc *k, uint64_t parent, const char *name, bool *shown)
{
	uint64_t now = kvc_mono_ns();
	struct kvc_node *n = NULL;

	*shown = false;
	kvc_list_each(e, bucket(k, parent, name)) {
		struct kvc_ghost *g = kvc_of(e, struct kvc_ghost, link);

		if (g->n->row.parent != parent || strcmp(g->name, name))
			continue;
		n = g->n;
		if (!g->since_ns || g->until_ns > now) {
			if (g->since_ns)
				g->until_ns = kvc_min(kvc_max(g->until_ns, now + SHOWN_NS), g->since_ns + k->ev.kept_ns + SHOWN_MOST_NS);
			*shown = true;
			break;
		}
	}
	return n;
}

int kvc_ghost_revive_both(struct kvc *k, struct kvc_node **folder)
{
	struct kvc_node *n = *folder, *up;
	uint64_t other;
	uint32_t kind;
	int err;

	if (!n->ghost)
		return -ENOENT;
	if ((err = kvc_node_get_both(k, n->row.parent, &up)))
		return err;
	if (up->lost)
		return -ENOENT;
	err = kvc_name_get(k->cat, up->row.ino, n->ghost->name, &other, &kind);
	if (!err) /* made again meanwhile */
		return S_ISDIR(kind) ? kvc_node_get_both(k, other, folder) : -ENOENT;
	if (err == -ENOENT)
		err = kvc_name_put(k->cat, up->row.ino, n->ghost->name, n->row.ino, S_IFDIR);
	if (err)
		return err;
	n->lost = false;
	n->row.nlink = 2;
	kvc_node_dirty_locked(k, n);
	kvc_touch_folder_locked(k, up, 1);
	kvc_notify_gone(k, up->row.ino, n->row.ino, n->ghost->name); /* it may remember that the name is missing */
	if (!kvc_list_empty(&n->ghost->told_link))
		unhold_locked(n->ghost);
	kvc_ghost_free_locked(n);
	return 0;
}

void kvc_drop_folder_both(struct kvc *k, struct kvc_node *folder)
{
	struct kvc_entries e = { 0 };

	if (folder->row.parent != KVC_ROOT && kvc_folder_empty_both(k, folder->row.ino) == 1 && !kvc_entries_of_both(k, folder->row.ino, &e) &&
	    !unname_both(k, folder)) {
		kvc_row_del(k->cat, folder->row.ino);
		folder->row.nlink = 0;
		kvc_destroy_locked(k, folder);
		if (e.n)
			ghost_new_locked(k, folder, e.v[0].name);
	}
	free(e.v);
	kvc_node_settle_locked(k, folder);
}

int kvc_drop_file_both(struct kvc *k, struct kvc_node *n)
{
	int err = unname_both(k, n);

	if (err)
		return err;
	kvc_row_del(k->cat, n->row.ino);
	kvc_destroy_locked(k, n);
	n->row.nlink = 0;
	kvc_count(&k->stats, drops);
	kvc_node_settle_locked(k, n);
	return 0;
}

/* A copy of it in a tier that is here now, other than this one. */
static bool elsewhere(const struct kvc *k, const struct kvc_node *n, int tier)
{
	kvc_tier_each(k, t)
		if ((int)t != tier && n->place[t].gen && n->place[t].gen == n->object.gen)
			return true;
	return false;
}

/*
 * Looks at the members: -EBUSY where one is in use; *needed says that some have no copy but in this tier, *placed that some
 * have one there.
 */
static int members_both(struct kvc *k, uint64_t id, struct kvc_node *self, int tier, struct members *m, bool *needed, bool *placed)
{
	struct kvc_entries e = { 0 };
	int err = 0;

	*needed = *placed = false;
	if (S_ISDIR(self->row.mode))
		err = kvc_entries_in_both(k, id, &e);
	m->n = calloc(e.n + 1, sizeof *m->n);
	if (!m->n)
		err = -ENOMEM;
	for (size_t i = 0; i < (S_ISDIR(self->row.mode) ? e.n : 1) && !err; i++) {
		struct kvc_node *n = self;

		if (S_ISDIR(self->row.mode)) {
			if (!S_ISREG(e.v[i].kind))
				continue;
			if ((err = kvc_node_get_both(k, e.v[i].ino, &n)))
				break;
		}
		if (n->row.chunk != id) {
			kvc_node_settle_locked(k, n);
			continue;
		}
		n->holds++;
		m->n[m->count++] = n;
		if (n->nopen || n->leases || n->waiting || n->state == KVC_OPEN || n->state == KVC_LOADING || n->snapshot)
			err = -EBUSY;
		*needed |= n->state == KVC_LOWER && !elsewhere(k, n, tier);
		*placed |= tier < 0 || n->place[tier].gen;
	}
	free(e.v);
	return err;
}

int kvc_chunk_drop(struct kvc *k, uint64_t id, int tier)
{
	struct members m = { 0 };
	struct kvc_chunk_row row;
	struct kvc_node *self;
	bool needed = false, placed = false;
	int err;

	kvc_lock_both(k);
	struct kvc_chunk *c = kvc_chunk_find_locked(k, id);

	if (c)
		kvc_chunk_row(c, &row);
	else if ((err = kvc_chunk_get(k->cat, id, &row)))
		goto out;
	err = kvc_chunk_young(row.last_ns) || (row.pin_until_ns && (row.pin_until_ns == INT64_MAX || row.pin_until_ns > kvc_now_ns())) ? -EBUSY : 0;
	if (!err)
		err = kvc_node_get_both(k, id, &self);
	if (err == -ENOENT)
		kvc_chunk_del(k->cat, id);
	if (err)
		goto out;
	self->holds++;
	err = self->waiting ? -EBUSY : members_both(k, id, self, tier, &m, &needed, &placed);
	if (!err && tier >= 0 && !placed)
		err = -ENOENT;
	for (size_t i = 0; i < m.count; i++) {
		struct kvc_node *n = m.n[i];

		if (!err && tier >= 0 && !needed) {
			/* All of it is in the pool or in another tier: only this tier's copies go. */
			if (n->place[tier].gen) {
				kvc_place_del(k->cat, n->row.ino, (unsigned)tier);
				kvc_trash_extent_locked(k, (unsigned)tier, &n->place[tier]);
				n->place[tier] = (struct kvc_place){ 0 };
			}
			n->object.lower = kvc_placed_anywhere(n);
			if (n->state == KVC_BOTH && !kvc_placed(k, n))
				kvc_become_locked(k, n, KVC_RESIDENT);
			n->verify = n->verify && n->object.lower;
			kvc_node_dirty_locked(k, n);
		} else if (!err) {
			err = kvc_drop_file_both(k, n);
		}
		n->holds--;
		kvc_node_settle_locked(k, n);
	}
	if (!err && !(tier >= 0 && !needed)) {
		kvc_count(&k->stats, dropped_chunks);
		kvc_chunk_del(k->cat, id);
		c = kvc_chunk_find_locked(k, id);
		if (c && c->dirty) {
			kvc_list_del(&c->dirty_link);
			c->dirty = false;
			kvc_chunk_settle_locked(k, c);
		}
		if (S_ISDIR(self->row.mode))
			kvc_drop_folder_both(k, self);
	}
	self->holds--;
	kvc_node_settle_locked(k, self);
	kvc_commit_soon_locked(k, false);
out:
	kvc_unlock_both(k);
	free(m.n);
	return err;
}
