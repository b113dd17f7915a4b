/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Admission to the disk tier, whose flash wears. To the pool comes all; of that the disk gets
 * (admit=) all, or only chunks that were asked for twice, and (daily=) so many bytes a day. Shared
 * tiers take all.
 *
 * State, in memory only: c->asked counts, up to 2, the requests that asked for the chunk. To make
 * it is one, to take it in from a remote is none, each use by another client, or after a pause,
 * or of what is in no order (access.h), is one, if it comes KVC_YOUNG_NS after the last that
 * counted: threads that load the files of one prompt side by side are one. Of a chunk that comes
 * back into memory its row's hits tell: 1 for any, and after a restart 1 more for its making. One
 * that was dropped and is made anew under its name is known by that when it is to be dropped again
 * (k->admit->gone). What a chunk that was asked for twice follows was so, too: an engine that has
 * the beginning of a prompt asks for the rest alone, and that is worth nothing on the disk by
 * itself. c->begun: the disk has some of it. k->admit->under_way: of today, what copies that run
 * will take; `written` has what is done.
 *
 * Rules, for each file when a copy is asked for, and again when it begins. Let in is
 *   - whatever somebody waits for (fsync, a demotion) or has asked for (rekey, a pinned chunk);
 *   - a chunk of which the disk has some: it is not to be there in part, and what fsync has brought
 *     there is not to be dropped with the rest;
 *   - else what was asked for twice (all of it with admit=all, and at the unmount, where the pool
 *     goes), as far as today's bytes go.
 * What is refused stays in the pool: no copy of it is queued, pacing does not count it as one that
 * is to come (n->refused), and the evictor drops its chunk whole where no other tier takes it. It
 * is asked about again with each use, when it is pinned, and by the evictor, so that the next day,
 * too, begins without more being done. At the unmount a pool of which daily= lets not all in stays
 * in memory for the next mount, as with any tier that does not take all.
 *
 * The bytes that reads cause in the catalog (access_save.c) are part of the day's sum, since they
 * wear the same flash.
 *
 * So a day's sum is at most daily=, but for what is let in whatever the day has.
 */
#include "admission.h"

#include "account.h"
#include "clock.h"
#include "committer.h"
#include "file.h"
#include "payload.h"
#include "pin.h"
#include "tier_queue.h"
#include "up.h"

#define AGAIN 512        /* nodes of a chunk that are asked about at once */
#define USUAL (1u << 20) /* bytes of a chunk on the disk */
#define GONE_LEAST (1u << 16)
#define GONE_MOST (1u << 20)
#define ABOVE 512 /* chunks that one follows, of which it is told that they are wanted */

static bool bounded(const struct kvc *k)
{
	return k->tier[KVC_DISK].t && (k->opt.daily_bytes || k->opt.admit != KVC_ADMISSION_ALL);
}

/* What its frame takes at most, as kvc_tier_took_locked counts. */
static uint64_t cost(const struct kvc_node *n)
{
	return kvc_round_up(n->object.size, KVC_PAGE) + kvc_payload_table(n->object.size);
}

/* Whatever was written today? */
static bool anyway(const struct kvc_node *n, unsigned tier)
{
	const struct kvc_chunk *c = n->chunk;

	return !c || c->begun || c->pin || n->snapshot || !kvc_list_empty(&n->sync_waiters) ||
	       (n->resealing & (1u << tier)) || kvc_placed_in(n, tier);
}

enum kvc_refusal kvc_admission_check_locked(struct kvc *k, const struct kvc_node *n, unsigned tier)
{
	uint64_t most = k->opt.daily_bytes;

	if (tier != KVC_DISK || !bounded(k) || anyway(n, tier))
		return KVC_ADMISSION_OK;
	if (k->opt.admit == KVC_ADMISSION_TWICE && n->chunk->asked < 2 && !k->stopping)
		return KVC_REFUSED_twice;
	if (most && kvc_wear_show_locked(k, tier).today + k->admission->under_way + cost(n) +
				    kvc_wear_access_show_locked(k).today >
			    most)
		return KVC_REFUSED_daily;
	return KVC_ADMISSION_OK;
}

enum kvc_refusal kvc_admission_begin_locked(struct kvc *k, const struct kvc_node *n, unsigned tier,
					    uint64_t *bytes)
{
	enum kvc_refusal why = kvc_admission_check_locked(k, n, tier);

	*bytes = why || tier != KVC_DISK ? 0 : cost(n);
	k->admission->under_way += *bytes;
	return why;
}

void kvc_admission_end_locked(struct kvc *k, uint64_t bytes)
{
	k->admission->under_way -= bytes;
}

void kvc_admission_refused_locked(struct kvc *k, struct kvc_node *n, bool refused)
{
	if (n->refused == refused)
		return;
	n->refused = refused;
	kvc_account_uncopied_locked(k, n);
}

void kvc_admission_made_locked(struct kvc *k, struct kvc_node *n)
{
	struct kvc_chunk *c = n->chunk;

	if (n->state == KVC_OPEN)
		n->refused = false; /* as it was before */
	if (!c)
		return;
	c->asked = c->asked ?: 1;
	c->asked_ns = kvc_clock_ns(k);
}

/* Copies of those are made when they are used again, or are to be evicted. */
static void want_above(struct kvc *k, const struct kvc_chunk *c)
{
	struct kvc_chunk *p;

	for (int i = 0; i < ABOVE && c->parent; i++, c = p) {
		p = kvc_chunk_find_locked(k, c->parent & ~KVC_TOLD);
		if (!p || p->asked == 2)
			break;
		p->asked = 2;
	}
}

void kvc_admission_asked_locked(struct kvc *k, struct kvc_chunk *c)
{
	if (!bounded(k) || kvc_chunk_young(k, c->asked_ns))
		return;
	c->asked += c->asked < 2;
	c->asked_ns = kvc_clock_ns(k);
	kvc_admission_retry_locked(k, c);
	if (c->asked == 2)
		want_above(k, c);
}

void kvc_admission_retry_locked(struct kvc *k, struct kvc_chunk *c)
{
	if (!bounded(k) || c->detached)
		return;
	for (unsigned i = kvc_min(c->nnodes, AGAIN); i && c->nnodes; i--) {
		struct kvc_node *n = kvc_of(c->nodes.next, struct kvc_node, chunk_link);

		kvc_list_del(&n->chunk_link); /* the next call begins after those of this one */
		kvc_list_add_tail(&c->nodes, &n->chunk_link);

		if ((n->state != KVC_RESIDENT && n->state != KVC_BOTH) ||
		    kvc_placed_in(n, KVC_DISK) || kvc_admission_check_locked(k, n, KVC_DISK))
			continue;
		kvc_admission_refused_locked(k, n, false);
		k->objects_up->published_locked(k, n);
	}
}

/* Of as many as the disk may hold, within bounds: 12 bytes each. */
void kvc_admission_dropped_locked(struct kvc *k, uint64_t name)
{
	struct kvc_ghosts *g = &k->admission->gone;
	uint64_t n = kvc_min(kvc_max(k->pins->disk_size / USUAL, GONE_LEAST), GONE_MOST);

	if (name && (g->row || !kvc_ghosts_init(g, n, 1)))
		kvc_ghosts_put(g, name)->last = ++k->admission->ngone;
}

bool kvc_admission_was_dropped_locked(struct kvc *k, struct kvc_chunk *c, uint64_t name)
{
	bool back = name && k->admission->gone.row && kvc_ghosts_find(&k->admission->gone, name);

	if (back)
		c->asked = 2;
	return back;
}

void kvc_admission_free(struct kvc *k)
{
	kvc_ghosts_fini(&k->admission->gone);
}
