/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Many objects in one call. A store makes each file under a temporary name and maps it (file.h);
 * the bytes come from the cache by gather (host) or from the device (cuda.cu); when all is there,
 * the transfer has landed, the layout is set, and freeing it renames the file to its name. A load
 * leases all its files at once, or is lent a lease, and maps them; its pieces' files are only names
 * and lengths.
 */
#include "transfer.h"
#include "file.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct piece {
	struct kvcachefs_file f;
	bool pinned;
	const struct cache *cache;
};

struct cache { /* one that items belong to, and what follows from its shape */
	const struct kvcachefs_paged *p;
	struct kvcachefs_strides s;
};

struct kvcachefs_transfer {
	bool store, landed, lent; /* lent: the lease is another's */
	char *mount;
	struct kvcachefs_paged p; /* the call's */
	struct cache **caches;    /* its, and what the items name */
	size_t ncaches;
	struct kvcachefs_item *items;
	struct piece *pieces;
	size_t n;
	struct kvcachefs_lease *lease;
	size_t first; /* the lease's object of item 0 */
	struct kvcachefs_cuda *cuda;
	int err;         /* of the first item that failed */
	char error[160]; /* its text */
};

static int item_fail(struct kvcachefs_transfer *t, size_t i, int err)
{
	const char *path = t->items[i].path;

	t->items[i].err = err;
	if (t->err) /* whose line stays, where this one has none of its own */
		return err;
	t->err = err;
	if (!strstr(kvcachefs_error(), path)) { /* say which object it was */
		char text[512];

		snprintf(text, sizeof text, "%s", kvcachefs_error());
		kvcachefs_fail(err, "%s: %s", path, text);
	}
	snprintf(t->error, sizeof t->error, "%s", kvcachefs_error());
	return err;
}

/* What a file holds, so that another layout is refused. */
static void layout_text(const struct kvcachefs_transfer *t, size_t i, char *buf, size_t room)
{
	const struct kvcachefs_item *it = &t->items[i];
	const struct cache *c = t->pieces[i].cache;
	uint64_t tokens = it->tokens.slots ? it->tokens.n
					   : (uint64_t)it->tokens.n * c->p->block_size;

	snprintf(buf, room, "kv=%u layers=%u tokens=%llu heads=%u head_size=%u elem=%u", c->s.kvs,
		 it->nlayers, (unsigned long long)tokens, c->s.heads, c->s.width, c->p->elem);
}

static int load_open(struct kvcachefs_transfer *t, size_t i)
{
	struct piece *c = &t->pieces[i];
	char want[KVCACHEFS_LAYOUT_MAX], have[KVCACHEFS_LAYOUT_MAX];
	const void *data;
	size_t len;
	int err = kvcachefs_lease_layout(t->lease, t->first + i, have)
			  ?: kvcachefs_lease_map(t->lease, t->first + i, &data, &len);

	if (err)
		return err;
	layout_text(t, i, want, sizeof want);
	if (*have && strcmp(have, want))
		return kvcachefs_fail(-EPROTOTYPE, "%s holds %s, and %s is asked for", c->f.path,
				      have, want);
	if (len != c->f.len)
		return kvcachefs_fail(-EPROTOTYPE, "%s has %zu bytes, and %s takes %zu", c->f.path,
				      len, want, c->f.len);
	c->f.map = (void *)(uintptr_t)data;
	c->pinned = t->cuda && len && kvcachefs_lease_pin(t->lease, t->first + i, t->p.device);
	return 0;
}

/* In host memory; a shift of keys is made on a copy. */
static int move_host(struct kvcachefs_transfer *t, size_t i)
{
	struct kvcachefs_item *it = &t->items[i];
	struct piece *c = &t->pieces[i];
	const struct kvcachefs_paged *p = c->cache->p;
	const struct kvcachefs_strides *s = &c->cache->s;
	const struct kvcachefs_turns *turns;
	uint8_t *copy;
	int err;

	if (t->store)
		return kvcachefs_gather(p, it->layer, it->nlayers, &it->tokens, c->f.map);
	if (!it->rope)
		return kvcachefs_scatter(p, it->layer, it->nlayers, &it->tokens, c->f.map);
	err = kvcachefs_turns_get(it->rope, p->head_size, &turns);
	if (err)
		return err;
	copy = malloc(c->f.len ? c->f.len : 1);
	if (copy) {
		memcpy(copy, c->f.map, c->f.len);
		/* keys are the first half; fused, the first half of each head */
		kvcachefs_turn(turns, it->rope, copy,
			       c->f.len / s->kvs / ((size_t)s->width * p->elem), s->width);
		err = kvcachefs_scatter(p, it->layer, it->nlayers, &it->tokens, copy);
	} else {
		err = kvcachefs_fail(-ENOMEM, "out of memory");
	}
	free(copy);
	kvcachefs_turns_put(turns);
	return err;
}

static int check_rope(const struct kvcachefs_transfer *t, size_t i)
{
	const struct kvcachefs_rope *r = t->store ? NULL : t->items[i].rope;
	const struct kvcachefs_paged *p = t->pieces[i].cache->p;
	int err = r ? kvcachefs_rope_check(r, p->head_size) : 0;

	if (r && !err && kvcachefs_float_size(r->type) != p->elem)
		err = kvcachefs_fail(-EINVAL,
				     "the rotation is of %u-byte keys and the cache has %u",
				     kvcachefs_float_size(r->type), p->elem);
	return err;
}

static int run_items(struct kvcachefs_transfer *t)
{
	for (size_t i = 0; i < t->n; i++) {
		struct kvcachefs_item *it = &t->items[i];
		uint64_t tokens;
		const struct cache *cache = t->pieces[i].cache;
		int err = kvcachefs_check(cache->p, it->layer, it->nlayers, &it->tokens, &tokens);

		if (!err)
			err = check_rope(t, i);
		if (!err)
			err = t->store ? kvcachefs_file_make(&t->pieces[i].f, t->mount)
				       : load_open(t, i);
		if (!err && t->pieces[i].f.len) {
			struct kvcachefs_work w = {
				it,
				cache->p,
				&cache->s,
				tokens,
				t->pieces[i].f.map,
				t->pieces[i].f.len,
				t->pieces[i].pinned,
			};

			err = t->cuda ? kvcachefs_cuda_add(t->cuda, &w) : move_host(t, i);
		}
		if (err)
			item_fail(t, i, err);
	}
	return t->cuda ? kvcachefs_cuda_run(t->cuda) : 0;
}

static int lease_all(struct kvcachefs_transfer *t)
{
	const char **paths = calloc(t->n ? t->n : 1, sizeof *paths);
	int err;

	if (!paths)
		return kvcachefs_fail(-ENOMEM, "out of memory");
	for (size_t i = 0; i < t->n; i++)
		paths[i] = t->items[i].path;
	err = kvcachefs_lease_new(&t->lease, t->mount, paths, t->n);
	free(paths);
	if (!err && kvcachefs_lease_count(t->lease) != t->n)
		err = kvcachefs_fail(-EINVAL, "each path of a load is one file");
	return err;
}

/* The cache of an item: one entry for each that is named. */
static int find_cache(struct kvcachefs_transfer *t, const struct kvcachefs_paged *p,
		      const struct cache **out)
{
	struct cache *c, **more;
	int err;

	for (size_t i = t->ncaches; i-- > 0;)
		if (t->caches[i]->p == p) {
			*out = t->caches[i];
			return 0;
		}
	if (p->device != t->p.device && (p->device >= 0 || t->p.device >= 0))
		return kvcachefs_fail(-EINVAL, "a cache on device %d in a transfer on device %d",
				      p->device, t->p.device);
	more = realloc(t->caches, (t->ncaches + 1) * sizeof *more);
	if (more)
		t->caches = more;
	c = more ? calloc(1, sizeof *c) : NULL;
	if (!c)
		return kvcachefs_fail(-ENOMEM, "out of memory");
	c->p = p;
	err = kvcachefs_strides_of(p, &c->s);
	if (err) {
		free(c);
		return err;
	}
	t->caches[t->ncaches++] = c;
	*out = c;
	return 0;
}

int kvcachefs_transfer_begin(struct kvcachefs_transfer **out, const struct kvcachefs_begin *b)
{
	struct kvcachefs_transfer *t = calloc(1, sizeof *t);
	size_t n = b->n;
	int err = t ? 0 : kvcachefs_fail(-ENOMEM, "out of memory");

	if (err)
		return err;
	t->store = b->store;
	t->p = *b->p;
	t->items = b->items;
	t->lease = b->lease;
	t->lent = b->lease;
	t->first = b->first;
	if (!(t->mount = strdup(b->mount)) || !(t->pieces = calloc(n ? n : 1, sizeof *t->pieces)))
		err = kvcachefs_fail(-ENOMEM, "out of memory");
	for (size_t i = 0; i < n && !err; i++, t->n++) {
		const struct kvcachefs_item *it = &t->items[i];
		struct piece *c = &t->pieces[i];

		t->items[i].err = 0;
		err = kvcachefs_file_init(&c->f, b->mount, it->path, 0)
			      ?: find_cache(t, it->cache ?: &t->p, &c->cache);
		if (!err)
			c->f.len = kvcachefs_file_size(c->cache->p, it->nlayers, &it->tokens);
	}
	if (!err && !b->store && !b->lease)
		err = lease_all(t);
	if (!err && t->p.device >= 0)
		err = kvcachefs_cuda_new(&t->cuda, t->p.device, b->store, b->stream);
	if (!err)
		err = run_items(t);
	if (err) {
		t->err = err;
		for (size_t i = 0; i < t->n; i++)
			t->items[i].err = err;
		kvcachefs_transfer_free(t);
		return err;
	}
	*out = t;
	return 0;
}

int kvcachefs_store(struct kvcachefs_transfer **out, const char *mount,
		    const struct kvcachefs_paged *p, struct kvcachefs_item *items, size_t n,
		    void *stream)
{
	struct kvcachefs_begin b = { true, mount, p, items, n, stream, NULL, 0 };

	return kvcachefs_transfer_begin(out, &b);
}

int kvcachefs_load(struct kvcachefs_transfer **out, const char *mount,
		   const struct kvcachefs_paged *p, struct kvcachefs_item *items, size_t n,
		   void *stream)
{
	struct kvcachefs_begin b = { false, mount, p, items, n, stream, NULL, 0 };

	return kvcachefs_transfer_begin(out, &b);
}

int kvcachefs_transfer_poll(struct kvcachefs_transfer *t)
{
	int err = t->cuda ? kvcachefs_cuda_poll(t->cuda) : 0;

	return err ? err : t->err;
}

int kvcachefs_transfer_wait(struct kvcachefs_transfer *t)
{
	int err = t->cuda ? kvcachefs_cuda_wait(t->cuda) : 0;

	for (size_t i = 0; err && i < t->n; i++)
		item_fail(t, i, err);
	return t->err;
}

int kvcachefs_transfer_land(struct kvcachefs_transfer *t)
{
	char text[KVCACHEFS_LAYOUT_MAX];

	if (t->landed)
		return t->err;
	t->landed = true;
	kvcachefs_transfer_wait(t);
	kvcachefs_cuda_free(t->cuda); /* before the mappings that it registered go */
	t->cuda = NULL;
	for (size_t i = 0; i < t->n; i++) {
		int err = 0;

		if (!t->store) {
			t->pieces[i].f.map = NULL; /* the lease's */
		} else if (!t->items[i].err) {
			layout_text(t, i, text, sizeof text);
			err = kvcachefs_file_seal(&t->pieces[i].f, text);
		}
		if (err)
			item_fail(t, i, err);
	}
	return t->err;
}

const char *kvcachefs_transfer_error(const struct kvcachefs_transfer *t)
{
	return t->error;
}

void kvcachefs_transfer_undo(struct kvcachefs_transfer *t, int why)
{
	kvcachefs_transfer_land(t);
	for (size_t i = 0; i < t->n; i++)
		if (!t->items[i].err)
			t->items[i].err = why;
	if (!t->err)
		t->err = why;
}

int kvcachefs_transfer_free(struct kvcachefs_transfer *t)
{
	int err;

	if (!t)
		return 0;
	kvcachefs_transfer_land(t);
	for (size_t i = 0; i < t->n; i++) {
		if (t->store && !t->items[i].err && (err = kvcachefs_file_publish(&t->pieces[i].f)))
			item_fail(t, i, err);
		kvcachefs_file_fini(&t->pieces[i].f);
	}
	if (!t->lent)
		kvcachefs_lease_free(t->lease);
	err = t->err;
	for (size_t i = 0; i < t->ncaches; i++)
		free(t->caches[i]);
	free(t->caches);
	free(t->pieces);
	free(t->mount);
	free(t);
	return err;
}
