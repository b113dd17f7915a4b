/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Takes over a warm pool at a restart. The folder of the pool is listed in slices of SLICE
 * segments. Reader threads, which together with the calling thread are at most one per CPU, process
 * slices in parallel: they stat each segment and read the rows of its inode. The calling thread,
 * which holds both locks throughout, takes over the slices in the order of the listing: it makes
 * the nodes and decides about each segment. It reads a slice itself if no reader has begun it.
 *
 * The readers do not touch nodes or the overlay. The calling thread uses the rows that they read
 * only if the overlay has no changes of them (kvc_peeked_object_holds), and reads them again
 * otherwise.
 *
 * The number of slices in memory depends on the number of threads, not on the size of the pool. A
 * kill during a scan loses nothing: the scan writes nothing to the catalog, removes only useless
 * segments, and a segment that it renames from 'o' to 'p' keeps its mtime
 * KVC_MARK_NS (objects/node.h).
 */
#include "account.h"
#include "context.h"
#include "copy.h"
#include "file.h"
#include "membership.h"
#include "header_rewrite.h"

#include <dirent.h>
#include <fcntl.h>
#include <string.h>

#define SLICE 256
#define AHEAD 3     /* slices per reader */
#define FOLDERS 256 /* folders whose model is cached */

struct found {
	struct kvc_segment segment;
	int err; /* result of the stat */
	struct stat st;
};

struct slice {
	size_t n;
	bool ready; /* it has been read; scan->lock */
	int err;    /* result of reading the catalog */
	struct kvc_segment segments[SLICE];
	struct found found[SLICE]; /* ordered by inode number, like rows */
	struct kvc_peeked_object rows[SLICE];
};

struct scan {
	struct kvc *k;
	char *error;
	pthread_mutex_t lock; /* a leaf; guards the fields below and slice->ready */
	pthread_cond_t work, done;
	struct slice **ring;
	unsigned size;
	/* number of slices that were listed, begun by a reader, taken over */
	uint64_t listed, begun, ended;
	bool over; /* no slice will be listed any more, and readers begin none */
	/* used by the calling thread only */
	unsigned most, nthreads;
	pthread_t *thread;
	struct {
		uint64_t folder, model;
	} models[FOLDERS];
};

/*
 * Takes over the segment of a file that was open. It is complete if its mtime is still KVC_MARK_NS.
 * It is renamed to a published one, and keeps that mtime in case this start fails. Returns 1, 0 if
 * it does not match the catalog, or an error.
 */
static int adopt_untouched(struct kvc *k, struct kvc_node *n, struct kvc_segment *s,
			   const struct stat *st)
{
	struct kvc_segment to = { 'p', s->ino, s->gen };
	int err;

	if (s->gen != n->object.gen || (uint64_t)st->st_size != n->object.size)
		return 0;
	if ((err = kvc_pool_segment_rename(&k->pool, s, &to)))
		return err;
	*s = to;
	return 1;
}

/* Takes over a segment that was published after the last commit. */
static void adopt_newer(struct kvc *k, struct kvc_node *n, const struct kvc_segment *s,
			const struct stat *st)
{
	kvc_file_set_generation_locked(n, s->gen, st->st_mode & KVC_SEGMENT_DECODED);
	kvc_file_unplace_locked(k, n);
	/*
	 * A segment with the mtime KVC_MARK_NS got its new generation because its bytes differed
	 * from those of its copies (tiering/spill.c). It has no mtime of its own.
	 */
	if (kvc_ns(st->st_mtim) != KVC_MARK_NS)
		n->row.mtime_ns = kvc_ns(st->st_mtim);
	n->row.ctime_ns = kvc_node_ctime(n->row.ctime_ns, n->row.mtime_ns);
}

/*
 * The segment was marked as decoded (KVC_SEGMENT_DECODED), because its bytes returned from a copy
 * that was coded with loss, but the commit after that did not happen. Sums the bytes, and finds the
 * copy. Returns 0 or an error.
 */
static int find_copy_both(struct kvc *k, struct kvc_node *n, const struct kvc_segment *s)
{
	KVC_FD int fd = kvc_pool_segment_open(&k->pool, s, O_RDONLY);
	struct kvc_sum sum;
	int err = fd < 0 ? fd : kvc_copy_sum(fd, n->object.size, &sum);

	err = err ?: kvc_catalog_spare(k->cat, KVC_FILE_DECODED_CHANGES);
	if (err)
		return err;
	for (unsigned t = 0; t < k->tier_slots; t++) {
		const struct kvc_place *p = &n->in[t].place;

		if (p->gen && p->gen == n->object.gen && !memcmp(p->raw.b, sum.b, sizeof sum.b)) {
			kvc_file_decoded_both(k, n, &sum);
			return 0;
		}
	}
	/*
	 * No copy has these bytes. If they are not the written ones either, a client has changed
	 * them through a mapping.
	 */
	if (!n->object.has_sum || memcmp(n->object.sum.b, sum.b, sizeof sum.b) != 0) {
		kvc_file_set_generation_locked(n, n->object.gen, true);
		kvc_file_set_verify_locked(n, n->object.lower);
	}
	return 0;
}

/*
 * The decoded mark of a segment, and the row, tell whether the bytes were decoded. Returns 1 if
 * they agree now, 0 if the segment is useless, or an error.
 */
static int adopt_decoded(struct kvc *k, struct kvc_node *n, const struct kvc_segment *s,
			 const struct stat *st)
{
	bool marked = st->st_mode & KVC_SEGMENT_DECODED;

	if (marked == n->object.decoded)
		return 1;
	/*
	 * The segment has the written bytes, but the row is that of a rebuilt catalog, which
	 * describes the decoded copy. If the copy exists, it is kept, and the segment is not.
	 */
	if (!marked)
		return !n->object.lower;
	return find_copy_both(k, n, s) ?: 1;
}

static bool same_object(const struct kvc_object_row *a, const struct kvc_object_row *b)
{
	return a->gen == b->gen && a->size == b->size && a->lower == b->lower &&
	       a->decoded == b->decoded && a->has_sum == b->has_sum &&
	       (!a->has_sum || !memcmp(a->sum.b, b->sum.b, sizeof a->sum.b));
}

/*
 * Does the node differ from its rows in the catalog? Most segments match, and writing millions of
 * unchanged rows at a restart takes longer than reading them.
 */
static bool differs_from_rows(const struct kvc_node *n, const struct kvc_row *row,
			      const struct kvc_object_row *object)
{
	return memcmp(&n->row, row, sizeof *row) != 0 || !same_object(&n->object, object) ||
	       (n->copies.recorded && !n->object.lower); /* its placements are out of date */
}

/* Finds the model of a file through its folder. */
static int scan_model_both(struct scan *s, const struct kvc_peeked_object *p, uint64_t *model)
{
	uint64_t folder = p->is.row.parent, up = p->folder_parent;
	int err = 0;

	*model = folder;
	if (up == KVC_ROOT && folder != KVC_ROOT)
		return 0;
	if (up && folder != KVC_ROOT && s->models[up % FOLDERS].folder == up) {
		*model = s->models[up % FOLDERS].model;
		return 0;
	}
	err = kvc_node_files_model_both(s->k, folder, 0, model, NULL);
	if (!err && *model && up) {
		s->models[up % FOLDERS].folder = up;
		s->models[up % FOLDERS].model = *model;
	}
	return err;
}

/* Makes the node of a segment. *known is set if the node was made from the rows in p. */
static int scan_node_both(struct scan *s, const struct kvc_peeked_object *p, bool *known,
			  struct kvc_node **n)
{
	uint64_t model = 0;
	int err = 0;

	*known = kvc_peeked_object_holds(s->k->cat, p);
	if (!*known)
		return kvc_node_get_both(s->k, p->is.ino, n);
	if (!p->is.node)
		return -ENOENT;
	if (S_ISREG(p->is.row.mode))
		err = scan_model_both(s, p, &model);
	return err ?: kvc_node_get_modeled_locked(s->k, &p->is, model, n);
}

/*
 * Takes over a segment that seems complete. Returns 1 if it is kept, 0 if it is useless, or an
 * error.
 */
static int adopt_segment(struct scan *scan, struct kvc_segment *s, const struct stat *st,
			 const struct kvc_peeked_object *p, bool untouched)
{
	struct kvc *k = scan->k;
	struct kvc_object_row object;
	struct kvc_node *n;
	struct kvc_row row;
	bool known;
	int err = scan_node_both(scan, p, &known, &n);

	if (err)
		return err == -ENOENT ? 0 : err;
	if (s->kind == 'p' && (n->state == KVC_RESIDENT || n->state == KVC_BOTH) &&
	    s->gen == n->object.gen)
		return 1; /* the same segment: the listing contained it twice */
	row = n->row;
	object = n->object;
	err = S_ISREG(n->row.mode) && !kvc_node_has_segment(n) && s->gen && s->gen >= n->object.gen;
	if (err == 1 && untouched)
		err = adopt_untouched(k, n, s, st);
	if (err != 1) {
		kvc_node_settle_locked(k, n);
		return err;
	}
	if (s->gen > n->object.gen)
		adopt_newer(k, n, s, st);
	kvc_file_recovered_locked(k, n, st);
	if ((err = adopt_decoded(k, n, s, st)) != 1) {
		kvc_node_settle_locked(k, n);
		return err;
	}
	kvc_header_rewrite_moved_both(k, n);
	err = known ? kvc_membership_join_known_both(k, n, &p->chunk)
		    : kvc_membership_join_both(k, n);
	if (err) {
		kvc_node_settle_locked(k, n);
		return err;
	}
	kvc_file_become_locked(k, n, kvc_file_placed(k, n) ? KVC_BOTH : KVC_RESIDENT);
	if (!n->chunk->use.last_ns)
		kvc_chunk_accessed_locked(k, n->chunk, false); /* its row was not written yet */
	kvc_account_set_reserved_locked(k, n, (uint64_t)st->st_blocks * 512);
	if (differs_from_rows(n, &row, &object))
		kvc_node_dirty_locked(k, n);
	kvc_count(&k->stats, recovered);
	return 1;
}

/* Takes over a segment of the pool. Returns 1 if it is kept, 0 if it is useless, or an error. */
static int take_over_segment(struct scan *s, struct found *f, const struct kvc_peeked_object *p)
{
	if (f->err)
		return f->err == -ENOENT ? 0 : f->err;
	if (!S_ISREG(f->st.st_mode))
		return 0;
	if (f->segment.kind == 'p')
		return adopt_segment(s, &f->segment, &f->st, p, false);
	return f->segment.kind == 'o' && kvc_ns(f->st.st_mtim) == KVC_MARK_NS
		       ? adopt_segment(s, &f->segment, &f->st, p, true)
		       : 0;
}

static int take_over_slice(struct scan *s, struct slice *l)
{
	int err = l->err;

	if (err)
		snprintf(s->error, 512, "cannot read the rows of the pool's objects: %s",
			 strerror(-err));
	for (size_t i = 0; i < l->n && !err; i++) {
		/* a copy, because it may be renamed */
		struct kvc_segment segment = l->found[i].segment;
		int keep = take_over_segment(s, &l->found[i], &l->rows[i]);

		if (keep < 0) {
			err = keep;
			snprintf(s->error, 512,
				 "cannot take over the segment %c-%llx-%llx of the pool: %s",
				 segment.kind, (unsigned long long)segment.ino,
				 (unsigned long long)segment.gen, strerror(-err));
		} else if (!keep) {
			kvc_pool_segment_remove(&s->k->pool, &segment);
		}
	}
	return err;
}

/* ---- reading ---- */

/* Orders by inode; the newest generation of an inode first. */
static int by_inode(const void *a, const void *b)
{
	const struct kvc_segment *x = a, *y = b;

	if (x->ino != y->ino)
		return x->ino < y->ino ? -1 : 1;
	return x->gen != y->gen ? (x->gen > y->gen ? -1 : 1) : 0;
}

/* Any thread; needs no lock. */
static void read_slice(struct kvc *k, struct slice *l)
{
	qsort(l->segments, l->n, sizeof l->segments[0], by_inode);
	for (size_t i = 0; i < l->n; i++) {
		struct found *f = &l->found[i];

		f->segment = l->segments[i];
		f->err = kvc_pool_segment_stat(&k->pool, &f->segment, &f->st);
		l->rows[i].is.ino = f->segment.ino;
	}
	l->err = kvc_peek_objects(k->cat, l->rows, l->n);
}

static void *pool_reader(void *arg)
{
	struct scan *s = arg;

	pthread_mutex_lock(&s->lock);
	for (;;) {
		struct slice *l;

		while (!s->over && s->begun == s->listed)
			pthread_cond_wait(&s->work, &s->lock);
		if (s->over)
			break;
		l = s->ring[s->begun++ % s->size];
		pthread_mutex_unlock(&s->lock);
		read_slice(s->k, l);
		pthread_mutex_lock(&s->lock);
		l->ready = true;
		pthread_cond_signal(&s->done);
	}
	pthread_mutex_unlock(&s->lock);
	return NULL;
}

/* Waits for the oldest slice, or reads it here, and takes it over. */
static int end_slice(struct scan *s)
{
	struct slice *l = s->ring[s->ended % s->size];
	bool ours;
	int err;

	pthread_mutex_lock(&s->lock);
	ours = s->begun == s->ended;
	s->begun += ours;
	while (!ours && !l->ready)
		pthread_cond_wait(&s->done, &s->lock);
	pthread_mutex_unlock(&s->lock);
	if (ours)
		read_slice(s->k, l);
	err = take_over_slice(s, l);
	s->ended++;
	return err;
}

/* Passes a full slice to the readers. A pool of one slice needs no reader. */
static int list_slice(struct scan *s)
{
	pthread_mutex_lock(&s->lock);
	s->listed++;
	pthread_cond_signal(&s->work);
	pthread_mutex_unlock(&s->lock);
	/* a thread that cannot be started is not needed: the caller reads as well */
	if (s->listed > 1 && s->nthreads + 1 < s->most &&
	    !pthread_create(&s->thread[s->nthreads], NULL, pool_reader, s))
		s->nthreads++;
	return s->listed - s->ended == s->size ? end_slice(s) : 0;
}

/* ---- the listing ---- */

/* The slice that the listing fills; NULL if out of memory. */
static struct slice *next_slice(struct scan *s)
{
	struct slice **l = &s->ring[s->listed % s->size];

	if (!*l)
		*l = calloc(1, sizeof **l);
	if (*l) {
		(*l)->n = 0;
		(*l)->ready = false;
	}
	return *l;
}

/*
 * Lists the pool. An incomplete listing is an error, because files that are not in it would be
 * dropped as lost.
 */
static int list_pool(struct scan *s, DIR *d)
{
	struct kvc *k = s->k;
	struct slice *l = NULL;
	struct dirent *e;
	int err = 0;

	while (!err && (errno = 0, e = readdir(d))) {
		if (e->d_name[0] == '.')
			continue;
		k->pool.warm = true;
		if (!l && !(l = next_slice(s))) {
			err = -ENOMEM;
		} else if (!kvc_pool_segment_parse(e->d_name, &l->segments[l->n])) {
			unlinkat(k->pool.dir, e->d_name, 0);
		} else if (++l->n == SLICE) {
			l = NULL;
			err = list_slice(s);
		}
	}
	if (!err && errno) {
		err = -errno;
		snprintf(s->error, 512, "cannot read all of the pool %s: %s", k->pool.path,
			 strerror(-err));
	}
	if (!err && l && l->n)
		err = list_slice(s);
	while (!err && s->ended < s->listed)
		err = end_slice(s);
	return err;
}

static int scan_init(struct scan *s)
{
	pthread_mutex_init(&s->lock, NULL);
	pthread_cond_init(&s->work, NULL);
	pthread_cond_init(&s->done, NULL);
	s->most = (unsigned)kvc_min(kvc_cpus(), kvc_catalog_readers(s->k->cat));
	s->size = AHEAD * s->most;
	s->ring = calloc(s->size, sizeof *s->ring);
	s->thread = calloc(s->most, sizeof *s->thread);
	return s->ring && s->thread ? 0 : -ENOMEM;
}

static void scan_fini(struct scan *s)
{
	pthread_mutex_lock(&s->lock);
	s->over = true;
	pthread_cond_broadcast(&s->work);
	pthread_mutex_unlock(&s->lock);
	for (unsigned i = 0; i < s->nthreads; i++)
		pthread_join(s->thread[i], NULL);
	for (unsigned i = 0; s->ring && i < s->size; i++)
		free(s->ring[i]);
	free(s->ring);
	free(s->thread);
	pthread_cond_destroy(&s->work);
	pthread_cond_destroy(&s->done);
	pthread_mutex_destroy(&s->lock);
}

int kvc_pool_scan_both(struct kvc *k, unsigned *threads, char *error)
{
	int fd = openat(k->pool.dir, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC), err;
	struct scan s = { .k = k, .error = error };
	DIR *d = fd < 0 ? NULL : fdopendir(fd);

	if (!d) {
		err = -errno;
		snprintf(error, 512, "cannot read the pool %s: %s", k->pool.path, strerror(-err));
		if (fd >= 0)
			close(fd);
		return err;
	}
	err = scan_init(&s) ?: list_pool(&s, d);
	*threads = s.nthreads + 1;
	scan_fini(&s);
	closedir(d);
	if (err && !*error)
		snprintf(error, 512, "cannot take over the pool %s: %s", k->pool.path,
			 strerror(-err));
	return err;
}
