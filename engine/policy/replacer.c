/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The part of a replacer that all policies share (replacer.h): requests, the chain, the format
 * of the saved state, and the turns of the replacers of one cache.
 */
#include "replacer_priv.h"
#include "replacer.h"

#include <string.h>

#define MAGIC 0x3670656b63766bull /* "kvckep6" and a zero byte */
#define HEAD (8 + 16)             /* the magic and the checksum of the rest */
#define NAME 16
#define TICK_MS 300u    /* time that counts as much as a request */
#define PAUSE_MS 60000u /* longer pauses between two requests count as this */

#define X(name, rank, by_rank, by_chain) &kvc_replacer_##name,
static const struct kvc_replacer_ops *const policies[] = { KVC_POLICIES(X) };
#undef X

int kvc_replacer_open(struct kvc_replacer **out, const struct kvc_replacer_conf *conf)
{
	struct kvc_replacer *k = calloc(1, sizeof *k);
	int err;

	if (!k)
		return -ENOMEM;
	k->ops = policies[conf->policy];
	k->conf = *conf;
	k->chance = kvc_chain_hash(conf->seed) ?: 1;
	kvc_list_init(&k->requests);
	err = kvc_chain_init(&k->chain, k->ops->ordered, k->ops->family);
	if (!err && k->ops->open)
		err = k->ops->open(k);
	if (err)
		kvc_replacer_close(k);
	else
		*out = k;
	return err;
}

void kvc_replacer_close(struct kvc_replacer *k)
{
	if (!k)
		return;
	kvc_chain_fini(&k->chain); /* also frees the columns of the policy */
	if (k->own)
		k->ops->close(k);
	free(k);
}

static uint32_t next_number(struct kvc_replacer *k)
{
	return k->now = k->now + 1 ?: 1; /* wraps around; 0 is not a number */
}

/*
 * Returns the time of an access. The chunks of a loose request need not belong together: they count
 * in the order of their accesses, and are not protected while the request is in progress.
 */
static uint32_t access_time(struct kvc_replacer *k, const struct kvc_request *r)
{
	return r->loose ? next_number(k) : r->nr;
}

/* Adds the ticks for the time since the last request. */
static void pass_time(struct kvc_replacer *k, uint64_t now_ms)
{
	uint64_t passed = now_ms > k->now_ms ? now_ms - k->now_ms : 0;

	if (k->now_ms)
		k->rest_ms += (uint32_t)kvc_min(passed, PAUSE_MS);
	k->now_ms = kvc_max(k->now_ms, now_ms);
	k->now += k->rest_ms / TICK_MS;
	k->rest_ms %= TICK_MS;
}

void kvc_replacer_begin(struct kvc_replacer *k, struct kvc_request *r, uint64_t now_ms)
{
	struct kvc_touched *touched = r->touched;
	uint32_t capacity = r->capacity;

	k->changes++;
	pass_time(k, now_ms);
	next_number(k);
	*r = (struct kvc_request){ .nr = k->now, .touched = touched, .capacity = capacity };
	kvc_list_add_tail(&k->requests, &r->link);
	if (k->ops->begin)
		k->ops->begin(k);
}

static bool record_access(struct kvc_replacer *k, struct kvc_request *r, uint64_t id, uint32_t slot)
{
	if (r->n == r->capacity) {
		uint32_t capacity = r->capacity ? r->capacity * 2 : 64;
		struct kvc_touched *v = realloc(r->touched, capacity * sizeof *v);

		if (!v)
			return false;
		r->touched = v;
		r->capacity = capacity;
	}
	k->changes++;
	r->touched[r->n++] = (struct kvc_touched){ .id = id, .slot = slot };
	if (k->ops->touch)
		k->ops->touch(k, r, slot);
	if (slot != KVC_NO_SLOT)
		k->chain.last[slot] = access_time(k, r);
	return true;
}

_Static_assert(KVC_REPLACER_EXPECT == KVC_CHAIN_EXPECT, "kvc_replacer_expect");

void kvc_replacer_expect(const struct kvc_replacer *k, const uint64_t *id, uint32_t n)
{
	uint32_t slot[KVC_CHAIN_EXPECT];

	n = (uint32_t)kvc_min(n, KVC_CHAIN_EXPECT);
	kvc_chain_expect(&k->chain, id, n, slot);
	if (k->ops->expect)
		k->ops->expect(k, id, slot, n);
}

bool kvc_replacer_access(struct kvc_replacer *k, struct kvc_request *r, uint64_t id)
{
	uint32_t slot = kvc_chain_find(&k->chain, id);

	k->missed = slot == KVC_NO_SLOT ? id : 0;
	record_access(k, r, id, slot);
	return slot != KVC_NO_SLOT;
}

void kvc_replacer_end(struct kvc_replacer *k, struct kvc_request *r)
{
	k->changes++;
	if (k->ops->end)
		k->ops->end(k, r);
	kvc_list_del(&r->link);
	r->nr = 0;
}

void kvc_replacer_request_free(struct kvc_request *r)
{
	free(r->touched);
	*r = (struct kvc_request){ 0 };
}

int kvc_replacer_add(struct kvc_replacer *k, struct kvc_request *r, uint64_t id, uint64_t parent,
		     uint64_t bytes)
{
	uint32_t before = r && r->n > 1 ? r->touched[r->n - 2].slot : KVC_NO_SLOT;
	uint32_t up = parent ? kvc_chain_find_at(&k->chain, parent, before) : KVC_NO_SLOT, slot;

	if (k->missed != id && kvc_chain_find(&k->chain, id) != KVC_NO_SLOT)
		return -EEXIST;
	k->missed = 0;
	slot = kvc_chain_add(&k->chain, id, up, k->ops->key ? k->ops->key(k, up, bytes) : 0);
	if (slot == KVC_NO_SLOT)
		return -ENOMEM;
	k->changes++;
	k->chain.last[slot] = r ? access_time(k, r) : k->now;
	if (r && r->n && r->touched[r->n - 1].id == id)
		r->touched[r->n - 1].slot = slot;
	if (k->ops->add)
		k->ops->add(k, r, slot, bytes);
	return 0;
}

int kvc_replacer_claim(struct kvc_replacer *k, struct kvc_request *r, uint64_t id, uint64_t parent,
		       uint64_t bytes)
{
	uint32_t slot = kvc_chain_find(&k->chain, id);

	if (!record_access(k, r, id, KVC_NO_SLOT))
		return -ENOMEM;
	if (slot == KVC_NO_SLOT)
		return kvc_replacer_add(k, r, id, parent, bytes);
	r->touched[r->n - 1].slot = slot;
	k->chain.last[slot] = access_time(k, r);
	kvc_replacer_set_parent(k, id, parent);
	if (k->ops->claim)
		k->ops->claim(k, r, slot, bytes);
	return 0;
}

bool kvc_replacer_has(const struct kvc_replacer *k, uint64_t id)
{
	return kvc_chain_find(&k->chain, id) != KVC_NO_SLOT;
}

void kvc_replacer_set_parent(struct kvc_replacer *k, uint64_t id, uint64_t parent)
{
	uint32_t slot = kvc_chain_find(&k->chain, id), up = KVC_NO_SLOT;

	if (slot == KVC_NO_SLOT)
		return;
	if (parent) {
		up = kvc_chain_find(&k->chain, parent);
		if (up == KVC_NO_SLOT || up == slot)
			return;
		/* a chunk without children is not an ancestor of the new parent */
		if (!kvc_chain_is_leaf(&k->chain, slot) && kvc_chain_is_under(&k->chain, up, slot))
			return;
	}
	if (k->chain.parent[slot] == up)
		return;
	k->changes++;
	kvc_chain_set_parent(&k->chain, slot, up);
	if (k->ops->set_parent)
		k->ops->set_parent(k, slot);
}

void kvc_replacer_rename(struct kvc_replacer *k, uint64_t from, uint64_t to)
{
	if (!k->ops->rename || from == to || kvc_chain_find(&k->chain, from) != KVC_NO_SLOT)
		return;
	k->changes++;
	k->ops->rename(k, from, to);
}

uint32_t kvc_replacer_children(const struct kvc_replacer *k, uint64_t id)
{
	uint32_t slot = kvc_chain_find(&k->chain, id);

	return slot == KVC_NO_SLOT ? 0 : kvc_chain_children(&k->chain, slot);
}

void kvc_replacer_resize(struct kvc_replacer *k, uint64_t id, uint64_t bytes)
{
	uint32_t slot = k->ops->resize ? kvc_chain_find(&k->chain, id) : KVC_NO_SLOT;

	if (slot == KVC_NO_SLOT)
		return;
	k->changes++;
	k->ops->resize(k, slot, bytes);
}

uint64_t kvc_replacer_saved_state(const struct kvc_replacer *k, uint64_t id)
{
	uint32_t slot = kvc_chain_find(&k->chain, id);

	return slot == KVC_NO_SLOT ? 0 : k->ops->saved_state(k, slot);
}

int kvc_replacer_restore(struct kvc_replacer *k, uint64_t id, uint64_t parent, uint64_t bytes,
			 uint64_t facts)
{
	uint32_t up = parent ? kvc_chain_find(&k->chain, parent) : KVC_NO_SLOT, slot;

	if (kvc_chain_find(&k->chain, id) != KVC_NO_SLOT)
		return -EEXIST;
	k->missed = 0;
	slot = kvc_chain_add(&k->chain, id, up, 0);
	if (slot == KVC_NO_SLOT)
		return -ENOMEM;
	k->ops->restore(k, slot, bytes, facts);
	return 0;
}

static bool has_failed(const struct kvc_saving *s)
{
	return s->out.failed || s->rows.failed || s->more[0].failed || s->more[1].failed;
}

int kvc_replacer_save_piece(const struct kvc_replacer *k, struct kvc_saving **saving)
{
	static const struct kvc_sum none;
	const char *name = kvc_policy_names[k->conf.policy];
	struct kvc_saving *s = *saving;
	char text[NAME] = "";

	if (!s) {
		s = *saving = calloc(1, sizeof *s);
		if (!s)
			return -ENOMEM;
		s->policy = k->ops;
		kvc_state_out_64(&s->out, MAGIC);
		kvc_state_out_bytes(&s->out, none.b, sizeof none.b);
		snprintf(text, sizeof text, "%s", name);
		kvc_state_out_bytes(&s->out, text, sizeof text);
		kvc_state_out_32(&s->out, 0);
		kvc_state_out_64(&s->out, 0);
	}
	if (k->ops->save(k, s) && !has_failed(s))
		return 1;
	kvc_state_out_32_at(&s->out, HEAD + NAME, k->now);
	kvc_state_out_64_at(&s->out, HEAD + NAME + 4, k->chance);
	return has_failed(s) ? -ENOMEM : 0;
}

void kvc_replacer_save_between(struct kvc_saving *s)
{
	for (int i = 0; s && i < 2; i++)
		kvc_state_out_reserve(&s->more[i], s->capacity[i]);
}

int kvc_replacer_save_end(struct kvc_saving *s, void **out, size_t *len)
{
	const struct kvc_replacer_ops *ops = s ? s->policy : NULL;
	struct kvc_sum sum;
	int err = s && !has_failed(s) ? 0 : -ENOMEM;

	if (!err && ops->saved)
		ops->saved(s);
	if (!err && s->out.failed)
		err = -ENOMEM;
	if (!err) {
		sum = kvc_sum_of(s->out.v + HEAD, s->out.n - HEAD);
		memcpy(s->out.v + 8, sum.b, sizeof sum.b);
		*out = s->out.v;
		*len = s->out.n;
		s->out.v = NULL;
	}
	if (s)
		kvc_state_saving_fini(s);
	free(s);
	return err;
}

int kvc_replacer_save(const struct kvc_replacer *k, void **out, size_t *len)
{
	struct kvc_saving *s = NULL;

	while (kvc_replacer_save_piece(k, &s) > 0)
		kvc_replacer_save_between(s);
	return kvc_replacer_save_end(s, out, len);
}

static bool is_saved(const struct kvc_replacer *k, const uint8_t *v, size_t len)
{
	const char *name = kvc_policy_names[k->conf.policy];
	struct kvc_in in = { .v = v, .n = len };
	struct kvc_sum sum;

	if (len < HEAD + NAME || kvc_state_in_64(&in) != MAGIC)
		return false;
	sum = kvc_sum_of(v + HEAD, len - HEAD);
	return !memcmp(sum.b, v + 8, sizeof sum.b) && !strncmp((const char *)v + HEAD, name, NAME);
}

int kvc_replacer_load(struct kvc_replacer *k, const void *blob, size_t len)
{
	struct kvc_replacer *n, old;
	struct kvc_in in;
	int err;

	if (!is_saved(k, blob, len))
		return -EINVAL;
	err = kvc_replacer_open(&n, &k->conf);
	if (err)
		return err;
	in = (struct kvc_in){ .v = (const uint8_t *)blob + HEAD + NAME, .n = len - HEAD - NAME };
	n->now = kvc_state_in_32(&in);
	n->chance = kvc_state_in_64(&in) ?: 1;
	k->ops->load(n, &in);
	if (!in.bad && !in.n) {
		old = *k;
		*k = *n;
		*n = old;
		kvc_list_init(&k->requests);
	} else {
		err = -EINVAL;
	}
	kvc_replacer_close(n);
	return err;
}

void kvc_replacer_exclude(struct kvc_replacer *k, uint64_t id, bool exclude)
{
	uint32_t slot = kvc_chain_find(&k->chain, id);

	if (slot != KVC_NO_SLOT)
		kvc_chain_exclude(&k->chain, slot, exclude);
}

void kvc_replacer_del(struct kvc_replacer *k, uint64_t id, bool evicted)
{
	uint32_t slot = kvc_chain_find_at(&k->chain, id, k->victim);

	if (slot == KVC_NO_SLOT)
		return;
	k->changes++;
	if (k->ops->del)
		k->ops->del(k, slot, evicted);
	kvc_chain_del(&k->chain, slot);
}

uint64_t kvc_replacer_victim(struct kvc_replacer *k)
{
	uint32_t slot = k->chain.nleaf ? k->ops->victim(k) : KVC_NO_SLOT, most = 0;

	if (slot == KVC_NO_SLOT)
		most = (uint32_t)kvc_min(k->chain.nleaf, kvc_replacer_looks(k));
	for (uint32_t i = 0; slot == KVC_NO_SLOT && i < most; i++)
		if (!kvc_replacer_busy(k, k->chain.leaf[i]))
			slot = k->chain.leaf[i];
	k->victim = slot;
	return slot == KVC_NO_SLOT ? 0 : k->chain.id[slot];
}

bool kvc_replacer_refuses(struct kvc_replacer *k, struct kvc_request *r, uint64_t bytes)
{
	if (k->ops->refuses && r->n)
		r->refused |= k->ops->refuses(k, r, bytes);
	return r->refused;
}

void kvc_replacer_tell(struct kvc_replacer *k, uint64_t id, uint8_t outlook)
{
	if (!k->ops->tell || outlook >= KVC_OUTLOOKS)
		return;
	k->changes++;
	kvc_list_each(e, &k->requests) {
		struct kvc_request *r = kvc_of(e, struct kvc_request, link);

		if (r->n && r->touched[r->n - 1].id == id)
			r->outlook = outlook;
	}
	k->ops->tell(k, id, kvc_chain_find(&k->chain, id), outlook);
}

uint64_t kvc_replacer_changes(const struct kvc_replacer *k)
{
	return k->changes;
}

uint64_t kvc_replacer_chunks(const struct kvc_replacer *k)
{
	return k->chain.n;
}

uint64_t kvc_replacer_bytes(const struct kvc_replacer *k)
{
	return kvc_chain_bytes(&k->chain) + (k->ops->bytes ? k->ops->bytes(k) : 0);
}

void kvc_replacer_text(const struct kvc_replacer *k, char *to, size_t capacity)
{
	*to = 0;
	if (k->ops->text)
		k->ops->text(k, to, capacity);
}

int kvc_replacer_turns_next(const struct kvc_replacer_turns *t, unsigned mask)
{
	int best = -1;

	for (int i = 0; i < KVC_CLASSES; i++)
		if ((mask & (1u << i)) && (best < 0 || t->at[i] < t->at[best]))
			best = i;
	return best;
}

void kvc_replacer_turns_advance(struct kvc_replacer_turns *t, unsigned class, uint64_t chunks)
{
	/* a class without victims for a while does not make up for that time */
	for (int i = 0; i < KVC_CLASSES; i++)
		t->at[i] = t->at[i] > t->at[class] ? t->at[i] : t->at[class];
	t->at[class] += 1.0 / (double)(1 + chunks);
}

uint64_t kvc_replacer_turns_victim(const struct kvc_replacer_turns *t,
				   struct kvc_replacer *const replacers[KVC_CLASSES],
				   unsigned *class)
{
	unsigned mask = 0;
	int next;

	for (unsigned i = 0; i < KVC_CLASSES; i++)
		mask |= replacers[i] && kvc_replacer_chunks(replacers[i]) ? 1u << i : 0;
	while ((next = kvc_replacer_turns_next(t, mask)) >= 0) {
		uint64_t id = kvc_replacer_victim(replacers[next]);

		if (id) {
			*class = (unsigned)next;
			return id;
		}
		mask &= ~(1u << next);
	}
	return 0;
}
