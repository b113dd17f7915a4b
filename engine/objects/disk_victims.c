/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Chunks that the policy of the disk tier has given up. The policy makes this decision when a chunk
 * that it does not have is used (access/disk_retention.c). The trimmer frees the space later. Until
 * then, the chunks that were given up are in no replacer, and their files stay readable. A chunk
 * that is used again in the meantime is judged like a new one. A restart forgets the list: all
 * chunks on the disk are in its replacers again.
 *
 * The length of the list is bounded: the policy gives up chunks only while the chunks that it keeps
 * would take more than low=, so the chunks in the list fit into the space above low=.
 */
#include "disk_victims.h"

#include <stdlib.h>

struct entry {
	struct kvc_slot slot;
	struct kvc_list link;
	struct kvc_disk_victim victim;
	uint64_t bytes;
	bool refused;
};

static struct entry *find(const struct kvc *k, uint64_t id)
{
	struct kvc_slot *s = kvc_table_find(&k->disk_victims->table, id);

	return s ? kvc_of(s, struct entry, slot) : NULL;
}

static void entry_free(struct kvc *k, struct entry *e)
{
	k->disk_victims->bytes -= e->bytes;
	kvc_list_del(&e->link);
	kvc_table_del(&k->disk_victims->table, &e->slot);
	free(e);
}

int kvc_disk_victims_add_locked(struct kvc *k, const struct kvc_disk_victim *v, uint64_t bytes,
				bool first)
{
	struct entry *e;

	kvc_disk_victims_remove_locked(k, v->id);
	if (!(e = calloc(1, sizeof *e)))
		return -ENOMEM;
	e->victim = *v;
	e->bytes = bytes;
	e->slot.key = v->id;
	e->refused = first;
	kvc_table_add(&k->disk_victims->table, &e->slot);
	kvc_list_add_tail(&k->disk_victims->waiting[first], &e->link);
	k->disk_victims->bytes += bytes;
	return 0;
}

void kvc_disk_victims_remove_locked(struct kvc *k, uint64_t id)
{
	struct entry *e = find(k, id);

	if (e)
		entry_free(k, e);
}

bool kvc_disk_victims_has_locked(const struct kvc *k, uint64_t id)
{
	return find(k, id);
}

bool kvc_disk_victims_visit_locked(struct kvc *k, struct kvc_disk_victim *v)
{
	struct kvc_disk_victims *d = k->disk_victims;
	struct kvc_list *all = &d->waiting[!kvc_list_empty(&d->waiting[1])];
	struct entry *e;

	if (kvc_list_empty(all))
		return false;
	e = kvc_of(all->next, struct entry, link);
	kvc_list_del(&e->link);
	kvc_list_add_tail(&d->visited[e->refused], &e->link);
	*v = e->victim;
	return true;
}

void kvc_disk_victims_walk_locked(struct kvc *k)
{
	struct kvc_disk_victims *d = k->disk_victims;

	for (int i = 0; i < 2; i++) {
		kvc_list_splice(&d->visited[i], &d->waiting[i]);
		kvc_list_splice(&d->waiting[i], &d->visited[i]);
	}
}

void kvc_disk_victims_kept_locked(struct kvc *k, struct kvc_chunk *c, uint64_t bytes)
{
	kvc_disk_victims_arrived_locked(k, c);
	c->disk.refused = false;
	c->disk.awaited = bytes;
	k->disk_victims->awaited += bytes;
	k->disk_victims->nawaited += bytes > 0;
}

void kvc_disk_victims_refused_locked(struct kvc *k, struct kvc_chunk *c)
{
	kvc_disk_victims_arrived_locked(k, c);
	c->disk.refused = true;
}

void kvc_disk_victims_arrived_locked(struct kvc *k, struct kvc_chunk *c)
{
	k->disk_victims->awaited -= c->disk.awaited;
	k->disk_victims->nawaited -= c->disk.awaited > 0;
	c->disk.awaited = 0;
}

void kvc_disk_victims_free(struct kvc *k)
{
	kvc_disk_victims_walk_locked(k);
	for (int i = 0; i < 2; i++)
		while (!kvc_list_empty(&k->disk_victims->waiting[i]))
			entry_free(k, kvc_of(k->disk_victims->waiting[i].next, struct entry, link));
	kvc_table_fini(&k->disk_victims->table);
}
