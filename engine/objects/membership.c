/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The chunk of a node. A chunk's row stores the settings of its model: class (policy), quota and
 * ttl.
 */
#include "membership.h"

#include "clock.h"
#include "committer.h"
#include "disk_victims.h"
#include "file.h"
#include "replacers.h"
#include "model.h"
#include "node.h"
#include "pin.h"
#include "tenant.h"

/* Gets the class and the quota that the model gives to its chunks. */
static int model_class_both(struct kvc *k, uint64_t model, unsigned *class, uint64_t *quota)
{
	int policy, err = kvc_model_attr_both(k, model, KVC_MODEL_POLICY, &policy);

	if (err)
		return err;
	*class = (unsigned)(policy + 1);
	*quota = kvc_quota_of_locked(k, model) ? model : 0;
	return 0;
}

/* Starts the ttl of a new chunk, if its model has one. */
static void begin_ttl(struct kvc *k, struct kvc_chunk *c, uint64_t ttl_s)
{
	c->ttl_s = ttl_s;
	c->expires_ns = ttl_s ? kvc_clock_ns(k) + ttl_s * 1000000000 : 0;
}

/* Creates a chunk in the model. Reads the model's settings first, since that can fail. */
static int chunk_make_both(struct kvc *k, uint64_t id, uint64_t model, struct kvc_chunk **out)
{
	uint64_t quota, ttl_s;
	struct kvc_chunk *c;
	unsigned class;
	int err = model_class_both(k, model, &class, &quota)
			  ?: kvc_model_ttl_both(k, model, &ttl_s);

	if (err)
		return err;
	if (!(c = kvc_chunk_new_locked(k, id, NULL)))
		return -ENOMEM;
	c->policy = class;
	c->quota = quota;
	begin_ttl(k, c, ttl_s);
	*out = c;
	return 0;
}

/*
 * Gets the chunk with this id, with a reference for a file of this model. known: its row, with id 0
 * if it has none; NULL: the row was not read.
 */
static int chunk_get_both(struct kvc *k, uint64_t id, uint64_t model,
			  const struct kvc_chunk_row *known, struct kvc_chunk **out)
{
	struct kvc_chunk *c = kvc_chunk_find_locked(k, id);
	struct kvc_chunk_row r;
	uint64_t ttl_s;
	int err;

	if (!c) {
		if (known) {
			r = *known;
			err = known->id ? 0 : -ENOENT;
		} else {
			err = kvc_chunk_get(k->cat, id, &r);
		}
		if (err == -ENOENT)
			err = chunk_make_both(k, id, model, &c);
		else if (!err && !(c = kvc_chunk_new_locked(k, id, &r)))
			err = -ENOMEM;
		if (err)
			return err;
	}
	if (c->row_deleted) { /* it gets files again */
		if ((err = kvc_model_ttl_both(k, model, &ttl_s)))
			return err;
		c->row_deleted = c->on_disk = false;
		kvc_disk_victims_kept_locked(k, c, 0);
		c->known = false;
		kvc_tenant_count_locked(k, c);
		begin_ttl(k, c, ttl_s);
		kvc_chunk_dirty_locked(k, c);
	}
	c->refs++;
	*out = c;
	return 0;
}

int kvc_membership_join_both(struct kvc *k, struct kvc_node *n)
{
	return n->chunk ? 0 : chunk_get_both(k, n->row.chunk, n->model, NULL, &n->chunk);
}

int kvc_membership_join_known_both(struct kvc *k, struct kvc_node *n,
				   const struct kvc_chunk_row *row)
{
	return n->chunk ? 0 : chunk_get_both(k, n->row.chunk, n->model, row, &n->chunk);
}

void kvc_membership_ordered_locked(struct kvc *k, struct kvc_node *n,
				   const struct kvc_chunk_row *was)
{
	struct kvc_chunk *c = n->chunk;
	bool has = kvc_node_has_segment(n), placed = kvc_file_placed_in(n, KVC_DISK);
	struct kvc_chunk_row r = was ? *was : (struct kvc_chunk_row){ 0 };

	r.id = c->id;
	r.bytes = n->row.size;
	if (placed && !has) { /* otherwise its bytes count with the segment */
		c->peak_bytes += n->row.size;
		c->known = false;
		kvc_chunk_dirty_locked(k, c);
	}
	kvc_tenant_count_locked(k, c);
	c->on_disk |= placed;
	if (r.policy != c->policy)
		r.facts = r.pool_facts = 0;
	if (r.pool_facts && has && k->replacers->ready)
		kvc_replacers_restore_locked(k, KVC_CACHE_POOL, &r, 0);
	if (!placed || c->fresh || kvc_disk_victims_has_locked(k, c->id) ||
	    !kvc_replacers_has_order(k, KVC_CACHE_DISK, c->policy))
		return;
	if (r.facts)
		kvc_replacers_restore_locked(k, KVC_CACHE_DISK, &r, 0);
	kvc_replacers_add_locked(k, KVC_CACHE_DISK, c); /* does nothing if it is in the order */
}

int kvc_membership_change_both(struct kvc *k, struct kvc_node *n, uint64_t id, bool last)
{
	uint64_t old = n->row.chunk;
	struct kvc_chunk *c;
	int err = chunk_get_both(k, id, n->model, NULL, &c);

	if (err)
		return err;
	kvc_chunk_mark_busy(n->chunk);
	if (n->chunk && n->chunk->tenant.number && !c->tenant.number) {
		/* the files of a folder become one chunk, which keeps their tenant */
		kvc_tenant_move_locked(k, c, n->chunk->tenant.number);
		c->known = false;
		kvc_chunk_dirty_locked(k, c);
	}
	kvc_chunk_leave_locked(k, n);
	kvc_pin_leave_locked(k, n);
	n->row.chunk = id;
	n->chunk = c;
	if (last)
		kvc_chunk_forget_both(k, old);
	kvc_pin_joined_locked(k, n);
	return 0;
}

int kvc_membership_new_both(struct kvc *k, struct kvc_node *n)
{
	int err = chunk_make_both(k, n->row.chunk, n->model, &n->chunk);

	if (!err)
		n->chunk->refs++;
	return err;
}

int kvc_membership_reclass_both(struct kvc *k, uint64_t id, uint64_t model,
				const struct kvc_chunk_row *row)
{
	struct kvc_chunk *c = kvc_chunk_find_locked(k, id);
	struct kvc_chunk_row r = { 0 };
	unsigned class;
	uint64_t quota;
	int err = model_class_both(k, model, &class, &quota);

	if (err)
		return err;
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

int kvc_membership_moved_both(struct kvc *k, struct kvc_node *n)
{
	return kvc_membership_reclass_both(k, n->row.chunk, n->model, NULL);
}
