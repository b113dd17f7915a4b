/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Changes of an operator. Each path is walked as kvcachectl walks it: a file is the chunk that it
 * belongs to, a folder that is a chunk is one, and any other folder stands for all chunks below it.
 * The chunks are then changed by kvc_setxattr, so a change has the effect and the limits of the
 * attribute.
 */
#include "cluster_change.h"

#include "cache.h"
#include "kvc.h"
#include "serve.h"

#include <stdlib.h>
#include <string.h>

struct result {
	size_t chunks, failed;
	int err;
};

struct inos {
	uint64_t *v;
	size_t n, capacity;
};

struct kvc_change {
	struct kvc *k;
	char *names, *value;
	char attr[64];
	const char *path; /* that is being changed */
	size_t n, at;     /* paths */
	struct result *result;
	struct inos chunks; /* of the path, if it was listed; chunks[next] is changed next */
	size_t next;
	bool listed, waits;
	uint64_t until_ns;
};

int kvc_change_begin(struct kvc *k, const char *names, size_t n, struct kvc_change **out)
{
	const char *end = names, *value = strchr(names, '=');
	struct kvc_change *c;

	if (n < 2 || !value ||
	    (strncmp(names, "pin=", 4) != 0 && strncmp(names, "demote=", 7) != 0))
		return -EINVAL;
	for (size_t i = 0; i < n; i++)
		end += strlen(end) + 1;
	c = calloc(1, sizeof *c);
	if (c) {
		c->names = malloc((size_t)(end - names));
		c->result = calloc(n - 1, sizeof *c->result);
	}
	if (!c || !c->names || !c->result) {
		kvc_change_end(c);
		return -ENOMEM;
	}
	memcpy(c->names, names, (size_t)(end - names));
	c->k = k;
	c->value = c->names + (value + 1 - names);
	c->path = c->names + strlen(names) + 1;
	c->n = n - 1;
	c->until_ns = kvc_mono_ns() + k->opt.deadline_ms * 1000000;
	snprintf(c->attr, sizeof c->attr, "user.kvcachefs.%.*s", (int)(value - names), names);
	*out = c;
	return 0;
}

/* ---- the chunks of a path ---- */

static int add_ino(struct inos *s, uint64_t ino)
{
	if (s->n == KVC_CHANGE_CHUNKS)
		return -E2BIG;
	if (kvc_grow(&s->v, s->n, &s->capacity, sizeof *s->v))
		return -ENOMEM;
	s->v[s->n++] = ino;
	return 0;
}

struct entries {
	struct inos files, folders;
	int err;
};

static int copy_entry(void *arg, const struct kvc_name *n)
{
	struct entries *e = arg;

	if (S_ISREG(n->kind))
		e->err = add_ino(&e->files, n->ino);
	else if (S_ISDIR(n->kind))
		e->err = add_ino(&e->folders, n->ino);
	return e->err;
}

/* Adds the chunk, or the files of the folder; its folders are added to those to be walked. */
static int list_one(struct kvc_change *c, uint64_t ino, struct inos *folders)
{
	struct entries e = { .folders = *folders };
	size_t len = 0;
	int err = kvc_getxattr(c->k, ino, "user.kvcachefs.tiers", NULL, &len);

	if (!err)
		return add_ino(&c->chunks, ino);
	if (err != -ENODATA)
		return err;
	err = kvc_readdir(c->k, ino, 0, copy_entry, &e);
	*folders = e.folders;
	err = e.err ?: err < 0 ? err : 0;
	for (size_t i = 0; i < e.files.n && !err; i++)
		err = add_ino(&c->chunks, e.files.v[i]);
	free(e.files.v);
	return err;
}

/* Lists the chunks at and below the path. */
static int list_chunks(struct kvc_change *c)
{
	struct inos folders = { 0 };
	uint64_t ino;
	int err = kvc_serve_path(c->k, c->path, &ino) ?: list_one(c, ino, &folders);

	while (!err && folders.n) {
		err = list_one(c, folders.v[--folders.n], &folders);
		if (err == -ENOENT || err == -ESTALE) /* it was dropped just now */
			err = 0;
		if (!err && kvc_mono_ns() > c->until_ns)
			err = -ETIME;
	}
	free(folders.v);
	return err;
}

/* ---- changing them ---- */

static void note(struct result *r, int err)
{
	if (!err) {
		r->chunks++;
	} else if (err != -ENOENT && err != -ESTALE) { /* otherwise it was dropped just now */
		r->failed++;
		r->err = r->err ?: -err;
	}
}

/* Changes the chunks of one path. Returns KVC_WAIT or 0. */
static int change_path(struct kvc_change *c, struct kvc_wait *w)
{
	struct result *r = &c->result[c->at];
	int err;

	if (!c->listed) {
		r->err = -list_chunks(c);
		c->listed = true;
		if (r->err)
			c->chunks.n = 0;
		if (r->err == ESTALE)
			r->err = ENOENT;
	}
	for (; c->next < c->chunks.n; c->next++) {
		if (c->waits) {
			c->waits = false;
			note(r, w->stage ? w->err : 0);
			if (w->err == -ESHUTDOWN)
				c->until_ns = 0;
			continue;
		}
		if (kvc_mono_ns() > c->until_ns) {
			r->failed += c->chunks.n - c->next;
			r->err = r->err ?: ETIME;
			break;
		}
		*w = (struct kvc_wait){ .wake = w->wake, .deadline_ns = c->until_ns };
		err = kvc_setxattr(c->k, c->chunks.v[c->next], c->attr, c->value, strlen(c->value),
				   0, NULL, w);
		if (err == KVC_WAIT) {
			c->waits = true;
			return KVC_WAIT;
		}
		note(r, err);
	}
	return 0;
}

int kvc_change_run(struct kvc_change *c, struct kvc_wait *w)
{
	for (; c->at < c->n; c->at++) {
		if (change_path(c, w) == KVC_WAIT)
			return KVC_WAIT;
		c->path += strlen(c->path) + 1;
		c->chunks.n = c->next = 0;
		c->listed = false;
	}
	return 0;
}

void kvc_change_print(const struct kvc_change *c, FILE *out)
{
	for (size_t i = 0; i < c->n; i++)
		fprintf(out, "%zu %zu %d\n", c->result[i].chunks, c->result[i].failed,
			c->result[i].err);
}

void kvc_change_end(struct kvc_change *c)
{
	if (!c)
		return;
	free(c->names);
	free(c->result);
	free(c->chunks.v);
	free(c);
}
