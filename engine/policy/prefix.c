/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The policy `prefix`. Its victim is the leaf with the lowest index (learn.h) per byte among DRAWN
 * leaves drawn at random; on a tie, the least recently accessed one. A new chunk with a lower index
 * than the next victim is refused, and so is the rest of its request: most new chunks of agents'
 * prompts are never read again, and each would evict a chunk that is.
 *
 * The policy knows about a chunk in the cache: its accesses, the mean of log2 of the gaps between
 * them (each gap counts half as much as the next), the number of children that were seen, and the
 * score and the class of its gap at the end of its last request. The ghost of a deleted chunk
 * (ghosts.h) has all of this but the last two.
 *
 * prefix_pick.c draws the leaves. The guard in prefix_shadow.c decides whether leaves are evicted
 * by index or by last access.
 *
 * Sizes: the number of ghosts depends on the number of chunks that are expected to fit. The sample,
 * the fraction of ids that have a ghost or are in a shadow, depends on the number that do fit, as
 * the evictions show: chunks may be smaller or larger than expected. Both are powers of two, so
 * that the ids of a coarser sample are also in a finer one, and shadows and ghosts stay valid if
 * the sample changes. Large caches also learn from a sample of runs only.
 * With ten million chunks, a chunk costs at most 48 bytes in total.
 */
#include "prefix_priv.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#define GHOSTS_LEAST 131072u   /* enough for a few thousand prompts */
#define GHOSTS_MOST (1u << 20) /* or half the number of chunks, if that is more */
/*
 * A cache of twice this number of chunks or more learns from a sample of the runs: it has more than
 * enough examples, and the fixed number of records (learn.c) then reaches back further.
 */
#define LEARN_FROM (1u << 19)
#define LEARN_SAMPLE_MOST 16u

static uint8_t mean_of(uint8_t mean, uint32_t gap)
{
	float now = kvc_learn_log2_age(gap) * MEAN_STEPS;

	return (uint8_t)kvc_min(NO_MEAN - 1,
				(uint64_t)(mean == NO_MEAN ? now : (now + mean) / 2 + .5f));
}

/* Accesses */

static void prefix_begin(struct kvc_replacer *k)
{
	struct prefix *p = k->own;

	p->scored_nr = 0;
	kvc_learn_advance(p->learn, k->now);
}

static void prefix_expect(const struct kvc_replacer *k, const uint64_t *id, const uint32_t *slot,
			  uint32_t n)
{
	const struct prefix *p = k->own;

	for (uint32_t i = 0; i < n; i++) {
		if (slot[i] != KVC_NO_SLOT) {
			__builtin_prefetch(&p->worth[slot[i]], 1);
			__builtin_prefetch(&p->mean[slot[i]], 1);
			__builtin_prefetch(&p->kids[slot[i]], 1);
		} else if (kvc_ghosts_in_sample(&p->ghosts, id[i])) {
			kvc_ghosts_expect(&p->ghosts, id[i]);
		}
	}
	kvc_learn_expect(p->learn, id, n);
}

/*
 * Stores the ghost of a chunk. g: its place, if it was found; NULL: it was not found, or not looked
 * up.
 */
static void remember_ghost(struct prefix *p, struct kvc_ghost *g, uint64_t id, uint32_t last,
			   uint8_t count, uint8_t mean, uint8_t kids)
{
	if (g || kvc_ghosts_in_sample(&p->ghosts, id)) {
		g = g ?: kvc_ghosts_put(&p->ghosts, id);
		g->last = last;
		g->count = count;
		g->gap = mean;
		g->kids = kids;
	}
}

/*
 * Returns the slot of a chunk if it is still there: the chunk may have been deleted, and the slot
 * reused.
 */
static uint32_t slot_if_present(const struct kvc_replacer *k, const struct kvc_touched *t)
{
	bool is = t->slot < k->chain.used && k->chain.id[t->slot] == t->id;

	return is ? t->slot : KVC_NO_SLOT;
}

/* Returns the ghost of a chunk that is accessed, or NULL. */
static struct kvc_ghost *ghost_of(struct prefix *p, uint64_t id)
{
	if (kvc_ghosts_in_sample(&p->ghosts, id))
		return kvc_ghosts_find(&p->ghosts, id);
	for (unsigned i = 0; i < RENAMES && p->nrenamed; i++)
		if (p->renamed[i].id == id) {
			p->renamed[i].id = 0;
			p->nrenamed--;
			return &p->renamed[i].ghost;
		}
	return NULL;
}

static void prefix_touch(struct kvc_replacer *k, struct kvc_request *r, uint32_t slot)
{
	struct prefix *p = k->own;
	struct kvc_touched *t = &r->touched[r->n - 1];
	struct kvc_ghost *g = NULL;
	uint32_t last = 0, up;
	uint8_t mean = NO_MEAN;

	if (slot != KVC_NO_SLOT) {
		t->known = true;
		last = k->chain.last[slot];
		t->count = p->worth[slot].count;
		t->kids = p->kids[slot];
		mean = p->mean[slot];
	} else if ((g = ghost_of(p, t->id))) {
		t->known = true;
		last = g->last;
		t->count = g->count;
		t->kids = g->kids;
		mean = g->gap;
	} else if (r->n > 1 && (up = slot_if_present(k, &t[-1])) != KVC_NO_SLOT) {
		p->kids[up] += p->kids[up] < UINT8_MAX;
	}
	p->scored_nr = 0;
	t->count += t->count < UINT8_MAX;
	kvc_learn_used(p->learn, t->id, k->now);
	if (t->known) {
		mean = mean_of(mean, kvc_prefix_age(r->nr, last));
		t->gap = kvc_learn_gap((float)mean / MEAN_STEPS);
		r->continues = true;
		r->deepest = t->count;
		r->follows = t->gap;
	} else {
		t->gap = r->follows;
		r->fresh++;
	}
	if (slot != KVC_NO_SLOT) {
		p->worth[slot].count = t->count;
		/* the facts are set at each access, also in a loose request */
		p->worth[slot].gap = t->gap;
		p->mean[slot] = mean;
		p->worth[slot].outlook = KVC_OUTLOOK_NONE;
	} else {
		remember_ghost(p, g, t->id, r->nr, t->count, mean, t->kids);
	}
	t->mean = mean;
	kvc_prefix_shadow_touch(k, r);
}

static void prefix_add(struct kvc_replacer *k, struct kvc_request *r, uint32_t slot, uint64_t bytes)
{
	struct prefix *p = k->own;
	const struct kvc_touched *t = r && r->n ? &r->touched[r->n - 1] : NULL;

	/* the sample fits the size of the cache before the first eviction, too */
	p->fits = kvc_max(p->fits, k->chain.n);
	if (!t || t->slot != slot) {
		kvc_prefix_add_unrequested(k, slot, bytes);
		return;
	}
	p->worth[slot].size = kvc_prefix_size(bytes);
	p->worth[slot].count = t->count;
	p->mean[slot] = t->mean;
	p->kids[slot] = t->kids;
	p->worth[slot].score = kvc_prefix_score_now(p, r);
	p->worth[slot].gap = t->gap;
}

static void prefix_resize(struct kvc_replacer *k, uint32_t slot, uint64_t bytes)
{
	struct prefix *p = k->own;

	p->worth[slot].size = kvc_prefix_size(bytes);
	p->drawn[0].nr = 0; /* its index has changed */
}

static void prefix_del(struct kvc_replacer *k, uint32_t slot, bool evicted)
{
	struct prefix *p = k->own;

	if (evicted)
		remember_ghost(p, NULL, k->chain.id[slot], k->chain.last[slot],
			       p->worth[slot].count, p->mean[slot], p->kids[slot]);
}

/*
 * Repairs chunks that were not known but precede a known chunk within a short distance: they were
 * accessed as often as that chunk, but have no ghost, because they are not in the sample or were
 * replaced.
 */
static void repair_unknown(struct kvc_replacer *k, struct kvc_request *r)
{
	struct prefix *p = k->own;
	uint32_t reach = 3 * p->ghosts.sample, at = r->n;

	r->fresh = 0;
	for (uint32_t j = r->n; j-- > 0;) {
		struct kvc_touched *t = &r->touched[j], *from = at < r->n ? &r->touched[at] : NULL;

		if (t->known)
			at = j;
		if (t->known || !from || at - j > reach) {
			r->fresh += !t->known;
			continue;
		}
		r->continues = true;
		t->count = from->count;
		t->gap = from->gap;
		t->mean = from->mean;
		if (slot_if_present(k, t) != KVC_NO_SLOT) {
			p->worth[t->slot].count = t->count;
			p->mean[t->slot] = t->mean;
		}
	}
}

/* Records the run of chunks that ends with this one, if it belongs to the sample. */
static void track_run(const struct kvc_replacer *k, uint64_t id, const struct kvc_facts *f,
		      uint32_t chunks)
{
	const struct prefix *p = k->own;
	uint32_t sample = kvc_prefix_sample(p->fits, LEARN_FROM, LEARN_SAMPLE_MOST);

	if (!(kvc_chain_hash(id) >> 40 & (sample - 1)))
		kvc_learn_track(p->learn, id, f, k->now, chunks);
}

static void set_score(struct kvc_chain *c, struct worth *w, const struct kvc_touched *t,
		      uint32_t slot, const struct kvc_facts *f, uint8_t score)
{
	if (slot == KVC_NO_SLOT || slot >= c->used || c->id[slot] != t->id)
		return;
	w[slot].score = score;
	w[slot].gap = t->gap;
	w[slot].outlook = f->outlook & 15;
}

static void prefix_end(struct kvc_replacer *k, struct kvc_request *r)
{
	struct prefix *p = k->own;
	struct kvc_facts f, before = { 0 };
	uint32_t run = 0;
	uint8_t score = 0;

	kvc_prefix_resample(p);
	if (r->loose)
		return; /* nothing is learned from chunks that do not belong together */
	repair_unknown(k, r);
	kvc_learn_length(p->learn, r->n);
	kvc_prefix_guard(p, r);
	for (uint32_t j = 0; j < r->n; j++) {
		const struct kvc_touched *t = &r->touched[j];

		f = kvc_prefix_facts(r, t, r->n, r->n - 1 - j);
		if (!j || memcmp(&f, &before, sizeof f)) {
			if (j)
				track_run(k, t[-1].id, &before, j - run);
			run = j;
			score = kvc_learn_score(p->learn, &f);
		}
		before = f;
		set_score(&k->chain, p->worth, t, t->slot, &f, score);
		for (unsigned i = 0; i < SHADOWS && kvc_prefix_in_shadow(p, t->id); i++)
			set_score(&p->shadow[i].chain, p->shadow[i].worth, t,
				  kvc_chain_find_at(&p->shadow[i].chain, t->id, t->shadow[i]), &f,
				  score);
	}
	if (r->n)
		track_run(k, r->touched[r->n - 1].id, &before, r->n - run);
}

static void retell(const struct prefix *p, struct worth *w, uint8_t outlook)
{
	w->score = kvc_learn_score_told(p->learn, w->score, w->outlook, outlook) & 127;
	w->outlook = outlook & 15;
}

static void prefix_tell(struct kvc_replacer *k, uint64_t id, uint32_t slot, uint8_t outlook)
{
	struct prefix *p = k->own;

	kvc_learn_tell(p->learn, id, outlook);
	if (slot != KVC_NO_SLOT) {
		retell(p, &p->worth[slot], outlook);
		p->drawn[0].nr = 0; /* its index has changed */
	}
	for (unsigned i = 0; i < SHADOWS && kvc_prefix_in_shadow(p, id); i++) {
		slot = kvc_chain_find(&p->shadow[i].chain, id);
		if (slot != KVC_NO_SLOT)
			retell(p, &p->shadow[i].worth[slot], outlook);
	}
	p->drawn[1].nr = 0;
}

static void prefix_rename(struct kvc_replacer *k, uint64_t from, uint64_t to)
{
	struct prefix *p = k->own;
	struct kvc_ghost *g = kvc_ghosts_find(&p->ghosts, from), was;

	kvc_learn_rename(p->learn, from, to);
	kvc_prefix_shadow_rename(p, from, to);
	if (!g)
		return;
	was = *g;
	kvc_ghosts_del(&p->ghosts, g);
	remember_ghost(p, NULL, to, was.last, was.count, was.gap, was.kids);
	if (kvc_ghosts_in_sample(&p->ghosts, to))
		return;
	p->nrenamed += !p->renamed[p->renamed_next].id;
	p->renamed[p->renamed_next].id = to;
	p->renamed[p->renamed_next].ghost = was;
	p->renamed_next = (p->renamed_next + 1) % RENAMES;
}

static void prefix_close(struct kvc_replacer *k)
{
	struct prefix *p = k->own;

	for (unsigned i = 0; i < SHADOWS; i++)
		kvc_chain_fini(&p->shadow[i].chain);
	kvc_ghosts_fini(&p->ghosts);
	kvc_learn_free(p->learn);
	free(p);
}

static int prefix_open(struct kvc_replacer *k)
{
	struct prefix *p = calloc(1, sizeof *p);
	/* a chain has no slots for more chunks, so no history is allocated for them */
	uint64_t n = kvc_min(kvc_max(k->conf.chunks, 1), KVC_CHAIN_EXCLUDED), ghosts;
	int err = 0;

	if (!p)
		return -ENOMEM;
	k->own = p;
	p->fits = n;
	p->old_up = KVC_NO_SLOT;
	p->sample = kvc_prefix_sample(n, SAMPLE_FROM, KVC_SAMPLE_MOST);
	ghosts = GHOSTS_LEAST;
	while (ghosts < 4 * n && ghosts < GHOSTS_MOST)
		/*
		 * in steps, so that a cache of a slightly different size can load the saved ghosts
		 */
		ghosts *= 2;
	ghosts = kvc_max(ghosts, n / 2);
	kvc_chain_column(&k->chain, &p->worth, sizeof *p->worth);
	kvc_chain_column(&k->chain, &p->mean, 1);
	kvc_chain_column(&k->chain, &p->kids, 1);
	for (unsigned i = 0; i < SIZES; i++)
		p->per_size[i] = exp2f(-(float)i / 8);
	for (unsigned i = 0; i < SHADOWS && !err; i++) {
		err = kvc_chain_init(&p->shadow[i].chain, i == 1, false);
		if (!err)
			kvc_chain_column(&p->shadow[i].chain, &p->shadow[i].worth,
					 sizeof *p->shadow[i].worth);
	}
	p->learn = kvc_learn_new();
	p->index = p->learn ? kvc_learn_index(p->learn) : NULL;
	err = err ?: p->learn ? 0 : -ENOMEM;
	err = err
		      ?: kvc_ghosts_init(&p->ghosts, ghosts,
					 kvc_prefix_sample(4 * n, ghosts, KVC_SAMPLE_MOST));
	return err;
}

static uint64_t prefix_bytes(const struct kvc_replacer *k)
{
	const struct prefix *p = k->own;
	uint64_t sum = sizeof *p + kvc_ghosts_bytes(&p->ghosts);

	for (unsigned i = 0; i < SHADOWS; i++)
		sum += kvc_chain_bytes(&p->shadow[i].chain);
	return sum + kvc_learn_bytes(p->learn);
}

/* The guard's choice with its reasons, and the weights. */
static void prefix_text(const struct kvc_replacer *k, char *to, size_t capacity)
{
	const struct prefix *p = k->own;
	bool loose = kvc_prefix_is_loose(p);
	int n = snprintf(to, capacity,
			 "by %s\nguard %s\nloose %.4f\nshadow_hits_index %.4f\n"
			 "shadow_hits_use %.4f\nshadow_chunks %u %u\nsample %u\nswitches %llu\n",
			 p->by_use || loose ? "use" : "index",
			 loose       ? "loose"
			 : p->by_use ? "use"
				     : "index",
			 p->loose, p->asked > 0 ? p->shadow[0].hits / p->asked : 0,
			 p->asked > 0 ? p->shadow[1].hits / p->asked : 0, p->shadow[0].chain.n,
			 p->shadow[1].chain.n, p->sample, (unsigned long long)p->switches);

	if (n > 0 && (size_t)n < capacity)
		kvc_learn_text(p->learn, to + n, capacity - (size_t)n);
}

const struct kvc_replacer_ops kvc_replacer_prefix = {
	.open = prefix_open,
	.close = prefix_close,
	.begin = prefix_begin,
	.expect = prefix_expect,
	.touch = prefix_touch,
	.add = prefix_add,
	.claim = prefix_add,
	.resize = prefix_resize,
	.del = prefix_del,
	.victim = kvc_prefix_victim,
	.refuses = kvc_prefix_refuses,
	.tell = prefix_tell,
	.rename = prefix_rename,
	.saved_state = kvc_prefix_saved_state,
	.restore = kvc_prefix_restore,
	.save = kvc_prefix_save,
	.saved = kvc_prefix_saved,
	.load = kvc_prefix_load,
	.end = prefix_end,
	.bytes = prefix_bytes,
	.text = prefix_text,
};
