/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Rescans. A model's new quota or policy is applied to the files that it already has, and a quota
 * learns how many bytes they take. A thread visits all inodes in the order of their numbers, a few
 * under each hold of the locks, so that a model of ten million files delays no caller. The rows are
 * first read without locks; under the locks only changed rows are read again. A rescan of a small
 * store ends before the call that requested it returns. user.kvcachefs.survey shows the progress.
 *
 *   requested:  on k->model_rescan->asked, and in the catalog (meta survey:MODEL), so that it
 *               continues after a kill
 *   begins:     when a commit has written all inodes below `limit`, which is the next inode number
 *               at the time of the request
 *   at inode i: its chunk gets the class and quota of its model, and the file is counted
 *   ends:       the key is deleted in the same transaction that stores the quota's sum
 *
 * The count is exact while files change (kvc_quota_counts). Inodes up to q->at were counted,
 * and their changes are counted at once. So are the changes of inodes from q->below on, which are
 * younger than the rescan. All others are counted when the rescan reaches them. Inode numbers are
 * never used twice, and folders do not move in or out of a model that has a quota or a policy. A
 * request during a rescan starts another one, which counts no file twice.
 *
 * The same thread moves the figures of folders to other models, and, while no rescan runs, counts
 * what the files of all models use (model_count.c).
 */
#include "model_rescan.h"

#include "account.h"
#include "model_count.h"
#include "model_use.h"
#include "commit_batch.h"
#include "committer.h"
#include "ino.h"
#include "log.h"
#include "membership.h"
#include "node.h"

#include <inttypes.h>
#include <string.h>

#define KEY "survey:"
#define SOME 64  /* inodes read at once */
#define HOLD 128 /* steps under one hold of the locks */
#define READ 16  /* a read from SQLite under the locks counts as this many steps */
/*
 * Size of the inodes and names, in bytes, up to which callers wait for the end of a rescan: some
 * ten thousand files. While a caller waits, the kernel blocks all creates in the folder.
 */
#define SMALL (8ull << 20)
#define SMALL_MS 100 /* maximum time that a caller waits */
/* The first wait after an error; each further one is twice as long, up to AGAIN_MAX_NS. */
#define AGAIN_NS 100000000ull
#define AGAIN_MAX_NS 60000000000ull

struct rescan {
	struct kvc_list link; /* on k->model_rescan->asked */
	uint64_t model, at, limit, txn;
	bool begun, stale; /* stale: requested again since it began */
};

/* The last folder and its model, cached because files of one folder usually follow each other. */
struct memo {
	uint64_t folder, model;
};

static void rescan_key(uint64_t model, char key[64])
{
	snprintf(key, 64, KEY "%" PRIx64, model);
}

int kvc_model_rescan_ask_both(struct kvc *k, uint64_t model)
{
	struct rescan *s = NULL, *under_way = NULL;
	char key[64];
	int err;

	/* at most one that runs and one that waits, however often it is requested */
	kvc_list_each(e, &k->model_rescan->asked) {
		struct rescan *x = kvc_of(e, struct rescan, link);

		if (x->model == model && x->begun)
			under_way = x;
		else if (x->model == model)
			s = x;
	}
	rescan_key(model, key);
	err = kvc_meta_set(k->cat, key, "1");
	if (err)
		return err;
	if (s)
		kvc_list_del(&s->link);
	else if (!(s = calloc(1, sizeof *s)))
		return -ENOMEM;
	if (under_way)
		under_way->stale = true;
	s->model = model;
	s->limit = k->inos->next;
	s->txn = kvc_catalog_txn(k->cat);
	kvc_list_add_tail(&k->model_rescan->asked, &s->link);
	kvc_committer_wake_locked(k, true);
	pthread_cond_broadcast(&k->model_rescan->cond);
	return 0;
}

void kvc_model_rescan_count_locked(struct kvc *k, struct kvc_quota *q)
{
	q->counting = true;
	q->at = 0;
	q->below = k->inos->next;
}

bool kvc_model_rescan_show_locked(struct kvc *k, uint64_t model, uint64_t *at, uint64_t *limit)
{
	kvc_list_each(e, &k->model_rescan->asked) {
		const struct rescan *s = kvc_of(e, struct rescan, link);

		if (s->model == model && !s->stale) {
			*at = s->at;
			*limit = s->limit;
			return true;
		}
	}
	return false;
}

int kvc_model_rescan_park(struct kvc *k, struct kvc_wait *w)
{
	uint64_t inodes, attrs, limit;
	int err = 0;

	kvc_usage_show(k->cat, &inodes, &attrs, &limit);
	if (inodes > SMALL)
		return 0;
	kvc_lock(k);
	if (!kvc_list_empty(&k->model_rescan->asked)) {
		w->deadline_ns = kvc_mono_ns() + SMALL_MS * 1000000ull;
		err = kvc_wait_park_locked(k, &k->model_rescan->waiters, w);
	}
	kvc_unlock(k);
	return err;
}

void kvc_model_rescan_wait(struct kvc *k)
{
	struct timespec until = kvc_timespec(kvc_mono_ns() + SMALL_MS * 1000000ull);
	uint64_t inodes, attrs, limit;
	int rc = 0;

	kvc_usage_show(k->cat, &inodes, &attrs, &limit);
	kvc_lock(k);
	while ((!kvc_list_empty(&k->model_rescan->asked) ||
		(k->model_stats->count.running && inodes <= SMALL)) &&
	       !k->stopping && !rc)
		rc = kvc_lock_wait(&k->lock, &k->model_rescan->cond, &until);
	kvc_unlock(k);
}

/* Gets the model of a folder. row is the folder's row, or NULL if it was not read. */
static int model_of_both(struct kvc *k, uint64_t folder, const struct kvc_row *row, struct memo *m,
			 unsigned *steps)
{
	int err = 0;

	if (m->folder == folder && folder)
		return 0;
	*steps += row ? 1 : READ;
	if (row)
		err = kvc_node_model_of_row_both(k, row, &m->model);
	else
		err = kvc_node_model_both(k, folder, &m->model);
	m->folder = err ? 0 : folder;
	return err;
}

/* Visits one inode of any model, given as it was read before; it may have been deleted since. */
static int visit_both(struct kvc *k, struct rescan *s, const struct kvc_peeked *p, struct memo *m,
		      unsigned *steps)
{
	uint64_t ino = p->row.ino;
	struct kvc_quota *q = kvc_quota_of_locked(k, s->model);
	struct kvc_node *n = kvc_node_find_locked(k, ino);
	unsigned holds = kvc_peeked_holds(k->cat, p);
	const struct kvc_row *folder = NULL;
	struct kvc_row row = p->row;
	int err = 0;

	++*steps;
	if (n || !(holds & KVC_PEEKED_ROW)) {
		*steps += n ? 0 : READ;
		err = kvc_node_row_both(k, ino, &row);
	}
	if (!err && S_ISDIR(row.mode))
		folder = &row;
	else if (!err && (holds & KVC_PEEKED_FOLDER) && row.parent == p->folder.ino &&
		 !kvc_node_find_locked(k, row.parent))
		folder = &p->folder;
	if (!err)
		err = model_of_both(k, S_ISDIR(row.mode) ? ino : row.parent, folder, m, steps);
	if (!err && m->model == s->model) {
		bool read = holds & KVC_PEEKED_CHUNK;

		*steps += read || kvc_chunk_find_locked(k, ino) ? 0 : READ;
		err = kvc_membership_reclass_both(k, ino, s->model, read ? &p->chunk : NULL);
		if (q && q->counting && ino > q->at && S_ISREG(row.mode)) {
			uint64_t bytes = n ? kvc_account_quota_bytes(n) : row.blocks * 512;

			q->used += bytes;
			if (n)
				kvc_account_charged_locked(n, bytes);
		}
	}
	if (!err && n && S_ISREG(row.mode))
		/* a folder above may have moved since the node's model was set */
		kvc_account_correct_model_locked(k, n, m->model);
	if (q && q->counting && ino < q->below)
		q->at = kvc_max(q->at, ino);
	return err == -ENOENT ? 0 : err;
}

static void rescan_end_both(struct kvc *k, struct rescan *s)
{
	struct kvc_quota *q = kvc_quota_of_locked(k, s->model);
	char key[64];

	if (!s->stale) {
		rescan_key(s->model, key);
		kvc_meta_del(k->cat, key);
		if (q) {
			q->counting = false;
			kvc_quota_save_both(k, q);
			kvc_quota_grant_locked(k, q);
			kvc_quota_press_locked(k, q);
		}
	}
	kvc_list_del(&s->link);
	free(s);
	kvc_committer_wake_locked(k, false);
	pthread_cond_broadcast(&k->model_rescan->cond);
	if (kvc_list_empty(&k->model_rescan->asked))
		kvc_wait_wake_all_locked(k, &k->model_rescan->waiters, 0);
}

/*
 * Visits the next inodes. Returns their number, 0 at the end, or a negative errno; -ECANCELED if
 * the rescan must stop.
 */
static int rescan_some(struct kvc *k, struct rescan *s, struct memo *m)
{
	struct kvc_peeked p[SOME];
	size_t n = 0;
	int err = kvc_peek_rows(k->cat, s->at, s->limit, SOME, p, &n);

	kvc_commit_gate(k);
	kvc_lock_both(k);
	for (size_t i = 0; i < n && !err;) {
		m->folder = 0; /* it may have moved */
		for (unsigned steps = 0; i < n && steps < HOLD && !err; i++) {
			err = k->stopping || s->stale ? -ECANCELED
						      : visit_both(k, s, &p[i], m, &steps);
			if (!err)
				s->at = p[i].row.ino;
		}
		kvc_pause_both(k);
	}
	kvc_unlock_both(k);
	return err ?: (int)n;
}

/* Waits after an error, and doubles *wait_ns, which is 0 before the first one. */
static void back_off_locked(struct kvc *k, uint64_t *wait_ns)
{
	uint64_t end;
	int rc = 0;

	*wait_ns = *wait_ns ? kvc_min(2 * *wait_ns, AGAIN_MAX_NS) : AGAIN_NS;
	end = kvc_mono_ns() + *wait_ns;
	while (!k->stopping && !rc) {
		const struct timespec until = kvc_timespec(end);

		rc = kvc_lock_wait(&k->lock, &k->model_rescan->cond, &until);
	}
}

static void rescan_run(struct kvc *k, struct rescan *s)
{
	struct memo m = { 0 };
	uint64_t wait_ns = 0;
	bool warned = false;
	int got;

	while ((got = rescan_some(k, s, &m)) && got != -ECANCELED) {
		if (got > 0) {
			wait_ns = 0;
			continue;
		}
		if (!warned)
			kvc_warn("cannot read a model's files: %s; retrying", strerror(-got));
		warned = true;
		kvc_lock(k);
		back_off_locked(k, &wait_ns);
		kvc_unlock(k);
		if (kvc_stopping(k))
			break;
	}
	kvc_lock_both(k);
	if (!k->stopping)
		rescan_end_both(k, s);
	kvc_unlock_both(k);
}

/* Returns the first rescan that can begin: SQLite has every inode below its limit. */
static struct rescan *rescan_next_locked(struct kvc *k)
{
	kvc_list_each(e, &k->model_rescan->asked) {
		struct rescan *s = kvc_of(e, struct rescan, link);

		if (k->committer->committed >= s->txn)
			return s;
	}
	return NULL;
}

/*
 * Continues a folder's move to another model, or else the count of all files. Releases and takes
 * k->lock. *wait_ns: see back_off_locked; an error is reported once until a count succeeds.
 */
static void count_some_locked(struct kvc *k, uint64_t *wait_ns)
{
	bool moves = kvc_model_count_moves_locked(k);
	int err;

	kvc_unlock(k);
	err = moves ? kvc_model_count_move_some(k) : kvc_model_count_some(k);
	if (err && !*wait_ns)
		kvc_warn("cannot count the files of models: %s; retrying", strerror(-err));
	kvc_lock(k);
	if (err)
		back_off_locked(k, wait_ns);
	else
		*wait_ns = 0;
}

static void *rescan_thread(void *arg)
{
	struct kvc *k = arg;
	uint64_t wait_ns = 0;

	kvc_lock(k);
	while (!k->stopping) {
		struct timespec until = kvc_timespec(kvc_mono_ns() + AGAIN_NS);
		struct rescan *s = rescan_next_locked(k);

		/* moves are first: a rescan counts files in the models that their paths name */
		if (kvc_model_count_moves_locked(k) || (!s && kvc_model_count_due_locked(k))) {
			count_some_locked(k, &wait_ns);
			continue;
		}
		if (kvc_list_empty(&k->model_rescan->asked) && !k->model_stats->count.running) {
			kvc_lock_wait(&k->lock, &k->model_rescan->cond, NULL);
			continue;
		}
		if (!s) {
			kvc_lock_wait(&k->lock, &k->committer->committed_cond, &until);
			continue;
		}
		s->begun = true;
		kvc_unlock(k);
		rescan_run(k, s);
		kvc_lock(k);
	}
	kvc_unlock(k);
	return NULL;
}

int kvc_model_rescan_load_both(struct kvc *k)
{
	char key[64] = KEY, value[64];
	int err;

	while (!(err = kvc_meta_next(k->cat, KEY, key, value, sizeof value))) {
		uint64_t model = 0;
		struct kvc_quota *q;
		struct kvc_row row;

		if (sscanf(key, KEY "%" SCNx64, &model) != 1 || kvc_row_get(k->cat, model, &row)) {
			kvc_meta_del(k->cat, key);
			continue;
		}
		if ((q = kvc_quota_of_locked(k, model)) && !q->counting) {
			q->used = 0;
			kvc_model_rescan_count_locked(k, q);
		}
		if ((err = kvc_model_rescan_ask_both(k, model)))
			return err;
	}
	return err == -ENOENT ? 0 : err;
}

int kvc_model_rescan_start(struct kvc *k)
{
	int err = -pthread_create(&k->model_rescan->thread, NULL, rescan_thread, k);

	k->model_rescan->has_thread = !err;
	return err;
}

void kvc_model_rescan_stop(struct kvc *k)
{
	kvc_lock(k);
	pthread_cond_broadcast(&k->model_rescan->cond);
	pthread_cond_broadcast(&k->committer->committed_cond);
	kvc_unlock(k);
	if (k->model_rescan->has_thread)
		pthread_join(k->model_rescan->thread, NULL);
	k->model_rescan->has_thread = false;
}

void kvc_model_rescan_free(struct kvc *k)
{
	kvc_list_each_safe(e, &k->model_rescan->asked)
		free(kvc_of(e, struct rescan, link));
	kvc_list_init(&k->model_rescan->asked);
}
