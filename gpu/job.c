/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One transfer of a queue. The submitted arguments are copied into one block of memory, and the
 * items are sorted by layer. The items of one layer are a step, and a step is a transfer
 * (transfer.c). On a device all steps use one stream, the thread's own. They follow the mark that
 * was set on the caller's stream at submission, and each step sets a mark after its work, which
 * kvcachefs_layer_wait() makes other streams wait for. DEPTH steps run at once, so that files of
 * the next step are created or mapped while one is copied. No more than DEPTH run, since each needs
 * buffers on the device.
 *
 * If all objects of a load are in the pool, a load of several steps takes one lease for all of
 * them, so the mount is called once. Otherwise, it requests all objects and takes a lease for each
 * step: the first layers are copied while later ones are still being loaded from a tier.
 *
 * When a step of a store ends, its files are complete but not published. All files are published at
 * the end, or none if the job was cancelled.
 */
#include "job.h"
#include "parts.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define DEPTH 2

struct kvcachefs_job_cache {
	struct kvcachefs_job_cache *next;
	const struct kvcachefs_paged *of; /* the caller's struct */
	struct kvcachefs_paged p;
	void *pointers[];
};

/* ---- Copies of the arguments ---- */

static int by_layer(const void *a, const void *b, void *arg)
{
	size_t i = *(const size_t *)a, j = *(const size_t *)b;
	const struct kvcachefs_item *v = arg;

	if (v[i].layer != v[j].layer)
		return v[i].layer < v[j].layer ? -1 : 1;
	return i < j ? -1 : 1;
}

/* The cache of the call, if all items have parts: only its device counts. */
static int blank_cache(struct kvcachefs_job *j, int device)
{
	struct kvcachefs_job_cache *c = calloc(1, sizeof *c);

	if (!c)
		return kvcachefs_fail(-ENOMEM, "out of memory");
	c->p.device = device;
	c->next = j->caches;
	j->caches = c;
	j->p = &c->p;
	return 0;
}

static int copy_cache(struct kvcachefs_job *j, const struct kvcachefs_paged *p,
		      struct kvcachefs_paged **out)
{
	struct kvcachefs_job_cache *c;
	struct kvcachefs_strides s;
	int err;

	for (c = j->caches; c; c = c->next)
		if (c->of == p) {
			*out = &c->p;
			return 0;
		}
	err = kvcachefs_strides_of(p, &s);
	if (err)
		return err;
	c = malloc(sizeof *c + s.npointers * sizeof *c->pointers);
	if (!c)
		return kvcachefs_fail(-ENOMEM, "out of memory");
	c->of = p;
	c->p = *p;
	memcpy(c->pointers, p->pointers, s.npointers * sizeof *c->pointers);
	c->p.pointers = c->pointers;
	c->next = j->caches;
	j->caches = c;
	*out = &c->p;
	return 0;
}

static size_t room_of(const struct kvcachefs_item *it)
{
	size_t more = it->parts ? it->nparts * sizeof *it->parts
				: it->tokens.n * sizeof(int64_t) + sizeof(struct kvcachefs_rope);

	return more + strlen(it->path) + 16;
}

static void *put(char **at, const void *p, size_t len)
{
	char *to = *at;

	memcpy(to, p, len);
	*at += (len + 7) / 8 * 8;
	return to;
}

static int copy_item(struct kvcachefs_job *j, size_t i, const struct kvcachefs_item *it, char **at)
{
	struct kvcachefs_item *to = &j->items[i];
	struct kvcachefs_paged *cache = NULL;
	int64_t *ids;
	int err = it->cache ? copy_cache(j, it->cache, &cache) : 0;

	if (err)
		return err;
	*to = *it;
	to->cache = cache;
	to->err = 0;
	to->skipped = false;
	to->path = put(at, it->path, strlen(it->path) + 1);
	if (it->parts) {
		to->parts = put(at, it->parts, it->nparts * sizeof *it->parts);
		return 0;
	}
	if (it->rope)
		to->rope = put(at, it->rope, sizeof *it->rope);
	ids = put(at, it->tokens.slots ?: it->tokens.block_ids, it->tokens.n * sizeof *ids);
	*(it->tokens.slots ? &to->tokens.slots : &to->tokens.block_ids) = ids;
	return 0;
}

static int copy_all(struct kvcachefs_job *j, const struct kvcachefs_paged *p,
		    const struct kvcachefs_item *items, size_t n)
{
	size_t capacity = 0;
	bool parts = true;
	char *at;
	int err = kvcachefs_parts_bound(items, n);

	for (size_t i = 0; i < n; i++)
		parts &= items[i].parts || items[i].cache;
	if (!err && !parts && !p)
		err = kvcachefs_fail(-EINVAL, "an item has no parts, and the call has no cache");
	if (!err)
		err = !p || (n && parts) ? blank_cache(j, p ? p->device : -1)
					 : copy_cache(j, p, &j->p);
	for (size_t i = 0; i < n && !err; i++) {
		const struct kvcachefs_tokens *t = &items[i].tokens;

		if (!items[i].parts && (!t->slots == !t->block_ids || t->n > SIZE_MAX / 64))
			err = kvcachefs_fail(-EINVAL,
					     "give tokens either by slots or by block ids");
		else if (__builtin_add_overflow(capacity, room_of(&items[i]), &capacity))
			err = kvcachefs_fail(-ENOMEM, "out of memory");
	}
	if (err)
		return err;
	j->items = calloc(n ?: 1, sizeof *j->items);
	j->order = calloc(n ?: 1, sizeof *j->order);
	j->steps = calloc(n ?: 1, sizeof *j->steps);
	j->arena = at = malloc(capacity ?: 1);
	if (!j->items || !j->order || !j->steps || !at)
		return kvcachefs_fail(-ENOMEM, "out of memory");
	for (size_t i = 0; i < n; i++)
		j->order[i] = i;
	qsort_r(j->order, n, sizeof *j->order, by_layer, (void *)(uintptr_t)items);
	for (size_t i = 0; i < n && !err; i++) {
		const struct kvcachefs_item *it = &items[j->order[i]];

		err = copy_item(j, i, it, &at);
		if (!i || j->steps[j->nsteps - 1].layer != it->layer)
			j->steps[j->nsteps++] = (struct kvcachefs_step){
				.layer = it->layer,
				.first = i,
			};
		j->steps[j->nsteps - 1].n++;
	}
	j->n = n;
	return err;
}

int kvcachefs_job_new(struct kvcachefs_job **out, bool store, const struct kvcachefs_paged *p,
		      struct kvcachefs_item *items, size_t n, void *stream)
{
	struct kvcachefs_job *j = calloc(1, sizeof *j);
	int err;

	if (!j)
		return kvcachefs_fail(-ENOMEM, "out of memory");
	j->store = store;
	j->theirs = items;
	err = copy_all(j, p, items, n);
	if (!err && j->p->device >= 0)
		err = kvcachefs_cuda_mark(j->p->device, stream, &j->mark);
	if (err) {
		kvcachefs_job_free(j);
		return err;
	}
	*out = j;
	return 0;
}

void kvcachefs_job_free(struct kvcachefs_job *j)
{
	struct kvcachefs_job_cache *next;

	if (j->mark)
		kvcachefs_cuda_unmark(j->p->device, j->mark);
	for (size_t k = 0; k < j->nsteps; k++)
		if (j->steps[k].mark)
			kvcachefs_cuda_unmark(j->p->device, j->steps[k].mark);
	for (struct kvcachefs_job_cache *c = j->caches; c; c = next) {
		next = c->next;
		free(c);
	}
	free(j->items);
	free(j->order);
	free(j->steps);
	free(j->arena);
	free(j);
}

/* ---- Running ---- */

/* A mount that is going away may return -ECANCELED, but only the caller cancels a job. */
static int of_mount(int err)
{
	return err == -ECANCELED ? -EIO : err;
}

static void job_note(struct kvcachefs_job *j, int err, const char *why)
{
	if (!err || j->err)
		return;
	j->err = err;
	snprintf(j->error, sizeof j->error, "%s", why);
}

/* Takes one lease for all objects if none must be loaded first; otherwise requests all of them. */
static int lease_or_ask(const struct kvcachefs_job *j, const char *mount,
			struct kvcachefs_lease **out)
{
	const char **paths = calloc(j->n, sizeof *paths);
	struct kvcachefs_lease *l;
	bool resident = true;
	int err;

	if (!paths)
		return kvcachefs_fail(-ENOMEM, "out of memory");
	for (size_t i = 0; i < j->n; i++)
		paths[i] = j->items[i].path;
	err = kvcachefs_look(&l, mount, paths, j->n);
	if (!err) {
		resident = kvcachefs_lease_count(l) == j->n;
		for (size_t i = 0; resident && i < j->n; i++)
			resident = kvcachefs_lease_object(l, i)->err != -ENODATA;
		kvcachefs_lease_free(l);
		err = resident ? kvcachefs_lease_new(out, mount, paths, j->n)
			       : kvcachefs_prefetch(mount, paths, j->n);
	}
	if (!err && resident)
		err = kvcachefs_lease_files(*out, paths, j->n);
	free(paths);
	return err;
}

struct run {
	struct kvcachefs_job *j;
	const char *mount;
	void *stream;
	const struct kvcachefs_job_watch *w;
	struct kvcachefs_lease *lease;
};

/* The step's work is done. */
static void step_land(const struct run *r, struct kvcachefs_step *s)
{
	if (!s->t)
		return;
	int err = of_mount(kvcachefs_transfer_land(s->t));

	job_note(r->j, err, kvcachefs_transfer_error(s->t));
	if (!r->j->store) {
		kvcachefs_transfer_free(s->t);
		s->t = NULL;
	}
	r->w->tell(r->w->arg, s, KVCACHEFS_STEP_OVER, s->mark, err);
}

static int first_error(const struct kvcachefs_job *j, const struct kvcachefs_step *s)
{
	for (size_t i = 0; i < s->n; i++)
		if (j->items[s->first + i].err)
			return of_mount(j->items[s->first + i].err);
	return 0;
}

/* Starts a step. An error fails the whole step and the steps after it. */
static int step_begin(const struct run *r, struct kvcachefs_step *s)
{
	struct kvcachefs_job *j = r->j;
	struct kvcachefs_begin b = {
		j->store, r->mount,  j->p,     j->items + s->first,
		s->n,     r->stream, r->lease, r->lease ? s->first : 0,
		false,
	};
	void *mark = NULL;
	int err = of_mount(kvcachefs_transfer_begin(&s->t, &b));

	if (!err && j->p->device >= 0) {
		err = kvcachefs_cuda_mark(j->p->device, r->stream, &mark);
		if (err)
			kvcachefs_transfer_undo(s->t, err);
		else
			r->w->tell(r->w->arg, s, KVCACHEFS_STEP_QUEUED, mark, first_error(j, s));
	}
	if (err) {
		job_note(j, err, kvcachefs_error());
		r->w->tell(r->w->arg, s, KVCACHEFS_STEP_OVER, mark, err);
	}
	return err;
}

/* Skips the steps that have not begun. */
static void steps_skip(struct kvcachefs_job *j, size_t step, int err,
		       const struct kvcachefs_job_watch *w)
{
	for (size_t k = step; k < j->nsteps; k++) {
		struct kvcachefs_step *s = &j->steps[k];

		for (size_t i = 0; i < s->n; i++)
			j->items[s->first + i].err = err;
		if (s->state != KVCACHEFS_STEP_OVER)
			w->tell(w->arg, s, KVCACHEFS_STEP_OVER, s->mark, err);
	}
}

static void finish(struct kvcachefs_job *j)
{
	bool cancelled = j->err == -ECANCELED;

	j->failed = j->skipped = 0;
	j->bytes = 0;
	for (size_t i = 0; i < j->n; i++) {
		const struct kvcachefs_item *it = &j->items[i];

		j->theirs[j->order[i]].err = cancelled ? it->err : of_mount(it->err);
		j->theirs[j->order[i]].skipped = it->skipped && !it->err;
		j->failed += it->err != 0;
		j->skipped += it->skipped && !it->err;
		if (!it->err && !it->skipped)
			j->bytes += it->parts ? kvcachefs_parts_bytes(it)
					      : kvcachefs_file_size(it->cache ?: j->p, it->nlayers,
								    &it->tokens);
	}
}

void kvcachefs_job_drop(struct kvcachefs_job *j, int err, const struct kvcachefs_job_watch *w)
{
	job_note(j, err, err == -ECANCELED ? "cancelled" : kvcachefs_error());
	steps_skip(j, 0, err, w);
	finish(j);
}

void kvcachefs_job_run(struct kvcachefs_job *j, const char *mount, void *stream,
		       const struct kvcachefs_job_watch *w)
{
	struct run r = { j, mount, stream, w, NULL };
	size_t landed = 0, k = 0;
	int err = j->mark ? kvcachefs_cuda_after(j->p->device, stream, j->mark) : 0;

	if (!err && !j->store && j->nsteps > 1)
		err = of_mount(lease_or_ask(j, mount, &r.lease));
	job_note(j, err, kvcachefs_error());
	while (k < j->nsteps && !err && !w->cancelled(w->arg)) {
		err = step_begin(&r, &j->steps[k]);
		k++;
		while (landed < k && (j->p->device < 0 || landed + DEPTH <= k))
			step_land(&r, &j->steps[landed++]);
	}
	while (landed < k)
		step_land(&r, &j->steps[landed++]);
	steps_skip(j, k, err ?: -ECANCELED, w);
	if (!w->commit(w->arg)) {
		j->err = 0; /* a cancellation has precedence over other errors */
		job_note(j, -ECANCELED, "cancelled");
		for (size_t i = 0; i < k; i++)
			if (j->steps[i].t)
				kvcachefs_transfer_undo(j->steps[i].t, -ECANCELED);
	}
	for (size_t i = 0; i < k; i++)
		if (j->steps[i].t) {
			err = of_mount(kvcachefs_transfer_free(j->steps[i].t));
			job_note(j, err, kvcachefs_error());
			j->steps[i].t = NULL;
		}
	kvcachefs_lease_free(r.lease);
	finish(j);
}
