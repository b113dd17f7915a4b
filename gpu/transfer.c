/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Many objects in one call. A store makes each file under a temporary name beside its own, at its
 * final size with room prepared, and maps it; the bytes come from the cache by gather (host) or
 * from the device (cuda.cu); when all is there the layout is set and the file renamed to its name.
 * A load leases all its files at once and maps them.
 */
#include "layout.h"

#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/xattr.h>
#include <unistd.h>

#define XATTR "user.kvc.layout"

struct piece {
	char *path, *tmp;
	void *map;
	size_t len;
	int fd;
	bool pinned;
	const struct cache *cache;
};

struct cache { /* one that items belong to, and what follows from its shape */
	const struct kvcachefs_paged *p;
	struct kvcachefs_strides s;
};

struct kvcachefs_transfer {
	bool store, done;
	char *mount;
	struct kvcachefs_paged p; /* the call's */
	struct cache **caches;    /* its, and what the items name */
	size_t ncaches;
	struct kvcachefs_item *items;
	struct piece *pieces;
	size_t n;
	struct kvcachefs_lease *lease;
	struct kvcachefs_cuda *cuda;
	int err; /* of the first item that failed */
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

static int make_folders(char *path, size_t from)
{
	for (char *s = strchr(path + from, '/'); s; s = strchr(s + 1, '/')) {
		*s = 0;
		if (mkdir(path, 0777) && errno != EEXIST) {
			int err = kvcachefs_fail(-errno, "%s: %s", path, strerror(errno));

			*s = '/';
			return err;
		}
		*s = '/';
	}
	return 0;
}

static int store_open(struct kvcachefs_transfer *t, size_t i)
{
	static _Atomic unsigned long count;
	struct piece *c = &t->pieces[i];
	int err = make_folders(c->path, strlen(t->mount) + 1);

	if (err)
		return err;
	if (asprintf(&c->tmp, "%s.tmp.%d.%lu", c->path, (int)getpid(),
		     atomic_fetch_add(&count, 1)) < 0) {
		c->tmp = NULL;
		return kvcachefs_fail(-ENOMEM, "out of memory");
	}
	c->fd = open(c->tmp, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
	if (c->fd < 0)
		return kvcachefs_fail(-errno, "%s: %s", c->tmp, strerror(errno));
	/* Room first: a mapping's write must not be the one that finds the pool full. */
	if (c->len && fallocate(c->fd, 0, 0, (off_t)c->len))
		return kvcachefs_fail(-errno, "%s: no room for %zu bytes: %s", c->path, c->len,
				      strerror(errno));
	c->map = c->len ? mmap(NULL, c->len, PROT_READ | PROT_WRITE, MAP_SHARED, c->fd, 0) : NULL;
	if (c->map == MAP_FAILED) {
		c->map = NULL;
		return kvcachefs_fail(-errno, "%s cannot be mapped: %s", c->tmp, strerror(errno));
	}
	return 0;
}

static int store_finish(struct kvcachefs_transfer *t, size_t i)
{
	struct piece *c = &t->pieces[i];
	char text[160];
	int err = t->items[i].err;

	if (c->map)
		munmap(c->map, c->len);
	c->map = NULL;
	if (!err)
		layout_text(t, i, text, sizeof text);
	if (!err && fsetxattr(c->fd, XATTR, text, strlen(text), 0))
		err = kvcachefs_fail(-errno, "%s: its layout cannot be kept: %s", c->path,
				     strerror(errno));
	if (c->fd >= 0 && close(c->fd) && !err)
		err = kvcachefs_fail(-errno, "%s: %s", c->path, strerror(errno));
	c->fd = -1;
	if (!err && rename(c->tmp, c->path))
		err = kvcachefs_fail(-errno, "%s: %s", c->path, strerror(errno));
	if (err && c->tmp)
		unlink(c->tmp);
	return err;
}

static int load_open(struct kvcachefs_transfer *t, size_t i)
{
	struct piece *c = &t->pieces[i];
	char want[160], have[160];
	const void *data;
	size_t len;
	ssize_t n;
	int err = kvcachefs_lease_map(t->lease, i, &data, &len);

	if (err)
		return err;
	layout_text(t, i, want, sizeof want);
	n = getxattr(c->path, XATTR, have, sizeof have - 1);
	if (n >= 0) {
		have[n] = 0;
		if (strcmp(have, want))
			return kvcachefs_fail(-EPROTOTYPE, "%s holds %s, and %s is asked for",
					      c->path, have, want);
	}
	if (len != c->len)
		return kvcachefs_fail(-EPROTOTYPE, "%s has %zu bytes, and %s takes %zu", c->path,
				      len, want, c->len);
	c->map = (void *)(uintptr_t)data;
	c->pinned = t->cuda && len && kvcachefs_lease_pin(t->lease, i, t->p.device);
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
		return kvcachefs_gather(p, it->layer, it->nlayers, &it->tokens, c->map);
	if (!it->rope)
		return kvcachefs_scatter(p, it->layer, it->nlayers, &it->tokens, c->map);
	err = kvcachefs_turns_get(it->rope, p->head_size, &turns);
	if (err)
		return err;
	copy = malloc(c->len ? c->len : 1);
	if (copy) {
		memcpy(copy, c->map, c->len);
		/* keys are the first half; fused, the first half of each head */
		kvcachefs_turn(turns, it->rope, copy,
			       c->len / s->kvs / ((size_t)s->width * p->elem), s->width);
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
			err = t->store ? store_open(t, i) : load_open(t, i);
		if (!err && t->pieces[i].len) {
			struct kvcachefs_work w = {
				it,
				cache->p,
				&cache->s,
				tokens,
				t->pieces[i].map,
				t->pieces[i].len,
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

static int begin(struct kvcachefs_transfer **out, bool store, const char *mount,
		 const struct kvcachefs_paged *p, struct kvcachefs_item *items, size_t n,
		 void *stream)
{
	struct kvcachefs_transfer *t = calloc(1, sizeof *t);
	int err = t ? 0 : kvcachefs_fail(-ENOMEM, "out of memory");

	if (err)
		return err;
	t->store = store;
	t->p = *p;
	t->items = items;
	if (!(t->mount = strdup(mount)) || !(t->pieces = calloc(n ? n : 1, sizeof *t->pieces)))
		err = kvcachefs_fail(-ENOMEM, "out of memory");
	for (size_t i = 0; i < n && !err; i++, t->n++) {
		t->items[i].err = 0;
		t->pieces[i].fd = -1;
		if (asprintf(&t->pieces[i].path, "%s/%s", mount, items[i].path) < 0) {
			t->pieces[i].path = NULL;
			err = kvcachefs_fail(-ENOMEM, "out of memory");
		}
		if (!err)
			err = find_cache(t, items[i].cache ? items[i].cache : &t->p,
					 &t->pieces[i].cache);
		if (!err)
			t->pieces[i].len = kvcachefs_file_size(t->pieces[i].cache->p,
							       items[i].nlayers, &items[i].tokens);
	}
	if (!err && !store)
		err = lease_all(t);
	if (!err && p->device >= 0)
		err = kvcachefs_cuda_new(&t->cuda, p->device, store, stream);
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
	return begin(out, true, mount, p, items, n, stream);
}

int kvcachefs_load(struct kvcachefs_transfer **out, const char *mount,
		   const struct kvcachefs_paged *p, struct kvcachefs_item *items, size_t n,
		   void *stream)
{
	return begin(out, false, mount, p, items, n, stream);
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

int kvcachefs_transfer_free(struct kvcachefs_transfer *t)
{
	int err;

	if (!t)
		return 0;
	kvcachefs_transfer_wait(t);
	kvcachefs_cuda_free(t->cuda); /* before the mappings that it registered go */
	for (size_t i = 0; i < t->n; i++) {
		if (t->store && (err = store_finish(t, i)))
			item_fail(t, i, err);
		free(t->pieces[i].path);
		free(t->pieces[i].tmp);
	}
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
