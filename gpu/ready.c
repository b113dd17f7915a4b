/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Files that are prepared, so that a store only takes one, fills it and names it, and does not wait
 * for space, pages or registration. Similar files are a class. A class has a list of prepared files
 * and a target number: from its second file on, the number of files that stores used at once, or
 * the number given to kvcachefs_gpu_warm(). The states of a file are
 *
 *   wanted -> being made -> ready -> taken -> published, or closed without a name
 *                             |
 *                             +-> dropped (closed, and so destroyed by the mount)
 *
 *   wanted       up to the target number, within the limits: FILES_MOST, a part of the limit of
 *                descriptors, and half of the bytes that the cache of mappings may keep (maps.c),
 *                which is a part of the pool; and while the mount is not short of space
 *   being made   by the thread of refill.c, without locks (prepare.c)
 *   ready        unused; it has no name, so nothing is left of it when the process dies
 *   taken        owned by one store (file.c); the next one may be prepared at once
 *   dropped      its class was not used for idle_ms, or keep_ms if longer; above the limits;
 *                the pool is short of space; in the child of a fork, which only closes its copy
 *
 * A mount counts as short of space for idle_ms after one of these events: a file was refused space;
 * its pool had less free space than a file to be prepared; a check found that a call has waited for
 * space since the last check. It is checked every CHECK_MS (refill.c) while files are prepared.
 *
 * The lock guards all of this. The lock of maps.c is taken under it, and no call that waits is
 * made.
 */
#include "unmap.h"
#include "maps.h"
#include "ready_priv.h"

#include <stdlib.h>
#include <string.h>

#define CLASSES_MOST 32

static struct kvcachefs_readiness *const r = &kvcachefs_ready;

/* ---- Classes ---- */

static struct kvcachefs_place *place_locked(const struct kvcachefs_want *w)
{
	struct kvcachefs_place *unused = NULL;

	for (struct kvcachefs_place *p = r->places; p < r->places + READY_MOUNTS; p++) {
		bool used = p->busy;

		if (p->path && p->dev == w->dev && !strcmp(p->path, w->mount))
			return p;
		for (const struct kvcachefs_class *c = r->classes; c; c = c->next)
			used |= c->place == p;
		if (!used)
			unused = p;
	}
	if (!unused)
		return NULL;
	free(unused->path);
	*unused = (struct kvcachefs_place){ .path = strdup(w->mount), .dev = w->dev };
	return unused->path ? unused : NULL;
}

/* Returns the length of the path's first name if a second one follows, otherwise 0. */
size_t kvcachefs_folder_len(const char *path)
{
	size_t n = strcspn(path, "/");

	return path[n] ? n : 0;
}

static struct kvcachefs_class *class_find_locked(const struct kvcachefs_want *w)
{
	size_t n = kvcachefs_folder_len(w->path);

	for (struct kvcachefs_class *c = r->classes; c; c = c->next)
		if (c->w.len == w->len && c->w.dev == w->dev && c->w.device == w->device &&
		    !strncmp(c->w.path, w->path, n) && !c->w.path[n] &&
		    !strcmp(c->w.mount, w->mount))
			return c;
	return NULL;
}

static struct kvcachefs_class *class_locked(const struct kvcachefs_want *w)
{
	struct kvcachefs_class *c = class_find_locked(w);
	size_t n = kvcachefs_folder_len(w->path), m = strlen(w->mount);
	struct kvcachefs_place *p;

	if (c || r->nclasses == CLASSES_MOST || !w->len || !kvcachefs_refill_locked())
		return c;
	p = place_locked(w);
	c = p ? calloc(1, sizeof *c) : NULL;
	if (!c || !(c->folder = malloc(m + n + 2))) {
		free(c);
		return NULL;
	}
	c->w = *w;
	c->place = p;
	c->teaches = true;
	memcpy(c->folder, w->mount, m);
	c->folder[m] = n ? '/' : 0;
	memcpy(c->folder + m + 1, w->path, n);
	c->folder[m + 1 + n] = 0;
	c->w.mount = p->path;
	c->w.path = c->folder + m + 1;
	c->used_ms = c->peak_ms = kvcachefs_now_ms();
	c->next = r->classes;
	r->classes = c;
	r->nclasses++;
	return c;
}

bool kvcachefs_ready_take(const struct kvcachefs_want *w, struct kvcachefs_class **of,
			  struct kvcachefs_map **m)
{
	struct kvcachefs_class *c;

	*m = NULL;
	pthread_mutex_lock(&r->lock);
	c = *of = class_locked(w);
	if (c) {
		*m = kvcachefs_ready_pop_locked(c);
		c->taken++;
		c->out++;
		c->peak = c->out > c->peak ? c->out : c->peak;
		c->used_ms = kvcachefs_now_ms();
		pthread_cond_signal(&r->more);
	}
	pthread_mutex_unlock(&r->lock);
	return *m;
}

void kvcachefs_ready_back(struct kvcachefs_class *of)
{
	if (!of)
		return;
	pthread_mutex_lock(&r->lock);
	of->out--;
	of->used_ms = kvcachefs_now_ms();
	pthread_mutex_unlock(&r->lock);
}

bool kvcachefs_ready_short(uint64_t dev)
{
	struct kvcachefs_map *gone = NULL;

	pthread_mutex_lock(&r->lock);
	for (struct kvcachefs_place *p = r->places; p < r->places + READY_MOUNTS; p++)
		if (p->path && p->dev == dev)
			kvcachefs_ready_short_locked(p, kvcachefs_now_ms(), &gone);
	pthread_mutex_unlock(&r->lock);
	if (!gone)
		return false;
	kvcachefs_ready_free(gone);
	kvcachefs_unmap_wait(); /* their pages are free when they are unmapped */
	return true;
}

void kvcachefs_ready_trim(void)
{
	struct kvcachefs_map *gone = NULL;

	pthread_mutex_lock(&r->lock);
	kvcachefs_ready_trim_locked(kvcachefs_now_ms(), &gone);
	pthread_cond_broadcast(&r->made); /* the limits may have changed */
	while (r->freeing || (r->making && r->bytes > kvcachefs_maps_bytes() / 2))
		pthread_cond_wait(&r->made, &r->lock);
	pthread_mutex_unlock(&r->lock);
	kvcachefs_ready_free(gone);
}

int kvcachefs_ready_warm(const struct kvcachefs_want *w, unsigned n, uint64_t keep_ms)
{
	struct kvcachefs_class *c;
	int err = 0;

	pthread_mutex_lock(&r->lock);
	c = class_locked(w);
	if (!c) {
		pthread_mutex_unlock(&r->lock);
		return kvcachefs_fail(-EAGAIN,
				      "cannot prepare files of %zu bytes: too many sizes are "
				      "prepared already, or no thread could be started",
				      w->len);
	}
	c->warmed = n;
	c->keep_ms = keep_ms;
	c->makes = true;
	c->refused_ms = c->place->short_ms = 0;
	c->out++; /* keeps the class */
	pthread_cond_signal(&r->more);
	while (c->nready < n && !err) {
		uint64_t now = kvcachefs_now_ms();

		if (now < c->refused_ms)
			err = kvcachefs_fail(c->err, "%s", c->error);
		else if (now < c->place->short_ms)
			err = kvcachefs_fail(-ENOSPC,
					     "%s: the pool has no free space for prepared files",
					     w->mount);
		else if (c->place->asked && !r->making && !kvcachefs_ready_fits_locked(w->len))
			err = kvcachefs_fail(
				-ENOSPC, "%u files of %zu bytes exceed the limit of prepared files",
				n, w->len);
		if (!err && c->warmed < n) { /* another call asked for fewer since */
			c->warmed = n;
			pthread_cond_signal(&r->more);
		}
		if (!err)
			pthread_cond_wait(&r->made, &r->lock);
	}
	c->out--;
	c->used_ms = kvcachefs_now_ms();
	pthread_mutex_unlock(&r->lock);
	return err;
}

unsigned kvcachefs_ready_count(void)
{
	unsigned n;

	pthread_mutex_lock(&r->lock);
	n = r->nready;
	pthread_mutex_unlock(&r->lock);
	return n;
}

void kvcachefs_ready_idle(unsigned ms)
{
	pthread_mutex_lock(&r->lock);
	r->idle_ms = ms;
	pthread_cond_signal(&r->more);
	pthread_mutex_unlock(&r->lock);
}
