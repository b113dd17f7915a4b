/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Nodes in memory. A node is in memory while the kernel references it, while it has a segment in
 * the pool, while it is in use, and while it is dirty. All other inodes are only rows in the
 * catalog and are loaded when needed.
 */
#include "node.h"

#include "committer.h"
#include "model_moves.h"
#include "model_use.h"
#include "user.h"
#include "pin.h"

#include <string.h>

struct kvc_node *kvc_node_find_locked(struct kvc *k, uint64_t ino)
{
	struct kvc_slot *s = kvc_table_find(&k->nodes->table, ino);

	return s ? kvc_of(s, struct kvc_node, slot) : NULL;
}

uint64_t kvc_node_opens_locked(const struct kvc *k)
{
	uint64_t n = k->nodes->opens;

	for (unsigned i = 0; k->joint && i < KVC_JOINT_SLOTS; i++)
		n += (uint64_t)atomic_load_explicit(&k->joint->slot[i].sum, memory_order_relaxed);
	return n;
}

struct kvc_node *kvc_node_new_locked(struct kvc *k, const struct kvc_row *row)
{
	struct kvc_node *n = calloc(1, sizeof *n + k->tier_slots * sizeof *n->in);

	if (!n)
		return NULL;
	n->row = *row;
	n->segment.fd = -1;
	kvc_list_init(&n->commit.link);
	kvc_list_init(&n->part.link);
	kvc_list_init(&n->acct.link);
	kvc_list_init(&n->wait.ready);
	kvc_list_init(&n->wait.sync);
	kvc_list_init(&n->linger.link);
	n->state = S_ISREG(row->mode) ? KVC_LOWER : KVC_NONE;
	n->slot.key = row->ino;
	kvc_table_add(&k->nodes->table, &n->slot);
	return n;
}

int kvc_node_row_both(struct kvc *k, uint64_t ino, struct kvc_row *row)
{
	struct kvc_node *n = kvc_node_find_locked(k, ino);

	if (!n)
		return kvc_row_get(k->cat, ino, row);
	*row = n->row;
	return 0;
}

/*
 * Walks from a folder up to the root. *model: its model; 0: the root, or an error. moves: receives
 * the moves on the way, or NULL.
 */
static int walk_up_both(struct kvc *k, const struct kvc_row *folder, uint64_t *model,
			struct kvc_model_move_path *moves)
{
	struct kvc_row row = *folder;
	uint64_t top = 0;
	int err;

	*model = 0;
	for (unsigned depth = 0; row.ino != KVC_ROOT; depth++) {
		top = row.ino;
		if (moves)
			kvc_model_moves_pass_locked(k, row.ino, moves);
		if (depth > KVC_DEPTH_MAX)
			return -ELOOP;
		if ((err = kvc_node_row_both(k, row.parent, &row)))
			return err;
	}
	*model = top;
	return 0;
}

int kvc_node_model_of_row_both(struct kvc *k, const struct kvc_row *folder, uint64_t *model)
{
	return walk_up_both(k, folder, model, NULL);
}

int kvc_node_model_both(struct kvc *k, uint64_t folder, uint64_t *model)
{
	struct kvc_row row;
	int err = kvc_node_row_both(k, folder, &row);

	*model = 0;
	return err ?: walk_up_both(k, &row, model, NULL);
}

int kvc_node_files_model_both(struct kvc *k, uint64_t folder, uint64_t up, uint64_t *model,
			      struct kvc_model_move_path *moves)
{
	struct kvc_row row = { .ino = folder, .parent = up };
	int err = 0;

	*model = 0;
	if (!up || kvc_node_find_locked(k, folder))
		err = kvc_node_row_both(k, folder, &row);
	err = err ?: walk_up_both(k, &row, model, moves);
	return err == -ENOENT || err == -ELOOP ? 0 : err;
}

/* Creates a node from its rows in the catalog. */
static int node_load_locked(struct kvc *k, const struct kvc_row *row,
			    const struct kvc_object_row *object,
			    const struct kvc_place place[KVC_TIERS], uint64_t model,
			    struct kvc_node **out)
{
	struct kvc_node *n = kvc_node_new_locked(k, row);

	if (!n)
		return -ENOMEM;
	n->paid = kvc_usage_paid_for(row);
	if (S_ISREG(row->mode)) {
		n->object = *object;
		for (unsigned t = 0; t < k->tier_slots; t++) {
			n->in[t].place = place[t];
			n->copies.recorded |= place[t].gen != 0;
		}
		n->acct.charged = row->blocks * 512;
		n->acct.file = row->nlink > 0;
		n->model = model;
		kvc_pin_node_loaded_locked(k, n);
	}
	*out = n;
	return 0;
}

/* The same, with the model of its folder. */
static int node_load_both(struct kvc *k, const struct kvc_row *row,
			  const struct kvc_object_row *object,
			  const struct kvc_place place[KVC_TIERS], struct kvc_node **out)
{
	bool moves = S_ISREG(row->mode) && kvc_model_moves_any(k);
	struct kvc_model_move_path path = { .n = 0 };
	struct kvc_model_use u;
	uint64_t model = 0;
	int err = 0;

	if (S_ISREG(row->mode))
		err = kvc_node_files_model_both(k, row->parent, 0, &model, moves ? &path : NULL);
	err = err ?: node_load_locked(k, row, object, place, model, out);
	if (err || !moves)
		return err;
	u = kvc_model_use_of(k, *out);
	kvc_model_use_move_locked(k, row->ino, kvc_model_moves_counted(&path, row->ino, model),
				  model, &u);
	return 0;
}

int kvc_node_get_both(struct kvc *k, uint64_t ino, struct kvc_node **out)
{
	struct kvc_node *n = kvc_node_find_locked(k, ino);
	struct kvc_object_row object = { 0 };
	struct kvc_place place[KVC_TIERS];
	struct kvc_row row;
	int err;

	if (n) {
		*out = n;
		return kvc_node_gone(n) ? -ENOENT : 0;
	}
	if ((err = kvc_row_get(k->cat, ino, &row)))
		return err;
	if (S_ISREG(row.mode)) {
		err = kvc_object_get(k->cat, ino, &object);
		if (err && err != -ENOENT)
			return err;
		if ((err = kvc_place_get(k->cat, ino, place)))
			return err;
	}
	return node_load_both(k, &row, &object, place, out);
}

int kvc_node_get_peeked_both(struct kvc *k, const struct kvc_peek *p, struct kvc_node **out)
{
	*out = kvc_node_find_locked(k, p->ino);
	return *out ? (kvc_node_gone(*out) ? -ENOENT : 0)
		    : node_load_both(k, &p->row, &p->object, p->place, out);
}

int kvc_node_get_modeled_locked(struct kvc *k, const struct kvc_peek *p, uint64_t model,
				struct kvc_node **out)
{
	*out = kvc_node_find_locked(k, p->ino);
	return *out ? (kvc_node_gone(*out) ? -ENOENT : 0)
		    : node_load_locked(k, &p->row, &p->object, p->place, model, out);
}

void kvc_node_settle_locked(struct kvc *k, struct kvc_node *n)
{
	/* The kernel knows the root without a lookup, so the root has no reference but stays. */
	if (n->row.ino == KVC_ROOT || n->refs.kernel || n->refs.engine || n->commit.dirty ||
	    n->refs.opens || n->refs.leases || n->refs.waiting || kvc_node_has_segment(n) ||
	    n->state == KVC_LOADING || !kvc_list_empty(&n->wait.ready) ||
	    !kvc_list_empty(&n->wait.sync))
		return;
	if (n->commit.touched && !n->commit.lost && !k->stopping) {
		/* the committer calls this function again after writing it */
		kvc_node_dirty_locked(k, n);
		return;
	}
	kvc_pin_node_freed_locked(k, n);
	kvc_chunk_leave_locked(k, n);
	kvc_table_del(&k->nodes->table, &n->slot);
	if (n->dropped_dir)
		k->hooks->freed_locked(n);
	kvc_user_share_node_freed_locked(k, n);
	free(n);
}

void kvc_node_dirty_locked(struct kvc *k, struct kvc_node *n)
{
	if (!n->commit.dirty && n->state != KVC_GONE && !n->commit.lost) {
		n->commit.dirty = true;
		k->committer->nnodes++;
		kvc_list_add_tail(&k->committer->nodes, &n->commit.link);
	}
	kvc_committer_wake_locked(k, false);
}

void kvc_node_clean_locked(struct kvc *k, struct kvc_node *n)
{
	if (!n->commit.dirty)
		return;
	n->commit.dirty = false;
	kvc_list_del(&n->commit.link);
	k->committer->nnodes--;
}

void kvc_node_written_locked(struct kvc *k, struct kvc_node *n)
{
	kvc_node_clean_locked(k, n);
	n->commit.touched = false;
}

void kvc_node_attr_locked(struct kvc *k, struct kvc_node *n, struct kvc_row *attr)
{
	struct stat st;

	(void)k;
	*attr = n->row;
	if (n->state == KVC_OPEN && n->segment.fd >= 0 && !fstat(n->segment.fd, &st)) {
		uint64_t mtime = kvc_ns(st.st_mtim);

		attr->size = (uint64_t)st.st_size;
		attr->blocks = (uint64_t)st.st_blocks;
		if (mtime != KVC_MARK_NS) {
			if (mtime != n->segment.mode_ns)
				kvc_node_drop_setid(attr);
			attr->mtime_ns = mtime;
			attr->ctime_ns = kvc_node_ctime(attr->ctime_ns, mtime);
		}
	}
}

void kvc_node_free_all(struct kvc *k)
{
	kvc_table_each(&k->nodes->table, s) {
		struct kvc_node *n = kvc_of(s, struct kvc_node, slot);

		if (n->segment.fd >= 0)
			close(n->segment.fd);
		if (n->dropped_dir)
			k->hooks->freed_locked(n);
		kvc_user_share_node_freed_locked(k, n);
		free(n);
	}
	kvc_table_fini(&k->nodes->table);
}
