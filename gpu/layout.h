/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Where an element of a paged KV cache lies. A format is a row in layout.c: which dimensions choose
 * the pointer, and the order of the others from the outermost in. From it and the shape come
 * strides, and kvcachefs_at() is the one place where they become an offset, on the host and in the
 * kernels.
 */
#ifndef KVCACHEFS_LAYOUT_H
#define KVCACHEFS_LAYOUT_H

#include "rope.h"

/*
 * A token's row in a file, of one component (K or V) and one layer, is cut into runs: what lies in
 * a row in the cache as well. By heads they are all alike; planes (formats 14 and 17) each have
 * their own place.
 */
struct kvcachefs_strides { /* in elements */
	uint64_t layer, kv, block, slot, head;
	uint32_t pointer_layer, pointer_kv; /* which pointer: layer * pointer_layer + kv *
					       pointer_kv + the plane's */
	uint32_t npointers;
	uint32_t kvs;          /* components of a file: 2 or 1 */
	uint32_t heads, width; /* of a row */
	uint32_t block_size;
	uint32_t runs;      /* of a row */
	uint32_t run;       /* elements of one, by heads */
	uint32_t run_heads; /* heads of one: all, or 1 */
	uint32_t planes;    /* 0: by heads */
	struct {
		uint64_t base, block, slot;
		uint32_t pointer, at, width; /* at: in the row */
	} plane[KVCACHEFS_PLANES];
};

struct kvcachefs_run {    /* in elements */
	uint64_t offset;  /* from the pointer */
	uint32_t pointer; /* which */
	uint32_t at, len; /* in the row */
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

/* The slot of token i; negative: skipped. */
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
 * 0, or -EINVAL where the shape is none or a pointer is missing; shape_of does not look at those.
 */
int kvcachefs_shape_of(const struct kvcachefs_paged *p, struct kvcachefs_strides *s);
int kvcachefs_strides_of(const struct kvcachefs_paged *p, struct kvcachefs_strides *s);
/*
 * Checks all slots, the layers and the skip; *ntokens is how many tokens there are. 0, -EINVAL,
 * -ERANGE.
 */
int kvcachefs_check(const struct kvcachefs_paged *p, uint32_t layer, uint32_t nlayers,
		    const struct kvcachefs_tokens *t, uint64_t *ntokens);

/*
 * lease.c: maps object i where it is not, and gives the layout that the file says it has, "" where
 * it says none.
 */
#define KVCACHEFS_LAYOUT_MAX 160
int kvcachefs_lease_layout(struct kvcachefs_lease *l, size_t i, char layout[KVCACHEFS_LAYOUT_MAX]);
/*
 * lease.c: a lease, or a look, of which is known what answers each path; errors as of those. _part:
 * how many objects answer path i, and the first of them: 0 of a folder without files.
 */
int kvcachefs_lease_parted(struct kvcachefs_lease **out, const char *mount,
			   const char *const *paths, size_t n, bool look);
size_t kvcachefs_lease_part(const struct kvcachefs_lease *l, size_t i, size_t *first);
/* Registers the mapping of object i, which is mapped, for devices; once. false: it cannot be. */
bool kvcachefs_lease_pin(struct kvcachefs_lease *l, size_t i, int device);
/* Would that call the driver, or wait for who does? */
bool kvcachefs_lease_registers(struct kvcachefs_lease *l, size_t i);

struct kvcachefs_turned { /* keys that move on their way */
	const struct kvcachefs_turns *turns;
	const struct kvcachefs_rope *rope;
	void *row; /* room for one row of a file */
};
/* kvcachefs_scatter(), and the keys turned; the file stays as it is. */
int kvcachefs_scatter_turned(const struct kvcachefs_paged *p, uint32_t layer, uint32_t nlayers,
			     const struct kvcachefs_tokens *t, const void *in,
			     const struct kvcachefs_turned *turned);

/* cuda.cu, or cuda_none.c where there is no CUDA: one transfer's work on a device. */
struct kvcachefs_work {                    /* one file */
	const struct kvcachefs_item *item; /* with its arrays it lives until free */
	const struct kvcachefs_paged *p;   /* its cache, until free */
	const struct kvcachefs_strides *s;
	uint64_t ntokens;
	void *host;   /* its mapping, until free */
	uint64_t len; /* bytes, not 0 */
	bool pinned;  /* the mapping is registered */
};
struct kvcachefs_cuda;
/* -EBUSY: the stream is being captured. */
int kvcachefs_cuda_new(struct kvcachefs_cuda **out, int device, bool store, void *stream);
int kvcachefs_cuda_add(struct kvcachefs_cuda *c, const struct kvcachefs_work *w);
/* Queues all that was added; once. */
int kvcachefs_cuda_run(struct kvcachefs_cuda *c);
int kvcachefs_cuda_poll(struct kvcachefs_cuda *c); /* 0, -EAGAIN, -EIO */
int kvcachefs_cuda_wait(struct kvcachefs_cuda *c);
void kvcachefs_cuda_free(struct kvcachefs_cuda *c); /* waits first */
/*
 * order.cuh: none of these waits for the device. Is there such a device: 0 or -ENODEV; a stream; a
 * mark of what was queued on a stream so far (-EBUSY: it is being captured); what is queued on a
 * stream later waits for a mark; a mark that nobody will wait for any more is given back.
 */
int kvcachefs_cuda_check(int device);
int kvcachefs_cuda_stream_new(int device, void **out);
void kvcachefs_cuda_stream_free(int device, void *stream);
int kvcachefs_cuda_mark(int device, void *stream, void **mark);
int kvcachefs_cuda_after(int device, void *stream, void *mark);
void kvcachefs_cuda_unmark(int device, void *mark);
/* Pins host memory for devices; unpinned on the device that it was pinned on. */
int kvcachefs_cuda_register(int device, void *p, size_t len, bool readonly);
void kvcachefs_cuda_unregister(int device, void *p); /* waits until all of the device rests */
/* Ends what is not kept of transfers; waits likewise. */
void kvcachefs_cuda_bury(void);
#pragma GCC visibility pop
#ifdef __cplusplus
}
#endif

#endif
