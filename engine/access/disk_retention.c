/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Decides which chunks the policy of the disk tier keeps, by the same steps as retention.c does for
 * the pool. They are also the steps of kvcachectl replay. A use of a chunk that the policy does not
 * have is a miss. If the kept chunks would exceed low= with it, the policy refuses the chunk or
 * gives up others, at once. Copies that are awaited count as if they were made.
 *
 * A refused chunk is not copied to the disk (admission.c), and a chunk that is given up before its
 * copy is made is not copied either. This saves writes. Chunks with a copy wait in
 * objects/disk_victims.c for the trimmer. Pinned chunks and those about which clients gave hints
 * are not refused.
 *
 * Nothing is decided before the replacers are filled from the catalog, or for a policy that orders
 * the disk by the rank in the catalog. If a model has such a policy, the others give up nothing
 * either.
 */
#include "disk_retention.h"

#include "admission.h"
#include "disk_victims.h"
#include "pin.h"
#include "replacers.h"
#include "tier_queue.h"

#define VICTIMS 32 /* chunks given up for one chunk, since it is work under the lock */
#define PINNED 8   /* pinned chunks that are passed over for one chunk */

/* Bytes of the chunks that the policy keeps, the watermark, and the mean size of a chunk. */
struct level {
	uint64_t kept, low, mean;
};

static struct level level_locked(struct kvc *k)
{
	const struct kvc_disk_victims *d = k->disk_victims;
	const struct kvc_tier_state *ts = &k->tier[KVC_DISK];
	uint64_t n = d->table.n, stored;
	struct kvc_tier_usage u;

	ts->t->ops->usage(ts->t, &u);
	for (unsigned i = 0; i < KVC_CLASSES; i++)
		if (k->replacers->replacer[KVC_CACHE_DISK][i])
			n += kvc_replacer_chunks(k->replacers->replacer[KVC_CACHE_DISK][i]);
	n -= kvc_min(n, d->nawaited);
	stored = u.used - kvc_min(u.used, ts->deferred.bytes);
	return (struct level){
		.kept = stored - kvc_min(stored, d->bytes) + d->awaited,
		.low = u.total / 100 * k->opt.low_pct,
		.mean = n ? stored / n : 0,
	};
}

/* Returns the approximate size of the chunk's copy. */
static uint64_t copy_bytes(const struct kvc_chunk *c)
{
	return c->peak_bytes + (uint64_t)kvc_max(c->nnodes, 1) * KVC_PAGE;
}

static struct kvc_replacer *replacer_of(const struct kvc *k, const struct kvc_chunk *c)
{
	return k->replacers->replacer[KVC_CACHE_DISK][c->policy];
}

static bool disk_refuses_locked(struct kvc *k, struct kvc_request *r, const struct kvc_chunk *c,
				bool is_full)
{
	if (c->pin || kvc_hints_worth(&c->hints, kvc_mono_ns()) != KVC_WORTH_NORMAL)
		return false;
	return r->refused || (is_full && kvc_replacer_refuses(replacer_of(k, c), r, c->peak_bytes));
}

/*
 * Records that the policy does not keep the chunk, which is in no replacer. first: the policy
 * refused it, so the trimmer removes it before chunks that were given up.
 */
static void disk_give_up_locked(struct kvc *k, const struct kvc_disk_victim *v, uint64_t mean,
				bool first)
{
	struct kvc_chunk *c = kvc_chunk_find_locked(k, v->id);

	if (c) {
		c->saved_state[KVC_CACHE_DISK] = v->facts;
		kvc_admission_given_up_locked(k, c);
	}
	if (c && !c->on_disk)
		return;
	/* out of memory: the next mount finds it on the disk */
	kvc_disk_victims_add_locked(k, v, c ? copy_bytes(c) : mean, first);
}

/*
 * Sets *v to the next victim of the disk. Returns false if none was found. Pinned chunks on the way
 * to it are excluded, so that their ancestors stay too; *npinned of them are in pinned[].
 */
static bool disk_find_victim_locked(struct kvc *k, struct kvc_disk_victim *v,
				    struct kvc_disk_victim *pinned, unsigned *npinned)
{
	struct kvc_replacer *const *all = k->replacers->replacer[KVC_CACHE_DISK];

	while ((v->id = kvc_replacer_turns_victim(&k->disk_victims->turns, all, &v->class)) &&
	       kvc_pin_protects_locked(k, v->id, INT64_MAX, KVC_PIN_DISK)) {
		if (*npinned == PINNED)
			return false;
		kvc_replacer_exclude(all[v->class], v->id, true);
		pinned[(*npinned)++] = *v;
	}
	return v->id;
}

/*
 * Do some models have a policy that orders the disk by the rank in the catalog? These give up
 * nothing here. The trimmer takes victims from all models in turns, so then it takes all victims.
 */
static bool has_ranked_models(const struct kvc *k)
{
	for (unsigned i = 0; i < KVC_CLASSES; i++)
		if (k->replacers->replacer[KVC_CACHE_POOL][i] &&
		    !kvc_replacers_has_order(k, KVC_CACHE_DISK, i))
			return true;
	return false;
}

/* Gives up others until the kept chunks are within low=. */
static void give_up_others_locked(struct kvc *k, const struct kvc_chunk *than)
{
	struct kvc_replacer *const *all = k->replacers->replacer[KVC_CACHE_DISK];
	struct kvc_disk_victims *d = k->disk_victims;
	struct kvc_disk_victim v, pinned[PINNED];
	struct level l = level_locked(k);
	unsigned npinned = 0;

	if (has_ranked_models(k))
		return;
	for (unsigned i = 0; i < VICTIMS && l.low && l.kept > l.low; i++) {
		uint64_t before = d->bytes, awaited = d->awaited;

		if (!disk_find_victim_locked(k, &v, pinned, &npinned) || v.id == than->id)
			break;
		kvc_replacer_turns_advance(&d->turns, v.class, kvc_replacer_chunks(all[v.class]));
		v.facts = kvc_replacer_saved_state(all[v.class], v.id);
		kvc_replacer_del(all[v.class], v.id, true);
		disk_give_up_locked(k, &v, l.mean, false);
		l.kept -= kvc_min(l.kept, d->bytes - before + awaited - d->awaited);
	}
	while (npinned--)
		kvc_replacer_exclude(all[pinned[npinned].class], pinned[npinned].id, false);
}

/*
 * Lets the policy decide about a chunk that it does not have. The chunk is in the pool, on the
 * disk, or about to be loaded.
 */
static void disk_decide_locked(struct kvc *k, struct kvc_request *r, struct kvc_chunk *c,
			       bool may_refuse)
{
	uint64_t more = c->on_disk ? 0 : copy_bytes(c);
	struct kvc_disk_victim v = { .id = c->id, .class = c->policy };
	struct level l;

	kvc_disk_victims_remove_locked(k, c->id);
	kvc_replacers_claim_locked(k, KVC_CACHE_DISK, c, r);
	l = level_locked(k);
	if (!l.low) { /* all devices fail: nothing is known of their space */
		kvc_admission_kept_locked(k, c, 0);
		return;
	}
	if (may_refuse && disk_refuses_locked(k, r, c, l.kept + more > l.low)) {
		v.facts = kvc_replacers_saved_state_locked(k, KVC_CACHE_DISK, c);
		kvc_replacers_remove_locked(k, KVC_CACHE_DISK, c, false);
		disk_give_up_locked(k, &v, l.mean, true);
		kvc_count(&k->stats, disk_refusals);
		return;
	}
	kvc_admission_kept_locked(k, c, more);
	give_up_others_locked(k, c);
}

void kvc_disk_retention_used_locked(struct kvc *k, struct kvc_request *r, struct kvc_chunk *c,
				    bool made, bool may_refuse)
{
	bool has = kvc_replacer_has(replacer_of(k, c), c->id);

	if (!has && k->disk_victims->ready && !c->detached && (c->nnodes || c->on_disk))
		disk_decide_locked(k, r, c, may_refuse);
	else if (made)
		kvc_replacers_claim_locked(k, KVC_CACHE_DISK, c, r);
	else
		kvc_replacer_access(replacer_of(k, c), r, c->id);
}
