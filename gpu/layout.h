/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Offsets of elements in a paged KV cache. A format is a row in layout.c: the dimensions that
 * choose the pointer, and the order of the other dimensions from the outermost inwards. Strides are
 * computed from the format and the shape. Only kvcachefs_at() turns them into an offset, on the
 * host and in the kernels.
 */
#ifndef KVCACHEFS_LAYOUT_H
#define KVCACHEFS_LAYOUT_H

#include "rope.h"

/*
 * A row of a file is one token of one component (K or V) and one layer. It is cut into runs, which
 * are contiguous in the cache too. Runs of heads all have the same length; planes (formats 14 and
 * 17) each have their own place.
 */
struct kvcachefs_strides { /* in elements */
	uint64_t layer, kv, block, slot, head;
	/* pointer number = layer * pointer_layer + kv * pointer_kv + the plane's pointer */
	uint32_t pointer_layer, pointer_kv;
	uint32_t npointers;
	uint32_t kvs;          /* components of a file: 2 or 1 */
	uint32_t heads, width; /* of a row */
	uint32_t block_size;
	uint32_t runs;      /* per row */
	uint32_t run;       /* elements per run, for runs of heads */
	uint32_t run_heads; /* heads per run: all, or 1 */
	uint32_t planes;    /* 0: runs of heads */
	struct {
		uint64_t base, block, slot;
		uint32_t pointer, at, width; /* at: offset in the row */
	} plane[KVCACHEFS_PLANES];
};

struct kvcachefs_run {    /* in elements */
	uint64_t offset;  /* from the pointer */
	uint32_t pointer; /* number of the pointer */
	uint32_t at, len; /* offset and length in the row */
};

static inline KVCACHEFS_BOTH struct kvcachefs_run kvcachefs_at(const struct kvcachefs_strides *s,
							       uint32_t layer, uint32_t kv,
							       uint64_t slot, uint32_t run)
{
	uint64_t block = slot / s->block_size, in = slot % s->block_size;
	struct kvcachefs_run r;

	r.pointer = s->pointer_layer * layer + s->pointer_kv * kv;
	if (s->planes) {
		r.pointer += s->plane[run].pointer;
		r.offset = s->plane[run].base + s->plane[run].block * block +
			   s->plane[run].slot * in;
		r.at = s->plane[run].at;
		r.len = s->plane[run].width;
	} else {
		r.offset = s->layer * layer + s->kv * kv + s->block * block + s->slot * in +
			   s->head * ((uint64_t)run * s->run_heads);
		r.at = run * s->run;
		r.len = s->run;
	}
	return r;
}

/* Returns the slot of token i; negative: the token is skipped. */
static inline KVCACHEFS_BOTH int64_t kvcachefs_slot(const int64_t *slots, const int64_t *block_ids,
						    uint32_t block_size, uint64_t i)
{
	if (slots)
		return slots[i];
	return block_ids[i / block_size] < 0 ? -1
					     : block_ids[i / block_size] * (int64_t)block_size +
						       (int64_t)(i % block_size);
}

#ifdef __cplusplus
extern "C" {
#endif
#pragma GCC visibility push(hidden)
/*
 * Compute strides. Return 0, or -EINVAL if the shape is invalid or a pointer is missing. shape_of
 * does not check the pointers.
 */
int kvcachefs_shape_of(const struct kvcachefs_paged *p, struct kvcachefs_strides *s);
int kvcachefs_strides_of(const struct kvcachefs_paged *p, struct kvcachefs_strides *s);
/*
 * Checks all slots, the layers and the skip. Sets *ntokens to the number of tokens. Returns 0,
 * -EINVAL or -ERANGE.
 */
int kvcachefs_check(const struct kvcachefs_paged *p, uint32_t layer, uint32_t nlayers,
		    const struct kvcachefs_tokens *t, uint64_t *ntokens);

/*
 * lease.c: maps object i if it is not mapped, and copies the layout that the file records, or "" if
 * it has none. Returns 0 or a negative errno.
 */
#define KVCACHEFS_LAYOUT_MAX 160
int kvcachefs_lease_layout(struct kvcachefs_lease *l, size_t i, char layout[KVCACHEFS_LAYOUT_MAX]);
/*
 * lease.c: opens object i for reading. layout: NULL, or space for the layout that the file records.
 * Returns a descriptor that the caller closes, or a negative errno.
 */
int kvcachefs_lease_open(const struct kvcachefs_lease *l, size_t i, char *layout);
/*
 * lease.c: checks that each of the lease's paths is the path of one file. Returns 0, -EISDIR (the
 * only path is a folder) or -EINVAL.
 */
int kvcachefs_lease_files(const struct kvcachefs_lease *l, const char *const *paths, size_t n);
/* Commands of a lease (kvcachefs-files(5)). */
#define KVCACHEFS_LOOK "look\n"
#define KVCACHEFS_LOOK_HERE "look here\n" /* without the shared tiers */
/*
 * lease.c: gives the command in `word`, or takes a lease if it is empty, and records which objects
 * answer each path. Errors are those of a lease. kvcachefs_lease_part returns the number of objects
 * that answer path i, and sets *first to the first one; 0 for a folder without files.
 */
int kvcachefs_lease_parted(struct kvcachefs_lease **out, const char *mount,
			   const char *const *paths, size_t n, const char *word);
size_t kvcachefs_lease_part(const struct kvcachefs_lease *l, size_t i, size_t *first);
/*
 * prefix.c: checks that `per` is not 0 and n is a multiple of it. Returns 0 or -EINVAL.
 */
int kvcachefs_groups_check(size_t n, size_t per);
/*
 * prefix.c: the lease of kvcachefs_submit_lease(). quick: does not wait for a tier, and returns 1
 * if it would have to. Sets *out and *count only if it returns 0.
 */
int kvcachefs_groups_lease(struct kvcachefs_lease **out, const char *mount,
			   const char *const *paths, size_t n, size_t per, bool prefix, bool quick,
			   size_t *count);
/*
 * Registers the mapping of object i, which must be mapped, for devices; only once. Returns false if
 * that is not possible.
 */
bool kvcachefs_lease_pin(struct kvcachefs_lease *l, size_t i, int device);
/*
 * lease.c, for a load on a device. map_known: returns the bytes of object i if its mapping exists,
 * and whether they are registered; NULL if it is not mapped, or if its pages are about to be
 * registered and reading is faster than faulting them. file: opens object i, once, and copies the
 * layout that it records (NULL: none is wanted). Returns a descriptor, which the lease closes when
 * it is freed, or a negative errno; -EMFILE: the process has many of them. loaded: `bytes` bytes of
 * object i were loaded on `device` without a registration; if this is not the first time, the
 * object is registered in the background.
 */
const void *kvcachefs_lease_map_known(struct kvcachefs_lease *l, size_t i, bool *pinned);
int kvcachefs_lease_file(struct kvcachefs_lease *l, size_t i, char *layout);
void kvcachefs_lease_loaded(struct kvcachefs_lease *l, size_t i, uint64_t bytes, int device);

struct kvcachefs_rotated { /* keys that are rotated during the transfer */
	const struct kvcachefs_rotation *rotation;
	const struct kvcachefs_rope *rope;
	void *row; /* memory for one row of a file */
};
/* Scatters like kvcachefs_scatter(), and rotates the keys; the file is not changed. */
int kvcachefs_scatter_rotated(const struct kvcachefs_paged *p, uint32_t layer, uint32_t nlayers,
			      const struct kvcachefs_tokens *t, const void *in,
			      const struct kvcachefs_rotated *rotated);

/* cuda.cu, or cuda_none.c in a build without CUDA: the work of one transfer on a device. */
struct kvcachefs_work {                    /* one file */
	const struct kvcachefs_item *item; /* lives with its arrays until kvcachefs_cuda_free */
	/* its cache; lives until kvcachefs_cuda_free. NULL: the item has parts */
	const struct kvcachefs_paged *p;
	const struct kvcachefs_strides *s;
	uint64_t ntokens;
	/* the file's mapping; NULL: the bytes are read from fd. Lives until kvcachefs_cuda_free */
	void *host;
	uint64_t len; /* bytes; not 0 */
	bool pinned;  /* the mapping is registered */
	int fd;       /* the open file of a load without a mapping; lives likewise */
};
struct kvcachefs_cuda;
/*
 * Creates the work of one transfer. Returns 0, or a negative errno; -EBUSY: the stream is being
 * captured.
 */
int kvcachefs_cuda_new(struct kvcachefs_cuda **out, int device, bool store, void *stream);
int kvcachefs_cuda_add(struct kvcachefs_cuda *c, const struct kvcachefs_work *w);
/* Checks that the memory of these parts is on the device. Returns 0 or -EFAULT. */
int kvcachefs_cuda_check_parts(int device, const struct kvcachefs_part *v, size_t n);
/* Queues all added work; called once. */
int kvcachefs_cuda_run(struct kvcachefs_cuda *c);
/* Returns 0, -EAGAIN, -EIO, or the error of a file that could not be read. */
int kvcachefs_cuda_poll(struct kvcachefs_cuda *c);
int kvcachefs_cuda_wait(struct kvcachefs_cuda *c);
void kvcachefs_cuda_free(struct kvcachefs_cuda *c); /* waits first */
/*
 * order.cuh; none of these calls waits for the device. check: returns 0, or -ENODEV if the device
 * does not exist. stream_new, stream_free: a stream. mark: sets a mark after the work queued on a
 * stream so far; -EBUSY: the stream is being captured. after: work queued on the stream later waits
 * for the mark. unmark: releases a mark that no call waits for any more.
 */
int kvcachefs_cuda_check(int device);
int kvcachefs_cuda_stream_new(int device, void **out);
void kvcachefs_cuda_stream_free(int device, void *stream);
int kvcachefs_cuda_mark(int device, void *stream, void **mark);
int kvcachefs_cuda_after(int device, void *stream, void *mark);
void kvcachefs_cuda_unmark(int device, void *mark);
/* Pins host memory for all devices. Memory is unpinned on the device that pinned it. */
int kvcachefs_cuda_register(int device, void *p, size_t len, bool readonly);
void kvcachefs_cuda_unregister(int device, void *p); /* waits until the device is idle */
/* Frees transfer resources that are not kept. Waits until the device is idle. */
void kvcachefs_cuda_reap(void);
#pragma GCC visibility pop
#ifdef __cplusplus
}
#endif

#endif
