/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One item of a transfer: opens or creates its file, checks it, and moves its bytes in host memory
 * or adds them to the work of the device (transfer.c).
 */
#include "parts.h"
#include "transfer_priv.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#define SLOW_MS 5 /* an open that takes this long has read a tier */

void kvcachefs_item_layout(const struct kvcachefs_transfer *t, size_t i, char *buf, size_t capacity)
{
	const struct kvcachefs_item *it = &t->items[i];
	const struct kvcachefs_cache *c = t->pieces[i].cache;
	uint64_t tokens = it->tokens.slots ? it->tokens.n
					   : (uint64_t)it->tokens.n * c->p->block_size;

	snprintf(buf, capacity, "kv=%u layers=%u tokens=%llu heads=%u head_size=%u elem=%u",
		 c->s.kvs, it->nlayers, (unsigned long long)tokens, c->s.heads, c->s.width,
		 c->p->elem);
}

/* Compares the file with what is requested. have: the layout that it records. */
static int check_file(const struct kvcachefs_transfer *t, size_t i, const char *have, size_t len)
{
	const struct kvcachefs_item *it = &t->items[i];
	const struct kvcachefs_piece *c = &t->pieces[i];
	char want[KVCACHEFS_LAYOUT_MAX] = "this load";

	if (!c->cache && !it->size && len < c->f.len)
		return kvcachefs_fail(-ERANGE, "%s has %zu bytes, and the parts end at %zu",
				      c->f.path, len, c->f.len);
	if (c->cache)
		kvcachefs_item_layout(t, i, want, sizeof want);
	if (c->cache && *have && strcmp(have, want))
		return kvcachefs_fail(-EPROTOTYPE, "%s contains %s, but %s is requested", c->f.path,
				      have, want);
	if (len != c->f.len && (c->cache || it->size))
		return kvcachefs_fail(-EPROTOTYPE, "%s has %zu bytes, but %s needs %zu", c->f.path,
				      len, want, c->f.len);
	return 0;
}

/*
 * Opens the file of an item without a lease. If that is slow, the mount has probably read a
 * tier. Then it is told, once, to load the files of all items.
 */
static int open_unleased(struct kvcachefs_transfer *t, size_t i, size_t *len)
{
	uint64_t began = kvcachefs_now_ms();
	const char *path = t->pieces[i].f.path;
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	bool known = false;
	struct statx st;

	/* the kernel's cached attributes of an immutable file suffice if they are as expected */
	for (int sync = 0; fd >= 0 && !known && sync < 2; sync++)
		known = !statx(fd, "", AT_EMPTY_PATH | (sync ? 0 : AT_STATX_DONT_SYNC),
			       STATX_SIZE | STATX_TYPE, &st) &&
			(sync || (t->items[i].size ? st.stx_size == t->items[i].size
						   : st.stx_size >= t->pieces[i].f.len));
	if (!known) {
		int err = kvcachefs_fail(-errno, "%s: %s", path, strerror(errno));

		if (fd >= 0)
			close(fd);
		return err;
	}
	if (!S_ISREG(st.stx_mode)) {
		close(fd);
		return kvcachefs_fail(-EISDIR, "%s is not a file", path);
	}
	if (makedev(st.stx_dev_major, st.stx_dev_minor) != t->dev) {
		close(fd);
		return kvcachefs_fail(-EXDEV, "%s leads out of the mount", path);
	}
	*len = (size_t)st.stx_size;
	if (kvcachefs_now_ms() - began >= SLOW_MS && t->n > 1 && !atomic_exchange(&t->asked, true))
		kvcachefs_prefetch(t->mount, t->paths, t->n); /* without it they load one by one */
	return fd;
}

/* Loads the parts of an item in host memory. */
static int load_parts(struct kvcachefs_transfer *t, size_t i)
{
	size_t len = 0;
	int fd, err;

	if (t->lease) {
		fd = kvcachefs_lease_open(t->lease, t->first + i, NULL);
		if (fd >= 0)
			len = kvcachefs_lease_object(t->lease, t->first + i)->size;
	} else {
		fd = open_unleased(t, i, &len);
	}
	if (fd < 0)
		return fd;
	err = check_file(t, i, "", len) ?: kvcachefs_parts_read(&t->items[i], fd);
	close(fd);
	return err;
}

/*
 * Finds the bytes of an item with a lease: a registered mapping, another mapping, or on a device
 * the open file, which costs less than a mapping that is used once.
 */
static int load_open(struct kvcachefs_transfer *t, size_t i)
{
	struct kvcachefs_piece *c = &t->pieces[i];
	char have[KVCACHEFS_LAYOUT_MAX] = "", *layout = c->cache ? have : NULL;
	const struct kvcachefs_object *o;
	const void *data = NULL;
	size_t len, at = t->first + i;
	int err = 0;

	c->fd = -1;
	if (t->cuda)
		data = kvcachefs_lease_map_known(t->lease, at, &c->pinned);
	if (t->cuda && !data) {
		c->fd = kvcachefs_lease_file(t->lease, at, layout);
		err = c->fd < 0 && c->fd != -EMFILE ? c->fd : 0;
	}
	o = kvcachefs_lease_object(t->lease, at);
	if (!err && c->fd < 0 && layout)
		err = kvcachefs_lease_layout(t->lease, at, have);
	if (!err && c->fd < 0)
		err = kvcachefs_lease_map(t->lease, at, &data, &len);
	err = err ?: check_file(t, i, have, o->size);
	if (err)
		return err;
	c->f.len = o->size;
	c->f.map = (void *)(uintptr_t)data;
	return 0;
}

void kvcachefs_item_loaded(struct kvcachefs_transfer *t, size_t i)
{
	const struct kvcachefs_item *it = &t->items[i];
	struct kvcachefs_piece *c = &t->pieces[i];

	if (t->p.device >= 0 && !it->err && c->f.len && !c->pinned)
		kvcachefs_lease_loaded(t->lease, t->first + i,
				       c->cache ? c->f.len : kvcachefs_parts_bytes(it),
				       t->p.device);
	c->f.map = NULL; /* belongs to the lease */
}

/* Stores parts in host memory as the file of item i. */
static int store_parts(struct kvcachefs_transfer *t, size_t i, const struct kvcachefs_item *parts)
{
	struct kvcachefs_file *f = &t->pieces[i].f;
	int err;

	for (int again = 0;; again++) {
		err = kvcachefs_file_make_plain(f, t->dev)
			      ?: kvcachefs_parts_write(parts, f->fd, f->len);
		/* at once: a transfer may have more files than the process has descriptors */
		err = err ?: kvcachefs_file_seal(f, NULL);
		if ((err != -ENOSPC && err != -EDQUOT) || again || !kvcachefs_ready_short(t->dev))
			return err;
		kvcachefs_file_fini(f);
	}
}

static int store_open(struct kvcachefs_transfer *t, size_t i)
{
	struct kvcachefs_piece *c = &t->pieces[i];
	int err = kvcachefs_file_make(&c->f, t->dev, t->p.device);

	c->pinned = !err && c->f.pinned && !t->staged;
	return err;
}

/* Moves an item in host memory. Keys are rotated row by row, on a copy. */
static int move_host(struct kvcachefs_transfer *t, size_t i)
{
	struct kvcachefs_item *it = &t->items[i];
	struct kvcachefs_piece *c = &t->pieces[i];
	const struct kvcachefs_paged *p = c->cache->p;
	struct kvcachefs_rotated rotated = { .rope = it->rope, .row = t->row };
	int err;

	if (t->store)
		return kvcachefs_gather(p, it->layer, it->nlayers, &it->tokens, c->f.map);
	if (!it->rope)
		return kvcachefs_scatter(p, it->layer, it->nlayers, &it->tokens, c->f.map);
	err = kvcachefs_rotation_get(it->rope, p->head_size, &rotated.rotation);
	if (err)
		return err;
	err = kvcachefs_scatter_rotated(p, it->layer, it->nlayers, &it->tokens, c->f.map, &rotated);
	kvcachefs_rotation_put(rotated.rotation);
	return err;
}

static int check_rope(const struct kvcachefs_transfer *t, size_t i)
{
	const struct kvcachefs_rope *r = t->store ? NULL : t->items[i].rope;
	const struct kvcachefs_paged *p = t->pieces[i].cache->p;
	int err = r ? kvcachefs_rope_check(r, p->head_size) : 0;

	if (r && !err && kvcachefs_float_size(r->type) != p->elem)
		err = kvcachefs_fail(
			-EINVAL,
			"the rotation is for keys of %u bytes, and the cache has keys of %u bytes",
			kvcachefs_float_size(r->type), p->elem);
	return err;
}

/* Adds an item, whose file is open, to the device's work. */
static int add_item(const struct kvcachefs_transfer *t, size_t i)
{
	struct kvcachefs_item *it = &t->items[i];
	const struct kvcachefs_piece *c = &t->pieces[i];
	struct kvcachefs_work w = {
		.item = it,
		.p = c->cache ? c->cache->p : NULL,
		.s = c->cache ? &c->cache->s : NULL,
		.host = c->f.map,
		.len = c->f.len,
		.pinned = c->pinned,
		.fd = c->fd,
	};
	int err = w.p ? kvcachefs_check(w.p, it->layer, it->nlayers, &it->tokens, &w.ntokens) : 0;

	return err ?: kvcachefs_cuda_add(t->cuda, &w);
}

int kvcachefs_item_begin(struct kvcachefs_transfer *t, size_t i)
{
	const struct kvcachefs_item *it = &t->items[i];
	struct kvcachefs_piece *c = &t->pieces[i];
	uint64_t tokens;
	int err;

	if (it->skipped || it->err)
		return 0;
	if (!c->cache && !t->cuda)
		return t->store ? store_parts(t, i, it) : load_parts(t, i);
	err = c->cache ? kvcachefs_check(c->cache->p, it->layer, it->nlayers, &it->tokens, &tokens)
		       : kvcachefs_cuda_check_parts(t->p.device, it->parts, it->nparts);
	if (!err && c->cache)
		err = check_rope(t, i);
	if (!err)
		err = t->store ? store_open(t, i) : load_open(t, i);
	if (err || !c->f.len)
		return err;
	return t->cuda ? add_item(t, i) : move_host(t, i);
}
