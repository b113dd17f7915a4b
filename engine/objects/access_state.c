/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Accesses for the next mount, see access_state.h.
 *
 * The rows of chunks follow their accesses at a bounded rate (access_save.c), so rows can be far
 * behind while many chunks are used. Writing a row costs a page of the log and a page of the
 * database; here an access costs 48 bytes. The policies' saver writes, together with the policies'
 * state, the accesses that the rows lack. So after a kill the order is at most as old as that file
 * (save=).
 *
 * A record is applied only if the chunk has the same time of creation and an older last use, so an
 * outdated record does no harm. Chunks beyond KVC_ACCESS_STATE_MOST are restored from their rows.
 */
#include "access_state.h"

#include "clock.h"
#include "committer.h"
#include "replacers.h"

#include <string.h>

#define LOOKS 256u /* buckets read under one hold of k->lock */
#define VERSION 1u

struct rows {
	struct kvc_access_record *v;
	size_t n, capacity;
};

/* ---- saving ---- */

static void gather_chunk(struct kvc *k, struct rows *r, const struct kvc_chunk *c)
{
	if (!c->accesses_only || c->row_deleted || c->use.last_ns == c->stored_ns ||
	    r->n == r->capacity)
		return;
	r->v[r->n++] = (struct kvc_access_record){
		c->id,
		c->use.created_ns,
		c->use.last_ns,
		c->use.hits,
		{
			kvc_replacers_saved_state_locked(k, KVC_CACHE_POOL, c),
			kvc_replacers_saved_state_locked(k, KVC_CACHE_DISK, c),
		},
	};
}

/* Collects records from *bucket on. Returns false when all buckets were read. */
static bool gather_locked(struct kvc *k, struct rows *r, size_t *bucket)
{
	const struct kvc_table *t = &k->chunks->table;

	for (unsigned i = 0; i < LOOKS && *bucket < t->buckets; i++, ++*bucket)
		for (struct kvc_slot *s = kvc_table_bucket(t, *bucket); s; s = s->next)
			gather_chunk(k, r, kvc_of(s, struct kvc_chunk, slot));
	return *bucket < t->buckets;
}

/*
 * Sorts by id. A chunk that the table moved during the walk is present twice; its later use sorts
 * last.
 */
static int record_by_id(const void *x, const void *y)
{
	const struct kvc_access_record *a = x, *b = y;

	if (a->id != b->id)
		return a->id < b->id ? -1 : 1;
	return a->last_ns < b->last_ns ? -1 : a->last_ns > b->last_ns;
}

static void write_records(struct kvc_out *o, const struct rows *r)
{
	size_t n = 0;

	for (size_t i = 0; i < r->n; i++)
		if (i + 1 == r->n || r->v[i].id != r->v[i + 1].id)
			r->v[n++] = r->v[i];
	kvc_state_out_32(o, VERSION);
	kvc_state_out_32(o, (uint32_t)n);
	for (size_t i = 0; i < n; i++) {
		kvc_state_out_64(o, r->v[i].id);
		kvc_state_out_64(o, r->v[i].created_ns);
		kvc_state_out_64(o, r->v[i].last_ns);
		kvc_state_out_64(o, r->v[i].hits);
		for (unsigned j = 0; j < KVC_CACHES; j++)
			kvc_state_out_64(o, r->v[i].facts[j]);
	}
}

int kvc_access_state_save(struct kvc *k, struct kvc_out *o)
{
	struct rows r = { 0 };
	size_t bucket = 0, was = o->n;
	struct kvc_sum sum = { { 0 } };
	bool more;

	kvc_lock(k);
	r.capacity = kvc_min(k->chunks->table.n, KVC_ACCESS_STATE_MOST);
	kvc_unlock(k);
	r.v = malloc((r.capacity + 1) * sizeof *r.v);
	if (!r.v)
		return -ENOMEM;
	do {
		kvc_lock(k);
		more = gather_locked(k, &r, &bucket);
		kvc_unlock(k);
		kvc_lock_pause(&k->lock);
	} while (more);
	if (r.n)
		qsort(r.v, r.n, sizeof *r.v, record_by_id);
	kvc_state_out_bytes(o, &sum, sizeof sum);
	write_records(o, &r);
	free(r.v);
	if (o->failed) {
		o->n = was;
		return -ENOMEM;
	}
	sum = kvc_sum_of(o->v + was + sizeof sum, o->n - was - sizeof sum);
	memcpy(o->v + was, &sum, sizeof sum);
	return 0;
}

/* ---- loading ---- */

int kvc_access_state_load(struct kvc *k, const void *v, size_t len)
{
	struct kvc_in in = { v, len, false };
	struct kvc_access_record *all;
	struct kvc_sum sum;
	uint32_t n;

	if (len < sizeof sum)
		return -EINVAL;
	kvc_state_in_skip(&in, sizeof sum);
	sum = kvc_sum_of(in.v, in.n);
	if (memcmp(v, &sum, sizeof sum) || kvc_state_in_32(&in) != VERSION)
		return -EINVAL;
	n = kvc_state_in_count(&in, KVC_ACCESS_STATE_MOST, sizeof *all);
	if (in.bad || in.n != n * sizeof *all)
		return -EINVAL;
	all = malloc((n + 1) * sizeof *all);
	if (!all)
		return -ENOMEM;
	for (uint32_t i = 0; i < n; i++) {
		all[i].id = kvc_state_in_64(&in);
		all[i].created_ns = kvc_state_in_64(&in);
		all[i].last_ns = kvc_state_in_64(&in);
		all[i].hits = kvc_state_in_64(&in);
		for (unsigned j = 0; j < KVC_CACHES; j++)
			all[i].facts[j] = kvc_state_in_64(&in);
	}
	kvc_access_state_free(k);
	k->committer->accesses.loaded = all;
	k->committer->accesses.nloaded = n;
	return 0;
}

static int id_to_record(const void *x, const void *y)
{
	const struct kvc_access_record *r = y;
	uint64_t id = *(const uint64_t *)x;

	return id < r->id ? -1 : id > r->id;
}

bool kvc_access_state_apply_locked(struct kvc *k, struct kvc_chunk *c)
{
	const struct kvc_accesses *a = &k->committer->accesses;
	const struct kvc_access_record *r;

	if (!a->nloaded)
		return false;
	r = bsearch(&c->id, a->loaded, a->nloaded, sizeof *r, id_to_record);
	if (!r || r->created_ns != c->use.created_ns || r->last_ns <= c->use.last_ns ||
	    r->last_ns > kvc_clock_ns(k))
		return false;
	c->use.last_ns = r->last_ns;
	c->use.hits = kvc_max(c->use.hits, r->hits);
	for (unsigned i = 0; i < KVC_CACHES; i++)
		c->saved_state[i] = r->facts[i] ?: c->saved_state[i];
	return true;
}

void kvc_access_state_free(struct kvc *k)
{
	free(k->committer->accesses.loaded);
	k->committer->accesses.loaded = NULL;
	k->committer->accesses.nloaded = 0;
}
