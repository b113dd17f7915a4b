/* SPDX-License-Identifier: Apache-2.0 */
/* A ring of the newest accesses, see access_ring.h. */
#include "access_ring.h"

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

void kvc_access_ring_put_locked(struct kvc *k, const struct kvc_access_seen *u)
{
	struct kvc_access_ring *r = k->access_ring;

	r->v[r->n++ % KVC_ACCESS_RING_ITEMS] = *u;
}

size_t kvc_access_ring_take_locked(struct kvc *k, uint64_t *at, struct kvc_access_seen *v,
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
