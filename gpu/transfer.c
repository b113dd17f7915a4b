/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Moves many objects in one call. A store creates each file or takes a prepared one, mapped
 * (file.h). The bytes come from the cache by gather (host) or from the device (cuda.cu). When all
 * bytes are written the layout is set, and freeing the transfer renames the files. A load takes a
 * lease of all its files, or uses a lease of the caller, and maps them; the `file` member of its
 * pieces only holds names and lengths. On a device, the registered files start first (or one half
 * if none is registered), and the rest is registered while they are copied. The rest is a second
 * part on the device (`late`), on the same stream.
 *
 * In host memory, parts are written and read by system calls: mapping a file and faulting its fresh
 * pages costs more than its bytes. Tokens use the mapping of a prepared file. Several threads share
 * the items.
 *
 * All data of a transfer is in one block of memory. A freed transfer is kept with its block for the
 * next one, so that a transfer similar to earlier ones allocates nothing.
 */
#include "transfer.h"
#include "file.h"
#include "parts.h"
#include "share.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define KEPT 16
#define SLOW_MS 5              /* an open that takes so long has read a tier */
#define SHARE_LEAST (1u << 20) /* bytes in host memory that are worth several threads */
#define KEPT_BYTES (1u << 20)  /* a larger block is not kept */

struct piece {
	struct kvcachefs_file f;
	bool pinned, late; /* late: not registered yet */
	const struct cache *cache;
};

struct cache { /* a cache that items belong to, and its strides */
	const struct kvcachefs_paged *p;
	struct kvcachefs_strides s;
};

struct kvcachefs_transfer {
	struct kvcachefs_transfer *next; /* the next kept transfer */
	char *block;
	size_t capacity;
	bool store, staged, landed, lent; /* lent: the lease is the caller's */
	const char *mount;
	uint64_t dev;             /* device number of the mount; for a store */
	struct kvcachefs_paged p; /* the cache of the call */
	struct cache *caches;     /* the cache of the call, and the caches of items */
	size_t ncaches;
	const char **paths; /* of the items */
	atomic_bool asked;  /* the mount was told to load all of them */
	struct kvcachefs_item *items;
	struct piece *pieces;
	void *row; /* memory for one row of a file whose keys are rotated on the host */
	size_t n;
	struct kvcachefs_lease *lease;
	size_t first;                       /* index in the lease of the object of item 0 */
	struct kvcachefs_cuda *cuda, *late; /* late: NULL if everything could start at once */
	bool shares;                        /* threads may share the items */
	pthread_mutex_t lock;               /* guards the next two while threads share the items */
	int err;                            /* error of the first failed item */
	char error[512];                    /* its text */
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* guards the next two */
static struct kvcachefs_transfer *kept;
static unsigned nkept;

KVCACHEFS_FREE_IN_CHILD(lock)

/* ---- Memory ---- */

static struct kvcachefs_transfer *transfer_get(void)
{
	struct kvcachefs_transfer *t;

	pthread_mutex_lock(&lock);
	t = kept;
	if (t) {
		kept = t->next;
		nkept--;
	}
	pthread_mutex_unlock(&lock);
	if (t)
		*t = (struct kvcachefs_transfer){ .block = t->block, .capacity = t->capacity };
	else
		t = calloc(1, sizeof *t);
	if (t)
		pthread_mutex_init(&t->lock, NULL);
	return t;
}

static void give(struct kvcachefs_transfer *t)
{
	bool keeps;

	pthread_mutex_destroy(&t->lock);
	pthread_mutex_lock(&lock);
	keeps = nkept < KEPT && t->capacity <= KEPT_BYTES;
	if (keeps) {
		t->next = kept;
		kept = t;
		nkept++;
	}
	pthread_mutex_unlock(&lock);
	if (keeps)
		return;
	free(t->block);
	free(t);
}

static void *part(char **at, size_t len)
{
	void *p = *at;

	*at += (len + 15) / 16 * 16;
	return p;
}

/* Returns the longest row of a file whose keys are rotated on the host; 0: there is none. */
static size_t longest_rotated(const struct kvcachefs_begin *b)
{
	const struct kvcachefs_paged *last = NULL;
	struct kvcachefs_strides s;
	size_t longest = 0;

	for (size_t i = 0; i < b->n && (!b->p || b->p->device < 0); i++) {
		const struct kvcachefs_paged *p = b->items[i].cache ?: b->p;

		if (!b->items[i].rope || !p || p == last || kvcachefs_shape_of(p, &s))
			continue; /* an invalid shape fails later */
		size_t row = (size_t)s.heads * s.width * p->elem;

		last = p;
		longest = row > longest ? row : longest;
	}
	return longest;
}

/* Allocates the block and divides it. Sets *names to the space for the names of the files. */
static int allocate_block(struct kvcachefs_transfer *t, const struct kvcachefs_begin *b,
			  char **names)
{
	size_t n = b->n, most = 1, len = strlen(b->mount) + 1, row = longest_rotated(b),
	       capacity = 0;
	char *at;

	for (size_t i = 0; i < n; i++) {
		most += b->items[i].cache && (!i || b->items[i].cache != b->items[i - 1].cache);
		capacity += kvcachefs_file_names_size(b->mount, b->items[i].path);
	}
	capacity += most * sizeof *t->caches + n * (sizeof *t->pieces + sizeof *t->paths) + len +
		    row + 80;
	if (capacity > t->capacity) {
		free(t->block);
		t->capacity = 0;
		t->block = malloc(capacity);
		if (!t->block)
			return kvcachefs_fail(-ENOMEM, "out of memory");
		t->capacity = capacity;
	}
	at = t->block;
	t->caches = part(&at, most * sizeof *t->caches);
	t->pieces = part(&at, n * sizeof *t->pieces);
	t->paths = part(&at, n * sizeof *t->paths);
	t->mount = memcpy(part(&at, len), b->mount, len);
	t->row = part(&at, row);
	memset(t->pieces, 0, n * sizeof *t->pieces);
	*names = at;
	return 0;
}

/* ---- Items ---- */

static int item_fail(struct kvcachefs_transfer *t, size_t i, int err)
{
	const char *path = t->items[i].path;

	t->items[i].err = err;
	if (!strstr(kvcachefs_error(), path)) { /* add the name of the object */
		char text[512];

		snprintf(text, sizeof text, "%s", kvcachefs_error());
		kvcachefs_fail(err, "%s: %s", path, text);
	}
	pthread_mutex_lock(&t->lock);
	if (!t->err) /* the text of the first error stays */
		snprintf(t->error, sizeof t->error, "%s", kvcachefs_error());
	t->err = t->err ?: err;
	pthread_mutex_unlock(&t->lock);
	return err;
}

/* Returns the first error; its text becomes that of the calling thread. */
static int result_of(const struct kvcachefs_transfer *t)
{
	return t->err && *t->error ? kvcachefs_fail(t->err, "%s", t->error) : t->err;
}

/* Describes the layout of a file, so that another layout is refused. */
static void layout_text(const struct kvcachefs_transfer *t, size_t i, char *buf, size_t capacity)
{
	const struct kvcachefs_item *it = &t->items[i];
	const struct cache *c = t->pieces[i].cache;
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
	const struct piece *c = &t->pieces[i];
	char want[KVCACHEFS_LAYOUT_MAX] = "this load";

	if (!c->cache && !it->size && len < c->f.len)
		return kvcachefs_fail(-ERANGE, "%s has %zu bytes, and the parts end at %zu",
				      c->f.path, len, c->f.len);
	if (c->cache)
		layout_text(t, i, want, sizeof want);
	if (c->cache && *have && strcmp(have, want))
		return kvcachefs_fail(-EPROTOTYPE, "%s contains %s, but %s is requested", c->f.path,
				      have, want);
	if (len != c->f.len && (c->cache || it->size))
		return kvcachefs_fail(-EPROTOTYPE, "%s has %zu bytes, but %s needs %zu", c->f.path,
				      len, want, c->f.len);
	return 0;
}

/*
 * Opens the file of an item without a lease. If that takes long, a tier is read: then the mount is
 * told once to load the files of all items.
 */
static int open_unleased(struct kvcachefs_transfer *t, size_t i, size_t *len)
{
	uint64_t began = kvcachefs_now_ms();
	const char *path = t->pieces[i].f.path;
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	bool known = false;
	struct statx st;

	/* what the kernel knows of an immutable file suffices if it is as expected */
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

static int load_open(struct kvcachefs_transfer *t, size_t i)
{
	struct piece *c = &t->pieces[i];
	char have[KVCACHEFS_LAYOUT_MAX] = "";
	const void *data;
	size_t len;
	int err = c->cache ? kvcachefs_lease_layout(t->lease, t->first + i, have) : 0;

	err = err ?: kvcachefs_lease_map(t->lease, t->first + i, &data, &len);
	err = err ?: check_file(t, i, have, len);
	if (err)
		return err;
	c->f.len = len;
	c->f.map = (void *)(uintptr_t)data;
	c->late = t->cuda && len && kvcachefs_lease_registers(t->lease, t->first + i);
	if (t->cuda && len && !c->late)
		c->pinned = kvcachefs_lease_pin(t->lease, t->first + i, t->p.device);
	return 0;
}

/* Stores parts in host memory as the file of item i. */
static int store_parts(struct kvcachefs_transfer *t, size_t i, const struct kvcachefs_item *parts)
{
	struct kvcachefs_file *f = &t->pieces[i].f;
	int err;

	for (int again = 0;; again++) {
		err = kvcachefs_file_make_plain(f)
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
	struct piece *c = &t->pieces[i];
	int err = kvcachefs_file_make(&c->f, t->dev, t->p.device);

	c->pinned = !err && c->f.pinned && !t->staged;
	return err;
}

/* Moves an item in host memory. Keys are rotated row by row, on a copy. */
static int move_host(struct kvcachefs_transfer *t, size_t i)
{
	struct kvcachefs_item *it = &t->items[i];
	struct piece *c = &t->pieces[i];
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

/* Adds the work of an item whose file is open. */
static int item_add(struct kvcachefs_transfer *t, struct kvcachefs_cuda *cuda, size_t i)
{
	struct kvcachefs_item *it = &t->items[i];
	struct piece *c = &t->pieces[i];
	struct kvcachefs_work w = {
		.item = it,
		.p = c->cache ? c->cache->p : NULL,
		.s = c->cache ? &c->cache->s : NULL,
		.host = c->f.map,
		.len = c->f.len,
		.pinned = c->pinned,
	};
	int err = w.p ? kvcachefs_check(w.p, it->layer, it->nlayers, &it->tokens, &w.ntokens) : 0;

	return err ?: kvcachefs_cuda_add(cuda, &w);
}

static int item_begin(struct kvcachefs_transfer *t, size_t i)
{
	const struct kvcachefs_item *it = &t->items[i];
	struct piece *c = &t->pieces[i];
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
	if (err || !c->f.len || c->late)
		return err;
	return t->cuda ? item_add(t, t->cuda, i) : move_host(t, i);
}

/* Registers up to `most` of the late files and adds their work. */
static void add_late(struct kvcachefs_transfer *t, struct kvcachefs_cuda *cuda, size_t most)
{
	for (size_t i = 0; i < t->n && most; i++) {
		struct piece *c = &t->pieces[i];
		int err;

		if (!c->late)
			continue;
		most--;
		c->late = false;
		c->pinned = kvcachefs_lease_pin(t->lease, t->first + i, t->p.device);
		err = item_add(t, cuda, i);
		if (err)
			item_fail(t, i, err);
	}
}

static void host_item(void *arg, size_t i)
{
	int err = item_begin(arg, i);

	if (err)
		item_fail(arg, i, err);
}

static void next_item(void *arg, size_t i)
{
	host_item(arg, i + 1);
}

/*
 * In host memory. Several threads share the items, unless the items share a buffer. The first item
 * makes the folder in which files are prepared.
 */
static void run_host(struct kvcachefs_transfer *t)
{
	uint64_t bytes = 0;

	for (size_t i = 0; i < t->n; i++)
		bytes += t->pieces[i].f.len;
	if (t->n)
		host_item(t, 0);
	if (t->n > 1)
		kvcachefs_share(&kvcachefs_callers, t->n - 1, t->shares && bytes >= SHARE_LEAST,
				next_item, t);
}

/* Finds the files of a store that exist and must be skipped, with one call to the mount. */
static int look_for_existing(struct kvcachefs_transfer *t)
{
	struct kvcachefs_item *v = t->items;
	size_t n = 0;
	uint8_t *bits;
	int err;

	for (size_t i = 0; i < t->n; i++) /* a store needs the paths only here */
		if (v[i].skip_existing && !v[i].err)
			t->paths[n++] = v[i].path;
	bits = n ? calloc(1, n / 8 + 1) : NULL;
	if (!n)
		return 0;
	if (!bits)
		return kvcachefs_fail(-ENOMEM, "out of memory");
	err = kvcachefs_exists(t->mount, t->paths, n, 1, true, bits);
	n = 0;
	for (size_t i = 0; i < t->n && !err; i++)
		if (v[i].skip_existing && !v[i].err) {
			v[i].skipped = bits[n / 8] >> n % 8 & 1;
			n++;
		}
	free(bits);
	return err;
}

static int run_items(struct kvcachefs_transfer *t, void *stream)
{
	size_t late = 0;
	bool early = false;
	int err = 0;

	if (!t->cuda) {
		run_host(t);
		return 0;
	}
	for (size_t i = 0; i < t->n; i++) {
		err = item_begin(t, i);
		if (err)
			item_fail(t, i, err);
		late += t->pieces[i].late;
		early |= !t->items[i].err && t->pieces[i].f.len && !t->pieces[i].late &&
			 !t->items[i].skipped;
	}
	if (late > 1 && !early) { /* one half is copied while the other is registered */
		early = true;
		add_late(t, t->cuda, late / 2);
		late -= late / 2;
	}
	if (late && early) {
		err = kvcachefs_cuda_run(t->cuda)
			      ?: kvcachefs_cuda_new(&t->late, t->p.device, t->store, stream);
		if (err)
			return err;
	}
	if (late)
		add_late(t, t->late ?: t->cuda, late);
	return kvcachefs_cuda_run(t->late ?: t->cuda);
}

/* Open files are leases of their own: parts in host memory need no other. */
static bool needs_lease(const struct kvcachefs_transfer *t)
{
	return t->p.device >= 0 || t->ncaches;
}

static int lease_all(struct kvcachefs_transfer *t)
{
	int err;

	err = kvcachefs_lease_new(&t->lease, t->mount, t->paths, t->n);
	if (!err && kvcachefs_lease_count(t->lease) != t->n)
		err = kvcachefs_fail(-EINVAL, "each path of a load must be one file");
	return err;
}

/* Finds the cache of an item; each cache gets one entry. */
static int find_cache(struct kvcachefs_transfer *t, const struct kvcachefs_paged *p,
		      const struct cache **out)
{
	struct cache *c = t->caches + t->ncaches;
	int err;

	for (size_t i = t->ncaches; i-- > 0;)
		if (t->caches[i].p == p) {
			*out = &t->caches[i];
			return 0;
		}
	if (p->device != t->p.device && (p->device >= 0 || t->p.device >= 0))
		return kvcachefs_fail(-EINVAL,
				      "the cache is on device %d and the transfer is on device %d",
				      p->device, t->p.device);
	c->p = p;
	err = kvcachefs_strides_of(p, &c->s);
	if (err)
		return err;
	t->ncaches++;
	*out = c;
	return 0;
}

static int look_at(struct kvcachefs_transfer *t, const struct kvcachefs_begin *b)
{
	struct stat st;
	char *names = NULL;
	int err = allocate_block(t, b, &names);

	if (!err && b->store && stat(t->mount, &st))
		err = kvcachefs_fail(-errno, "%s: %s", t->mount, strerror(errno));
	if (!err && b->store)
		t->dev = st.st_dev;
	if (!err)
		err = kvcachefs_parts_bound(b->items, b->n);
	for (size_t i = 0; i < b->n && !err; i++, t->n++) {
		struct kvcachefs_item *it = &t->items[i];
		struct piece *c = &t->pieces[i];
		uint64_t size;

		it->err = 0;
		it->skipped = false;
		t->paths[i] = it->path;
		kvcachefs_file_init(&c->f, names, b->mount, it->path, 0);
		names += kvcachefs_file_names_size(b->mount, it->path);
		if (it->parts) {
			int bad = kvcachefs_parts_check(it, b->store, &size);

			c->f.len = bad ? 0 : size;
			if (bad)
				item_fail(t, i, bad);
			continue;
		}
		err = find_cache(t, it->cache ?: &t->p, &c->cache);
		if (!err)
			c->f.len = kvcachefs_file_size(c->cache->p, it->nlayers, &it->tokens);
	}
	t->shares = !longest_rotated(b);
	return err;
}

int kvcachefs_transfer_begin(struct kvcachefs_transfer **out, const struct kvcachefs_begin *b)
{
	struct kvcachefs_transfer *t = transfer_get();
	int err;

	if (!t)
		return kvcachefs_fail(-ENOMEM, "out of memory");
	t->store = b->store;
	t->staged = b->staged;
	t->p = b->p ? *b->p : (struct kvcachefs_paged){ .device = -1 };
	t->items = b->items;
	t->lease = b->lease;
	t->lent = b->lease;
	t->first = b->first;
	err = look_at(t, b);
	if (!err && b->store)
		err = look_for_existing(t);
	else if (!err && !b->lease)
		err = needs_lease(t) ? lease_all(t) : 0;
	if (!err && t->p.device >= 0)
		err = kvcachefs_cuda_new(&t->cuda, t->p.device, b->store, b->stream);
	if (!err)
		err = run_items(t, b->stream);
	if (err) {
		t->err = err;
		*t->error = 0; /* the text of this error stays */
		for (size_t i = 0; i < b->n; i++)
			b->items[i].err = err;
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
	struct kvcachefs_begin b = { true, mount, p, items, n, stream, NULL, 0, false };

	return kvcachefs_transfer_begin(out, &b);
}

int kvcachefs_load(struct kvcachefs_transfer **out, const char *mount,
		   const struct kvcachefs_paged *p, struct kvcachefs_item *items, size_t n,
		   void *stream)
{
	struct kvcachefs_begin b = { false, mount, p, items, n, stream, NULL, 0, false };

	return kvcachefs_transfer_begin(out, &b);
}

int kvcachefs_transfer_poll(struct kvcachefs_transfer *t)
{
	int err = t->cuda ? kvcachefs_cuda_poll(t->cuda) : 0;

	if (!err && t->late)
		err = kvcachefs_cuda_poll(t->late);
	return err ? err : result_of(t);
}

int kvcachefs_transfer_wait(struct kvcachefs_transfer *t)
{
	int err = t->cuda ? kvcachefs_cuda_wait(t->cuda) : 0,
	    late = t->late ? kvcachefs_cuda_wait(t->late) : 0;

	err = err ?: late;

	for (size_t i = 0; err && i < t->n; i++)
		item_fail(t, i, err);
	return result_of(t);
}

int kvcachefs_transfer_land(struct kvcachefs_transfer *t)
{
	char text[KVCACHEFS_LAYOUT_MAX];

	if (t->landed)
		return t->err;
	t->landed = true;
	kvcachefs_transfer_wait(t);
	/* before their mappings are removed; the one freed last is taken next */
	kvcachefs_cuda_free(t->late);
	kvcachefs_cuda_free(t->cuda);
	t->cuda = t->late = NULL;
	for (size_t i = 0; i < t->n; i++) {
		int err = 0;

		if (!t->store) {
			t->pieces[i].f.map = NULL; /* belongs to the lease */
		} else if (!t->items[i].err && !t->items[i].skipped) {
			if (t->pieces[i].cache)
				layout_text(t, i, text, sizeof text);
			err = kvcachefs_file_seal(&t->pieces[i].f,
						  t->pieces[i].cache ? text : NULL);
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
		struct kvcachefs_item *it = &t->items[i];

		if (t->store && !it->err && !it->skipped) {
			err = kvcachefs_file_publish(&t->pieces[i].f,
						     it->skip_existing ? &it->skipped : NULL);
			if (err)
				item_fail(t, i, err);
		}
		kvcachefs_file_fini(&t->pieces[i].f);
	}
	if (!t->lent)
		kvcachefs_lease_free(t->lease);
	err = result_of(t);
	give(t);
	return err;
}
