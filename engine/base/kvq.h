/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kvq: a lossy code for blocks of KV caches. Keys of one head and layer that are in the same block
 * form a class of 64 to 256 vectors. For each channel of a class the block contains the mean and a
 * step, for each other vector only a step. An element becomes a symbol, its distance from the mean
 * in steps, from -127 to 127. An element beyond that is stored as it is (an escape). codec.c
 * compresses the symbols. The code fp8 has a scale for each vector and a byte for each element.
 *
 * A coded block describes itself: it contains the layout, and the place of its first vector in it.
 * Bytes of the block that are not part of a whole vector (before the first one, and after the last
 * one) are stored as they are.
 *
 * The encoder tries a setting and computes the bytes that the decoder will return, and
 * kvc_kvq_judge decides whether these are good enough. If not, the caller tries the next, finer
 * setting, or stores the block without loss. Calls for one struct kvc_kvq come from one thread at a
 * time.
 */
#ifndef KVC_KVQ_H
#define KVC_KVQ_H

#include "kv_layout.h"

#define KVC_KVQ_BLOCK (1u << 20) /* maximum length of a block */
#define KVC_KVQ_HEAD 88          /* length of the head of a coded block */

enum kvc_kvq_code { KVC_KVQ_HIGH, KVC_KVQ_MID, KVC_KVQ_LOW, KVC_KVQ_FP8, KVC_KVQ_CODES };
extern const char *const kvc_kvq_names[]; /* in the order of the enum, ended by NULL */

/* What a coded block costs. Relative error: the root of error / energy. */
struct kvc_kvq_loss {
	float error;  /* sum of the squared errors */
	float energy; /* sum of the squares; in classes, of the differences from the means */
};

/* Memory for one coding at a time. Returns NULL if out of memory. */
struct kvc_kvq *kvc_kvq_new(void);
void kvc_kvq_free(struct kvc_kvq *q);
size_t kvc_kvq_memory(void); /* the size of this memory in bytes */
void kvc_kvq_wipe(struct kvc_kvq *q);

/*
 * Starts to code a block: `len` bytes (at most KVC_KVQ_BLOCK) at offset `off` of a file that has
 * `vectors` vectors (kvc_kv_layout_fit). Returns the number of settings that can be tried, or 0 if
 * the block must be stored without loss, because it contains no whole vector, or a NaN or an
 * infinity. `in` must stay valid until the last kvc_kvq_judge.
 */
unsigned kvc_kvq_start(struct kvc_kvq *q, enum kvc_kvq_code code, const struct kvc_kv_layout *l,
		       uint64_t vectors, uint64_t off, const uint8_t *in, size_t len);
/*
 * Codes the block with setting number `setting`, the coarsest being 0: writes all but the symbols
 * to out, and sets *sym and *nsym to the symbols, and back[0..len) to the bytes that a decoder will
 * return. Returns the length in out, or 0 if that is above `capacity` or the setting is useless.
 * The caller appends the symbols, compressed if that makes them shorter, and calls kvc_kvq_finish
 * with their length.
 */
size_t kvc_kvq_encode(struct kvc_kvq *q, unsigned setting, uint8_t *out, size_t capacity,
		      const uint8_t **sym, size_t *nsym, uint8_t *back);
void kvc_kvq_finish(const struct kvc_kvq *q, uint8_t *out, size_t symbols_len);
/*
 * Compares the block with `back`, after kvc_kvq_encode. Returns whether the loss is acceptable. If
 * it is, stores the loss in the coded block `out` and in *loss.
 */
bool kvc_kvq_judge(struct kvc_kvq *q, const uint8_t *back, uint8_t *out, struct kvc_kvq_loss *loss);

/*
 * Starts to decode a block of `stored` bytes, which may be hostile, to `len` bytes. Sets *sym to
 * the memory for *nsym symbols, and *from and *from_len to the stored symbols: raw if *from_len is
 * equal to *nsym. Returns 0 or -EBADMSG. The caller fills *sym and calls kvc_kvq_decode, which
 * writes all `len` bytes of out and returns 0 or -EBADMSG.
 */
int kvc_kvq_open(struct kvc_kvq *q, const uint8_t *in, size_t stored, size_t len, uint8_t **sym,
		 size_t *nsym, const uint8_t **from, size_t *from_len);
int kvc_kvq_decode(struct kvc_kvq *q, uint8_t *out);

/*
 * Reads the layout and the loss from a coded block of at least KVC_KVQ_HEAD bytes. NULL: not
 * wanted. Returns 0 or -EBADMSG.
 */
int kvc_kvq_describe(const uint8_t *in, size_t stored, struct kvc_kv_layout *l, bool *fp8,
		     struct kvc_kvq_loss *loss);

/*
 * Measures how much the vectors of a block have in common, to find wrong layouts. Here values form
 * classes, too. Adds the squares of the means of the channels to mean[] and the squares of the
 * elements to all[]; element 0 of both arrays is for keys, and element 1 for values. Vectors that
 * are in no class are left out. Keys of most models have large means and values do not.
 */
void kvc_kvq_means(struct kvc_kvq *q, const struct kvc_kv_layout *l, uint64_t vectors, uint64_t off,
		   const uint8_t *in, size_t len, double mean[2], double all[2]);

/* For tests: uses the kernels of that number (kvq_kernels.h). Returns whether they exist. */
bool kvc_kvq_use(struct kvc_kvq *q, unsigned kernels);

#endif
