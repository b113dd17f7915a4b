/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Where an element of a paged KV cache lies. A format is a row in layout.c: which dimensions choose the pointer, and the order of the others from the
 * outermost in. From it and the shape come strides, and kvcachefs_at() is the one place where they become an offset, on the host
 * and in the kernels.
 */
#ifndef KVCACHEFS_LAYOUT_H
#define KVCACHEFS_LAYOUT_H

#include "priv.h"

#ifdef __CUDACC__
#define KVCACHEFS_BOTH __host__ __device__
#else
#define KVCACHEFS_BOTH
#endif

struct kvcachefs_strides { /* in elements */
	uint64_t layer, kv, block, slot, head;
	uint32_t pointer_layer, pointer_kv; /* which pointer: layer * pointer_layer + kv * pointer_kv */
	uint32_t npointers;
	uint32_t kvs;          /* 2: K and V; 1: MLA */
	uint32_t run_heads;    /* heads that lie in a row in the cache as in the file: all, or 1 */
	uint32_t block_size;
};

static inline KVCACHEFS_BOTH uint64_t kvcachefs_at(const struct kvcachefs_strides *s, uint32_t layer, uint32_t kv, uint64_t slot, uint32_t head)
{
	return s->layer * layer + s->kv * kv + s->block * (slot / s->block_size) + s->slot * (slot % s->block_size) + s->head * head;
}

static inline KVCACHEFS_BOTH uint32_t kvcachefs_pointer(const struct kvcachefs_strides *s, uint32_t layer, uint32_t kv)
{
	return s->pointer_layer * layer + s->pointer_kv * kv;
}

/* The slot of token i; negative: skipped. */
static inline KVCACHEFS_BOTH int64_t kvcachefs_slot(const int64_t *slots, const int64_t *block_ids, uint32_t block_size, uint64_t i)
{
	if (slots)
		return slots[i];
	return block_ids[i / block_size] < 0 ? -1 : block_ids[i / block_size] * (int64_t)block_size + (int64_t)(i % block_size);
}

#ifdef __cplusplus
extern "C" {
#endif
#pragma GCC visibility push(hidden)
/* 0, or -EINVAL where the shape is none. */
int kvcachefs_strides_of(const struct kvcachefs_paged *p, struct kvcachefs_strides *s);
/* Checks all slots, the layers and the skip; *ntokens is how many tokens there are. 0, -EINVAL, -ERANGE. */
int kvcachefs_check(const struct kvcachefs_paged *p, uint32_t layer, uint32_t nlayers, const struct kvcachefs_tokens *t, uint64_t *ntokens);

/* lease.c: registers the mapping of object i, which is mapped, for devices; once. false: it cannot be. */
bool kvcachefs_lease_pin(struct kvcachefs_lease *l, size_t i, int device);

/* cuda.cu, or cuda_none.c where there is no CUDA: one transfer's work on a device. */
struct kvcachefs_work { /* one file */
	const struct kvcachefs_item *item; /* with its arrays it lives until free */
	uint64_t ntokens;
	void *host;    /* its mapping, until free */
	uint64_t len;  /* bytes, not 0 */
	bool pinned;   /* the mapping is registered */
};
struct kvcachefs_cuda;
int kvcachefs_cuda_new(struct kvcachefs_cuda **out, const struct kvcachefs_paged *p, const struct kvcachefs_strides *s, bool store, void *stream);
int kvcachefs_cuda_add(struct kvcachefs_cuda *c, const struct kvcachefs_work *w);
/* Queues all that was added; once. */
int kvcachefs_cuda_run(struct kvcachefs_cuda *c);
int kvcachefs_cuda_poll(struct kvcachefs_cuda *c); /* 0, -EAGAIN, -EIO */
int kvcachefs_cuda_wait(struct kvcachefs_cuda *c);
void kvcachefs_cuda_free(struct kvcachefs_cuda *c); /* waits first */
/* Pins host memory for devices. */
int kvcachefs_cuda_register(int device, void *p, size_t len, bool readonly);
void kvcachefs_cuda_unregister(void *p);
#pragma GCC visibility pop
#ifdef __cplusplus
}
#endif

#endif
