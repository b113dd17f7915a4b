/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Admission to the disk tier, whose flash wears. The pool accepts everything. The disk accepts all
 * chunks that its policy keeps (disk_retention.c), or (admit=) only chunks that were requested
 * twice, and (daily=) a limited number of bytes a day. Shared tiers accept all copies.
 *
 * The state is in memory only. c->requests is the number of requests for the chunk, at most 2:
 *
 *   - Creating it counts as one. Importing it from a remote tier does not count.
 *   - A use by another client, a use after a pause, and a use by a client that is unknown or whose
 *     chunks have no known order (access.h) count as one each, if the last use that counted was at
 *     least KVC_YOUNG_NS ago: several threads that load the files of one prompt count once.
 *   - A chunk that is read into memory from its row has one request if the row has hits, and one
 *     more, for its creation, if it is read while the mount starts.
 *   - A chunk that was dropped and is created again under its name counts as requested twice. This
 *     is only noticed when it is about to be dropped again (k->admission->gone).
 *   - The ancestors of a chunk that was requested twice count as requested twice. An engine that
 *     has the beginning of a prompt requests only the rest, and the rest alone is worth nothing.
 *
 * c->on_disk: the disk has some files of the chunk. k->admission->under_way: bytes that running
 * copies will add to today's sum; the tier's `wear` has the bytes of finished copies.
 *
 * The rules apply to each file when a copy is requested, and again when it begins. These are
 * admitted:
 *
 *   - a file for which a call waits (fsync, demote) or that a call names (rekey, a pinned chunk);
 *   - a file of a chunk that is already on the disk in part, so that the chunk becomes complete
 *     and files that an fsync brought there are not dropped with the others;
 *   - otherwise a file of a chunk that the disk's policy keeps and that was requested twice (any
 *     chunk with admit=all, and all chunks at unmount, when the whole pool is copied), while the
 *     day's bytes suffice.
 *
 * Refused files stay in the pool. No copy of them is queued, the throttle does not count them as
 * pending (n->refused), and the evictor drops their chunk whole if no other tier accepts it. They
 * are checked again at each use, when they are pinned, and by the evictor, so that a new day needs
 * no other action. If daily= does not admit the whole pool at unmount, the rest stays in memory for
 * the next mount, as with any tier that does not accept everything.
 *
 * Bytes that are written to store accesses (access_save.c, replacer_save.c) count for the day,
 * since they wear the same flash. So a day's sum is at most daily=, except for files that are
 * admitted regardless of it.
 */
#include "admission.h"

#include "account.h"
#include "clock.h"
#include "committer.h"
#include "disk_victims.h"
#include "file.h"
#include "payload.h"
#include "pin.h"
#include "replacers.h"
#include "tier_queue.h"

#define AGAIN 512        /* nodes of a chunk that are checked in one call */
#define USUAL (1u << 20) /* usual size of a chunk on the disk, in bytes */
#define GONE_LEAST (1u << 16)
#define GONE_MOST (1u << 20)
#define ABOVE 512 /* maximum number of ancestors that are marked */

static bool has_limits(const struct kvc *k)
{
	return k->tier[KVC_DISK].t && (k->opt.daily_bytes || k->opt.admit != KVC_ADMISSION_ALL);
}

/* Returns the maximum size of the file's frame, counted as in kvc_tier_stored_locked. */
static uint64_t frame_cost(const struct kvc_node *n)
{
	return kvc_round_up(n->object.size, KVC_PAGE) + kvc_payload_table(n->object.size);
}

/* Returns true if the file is admitted regardless of the day's bytes. */
static bool always_admitted(const struct kvc_node *n, unsigned tier)
{
	const struct kvc_chunk *c = n->chunk;

	return !c || c->on_disk || c->pin || n->segment.snapshot ||
	       !kvc_list_empty(&n->wait.sync) || (n->copies.resealing & (1u << tier)) ||
	       kvc_file_placed_in(n, tier);
}

enum kvc_refusal kvc_admission_check_locked(struct kvc *k, const struct kvc_node *n, unsigned tier)
{
	uint64_t most = k->opt.daily_bytes;
	bool refused = n->chunk && n->chunk->disk.refused && !k->stopping;

	if (tier != KVC_DISK || (!refused && !has_limits(k)) || always_admitted(n, tier))
		return KVC_ADMISSION_OK;
	if (refused)
		return KVC_REFUSED_worth;
	if (k->opt.admit == KVC_ADMISSION_TWICE && n->chunk->requests < 2 && !k->stopping)
		return KVC_REFUSED_twice;
	if (most && kvc_wear_show_locked(k, tier).today + k->admission->under_way + frame_cost(n) +
				    kvc_wear_access_show_locked(k).today >
			    most)
		return KVC_REFUSED_daily;
	return KVC_ADMISSION_OK;
}

enum kvc_refusal kvc_admission_begin_locked(struct kvc *k, const struct kvc_node *n, unsigned tier,
					    uint64_t *bytes)
{
	enum kvc_refusal why = kvc_admission_check_locked(k, n, tier);

	*bytes = why || tier != KVC_DISK ? 0 : frame_cost(n);
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
		n->refused = false; /* the refusal was for the earlier contents */
	if (!c)
		return;
	c->requests = c->requests ?: 1;
	c->requested_ns = kvc_clock_ns(k);
}

/*
 * Marks the ancestors as requested twice. They are copied when they are used again or about to be
 * evicted.
 */
static void request_ancestors(struct kvc *k, const struct kvc_chunk *c)
{
	struct kvc_chunk *p;

	for (int i = 0; i < ABOVE && c->parent; i++, c = p) {
		p = kvc_chunk_find_locked(k, c->parent & ~KVC_TOLD);
		if (!p || p->requests == 2)
			break;
		p->requests = 2;
	}
}

void kvc_admission_requested_locked(struct kvc *k, struct kvc_chunk *c)
{
	if (!has_limits(k) || kvc_chunk_young(k, c->requested_ns))
		return;
	c->requests += c->requests < 2;
	c->requested_ns = kvc_clock_ns(k);
	kvc_admission_retry_locked(k, c);
	if (c->requests == 2)
		request_ancestors(k, c);
}

static void retry_locked(struct kvc *k, struct kvc_chunk *c)
{
	if (c->detached)
		return;
	for (unsigned i = kvc_min(c->nnodes, AGAIN); i && c->nnodes; i--) {
		struct kvc_node *n = kvc_of(c->nodes.next, struct kvc_node, part.link);

		/* the next call begins after the nodes of this one */
		kvc_chunk_move_last_locked(c, n);

		if ((n->state != KVC_RESIDENT && n->state != KVC_BOTH) ||
		    kvc_file_placed_in(n, KVC_DISK) || kvc_admission_check_locked(k, n, KVC_DISK))
			continue;
		kvc_admission_refused_locked(k, n, false);
		k->hooks->published_locked(k, n);
	}
}

void kvc_admission_retry_locked(struct kvc *k, struct kvc_chunk *c)
{
	if (has_limits(k) || c->disk.refused)
		retry_locked(k, c);
}

void kvc_admission_kept_locked(struct kvc *k, struct kvc_chunk *c, uint64_t bytes)
{
	const struct kvc_node *n = c->nnodes ? kvc_of(c->nodes.next, struct kvc_node, part.link)
					     : NULL;
	bool was = c->disk.refused;

	kvc_disk_victims_kept_locked(k, c, 0);
	/* a copy that another rule refuses is not awaited */
	if (n && bytes && !kvc_admission_check_locked(k, n, KVC_DISK))
		kvc_disk_victims_kept_locked(k, c, bytes);
	if (was)
		retry_locked(k, c);
}

void kvc_admission_given_up_locked(struct kvc *k, struct kvc_chunk *c)
{
	unsigned done = 0;

	kvc_disk_victims_refused_locked(k, c);
	if (k->ntakers > 1)
		return; /* other tiers take it */
	kvc_list_each(e, &c->nodes) {
		struct kvc_node *n = kvc_of(e, struct kvc_node, part.link);

		if (n->state == KVC_RESIDENT && !n->copying &&
		    kvc_admission_check_locked(k, n, KVC_DISK))
			kvc_admission_refused_locked(k, n, true);
		if (++done == AGAIN)
			return;
	}
}

void kvc_admission_stored_locked(struct kvc *k, struct kvc_chunk *c)
{
	struct kvc_disk_victim v = { c->id, c->saved_state[KVC_CACHE_DISK], c->policy };

	kvc_disk_victims_arrived_locked(k, c);
	if (c->fresh || !kvc_replacers_has_order(k, KVC_CACHE_DISK, c->policy))
		return;
	if (!c->disk.refused)
		kvc_replacers_add_locked(k, KVC_CACHE_DISK, c);
	else if (!kvc_disk_victims_has_locked(k, c->id))
		kvc_disk_victims_add_locked(k, &v, c->peak_bytes, true);
}

/* Remembers as many names as the disk may hold chunks, within bounds; each takes 12 bytes. */
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
		c->requests = 2;
	return back;
}

void kvc_admission_free(struct kvc *k)
{
	kvc_ghosts_fini(&k->admission->gone);
}
