/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The order in which a lease loads its objects. Engines compute a prompt layer by layer, and some
 * store each layer of a chunk in a file of its own, in the folder of the chunk. So the first files
 * of all chunks are loaded first, then the second files, and so on: the engine can compute the
 * first layers while later ones are being loaded. Within a layer, the order is that of the lease.
 *
 * The files of a chunk are ordered by name, and numbers in names by their value, as strverscmp(3)
 * does. A file that is a chunk by itself counts as a first file. If the list returns to a chunk
 * after another one, the client has listed the files layer by layer, and its order is kept.
 *
 * The jobs of a tier run in the order in which they were queued, and loads that wait for space in
 * the pool get it in that order, so it suffices to start the loads in the order of the layers.
 */
#include "lease_priv.h"

#include "load.h"
#include "tier_queue.h"

#include <stdlib.h>
#include <string.h>

static int by_chunk(const void *a, const void *b)
{
	const struct kvc_lease_load *x = a, *y = b;

	if (x->chunk != y->chunk)
		return x->chunk < y->chunk ? -1 : 1;
	if (x->prompt != y->prompt)
		return x->prompt < y->prompt ? -1 : 1;
	return strverscmp(x->name, y->name);
}

static int by_layer(const void *a, const void *b)
{
	const struct kvc_lease_load *x = a, *y = b;

	if (x->layer != y->layer)
		return x->layer < y->layer ? -1 : 1;
	return x->item < y->item ? -1 : x->item > y->item;
}

/* Must the object be loaded, or may it be in a prefetch that the lease now waits for? */
static bool must_load(const struct kvc_lease *l, const struct kvc_lease_item *it)
{
	return it->n && !it->err &&
	       (it->n->state == KVC_LOWER ||
		(l->mode == KVC_LEASE_HOLD && it->n->queued_load && it->n->queued_load->prefetch));
}

/*
 * Collects the items that must be loaded. Returns 0 or -ENOMEM; *out is NULL if there are none.
 * Releases and retakes the locks.
 */
static int collect_both(struct kvc *k, const struct kvc_lease *l, struct kvc_lease_load **out,
			size_t *n)
{
	struct kvc_lease_load *v = NULL;
	size_t prompt = 0, run = 0;
	uint64_t before = 0;

	*n = 0;
	for (size_t i = 0; i < l->n; i++) {
		const struct kvc_lease_item *it = &l->v[i];
		const char *slash;

		kvc_lease_pause_both(k, i + 1);
		/* an empty line ends a prompt */
		prompt += i && it[-1].line + 1 < it->line;
		run += it->n && it->n->row.chunk != before;
		before = it->n ? it->n->row.chunk : before;
		if (!must_load(l, it))
			continue;
		if (!v && !(v = calloc(l->n - i, sizeof *v)))
			return -ENOMEM;
		slash = strrchr(it->path, '/');
		v[(*n)++] = (struct kvc_lease_load){
			.chunk = it->n->row.chunk == it->n->row.parent ? it->n->row.chunk : 0,
			.name = slash ? slash + 1 : it->path,
			.item = i,
			.prompt = prompt,
			.run = run,
		};
	}
	*out = v;
	return 0;
}

static void sort_by_layer(struct kvc_lease_load *v, size_t n)
{
	bool listed = false;

	qsort(v, n, sizeof *v, by_chunk);
	for (size_t i = 1; i < n; i++) {
		if (!v[i].chunk || v[i].chunk != v[i - 1].chunk)
			continue;
		listed |= v[i].prompt == v[i - 1].prompt && v[i].run != v[i - 1].run;
		v[i].layer = v[i - 1].layer + (strcmp(v[i].name, v[i - 1].name) != 0);
	}
	for (size_t i = 0; i < n && listed; i++)
		v[i].layer = 0;
	qsort(v, n, sizeof *v, by_layer);
}

static int start_load_locked(struct kvc *k, struct kvc_lease *l, struct kvc_node *n)
{
	if (l->mode == KVC_LEASE_HINT)
		return kvc_hint_prefetch_locked(k, &l->hint, n, l->uid);
	return (n->state == KVC_LOWER ? kvc_lease_share_locked(k, l, NULL, n->row.blocks * 512) : 0)
		       ?: kvc_load_start_locked(k, n, l->mode == KVC_LEASE_PREFETCH);
}

int kvc_lease_load_both(struct kvc *k, struct kvc_lease *l)
{
	struct kvc_lease_load *v;
	size_t n;
	int err = collect_both(k, l, &v, &n);

	if (err || !n)
		return err;
	kvc_unlock_both(k);
	sort_by_layer(v, n);
	kvc_lock_both(k);
	for (size_t i = 0; i < n && !err; i++) {
		struct kvc_lease_item *it = &l->v[v[i].item];

		kvc_lease_pause_both(k, i + 1);
		err = kvc_lease_cancelled(l);
		if (!err && must_load(l, it)) /* still, after the pauses */
			it->err = start_load_locked(k, l, it->n);
	}
	free(v);
	return err;
}
