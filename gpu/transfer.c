/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Many objects in one call. A store makes each file under a temporary name beside its own, at its final size with room prepared, and maps it; the bytes come
 * from the cache by gather (host) or from the device (cuda.cu); when all is there the layout is set and the file renamed to its name. A load leases
 * all its files at once and maps them.
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
};

struct kvcachefs_transfer {
	bool store, done;
	char *mount;
	struct kvcachefs_paged p;
	struct kvcachefs_strides s;
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
	if (!t->err)
		t->err = err;
	if (!strstr(kvcachefs_error(), path)) { /* say which object it was */
		char text[512];

		snprintf(text, sizeof text, "%s", kvcachefs_error());
		kvcachefs_fail(err, "%s: %s", path, text);
	}
	return err;
}

/* What a file holds, so that another layout is refused. */
static void layout_text(const struct kvcachefs_transfer *t, const struct kvcachefs_item *it, char *buf, size_t room)
{
	uint64_t tokens = it->tokens.slots ? it->tokens.n : (uint64_t)it->tokens.n * t->p.block_size;

	snprintf(buf, room, "kv=%u layers=%u tokens=%llu heads=%u head_size=%u elem=%u", t->s.kvs, it->nlayers, (unsigned long long)tokens, t->p.heads,
		 t->p.head_size, t->p.elem);
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
	if (asprintf(&c->tmp, "%s.tmp.%d.%lu", c->path, (int)getpid(), atomic_fetch_add(&count, 1)) < 0) {
		c->tmp = NULL;
		return kvcachefs_fail(-ENOMEM, "out of memory");
	}
	c->fd = open(c->tmp, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
	if (c->fd < 0)
		return kvcachefs_fail(-errno, "%s: %s", c->tmp, strerror(errno));
	/* Room first: a mapping's write must not be the one that finds the pool full. */
	if (c->len && fallocate(c->fd, 0, 0, (off_t)c->len))
		return kvcachefs_fail(-errno, "%s: no room for %zu bytes: %s", c->path, c->len, strerror(errno));
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
	layout_text(t, &t->items[i], text, sizeof text);
	if (!err && fsetxattr(c->fd, XATTR, text, strlen(text), 0))
		err = kvcachefs_fail(-errno, "%s: its layout cannot be kept: %s", c->path, strerror(errno));
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
	layout_text(t, &t->items[i], want, sizeof want);
	n = getxattr(c->path, XATTR, have, sizeof have - 1);
	if (n >= 0) {
		have[n] = 0;
		if (strcmp(have, want))
			return kvcachefs_fail(-EPROTOTYPE, "%s holds %s, and %s is asked for", c->path, have, want);
	}
	if (len != c->len)
		return kvcachefs_fail(-EPROTOTYPE, "%s has %zu bytes, and %s takes %zu", c->path, len, want, c->len);
	c->map = (void *)(uintptr_t)data;
	c->pinned = t->cuda && len && kvcachefs_lease_pin(t->lease, i, t->p.device);
	return 0;
}

/* In host memory; a shift of keys is made on a copy. */
static int move_host(struct kvcachefs_transfer *t, size_t i)
{
	struct kvcachefs_item *it = &t->items[i];
	struct piece *c = &t->pieces[i];
	uint8_t *copy;
	int err;

	if (t->store)
		return kvcachefs_gather(&t->p, it->layer, it->nlayers, &it->tokens, c->map);
	if (!it->rope)
		return kvcachefs_scatter(&t->p, it->layer, it->nlayers, &it->tokens, c->map);
	copy = malloc(c->len ? c->len : 1);
	if (!copy)
		return kvcachefs_fail(-ENOMEM, "out of memory");
	memcpy(copy, c->map, c->len);
	err = kvcachefs_rope_shift(it->rope, copy, c->len / t->s.kvs / ((size_t)t->p.heads * t->p.head_size * t->p.elem), t->p.heads, t->p.head_size);
	if (!err)
		err = kvcachefs_scatter(&t->p, it->layer, it->nlayers, &it->tokens, copy);
	free(copy);
	return err;
}

static int check_rope(const struct kvcachefs_transfer *t, const struct kvcachefs_item *it)
{
	const struct kvcachefs_rope *r = t->store ? NULL : it->rope;
	uint32_t elem = r && r->type == KVCACHEFS_F32 ? 4 : 2, dims = r && r->dims ? r->dims : t->p.head_size;

	if (!r)
		return 0;
	if (elem != t->p.elem)
		return kvcachefs_fail(-EINVAL, "the rotation is of %u-byte keys and the cache has %u", elem, t->p.elem);
	if (dims % 2 || dims > t->p.head_size || !(r->theta > 0) || (unsigned)r->type > KVCACHEFS_BF16)
		return kvcachefs_fail(-EINVAL, "a rotation of %u of %u elements with base %g is none", dims, t->p.head_size, r->theta);
	return 0;
}

static int run_items(struct kvcachefs_transfer *t)
{
	for (size_t i = 0; i < t->n; i++) {
		struct kvcachefs_item *it = &t->items[i];
		uint64_t tokens;
		int err = kvcachefs_check(&t->p, it->layer, it->nlayers, &it->tokens, &tokens);

		if (!err)
			err = check_rope(t, it);
		if (!err)
			err = t->store ? store_open(t, i) : load_open(t, i);
		if (!err && t->pieces[i].len) {
			struct kvcachefs_work w = { it, tokens, t->pieces[i].map, t->pieces[i].len, t->pieces[i].pinned };

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

static int begin(struct kvcachefs_transfer **out, bool store, const char *mount, const struct kvcachefs_paged *p, struct kvcachefs_item *items, size_t n,
		 void *stream)
{
	struct kvcachefs_transfer *t = calloc(1, sizeof *t);
	int err = t ? 0 : kvcachefs_fail(-ENOMEM, "out of memory");

	if (err)
		return err;
	t->store = store;
	t->p = *p;
	t->items = items;
	err = kvcachefs_strides_of(p, &t->s);
	if (!err && (!(t->mount = strdup(mount)) || !(t->pieces = calloc(n ? n : 1, sizeof *t->pieces))))
		err = kvcachefs_fail(-ENOMEM, "out of memory");
	for (size_t i = 0; i < n && !err; i++, t->n++) {
		t->items[i].err = 0;
		t->pieces[i].fd = -1;
		if (asprintf(&t->pieces[i].path, "%s/%s", mount, items[i].path) < 0) {
			t->pieces[i].path = NULL;
			err = kvcachefs_fail(-ENOMEM, "out of memory");
		}
		t->pieces[i].len = kvcachefs_file_size(p, items[i].nlayers, &items[i].tokens);
	}
	if (!err && !store)
		err = lease_all(t);
	if (!err && p->device >= 0)
		err = kvcachefs_cuda_new(&t->cuda, p, &t->s, store, stream);
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

int kvcachefs_store(struct kvcachefs_transfer **out, const char *mount, const struct kvcachefs_paged *p, struct kvcachefs_item *items, size_t n, void *stream)
{
	return begin(out, true, mount, p, items, n, stream);
}

int kvcachefs_load(struct kvcachefs_transfer **out, const char *mount, const struct kvcachefs_paged *p, struct kvcachefs_item *items, size_t n, void *stream)
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
	free(t->pieces);
	free(t->mount);
	free(t);
	return err;
}
