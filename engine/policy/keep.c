/* SPDX-License-Identifier: Apache-2.0 */
/* See keep.h: what all policies have in common. */
#include "keep_priv.h"

#define X(name) &kvc_keep_##name,
static const struct kvc_keep_ops *const keeps[] = { KVC_KEEPS(X) };
#undef X
#define X(name) #name,
const char *const kvc_keep_names[] = { KVC_KEEPS(X) NULL };
#undef X

int kvc_keep_open(struct kvc_keep **out, const struct kvc_keep_conf *conf)
{
	struct kvc_keep *k = calloc(1, sizeof *k);
	int err;

	if (!k)
		return -ENOMEM;
	k->ops = keeps[conf->policy];
	k->conf = *conf;
	k->chance = kvc_chain_hash(conf->seed) ?: 1;
	kvc_list_init(&k->requests);
	err = kvc_chain_init(&k->chain, k->ops->ordered, k->ops->family);
	if (!err && k->ops->open)
		err = k->ops->open(k);
	if (err)
		kvc_keep_close(k);
	else
		*out = k;
	return err;
}

void kvc_keep_close(struct kvc_keep *k)
{
	if (!k)
		return;
	kvc_chain_fini(&k->chain); /* with the policy's columns, whose pointers are its own */
	if (k->own)
		k->ops->close(k);
	free(k);
}

void kvc_keep_begin(struct kvc_keep *k, struct kvc_request *r)
{
	struct kvc_touched *touched = r->touched;
	uint32_t room = r->room;

	*r = (struct kvc_request){ .nr = ++k->now, .touched = touched, .room = room };
	kvc_list_add_tail(&k->requests, &r->link);
	if (k->ops->begin)
		k->ops->begin(k);
}

bool kvc_keep_touch(struct kvc_keep *k, struct kvc_request *r, uint64_t id)
{
	uint32_t slot = kvc_chain_find(&k->chain, id);

	if (r->n == r->room) {
		uint32_t room = r->room ? r->room * 2 : 64;
		struct kvc_touched *v = realloc(r->touched, room * sizeof *v);

		if (!v)
			return slot != KVC_NO_SLOT;
		r->touched = v;
		r->room = room;
	}
	r->touched[r->n++] = (struct kvc_touched){ .id = id, .slot = slot };
	if (k->ops->touch)
		k->ops->touch(k, r, slot);
	if (slot != KVC_NO_SLOT)
		k->chain.last[slot] = r->nr;
	return slot != KVC_NO_SLOT;
}

void kvc_keep_end(struct kvc_keep *k, struct kvc_request *r)
{
	if (k->ops->end)
		k->ops->end(k, r);
	kvc_list_del(&r->link);
	r->nr = 0;
}

void kvc_request_free(struct kvc_request *r)
{
	free(r->touched);
	*r = (struct kvc_request){ 0 };
}

int kvc_keep_add(struct kvc_keep *k, struct kvc_request *r, uint64_t id, uint64_t parent,
		 uint64_t bytes)
{
	uint32_t up = parent ? kvc_chain_find(&k->chain, parent) : KVC_NO_SLOT, slot;

	if (kvc_chain_find(&k->chain, id) != KVC_NO_SLOT)
		return -EEXIST;
	slot = kvc_chain_add(&k->chain, id, up, k->ops->key ? k->ops->key(k, up, bytes) : 0);
	if (slot == KVC_NO_SLOT)
		return -ENOMEM;
	k->chain.last[slot] = r ? r->nr : k->now;
	if (r && r->n && r->touched[r->n - 1].id == id)
		r->touched[r->n - 1].slot = slot;
	if (k->ops->add)
		k->ops->add(k, r, slot, bytes);
	return 0;
}

void kvc_keep_del(struct kvc_keep *k, uint64_t id, bool evicted)
{
	uint32_t slot = kvc_chain_find(&k->chain, id);

	if (slot == KVC_NO_SLOT)
		return;
	if (k->ops->del)
		k->ops->del(k, slot, evicted);
	kvc_chain_del(&k->chain, slot);
}

uint64_t kvc_keep_victim(struct kvc_keep *k)
{
	uint32_t slot = k->chain.nleaf ? k->ops->victim(k) : KVC_NO_SLOT;

	return slot == KVC_NO_SLOT ? 0 : k->chain.id[slot];
}

bool kvc_keep_wants(struct kvc_keep *k, const struct kvc_request *r, uint64_t bytes,
		    uint64_t victim)
{
	return !k->ops->wants || k->ops->wants(k, r, bytes, kvc_chain_find(&k->chain, victim));
}

uint64_t kvc_keep_chunks(const struct kvc_keep *k)
{
	return k->chain.n;
}

uint64_t kvc_keep_bytes(const struct kvc_keep *k)
{
	return kvc_chain_bytes(&k->chain) + (k->ops->bytes ? k->ops->bytes(k) : 0);
}

void kvc_keep_text(const struct kvc_keep *k, char *to, size_t room)
{
	*to = 0;
	if (k->ops->text)
		k->ops->text(k, to, room);
}
