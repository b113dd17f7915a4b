/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which chunk a node is in. What a model has set, a policy of its own, a quota or a ttl, is noted
 * on its chunks.
 */
#include "member.h"

#include "clock.h"
#include "dirty.h"
#include "model.h"
#include "node.h"
#include "pin.h"

/* The class and the quota of a model's chunks. */
static void belongs_both(struct kvc *k, uint64_t model, unsigned *class, uint64_t *quota)
{
	*class = (unsigned)(kvc_model_attr_both(k, model, KVC_MODEL_POLICY) + 1);
	*quota = kvc_quota_of_locked(k, model) ? model : 0;
}

/* A chunk is made: its ttl begins, if the model has one for those that have none of their own. */
static void begin_ttl_both(struct kvc *k, struct kvc_chunk *c, uint64_t model)
{
	c->ttl_s = kvc_model_ttl_both(k, model);
	c->expires_ns = c->ttl_s ? kvc_clock_ns(k) + c->ttl_s * 1000000000 : 0;
}

/* The chunk of this number: it is to have a file of this model, and is held. */
static int hold_both(struct kvc *k, uint64_t id, uint64_t model, struct kvc_chunk **out)
{
	struct kvc_chunk *c = kvc_chunk_find_locked(k, id);
	struct kvc_chunk_row r;
	int err;

	if (!c) {
		err = kvc_chunk_get(k->cat, id, &r);
		if (err && err != -ENOENT)
			return err;
		c = kvc_chunk_new_locked(k, id, err ? NULL : &r);
		if (!c)
			return -ENOMEM;
		if (err) {
			belongs_both(k, model, &c->policy, &c->quota);
			begin_ttl_both(k, c, model);
		}
	}
	if (c->gone) { /* it has files again */
		c->gone = c->begun = false;
		c->known = false;
		begin_ttl_both(k, c, model);
		kvc_chunk_dirty_locked(k, c);
	}
	c->inflight++;
	*out = c;
	return 0;
}

int kvc_chunk_join_both(struct kvc *k, struct kvc_node *n)
{
	return n->chunk ? 0 : hold_both(k, n->row.chunk, n->model, &n->chunk);
}

int kvc_chunk_change_both(struct kvc *k, struct kvc_node *n, uint64_t id, bool last)
{
	uint64_t old = n->row.chunk;
	struct kvc_chunk *c;
	int err = hold_both(k, id, n->model, &c);

	if (err)
		return err;
	kvc_chunk_stir(n->chunk);
	kvc_chunk_leave_locked(k, n);
	kvc_pin_leave_locked(k, n);
	n->row.chunk = id;
	n->chunk = c;
	if (last)
		kvc_chunk_forget_both(k, old);
	kvc_pin_count_locked(k, n);
	return 0;
}

int kvc_chunk_found_both(struct kvc *k, struct kvc_node *n)
{
	struct kvc_chunk *c = kvc_chunk_new_locked(k, n->row.chunk, NULL);

	if (!c)
		return -ENOMEM;
	belongs_both(k, n->model, &c->policy, &c->quota);
	begin_ttl_both(k, c, n->model);
	n->chunk = c;
	c->inflight++;
	return 0;
}

int kvc_chunk_reclass_both(struct kvc *k, uint64_t id, uint64_t model,
			   const struct kvc_chunk_row *row)
{
	struct kvc_chunk *c = kvc_chunk_find_locked(k, id);
	struct kvc_chunk_row r = { 0 };
	unsigned class;
	uint64_t quota;
	int err = 0;

	belongs_both(k, model, &class, &quota);
	if (c) {
		if (c->policy != class || c->quota != quota)
			kvc_chunk_set_class_locked(k, c, class, quota);
		return 0;
	}
	if (row)
		r = *row;
	else
		err = kvc_chunk_get(k->cat, id, &r);
	if (err || !r.id)
		return err == -ENOENT ? 0 : err;
	if (r.policy == class && r.quota == quota)
		return 0;
	r.policy = class;
	r.quota = quota;
	r.rank = kvc_chunk_rank_row(k, &r);
	return kvc_chunk_put(k->cat, &r);
}

int kvc_chunk_moved_both(struct kvc *k, struct kvc_node *n)
{
	return kvc_chunk_reclass_both(k, n->row.chunk, n->model, NULL);
}
