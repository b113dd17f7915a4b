/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kvcachefs_gpu_warm(): performs transfers like those that the caller plans, without a visible
 * effect. Stores run completely and are undone before they publish, once with registrations and
 * once without. A load uses skipped slots, and runs on the device only. The resources that they
 * used (memory of transfers, lanes, streams, marks; the kernels, which CUDA loads at their first
 * use) are kept by their owners. Finally, files of the same sizes are prepared (ready.c), because
 * the stores have taken some.
 */
#include "file.h"
#include "parts.h"
#include "ready.h"
#include "transfer.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define TRANSFERS_MOST 8
#define NAME ".kvcachefs.warm."

struct warm {
	struct kvcachefs_warm how;
	const char *mount;
	const struct kvcachefs_paged *p;
	struct kvcachefs_item *items; /* copies */
	size_t n;
	void *stream;
};

/* Returns the length of the prepared file that a store of item i takes; 0: none. */
static uint64_t size_of(const struct warm *w, size_t i)
{
	const struct kvcachefs_item *it = &w->items[i];
	uint64_t size;

	if (it->parts) /* in host memory they are written to a file that is not mapped */
		return w->p->device < 0 || kvcachefs_parts_check(it, true, &size) ? 0 : size;
	return kvcachefs_file_size(it->cache ?: w->p, it->nlayers, &it->tokens);
}

/* Runs several stores at once, each with a lane of its own. */
static int run_stores(const struct warm *w, bool staged)
{
	struct kvcachefs_transfer *t[TRANSFERS_MOST];
	unsigned n = 0;
	int err = 0;

	for (; n < w->how.transfers && !err; n += !err) {
		struct kvcachefs_begin b = {
			.store = true,
			.mount = w->mount,
			.p = w->p,
			.items = w->items,
			.n = w->n,
			.stream = w->stream,
			.staged = staged,
		};

		err = kvcachefs_transfer_begin(&t[n], &b);
	}
	while (n) {
		int one = kvcachefs_transfer_land(t[--n]);

		err = err ?: one;
		kvcachefs_transfer_undo(t[n], -ECANCELED);
		kvcachefs_transfer_free(t[n]);
	}
	return err;
}

/* Adds the work of one item whose slots or blocks are all skipped. */
static int add_work(struct kvcachefs_cuda *c, const struct warm *w, struct kvcachefs_item *it,
		    struct kvcachefs_strides *s, const int64_t *none, void *zeros)
{
	struct kvcachefs_work work = {
		.item = it,
		.p = it->cache ?: w->p,
		.s = s,
		.host = zeros,
	};
	int err;

	*(it->tokens.slots ? &it->tokens.slots : &it->tokens.block_ids) = none;
	work.len = kvcachefs_file_size(work.p, it->nlayers, &it->tokens);
	err = kvcachefs_strides_of(work.p, s)
		      ?: kvcachefs_check(work.p, it->layer, it->nlayers, &it->tokens,
					 &work.ntokens);
	return !err && work.len ? kvcachefs_cuda_add(c, &work) : err;
}

/* Runs a load on the device, from a file of zeros to skipped slots. */
static int run_load(const struct warm *w)
{
	struct kvcachefs_item *items = calloc(w->n ?: 1, sizeof *items);
	struct kvcachefs_strides *s = calloc(w->n ?: 1, sizeof *s);
	size_t longest = 1, most = 1;
	struct kvcachefs_cuda *c = NULL;
	int64_t *none;
	void *zeros;
	int err;

	for (size_t i = 0; i < w->n; i++) {
		longest = size_of(w, i) > longest ? size_of(w, i) : longest;
		most = w->items[i].tokens.n > most ? w->items[i].tokens.n : most;
	}
	none = malloc(most * sizeof *none);
	zeros = calloc(1, longest);
	err = items && s && none && zeros ? kvcachefs_cuda_new(&c, w->p->device, false, w->stream)
					  : kvcachefs_fail(-ENOMEM, "out of memory");
	if (!err) {
		memset(none, 0xff, most * sizeof *none);
		memcpy(items, w->items, w->n * sizeof *items);
	}
	for (size_t i = 0; i < w->n && !err; i++)
		err = items[i].parts ? 0 : add_work(c, w, &items[i], &s[i], none, zeros);
	if (!err)
		err = kvcachefs_cuda_run(c) ?: kvcachefs_cuda_wait(c);
	kvcachefs_cuda_free(c);
	free(items);
	free(s);
	free(none);
	free(zeros);
	return err;
}

/*
 * Creates as many marks as a queue may need at once for these transfers: one per layer, and one for
 * the whole.
 */
static int make_marks(const struct warm *w)
{
	size_t n = w->how.transfers * (w->n + 1), made = 0;
	void **v;
	int err = 0;

	n = n < 256 ? n : 256;
	v = calloc(n, sizeof *v);
	if (!v)
		return kvcachefs_fail(-ENOMEM, "out of memory");
	for (; made < n && !err; made += !err)
		err = kvcachefs_cuda_mark(w->p->device, w->stream, &v[made]);
	while (made)
		kvcachefs_cuda_unmark(w->p->device, v[--made]);
	free(v);
	return err;
}

static int on_device(struct warm *w)
{
	void *streams[TRANSFERS_MOST];
	unsigned n = 0;
	int err = 0;

	for (; n < w->how.transfers && !err; n += !err)
		err = kvcachefs_cuda_stream_new(w->p->device, &streams[n]);
	if (!err) {
		w->stream = streams[0];
		err = run_stores(w, false) ?: run_stores(w, true) ?: run_load(w) ?: make_marks(w);
	}
	while (n)
		kvcachefs_cuda_stream_free(w->p->device, streams[--n]);
	return err;
}

static bool alike(const struct warm *w, size_t i, size_t k)
{
	size_t n = kvcachefs_folder_len(w->items[i].path);

	return size_of(w, i) == size_of(w, k) && n == kvcachefs_folder_len(w->items[k].path) &&
	       !strncmp(w->items[i].path, w->items[k].path, n);
}

static int prepare_files(const struct warm *w, uint64_t dev)
{
	int err = 0;

	for (size_t i = 0; i < w->n && !err; i++) {
		struct kvcachefs_want want = {
			w->mount, dev, w->items[i].path, size_of(w, i), w->p->device,
		};
		unsigned same = 1;
		size_t k = 0;

		while (k < i && !alike(w, i, k))
			k++;
		if (k < i || !want.len) /* counted with an earlier item */
			continue;
		for (k = i + 1; k < w->n; k++)
			same += alike(w, i, k);
		err = kvcachefs_ready_warm(&want, same * w->how.transfers, w->how.keep_s * 1000ull);
	}
	return err;
}

/* Copies the items with new names in the same folders, since other folders may not exist. */
static int copy_items(struct warm *w, const struct kvcachefs_item *items, char **names)
{
	size_t capacity = 1;
	char *at;

	for (size_t i = 0; i < w->n; i++)
		capacity += kvcachefs_folder_len(items[i].path) + sizeof NAME + 20;
	w->items = calloc(w->n ?: 1, sizeof *w->items);
	at = *names = malloc(capacity);
	if (!w->items || !at)
		return kvcachefs_fail(-ENOMEM, "out of memory");
	for (size_t i = 0; i < w->n; i++) {
		size_t n = kvcachefs_folder_len(items[i].path);

		w->items[i] = items[i];
		w->items[i].path = at;
		memcpy(at, items[i].path, n);
		at += n;
		at += 1 + snprintf(at, sizeof NAME + 20, n ? "/" NAME "%zu" : NAME "%zu", i);
	}
	return 0;
}

int kvcachefs_gpu_warm(const char *mount, const struct kvcachefs_paged *p,
		       const struct kvcachefs_item *items, size_t n,
		       const struct kvcachefs_warm *how)
{
	const struct kvcachefs_paged none = { .device = -1 };
	struct warm w = { *how, mount, p ?: &none, NULL, n, NULL };
	uint64_t dev;
	char *names = NULL;
	int err = 0;

	w.how.transfers = how->transfers ?: 1;
	if (w.how.transfers > TRANSFERS_MOST)
		return kvcachefs_fail(-EINVAL, "transfers must be at most %d, not %u",
				      TRANSFERS_MOST, w.how.transfers);
	err = kvcachefs_file_mount(mount, &dev) ?: copy_items(&w, items, &names);
	if (!err && how->files) /* the stores take them */
		err = prepare_files(&w, dev);
	if (!err)
		err = w.p->device >= 0 ? on_device(&w) : run_stores(&w, false);
	if (!err && how->files)
		err = prepare_files(&w, dev);
	free(w.items);
	free(names);
	return err;
}
