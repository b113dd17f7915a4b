/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Objects that another node offers. An offer is a prefetch: it names objects, and this node reads
 * them from its own remotes, among them the node that offers them. So it can bring no bytes that a
 * lookup here would not find, and the owner of a new file is that of any file from a remote. Unlike
 * other prefetches, it also looks up names that no remote had a moment ago, because somebody here
 * may have waited for them.
 */
#include "offer.h"

#include "cache.h"
#include "kvc.h"

#include <string.h>

struct kvc_offer {
	struct kvc *k;
	struct kvc_asker user; /* root, but adopted files belong to others */
	struct kvc_lease *l;
	size_t n, taken;
};

static int offer_new(struct kvc *k, const char *names, size_t len, size_t n, struct kvc_offer **out)
{
	const struct kvc_lease_kind kind = {
		.mode = KVC_LEASE_PREFETCH,
		.most = KVC_OFFER_BYTES,
		.objects = KVC_LEASE_QUICK,
		.again = true,
	};
	struct kvc_offer *o;
	KVC_MEM char *list = NULL;
	bool full;
	int err;

	kvc_lock(k);
	full = !kvc_list_empty(&k->reservations.waiters);
	kvc_unlock(k);
	if (!k->shared)
		return -EOPNOTSUPP;
	if (full || kvc_accepts(k, false))
		return -ENOSPC;
	if (memchr(names, '\n', len))
		return -EINVAL;
	list = malloc(len);
	o = calloc(1, sizeof *o);
	if (!list || !o) {
		free(o);
		return -ENOMEM;
	}
	for (size_t i = 0; i < len; i++)
		list[i] = names[i] ?: '\n';
	o->k = k;
	o->n = n;
	err = kvc_lease_new(k, list, len, &kind, &o->user, &o->l);
	if (err) {
		free(o);
		return err == -EAGAIN ? -E2BIG : err;
	}
	*out = o;
	return 0;
}

int kvc_offer_begin(struct kvc *k, const char *names, size_t len, size_t n, struct kvc_offer **out)
{
	int err = offer_new(k, names, len, n, out);

	kvc_count_by(&k->stats, peer_offers, n);
	if (err)
		kvc_count_by(&k->stats, peer_offers_refused, n);
	return err;
}

int kvc_offer_run(struct kvc_offer *o, struct kvc_wait *w)
{
	return kvc_lease_start(o->k, o->l, &o->user, w);
}

void kvc_offer_bits(struct kvc_offer *o, uint8_t *bits)
{
	kvc_lease_bits(o->l, bits, o->n);
	o->taken = 0;
	for (size_t i = 0; i < o->n; i++)
		o->taken += bits[i / 8] >> i % 8 & 1;
}

void kvc_offer_end(struct kvc_offer *o)
{
	if (!o)
		return;
	kvc_count_by(&o->k->stats, peer_offers_refused, o->n - o->taken);
	kvc_lease_free(o->k, o->l);
	free(o);
}
