/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Moves many objects in one call. A store creates each file or takes a prepared one, mapped
 * (file.h). The bytes come from the cache by gather (host) or from the device (cuda.cu). When all
 * bytes are written the layout is set, and freeing the transfer renames the files. A load takes a
 * lease of all its files, or uses a lease of the caller, and maps them; in a load, member f of
 * struct kvcachefs_piece has only the file's name and length. On a device, a load uses the mappings
 * that are registered, and reads the other files through pinned memory, so no call waits for a
 * registration. Files that are loaded again are registered in the background (maps.c).
 *
 * In host memory, parts are written and read by system calls: mapping a file and faulting its fresh
 * pages costs more than its bytes. Tokens use the mapping of a prepared file. Several threads share
 * the items.
 *
 * All data of a transfer is in one block of memory. A freed transfer is kept with its block for the
 * next one, so that a transfer similar to earlier ones allocates nothing.
 */
#include "transfer_priv.h"
#include "parts.h"
#include "share.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define KEPT 16
#define SHARE_LEAST (1u << 20) /* bytes in host memory that are worth several threads */
#define SHARE_FILES 16         /* the same for a number of files that are not mapped */
#define KEPT_BYTES (1u << 20)  /* a larger block is not kept */

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

static void begin_item(void *arg, size_t i)
{
	int err = kvcachefs_item_begin(arg, i);

	if (err)
		item_fail(arg, i, err);
}

static void next_item(void *arg, size_t i)
{
	begin_item(arg, i + 1);
}

/*
 * In host memory. Several threads share the items, unless the items share a buffer. The first item
 * of a store makes the folder in which files are prepared.
 */
static void run_host(struct kvcachefs_transfer *t)
{
	size_t first = t->store && t->n;
	uint64_t bytes = 0;

	for (size_t i = 0; i < t->n; i++)
		bytes += t->pieces[i].f.len;
	if (first)
		begin_item(t, 0);
	kvcachefs_share(&kvcachefs_callers, t->n - first,
			t->shares && (bytes >= SHARE_LEAST || (!t->ncaches && t->n >= SHARE_FILES)),
			first ? next_item : begin_item, t);
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

static int run_items(struct kvcachefs_transfer *t)
{
	if (!t->cuda) {
		run_host(t);
		return 0;
	}
	for (size_t i = 0; i < t->n; i++)
		begin_item(t, i);
	return kvcachefs_cuda_run(t->cuda);
}

/* Open files are leases of their own: parts in host memory need no other. */
static bool needs_lease(const struct kvcachefs_transfer *t)
{
	return t->p.device >= 0 || t->ncaches;
}

static int lease_all(struct kvcachefs_transfer *t)
{
	int err = kvcachefs_lease_new(&t->lease, t->mount, t->paths, t->n);

	return err ?: kvcachefs_lease_files(t->lease, t->paths, t->n);
}

/* Finds the cache of an item; each cache gets one entry. */
static int find_cache(struct kvcachefs_transfer *t, const struct kvcachefs_paged *p,
		      const struct kvcachefs_cache **out)
{
	struct kvcachefs_cache *c = t->caches + t->ncaches;
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
	char *names = NULL;
	int err = allocate_block(t, b, &names);

	/* stores and loads without a lease open files by their paths */
	if (!err && (b->store || !b->lease))
		err = kvcachefs_file_mount(t->mount, &t->dev);
	if (!err)
		err = kvcachefs_parts_bound(b->items, b->n);
	for (size_t i = 0; i < b->n && !err; i++, t->n++) {
		struct kvcachefs_item *it = &t->items[i];
		struct kvcachefs_piece *c = &t->pieces[i];
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
		err = run_items(t);
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

	return err ? err : result_of(t);
}

int kvcachefs_transfer_wait(struct kvcachefs_transfer *t)
{
	int err = t->cuda ? kvcachefs_cuda_wait(t->cuda) : 0;

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
	kvcachefs_cuda_free(t->cuda); /* before the mappings are removed */
	t->cuda = NULL;
	for (size_t i = 0; i < t->n; i++) {
		int err = 0;

		if (!t->store) {
			kvcachefs_item_loaded(t, i);
		} else if (!t->items[i].err && !t->items[i].skipped) {
			if (t->pieces[i].cache)
				kvcachefs_item_layout(t, i, text, sizeof text);
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
