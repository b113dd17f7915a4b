/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sweeps: long work that somebody asked for by .kvcachefs/control, in a thread of its own, one at a
 * time.
 *
 *   import   takes in the listing of the shared tiers: every frame whose path is not known here
 *            gets a node
 *   rekey    seals again, with the key that new frames get, what is sealed with another or not at
 *            all. Each object is brought into the pool and copied down anew; the old copy goes when
 *            the new one is recorded. What is done is in the placements, so a sweep that was cut
 *            off is simply begun again.
 */
#include "cache.h"
#include "calls.h"
#include "clock.h"
#include "dirty.h"
#include "file.h"
#include "load.h"
#include "log.h"
#include "path.h"
#include "proof.h"
#include "share.h"
#include "spill.h"
#include "tierq.h"

#include <inttypes.h>
#include <string.h>

#define BATCH 64

struct kvc_sweep {
	struct kvc *k;
	pthread_t thread;
	_Atomic bool stop, done;
	_Atomic uint64_t seen, changed, failed;
	int (*run)(struct kvc_sweep *s);
	const char *name;
	int err;
};

struct import {
	struct kvc_sweep *s;
	unsigned tier;
	/* for the headers of folders */
	uint8_t *page;
	struct kvc_frame *folder;
};

static bool is_name(const char *name)
{
	return *name && strlen(name) < 256 && strcmp(name, ".") && strcmp(name, "..");
}

/*
 * The folder that a path lies in: 0 with *parent and the name in it (*rest). -ENOENT: where the
 * path is cut off then there is no such folder, and *parent is the one that lacks it.
 */
static int folder_both(struct kvc *k, char *path, uint64_t *parent, char **rest)
{
	char *slash;

	*parent = KVC_ROOT;
	for (*rest = path; (slash = strchr(*rest, '/')); *rest = slash + 1) {
		uint64_t ino;
		uint32_t kind;
		int err;

		*slash = 0;
		err = is_name(*rest) ? kvc_name_get(k->cat, *parent, *rest, &ino, &kind) : -EBADMSG;
		if (err || !S_ISDIR(kind))
			return err ?: -ENOTDIR;
		*slash = '/';
		*parent = ino;
	}
	return is_name(*rest) ? 0 : -EBADMSG;
}

/*
 * A folder that is missing here, as the tier has it; where it has none that can be believed, for
 * who mounts alone.
 */
static int add_folder(struct import *im, const char *path, uint64_t parent, const char *name)
{
	struct kvc *k = im->s->k;
	struct kvc_frame *f = im->folder;
	struct kvc_where where = kvc_where_of(path);
	int err;

	if (kvc_share_head(k, im->tier, path, im->page, f) || !(f->flags & KVC_FRAME_FOLDER)) {
		memset(f, 0, sizeof *f);
		f->flags = KVC_FRAME_FOLDER;
		f->mode = 0700;
		f->uid = geteuid();
		f->gid = getegid();
		f->mtime_ns = f->btime_ns = kvc_now_ns();
		where = (struct kvc_where){ 0 };
	}
	kvc_lock_both(k);
	err = kvc_adopt_both(k, im->tier, parent, name, &where, f);
	kvc_unlock_both(k);
	return err == -EEXIST ? 0 : err;
}

/* Takes one frame in, after the folders above it. */
static int add_file(struct import *im, const struct kvc_where *w, const struct kvc_frame *f)
{
	struct kvc *k = im->s->k;
	char path[KVC_FRAME_PATH_MAX + 1], *name;
	uint64_t parent;
	int missing, err;

	for (size_t depth = 0; depth < KVC_FRAME_PATH_MAX / 2; depth++) {
		memcpy(path, f->path, sizeof path);
		kvc_lock_both(k);
		missing = kvc_gone_get(k->cat, w, kvc_clock_ns(k));
		if (missing != -ENOENT) { /* deleted here, or that is not known now */
			kvc_unlock_both(k);
			return missing ?: -EEXIST;
		}
		missing = folder_both(k, path, &parent, &name);
		err = missing ?: kvc_adopt_both(k, im->tier, parent, name, w, f);
		kvc_commit_soon_locked(k, false);
		kvc_unlock_both(k);
		if (missing != -ENOENT || (err = add_folder(im, path, parent, name)))
			return err;
	}
	return -ENAMETOOLONG;
}

static int import_one(void *arg, const struct kvc_where *w, const struct kvc_frame *f)
{
	struct import *im = arg;
	struct kvc_where named = kvc_where_of(f->path);
	int err;

	im->s->seen++;
	if (!(f->flags & KVC_FRAME_SHARED) || (f->flags & KVC_FRAME_FOLDER) || named.at != w->at ||
	    named.hi != w->hi)
		return im->s->stop;
	named.len = KVC_FRAME_HEADER + kvc_round_up(f->stored_len, KVC_PAGE);
	err = kvc_proof_found(im->s->k, f) ?: add_file(im, &named, f);
	if (!err) {
		im->s->changed++;
		kvc_count(&im->s->k->stats, imports);
	} else if (err != -EEXIST) {
		im->s->failed++;
	}
	return im->s->stop;
}

static int import_run(struct kvc_sweep *s)
{
	struct kvc *k = s->k;
	KVC_MEM uint8_t *page = aligned_alloc(KVC_PAGE, KVC_FRAME_HEADER);
	KVC_MEM struct kvc_frame *folder = kvc_frame_new();
	int err = !k->shared ? -ENODEV : page && folder ? 0 : -ENOMEM;

	for (unsigned i = 0; i < k->ntiers && !err && !s->stop; i++) {
		struct kvc_tier *t = k->tier[k->order[i]].t;
		struct import im = { s, k->order[i], page, folder };

		if (t->ops->caps & KVC_TIER_SHARED)
			err = t->ops->list ? t->ops->list(t, import_one, &im) : -EOPNOTSUPP;
	}
	return err > 0 ? 0 : err;
}

struct waiter {
	struct kvc_wait w;
	pthread_mutex_t lock;
	pthread_cond_t cond;
	bool woken;
};

static void wake(struct kvc_wait *w)
{
	struct waiter *x = kvc_of(w, struct waiter, w);

	pthread_mutex_lock(&x->lock);
	x->woken = true;
	pthread_cond_signal(&x->cond);
	pthread_mutex_unlock(&x->lock);
}

/* Brings an object into the pool and holds it there by n->leases. */
static int bring(struct kvc *k, uint64_t ino, struct kvc_node **n)
{
	struct waiter x = {
		.w.wake = wake,
		.lock = PTHREAD_MUTEX_INITIALIZER,
		.cond = PTHREAD_COND_INITIALIZER,
	};
	int err;

	kvc_lock_both(k);
	err = kvc_node_get_both(k, ino, n);
	if (!err) {
		kvc_chunk_stir((*n)->chunk);
		(*n)->leases++;
	}
	if (!err && (*n)->state == KVC_LOWER)
		err = kvc_load_start_locked(k, *n, true);
	while (!err && (*n)->state == KVC_LOADING) {
		x.woken = false;
		x.w = (struct kvc_wait){ .wake = wake };
		kvc_park_locked(k, &(*n)->waiters, &x.w);
		kvc_unlock_both(k);
		pthread_mutex_lock(&x.lock);
		while (!x.woken)
			pthread_cond_wait(&x.cond, &x.lock);
		pthread_mutex_unlock(&x.lock);
		kvc_lock_both(k);
		err = x.w.err;
	}
	if (!err && (*n)->state != KVC_BOTH && (*n)->state != KVC_RESIDENT)
		err = -EBUSY; /* open for writing: its next publish uses the new key anyway */
	kvc_unlock_both(k);
	return err;
}

static void let_go(struct kvc *k, struct kvc_node *n)
{
	kvc_lock(k);
	n->leases--;
	if (n->lost && !n->nopen && !n->leases)
		kvc_destroy_locked(k, n);
	kvc_node_settle_locked(k, n);
	kvc_unlock(k);
}

static int rekey_one(struct kvc_sweep *s, const struct kvc_placed *p)
{
	struct kvc *k = s->k;
	struct kvc_node *n = NULL;
	char path[KVC_FRAME_PATH_MAX + 1], model[KVC_MODEL_NAME + 1];
	uint32_t want;
	bool again;
	int err;

	kvc_lock_both(k);
	err = kvc_path_both(k, p->ino, path);
	kvc_unlock_both(k);
	if (err)
		return err;
	kvc_model_name(path, model);
	want = kvc_keys_for(k->keys, model);
	if (!k->tier[p->tier].t || p->place.key == want)
		return 0;
	err = bring(k, p->ino, &n);
	if (!err) {
		kvc_lock_both(k);
		again = !n->lost && n->place[p->tier].gen && n->place[p->tier].key != want &&
			(n->state == KVC_BOTH || n->place[p->tier].codec & KVC_PLACE_LEFT);
		if (again) {
			n->resealing |= 1u << p->tier;
			kvc_spill_queue_locked(k, n, true);
		}
		kvc_unlock_both(k);
		/* One after the other, so that the pool keeps room for those it is for. */
		for (int i = 0; again && i < 10000 && !s->stop; i++) {
			kvc_lock(k);
			again = !n->lost && (n->resealing & (1u << p->tier));
			kvc_unlock(k);
			if (again)
				usleep(1000);
		}
		kvc_lock(k);
		n->resealing &= ~(1u << p->tier);
		kvc_unlock(k);
		err = again ? -EIO : 0;
		s->changed += !err;
		kvc_count_by(&k->stats, rekeyed, !err);
	}
	if (n)
		let_go(k, n);
	if (err && err != -ENOENT && err != -ESTALE)
		s->failed++;
	return 0;
}

/*
 * All placements of before are where kvc_place_next finds them. The committer does that: only it
 * knows the rows that belong to the names which are in the overlay.
 */
static int await_commit(struct kvc_sweep *s)
{
	struct kvc *k = s->k;
	uint64_t failures = kvc_counted(&k->stats, commit_failures), txn;
	bool done = false, failed = false;

	kvc_catalog_lock(k->cat);
	txn = kvc_catalog_txn(k->cat);
	kvc_catalog_unlock(k->cat);
	while (!done && !failed && !s->stop) {
		kvc_lock(k);
		done = k->dirty->committed >= txn;
		if (!done)
			kvc_commit_soon_locked(k, true);
		kvc_unlock(k);
		failed = kvc_counted(&k->stats, commit_failures) != failures;
		if (!done)
			usleep(1000);
	}
	return done || s->stop ? 0 : -EIO;
}

static int rekey_run(struct kvc_sweep *s)
{
	struct kvc *k = s->k;
	struct kvc_placed batch[BATCH];
	uint64_t ino = 0;
	unsigned tier = 0;
	size_t n;
	int err = k->keys ? await_commit(s) : -ENOKEY;

	while (!err && !s->stop) {
		kvc_catalog_lock(k->cat);
		err = kvc_place_next(k->cat, &ino, &tier, BATCH, batch, &n);
		kvc_catalog_unlock(k->cat);
		if (err || !n)
			break;
		for (size_t i = 0; i < n && !s->stop; i++) {
			s->seen++;
			rekey_one(s, &batch[i]);
		}
	}
	return err;
}

static const struct {
	const char *name;
	int (*run)(struct kvc_sweep *s);
} sweeps[] = {
	{ "import", import_run },
	{ "rekey", rekey_run },
};

static void *thread(void *arg)
{
	struct kvc_sweep *s = arg;

	s->err = s->run(s);
	kvc_info("%s: %" PRIu64 " looked at, %" PRIu64 " changed, %" PRIu64 " failed%s%s", s->name,
		 s->seen, s->changed, s->failed, s->err ? ": " : "",
		 s->err ? strerror(-s->err) : "");
	s->done = true;
	return NULL;
}

int kvc_control(struct kvc *k, const char *word)
{
	struct kvc_sweep *s;
	int err = -EINVAL;

	kvc_lock(k);
	s = k->sweep;
	if (k->stopping || !k->started) {
		kvc_unlock(k);
		return -ESHUTDOWN;
	}
	if (s && !s->done) {
		kvc_unlock(k);
		return -EBUSY;
	}
	k->sweep = NULL;
	for (size_t i = 0; i < sizeof sweeps / sizeof sweeps[0]; i++)
		if (!strcmp(word, sweeps[i].name)) {
			k->sweep = calloc(1, sizeof *k->sweep);
			if (!k->sweep) {
				err = -ENOMEM;
				break;
			}
			k->sweep->k = k;
			k->sweep->name = sweeps[i].name;
			k->sweep->run = sweeps[i].run;
			err = -pthread_create(&k->sweep->thread, NULL, thread, k->sweep);
		}
	if (err && k->sweep) {
		free(k->sweep);
		k->sweep = NULL;
	}
	kvc_unlock(k);
	if (s) {
		pthread_join(s->thread, NULL);
		free(s);
	}
	return err;
}

void kvc_print_control(struct kvc *k, FILE *out)
{
	struct kvc_sweep *s;

	kvc_lock(k);
	s = k->sweep;
	if (!s)
		fprintf(out, "idle\n");
	else
		fprintf(out,
			"%s %s %" PRIu64 " looked at, %" PRIu64 " changed, %" PRIu64
			" failed%s%s\n",
			s->name, s->done ? "done:" : "running:", s->seen, s->changed, s->failed,
			s->done && s->err ? ": " : "", s->done && s->err ? strerror(-s->err) : "");
	kvc_unlock(k);
}

void kvc_sweep_stop(struct kvc *k)
{
	struct kvc_sweep *s;

	kvc_lock(k);
	s = k->sweep;
	k->sweep = NULL;
	kvc_unlock(k);
	if (!s)
		return;
	s->stop = true;
	/* The listing of a filesystem whose server is dead has no end. */
	if (!kvc_join(s->thread, kvc_mono_ns() + k->opt.deadline_ms * 1000000)) {
		free(s);
		return;
	}
	kvc_warn("%s does not end and is left behind", s->name);
	pthread_detach(s->thread);
	kvc_lock(k);
	k->work->left++;
	kvc_unlock(k);
}
