/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Lookups in shared tiers, which make objects of other nodes visible here. A name that is not in
 * the catalog is looked up there by its path, while the call waits: a worker of the tier reads the
 * header of the frame. Then a worker of the next tier does, so that a tier that hangs blocks only
 * its own workers. All calls for the same name share one lookup, and a miss is cached for a short
 * time. A match gets a node (LOWER, placed in that tier) and is loaded when it is opened. Folders
 * are found in the same way (tiering/folders.c).
 *
 * A user may have thousands of lookups waiting. Each tier's queue gets a few at a time, of each
 * user in turn, so that a lookup or load of another user does not wait for all of them. A lookup
 * that no call waits for any more is cancelled.
 *
 * Engines write a file under a temporary name and rename it. The lookup before that create costs no
 * request: a temporary name with the digits of a key or of a random number is never looked up.
 * Other temporary names may be folders. They are looked up, and only folders are adopted, until a
 * file with a temporary name is made in the same model.
 *
 * A path that is deleted here while other nodes may still have it is recorded as gone for GONE_NS,
 * so that it does not reappear.
 */
#include "remote_lookup.h"

#include "account.h"
#include "arrival.h"
#include "clock.h"
#include "dir_invalidate.h"
#include "file.h"
#include "folder.h"
#include "folders.h"
#include "ino.h"
#include "keyring.h"
#include "membership.h"
#include "model.h"
#include "model_use.h"
#include "node.h"
#include "path.h"
#include "proof.h"
#include "remove.h"
#include "tier_queue.h"
#include "deferred_free.h"
#include "buckets.h"
#include "chunking.h"

#include <string.h>

#define RANDOM_DIGITS 8u /* minimum number of digits of a key or a random number */
#define MISSES 4096u
#define MISS_NS 1000000000ull
#define ASK_MS 2000ull              /* maximum time that a lookup waits */
#define GIVEN_MAX (2 * KVC_WORKERS) /* enough to keep all workers of a tier busy */
#define GONE_NS (24ull * 3600 * 1000000000)
#define GONE_SOON_NS 10000000000ull

struct kvc_miss {
	uint64_t parent, hash, until_ns;
};

struct ask {
	struct kvc_remote_turn turn; /* first, because the queue frees it */
	struct kvc_list link, waiters;
	uint64_t parent;
	unsigned tried; /* one bit per tier */
	bool folder;    /* adopt only a folder */
	char name[256];
	char path[KVC_FRAME_PATH_MAX + 1];
};

/*
 * Does the name have the form of engines' temporary names: ".tmp" at the end, before a dot, or
 * before digits, such as K.tmp, K.tmp.PID.N and K.tmp1f2e3d4c? "qwen.tmpl" and "v1.tmp-model" do
 * not.
 */
static bool is_temporary(const char *name)
{
	for (const char *p = name; (p = strstr(p, ".tmp")); p += 4)
		if (p[4] == '.' || !p[4 + strspn(p + 4, "0123456789abcdefABCDEF-_")])
			return true;
	return false;
}

/* Does the name have n hexadecimal digits in a row? */
static bool has_hex_run(const char *name, size_t n)
{
	static const char digits[] = "0123456789abcdefABCDEF";

	for (const char *p = name; *(p += strcspn(p, digits)); p += strspn(p, digits))
		if (strspn(p, digits) >= n)
			return true;
	return false;
}

/* The slot that records that files with temporary names are made in a model. */
static uint64_t *temps_slot(struct kvc *k, uint64_t model)
{
	return &k->remote_lookup->temps[model % KVC_REMOTE_LOOKUP_TEMPS];
}

void kvc_remote_lookup_made_locked(struct kvc *k, uint64_t model, const char *name)
{
	model = model ? model : KVC_ROOT;
	if (k->shared && is_temporary(name))
		*temps_slot(k, model) = model;
}

/*
 * May the name be looked up? *folder is set if only a folder may be adopted. Returns 0, -ENOENT or
 * an error.
 */
static int may_ask_both(struct kvc *k, uint64_t parent, const char *name, bool *folder)
{
	uint64_t model;
	int err;

	*folder = is_temporary(name);
	if (!*folder)
		return 0;
	if (has_hex_run(name, RANDOM_DIGITS))
		return -ENOENT;
	if ((err = kvc_node_model_both(k, parent, &model)))
		return err;
	model = model ? model : KVC_ROOT;
	return *temps_slot(k, model) == model ? -ENOENT : 0;
}

static uint64_t ask_hash(uint64_t parent, const char *name)
{
	return kvc_name_hash(name) ^ parent * 0x9e3779b97f4a7c15ull;
}

static struct kvc_miss *miss_slot(struct kvc *k, uint64_t parent, const char *name)
{
	if (!k->remote_lookup->misses)
		k->remote_lookup->misses = calloc(MISSES, sizeof *k->remote_lookup->misses);
	return k->remote_lookup->misses ? &k->remote_lookup->misses[ask_hash(parent, name) % MISSES]
					: NULL;
}

static bool was_missed_locked(struct kvc *k, uint64_t parent, const char *name)
{
	const struct kvc_miss *m = miss_slot(k, parent, name);

	return m && m->parent == parent && m->hash == kvc_name_hash(name) &&
	       m->until_ns > kvc_mono_ns();
}

void kvc_remote_lookup_missed_locked(struct kvc *k, uint64_t parent, const char *name)
{
	struct kvc_miss *m = miss_slot(k, parent, name);

	if (m)
		*m = (struct kvc_miss){ parent, kvc_name_hash(name), kvc_mono_ns() + MISS_NS };
}

int kvc_remote_lookup_is_vain_both(struct kvc *k, uint64_t parent, const char *name, bool again)
{
	bool folder;
	int err = may_ask_both(k, parent, name, &folder);

	return err == -ENOENT ? 1 : err ?: !again && was_missed_locked(k, parent, name);
}

void kvc_remote_lookup_init(struct kvc_remote_lookup *s)
{
	for (unsigned i = 0; i < KVC_REMOTE_LOOKUP_BUCKETS; i++)
		kvc_list_init(&s->asks[i]);
	for (unsigned t = 0; t < KVC_TIERS; t++)
		for (unsigned i = 0; i < KVC_REMOTE_LOOKUP_LANES; i++)
			kvc_list_init(&s->queues[t].lanes[i]);
}

void kvc_remote_lookup_fini(struct kvc_remote_lookup *s)
{
	for (unsigned t = 0; t < KVC_TIERS; t++)
		for (unsigned i = 0; i < KVC_REMOTE_LOOKUP_LANES; i++)
			kvc_list_each_safe(e, &s->queues[t].lanes[i])
				free(kvc_of(e, struct kvc_remote_turn, lane));
	free(s->misses);
}

int kvc_remote_lookup_head(struct kvc *k, unsigned tier, const char *path, uint8_t *page,
			   struct kvc_frame *f)
{
	struct kvc_tier *t = k->tier[tier].t;
	struct kvc_where w = kvc_frame_where_of(path);
	struct iovec iov = { page, KVC_FRAME_HEADER };
	int err;

	kvc_lock(k);
	bool allowed = kvc_tier_allowed_locked(k, tier, KVC_CALL_READ);
	kvc_unlock(k);
	if (!allowed)
		return -EIO;
	err = kvc_tier_get(t, &w, path, 0, &iov, 1);
	kvc_lock(k);
	kvc_tier_result_locked(k, tier, KVC_CALL_READ, w.at, err);
	kvc_unlock(k);
	err = err ?: kvc_frame_decode(page, f);
	if (!err && (!(f->flags & KVC_FRAME_SHARED) || strcmp(f->path, path)))
		err = -EBADMSG; /* a frame for another path */
	err = err ?: kvc_proof_found(k, f);
	if (err == -ENOKEY && kvc_keyring_learn(k, f->key_id))
		err = kvc_proof_found(k, f);
	if (err == -EBADMSG)
		kvc_count(&k->stats, corrupt);
	else if (err == -ENOKEY && kvc_keys_has(k->keys, f->key_id))
		kvc_count(&k->stats, unsealable); /* another key of that number; see proof.c */
	return err;
}

static void turn_submit_locked(struct kvc *k, struct kvc_remote_turn *turn)
{
	k->remote_lookup->queues[turn->job.tier].given++;
	kvc_tier_job_put_locked(k, &turn->job);
}

void kvc_remote_lookup_turn_locked(struct kvc *k, struct kvc_remote_turn *turn, unsigned tier,
				   void (*run)(struct kvc *k, struct kvc_job *j))
{
	struct kvc_remote_lookup_queue *q = &k->remote_lookup->queues[tier];

	turn->job = (struct kvc_job){ .run = run, .tier = tier };
	kvc_list_init(&turn->lane);
	if (q->given < GIVEN_MAX)
		turn_submit_locked(k, turn);
	else
		kvc_list_add_tail(&q->lanes[turn->uid % KVC_REMOTE_LOOKUP_LANES], &turn->lane);
}

/* A lookup in this tier has ended: starts the next one, of the next user. */
void kvc_remote_lookup_turn_ended_locked(struct kvc *k, unsigned tier)
{
	struct kvc_remote_lookup_queue *q = &k->remote_lookup->queues[tier];

	q->given--;
	for (unsigned i = 0; i < KVC_REMOTE_LOOKUP_LANES && q->given < GIVEN_MAX && !k->stopping;
	     i++) {
		struct kvc_list *lane, *first;

		q->turn = (q->turn + 1) % KVC_REMOTE_LOOKUP_LANES;
		lane = &q->lanes[q->turn];
		if (kvc_list_empty(lane))
			continue;
		first = lane->next;
		kvc_list_del(first);
		turn_submit_locked(k, kvc_of(first, struct kvc_remote_turn, lane));
	}
}

static void ask_run(struct kvc *k, struct kvc_job *j);

/* Starts the lookup in the next tier that may be asked; false if none is left. */
static bool ask_next_locked(struct kvc *k, struct ask *a)
{
	for (unsigned i = 0; i < k->ntiers; i++) {
		unsigned t = k->order[i];

		if (!(k->tier[t].t->ops->caps & KVC_TIER_SHARED) || (a->tried & (1u << t)) ||
		    kvc_tier_out_locked(k, t, KVC_CALL_READ))
			continue;
		a->tried |= 1u << t;
		kvc_remote_lookup_turn_locked(k, &a->turn, t, ask_run);
		return true;
	}
	return false;
}

/*
 * The address of the struct seeds the hash, so that users cannot choose names that share a bucket.
 */
static struct kvc_list *ask_bucket(struct kvc *k, uint64_t parent, const char *name)
{
	uint64_t hash = (ask_hash(parent, name) ^ (uintptr_t)k->remote_lookup) *
			0xd6e8feb86659fd93ull;

	return &k->remote_lookup->asks[(hash >> 32) % KVC_REMOTE_LOOKUP_BUCKETS];
}

static struct ask *ask_find_locked(struct kvc *k, uint64_t parent, const char *name)
{
	kvc_list_each(e, ask_bucket(k, parent, name)) {
		struct ask *a = kvc_of(e, struct ask, link);

		if (a->parent == parent && !strcmp(a->name, name))
			return a;
	}
	return NULL;
}

/* Cancels a lookup that has not started and that no call waits for any more. */
static void ask_forget_locked(struct ask *a)
{
	if (!a || !kvc_list_empty(&a->waiters) || kvc_list_empty(&a->turn.lane))
		return;
	kvc_list_del(&a->turn.lane);
	kvc_list_del(&a->link);
	free(a);
}

/* The tier does not have the name: moves the lookup to a new struct, for the next tier. */
static bool ask_next_tier_locked(struct kvc *k, struct ask *a)
{
	struct ask *next = malloc(sizeof *next);

	if (!next)
		return false;
	*next = *a;
	if (!ask_next_locked(k, next)) {
		free(next);
		return false;
	}
	kvc_list_init(&next->waiters);
	kvc_list_splice(&next->waiters, &a->waiters);
	kvc_list_add_tail(ask_bucket(k, a->parent, a->name), &next->link);
	kvc_list_del(&a->link);
	return true;
}

static void ask_run(struct kvc *k, struct kvc_job *j)
{
	struct ask *a = kvc_of(j, struct ask, turn.job);
	KVC_MEM uint8_t *page = aligned_alloc(KVC_PAGE, KVC_FRAME_HEADER);
	KVC_MEM struct kvc_frame *f = kvc_frame_new();
	struct kvc_where w = kvc_frame_where_of(a->path);
	bool found = false;

	if (page && f && !kvc_remote_lookup_head(k, j->tier, a->path, page, f) &&
	    (!a->folder || (f->flags & KVC_FRAME_FOLDER))) {
		kvc_lock_both(k);
		w.len = KVC_FRAME_HEADER + kvc_round_up(f->stored_len, KVC_PAGE);
		int err = kvc_remote_lookup_adopt_both(k, j->tier, a->parent, a->name, &w, f);

		found = !err || err == -EEXIST;
		kvc_unlock_both(k);
	}
	kvc_lock(k);
	kvc_remote_lookup_turn_ended_locked(k, j->tier);
	if (!found && ask_next_tier_locked(k, a)) {
		kvc_unlock(k);
		return;
	}
	if (found)
		kvc_count(&k->stats, ask_hits);
	else
		kvc_remote_lookup_missed_locked(k, a->parent, a->name);
	kvc_list_del(&a->link);
	kvc_wait_wake_all_locked(k, &a->waiters, 0);
	kvc_unlock(k);
}

uint64_t kvc_remote_lookup_deadline_ns(const struct kvc *k)
{
	return kvc_mono_ns() + kvc_min(k->opt.deadline_ms, ASK_MS) * 1000000;
}

/*
 * Makes a lookup, for which no call waits yet. Returns 0 and *out; -ENOENT: no tier may be asked,
 * or the name was deleted here; -EAGAIN: *gone is not current (*where is the path); or an error.
 */
static int ask_new_both(struct kvc *k, uint64_t parent, const char *name, uint32_t uid,
			unsigned tried, const struct kvc_peek_gone *gone, struct kvc_where *where,
			struct ask **out)
{
	struct ask *a = calloc(1, sizeof *a);
	int err = a ? may_ask_both(k, parent, name, &a->folder) : -ENOMEM;

	err = err ?: kvc_path_in_both(k, parent, name, a->path);
	if (!err) {
		*where = kvc_frame_where_of(a->path);
		err = kvc_gone_get_peeked(k->cat, where, kvc_clock_ns(k), gone);
		err = err == -ENOENT ? 0 : err ?: -ENOENT;
	}
	if (!err) {
		a->parent = parent;
		a->turn.uid = uid;
		a->tried = tried;
		snprintf(a->name, sizeof a->name, "%s", name);
		err = ask_next_locked(k, a) ? 0 : -ENOENT; /* no tier may be asked: a miss */
	}
	if (err) {
		free(a);
		return err == -ENAMETOOLONG ? -ENOENT : err;
	}
	kvc_list_init(&a->waiters);
	kvc_list_add_tail(ask_bucket(k, parent, name), &a->link);
	*out = a;
	return 0;
}

int kvc_remote_lookup_ask_both(struct kvc *k, uint64_t parent, const char *name, struct kvc_wait *w,
			       const struct kvc_peek_gone *gone, struct kvc_where *path)
{
	struct ask *a;
	int err;

	if (!k->shared || k->stopping)
		return -ENOENT;
	if ((err = kvc_remote_lookup_is_vain_both(k, parent, name, false)))
		return err < 0 ? err : -ENOENT;
	if (!w)
		return -EAGAIN;
	a = ask_find_locked(k, parent, name);
	if (w->deadline_ns && kvc_mono_ns() >= w->deadline_ns) {
		ask_forget_locked(a);
		return -ENOENT;
	}
	if (!kvc_wait_may_park(w)) {
		kvc_count(&k->stats, waits_refused);
		return -ENOENT;
	}
	if (!a) {
		err = ask_new_both(k, parent, name, w->uid, 0, gone, path, &a);
		if (err)
			return err == -EAGAIN ? -EINPROGRESS : err;
		kvc_count(&k->stats, asks);
	}
	if (!w->deadline_ns)
		w->deadline_ns = kvc_remote_lookup_deadline_ns(k);
	return kvc_wait_park_locked(k, &a->waiters, w);
}

int kvc_remote_lookup_start_both(struct kvc *k, uint64_t parent, const char *name, uint32_t uid,
				 unsigned tried, bool counted, const struct kvc_peek_gone *gone)
{
	struct kvc_where where;
	struct ask *a;
	int err;

	if (k->stopping)
		return -ENOENT;
	if (ask_find_locked(k, parent, name))
		return 0;
	err = ask_new_both(k, parent, name, uid, tried, gone, &where, &a);
	if (!err && !counted)
		kvc_count(&k->stats, asks);
	return err;
}

int kvc_remote_lookup_wait_locked(struct kvc *k, uint64_t parent, const char *name,
				  struct kvc_wait *w)
{
	struct ask *a = ask_find_locked(k, parent, name);

	return a ? kvc_wait_park_locked(k, &a->waiters, w) : 0;
}

void kvc_remote_lookup_forget_locked(struct kvc *k, uint64_t parent, const char *name)
{
	ask_forget_locked(ask_find_locked(k, parent, name));
}

/* A frame that is being adopted. */
struct adoption {
	struct kvc_row row;
	uint64_t bytes, chunk, model; /* bytes: allocated size of the file */
};

/* May the frame be adopted as a file of this folder? Finds its chunk and model. */
static int check_frame_both(struct kvc *k, struct kvc_node *folder, const char *name,
			    const struct kvc_frame *f, struct adoption *a)
{
	int err;

	if (f->size > k->pool.bytes || a->bytes > f->size + (16u << 20) ||
	    (f->flags & KVC_FRAME_CODED ? 0 : f->raw_len != f->stored_len))
		return -EBADMSG;
	if (f->flags & KVC_FRAME_SEALED ? !kvc_keys_has(k->keys, f->key_id) : k->keys != NULL)
		return -ENOKEY; /* with keys, an unencrypted frame is not trusted */
	kvc_buckets_filled_both(k, folder);
	err = kvc_chunking_join_both(k, folder, NULL, name, false, &a->chunk);
	err = err ?: kvc_node_model_both(k, a->row.parent, &a->model);
	return err ?: kvc_quota_allows_locked(k, a->model, a->row.blocks * 512);
}

/* Makes the file LOWER, with its copy in this tier. */
static int adopt_file_both(struct kvc *k, struct kvc_node *n, unsigned tier,
			   const struct kvc_where *w, const struct kvc_frame *f,
			   const struct adoption *a)
{
	const struct kvc_object_row object = {
		.gen = 1,
		.size = f->size,
		.sum = f->raw_sum,
		.has_sum = !(f->flags & (KVC_FRAME_SPARSE | KVC_FRAME_SEALED)),
		.lower = true,
		.decoded = f->flags & KVC_FRAME_DECODED,
	};
	const struct kvc_place place = kvc_place_of(1, w, f);
	int err;

	kvc_file_adopted_locked(n, tier, &object, &place);
	kvc_account_set_model_locked(n, a->model);
	kvc_folder_grew_locked(k, n, f->size);
	err = kvc_membership_join_both(k, n);
	if (!err)
		kvc_chunk_accessed_locked(k, n->chunk, false);
	err = err ?: kvc_row_put(k->cat, &a->row, &n->paid);
	err = err ?: kvc_object_put(k->cat, n->row.ino, &n->object);
	return err ?: kvc_place_put(k->cat, n->row.ino, tier, &n->in[tier].place);
}

/*
 * Without a key file anybody with write access to the remote can forge an owner, so the mount's
 * options decide. Set-id bits are never adopted.
 */
static void set_owner(const struct kvc *k, struct kvc_row *row)
{
	const struct kvc_options *o = &k->opt;
	uint32_t mode = o->adopt_mode == KVC_UNSET ? 0600 : (uint32_t)o->adopt_mode & 0777;

	if (k->keys)
		return;
	row->uid = o->adopt_uid == KVC_UNSET ? geteuid() : (uint32_t)o->adopt_uid;
	row->gid = o->adopt_gid == KVC_UNSET ? getegid() : (uint32_t)o->adopt_gid;
	if (S_ISDIR(row->mode)) /* read permission includes search permission */
		mode |= (mode & 0444) >> 2;
	row->mode = (row->mode & S_IFMT) | mode;
}

int kvc_remote_lookup_adopt_both(struct kvc *k, unsigned tier, uint64_t parent, const char *name,
				 const struct kvc_where *w, const struct kvc_frame *f)
{
	bool is_folder = f->flags & KVC_FRAME_FOLDER;
	struct adoption a = { .bytes = f->flags & KVC_FRAME_SPARSE ? f->raw_len : f->size };
	struct kvc_node *folder, *n;
	uint64_t now = kvc_now_ns(), other;
	uint32_t kind;
	int err = kvc_node_get_both(k, parent, &folder);

	a.row = (struct kvc_row){
		.mode = (is_folder ? S_IFDIR : S_IFREG) | (f->mode & 0777),
		.uid = f->uid,
		.gid = f->gid,
		.nlink = is_folder ? 2 : 1,
		.size = is_folder ? 0 : f->size,
		.blocks = is_folder ? 0 : kvc_round_up(a.bytes, KVC_PAGE) / 512,
		.atime_ns = now,
		.mtime_ns = f->mtime_ns,
		.ctime_ns = now,
		.btime_ns = f->btime_ns,
		.parent = parent,
	};
	set_owner(k, &a.row);
	if (!err && (folder->commit.lost || kvc_chunk_drop_is_detached(folder) ||
		     !S_ISDIR(folder->row.mode)))
		err = -ENOENT;
	if (!err) {
		err = kvc_name_get(k->cat, parent, name, &other, &kind);
		err = !err ? -EEXIST : err == -ENOENT ? 0 : err;
	}
	if (!err && !is_folder)
		err = check_frame_both(k, folder, name, f, &a);
	err = err ?: kvc_catalog_accepts(k->cat, false) ?: kvc_ino_new_both(k, &a.row.ino);
	if (err)
		return err;
	a.row.chunk = is_folder ? 0 : a.chunk ? a.chunk : a.row.ino;
	n = kvc_node_new_locked(k, &a.row);
	if (!n)
		return -ENOMEM;
	if (is_folder) {
		if (w->at || w->hi) /* otherwise the folder was invented by an import */
			k->folders->put[tier][a.row.ino % KVC_FOLDERS] = a.row.ino;
		err = kvc_row_put(k->cat, &a.row, &n->paid);
	} else {
		err = adopt_file_both(k, n, tier, w, f, &a);
	}
	err = err ?: kvc_name_put(k->cat, parent, name, a.row.ino, a.row.mode & S_IFMT);
	if (!err) {
		kvc_arrival_named_locked(k, parent, name);
		kvc_folder_touch_locked(k, folder, is_folder ? 1 : 0);
		if (is_folder) /* as after mkdir */
			kvc_chunking_folder_arrived_both(k, folder);
		kvc_account_quota_count_locked(k, n);
		if (!is_folder)
			kvc_model_use_place_locked(k, n, tier, 0, n->in[tier].place.where.len);
	}
	kvc_node_settle_locked(k, n);
	return err;
}

/*
 * May the removal be the reaction of an engine to a failed load? Engines delete a file that they
 * cannot read, and then its folder. Other nodes still have it, so it is looked up again soon. The
 * removal of a file that can be read here is deliberate, in whatever state the tiers are.
 */
static bool unreadable_locked(const struct kvc *k, const struct kvc_node *n)
{
	bool out = false;

	if (S_ISDIR(n->row.mode))
		return n->unread;
	if (kvc_node_has_segment(n))
		return false;
	if (n->load.error || n->state == KVC_LOADING)
		return true;
	kvc_tier_each(k, t) {
		if (!n->in[t].place.gen || n->in[t].place.gen != n->object.gen)
			continue;
		if (!(k->tier[t].t->ops->caps & KVC_TIER_SHARED) ||
		    (!kvc_tier_out_locked(k, t, KVC_CALL_READ) &&
		     k->tier[t].breaker.of[KVC_CALL_READ].is == KVC_BREAKER_CLOSED))
			return false;
		out = true;
	}
	return out;
}

/* Marks the parent of an unreadable file or folder: it may be removed next. */
static void mark_folder_unread_locked(struct kvc *k, const struct kvc_node *n)
{
	struct kvc_node *folder = kvc_node_find_locked(k, n->row.parent);

	if (folder && S_ISDIR(folder->row.mode))
		folder->unread = true;
}

void kvc_remote_lookup_unshare_both(struct kvc *k, struct kvc_node *n, const char *path, bool moved)
{
	struct kvc_where w = kvc_frame_where_of(path);
	/* soon: the name is looked up again after some seconds, instead of a day */
	bool soon = !moved && unreadable_locked(k, n);
	uint64_t model;
	int shared;

	if (!k->shared || !*path || n->copies.unshared)
		/* no other node can have it: a short-lived name costs nothing */
		return;
	if (soon)
		mark_folder_unread_locked(k, n);
	/* moved: the copy stays while it is the only one */
	if (S_ISREG(n->row.mode) && (!moved || kvc_node_has_segment(n)) &&
	    !kvc_node_model_both(k, n->row.parent, &model) &&
	    !kvc_model_attr_both(k, model, KVC_MODEL_SHARED, &shared) &&
	    shared == KVC_SHARED_DELETE) {
		kvc_tier_each(k, t)
			if (n->in[t].place.gen && kvc_tier_takes(k->tier[t].t) &&
			    (k->tier[t].t->ops->caps & KVC_TIER_SHARED)) {
				if (moved) { /* the frame is removed once another copy exists */
					if (kvc_tier_same_name(&n->in[t].place.where, &w))
						kvc_file_set_old_name_locked(n, t, true);
					soon |= n->copies.old_name & (1u << t) &&
						!kvc_tier_out_locked(k, t, KVC_CALL_WRITE);
					continue;
				}
				soon = false; /* note_delete (remove.c) decides */
				kvc_remove_note_both(k, t, n->row.ino, &n->in[t].place);
				kvc_deferred_free_shared_locked(k, t, n->row.ino, &n->in[t].place);
				kvc_file_set_old_name_locked(n, t, false);
			}
	}
	kvc_gone_put(k->cat, &w, kvc_clock_ns(k) + (soon ? GONE_SOON_NS : GONE_NS));
}
