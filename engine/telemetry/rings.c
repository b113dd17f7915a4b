/* SPDX-License-Identifier: Apache-2.0 */
/* The rings of events and of accesses, see rings.h. */
#include "rings.h"

#include "file.h"
#include "node.h"

#include <string.h>

#define CHAINS 8192u

struct kvc_event_ring {
	unsigned readers;
	uint64_t n; /* events put so far; the ring has the last KVC_EVENT_RING_MAX of them */
	uint64_t newest[CHAINS];
	struct kvc_event_ring_item v[KVC_EVENT_RING_MAX];
};

int kvc_event_ring_open_locked(struct kvc *k, uint64_t *at)
{
	if (!k->event_ring && !(k->event_ring = calloc(1, sizeof *k->event_ring)))
		return -ENOMEM;
	k->event_ring->readers++;
	*at = k->event_ring->n;
	return 0;
}

void kvc_event_ring_close_locked(struct kvc *k)
{
	struct kvc_event_ring *r = k->event_ring;

	if (--r->readers)
		return;
	for (size_t i = 0; i < KVC_EVENT_RING_MAX; i++)
		free(r->v[i].gone);
	free(r);
	k->event_ring = NULL;
}

static uint64_t *chain_head(struct kvc_event_ring *r, uint64_t ino)
{
	return &r->newest[(ino * 0x9e3779b97f4a7c15u >> 32) % CHAINS];
}

static void ring_put(struct kvc_event_ring *r, struct kvc_event_ring_item v)
{
	struct kvc_event_ring_item *to = &r->v[r->n % KVC_EVENT_RING_MAX];

	free(to->gone);
	*to = v;
	r->n++;
	if (v.gone) {
		to->before = *chain_head(r, v.ino);
		*chain_head(r, v.ino) = r->n;
	}
}

static uint8_t where_bits(const struct kvc *k, const struct kvc_node *n)
{
	unsigned bits = kvc_node_has_segment(n) && n->object.gen ? KVC_EVENT_RING_IN_POOL : 0;

	for (unsigned t = 0; t < k->tier_slots; t++)
		bits |= kvc_file_placed_in(n, t) ? 1u << t : 0;
	return (uint8_t)bits;
}

static struct kvc_event_ring_item item_of(const struct kvc *k, enum kvc_event_kind what, int tier,
					  const struct kvc_node *n)
{
	bool folder = S_ISDIR(n->row.mode);

	return (struct kvc_event_ring_item){
		.at_ns = kvc_now_ns(),
		.ino = n->row.ino,
		.bytes = folder ? 0 : n->object.size,
		.tier = (int8_t)tier,
		.what = (uint8_t)what,
		.where = S_ISREG(n->row.mode) ? where_bits(k, n) : 0,
		.folder = folder,
		.alone = n->row.chunk == n->row.ino,
	};
}

void kvc_event_ring_put_locked(struct kvc *k, enum kvc_event_kind what, int tier,
			       const struct kvc_node *n)
{
	if (k->event_ring && !n->unnamed && !n->commit.lost)
		ring_put(k->event_ring, item_of(k, what, tier, n));
}

void kvc_event_ring_gone_locked(struct kvc *k, enum kvc_event_kind what, const struct kvc_node *n,
				char *gone)
{
	struct kvc_event_ring_item v;

	if (!k->event_ring) {
		free(gone);
		return;
	}
	v = item_of(k, what, KVC_EVENT_RING_NONE, n);
	v.gone = gone;
	ring_put(k->event_ring, v);
}

bool kvc_event_ring_take_locked(struct kvc *k, uint64_t *at, struct kvc_event_ring_item *v,
				uint64_t *number, uint64_t *lost)
{
	const struct kvc_event_ring *r = k->event_ring;
	uint64_t first = r->n > KVC_EVENT_RING_MAX ? r->n - KVC_EVENT_RING_MAX : 0;

	*lost = *at < first ? first - *at : 0;
	*at += *lost;
	if (*at == r->n)
		return false;
	*number = (*at)++;
	*v = r->v[*number % KVC_EVENT_RING_MAX];
	return true;
}

const char *kvc_event_ring_path_locked(struct kvc *k, uint64_t ino, uint64_t number)
{
	struct kvc_event_ring *r = k->event_ring;
	uint64_t first = r->n > KVC_EVENT_RING_MAX ? r->n - KVC_EVENT_RING_MAX : 0,
		 at = *chain_head(r, ino);
	const char *found = NULL;

	while (at > first && at - 1 > number) {
		const struct kvc_event_ring_item *v = &r->v[(at - 1) % KVC_EVENT_RING_MAX];

		if (v->ino == ino)
			found = v->gone;
		at = v->before;
	}
	return found;
}

int kvc_access_ring_open_locked(struct kvc *k, uint64_t *at)
{
	struct kvc_access_ring **r = &k->access_ring;

	if (!*r && !(*r = calloc(1, sizeof **r)))
		return -ENOMEM;
	(*r)->readers++;
	*at = (*r)->n;
	return 0;
}

void kvc_access_ring_close_locked(struct kvc *k)
{
	struct kvc_access_ring **r = &k->access_ring;

	if (--(*r)->readers)
		return;
	free(*r);
	*r = NULL;
}

void kvc_access_ring_put_locked(struct kvc *k, const struct kvc_access_item *u)
{
	struct kvc_access_ring *r = k->access_ring;

	r->v[r->n++ % KVC_ACCESS_RING_ITEMS] = *u;
}

size_t kvc_access_ring_take_locked(struct kvc *k, uint64_t *at, struct kvc_access_item *v,
				   size_t most, uint64_t *lost)
{
	const struct kvc_access_ring *r = k->access_ring;
	uint64_t first = r->n > KVC_ACCESS_RING_ITEMS ? r->n - KVC_ACCESS_RING_ITEMS : 0;
	size_t n = 0;

	*lost = *at < first ? first - *at : 0;
	*at += *lost;
	while (n < most && *at < r->n)
		v[n++] = r->v[(*at)++ % KVC_ACCESS_RING_ITEMS];
	return n;
}
