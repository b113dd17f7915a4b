/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The arithmetic of kvq (kvq.h): loops over the vectors of a block, compiled for several
 * instruction sets. All of them give the same bits: sums have a fixed order of sixteen lanes, no
 * multiplication and addition is fused, and every rounding is to nearest even.
 *
 * Only kvq.c includes this file, and tests that compare the instruction sets.
 */
#ifndef KVC_KVQ_KERNELS_H
#define KVC_KVQ_KERNELS_H

#include "kvq.h"

#define KVC_KVQ_TOKENS 64u /* minimum number of vectors of a class; the maximum is 256 */
#define KVC_KVQ_CLASS_MAX 256u
#define KVC_KVQ_ELEMENTS (KVC_KVQ_BLOCK / 2)
#define KVC_KVQ_VECTORS (KVC_KVQ_ELEMENTS / KVC_KV_VECTOR_MIN)
#define KVC_KVQ_CHANNELS (KVC_KVQ_ELEMENTS / KVC_KVQ_TOKENS) /* of all classes of a block */
#define KVC_KVQ_CLASSES (KVC_KVQ_CHANNELS / KVC_KV_VECTOR_MIN)
/* in place of a class: the vector has a step of its own; keys, and then values */
#define KVC_KVQ_ALONE 0xfffeu
#define KVC_KVQ_ALONE_VALUE 0xffffu
#define KVC_KVQ_ESCAPE 0x80 /* symbol of an element whose value is stored apart */

/*
 * The vectors of a block: keys that share means and steps of their channels form a class; each
 * other vector has a step of its own, and is called a lone vector. In sym, the symbols of all
 * classes precede those of the lone vectors; both are in the order of the block.
 */
struct kvc_kvq_block {
	uint32_t vectors, d;
	uint32_t classes, in_classes;      /* classes, and the vectors in them */
	bool half;                         /* the elements are fp16, not bf16 */
	uint16_t of[KVC_KVQ_VECTORS];      /* the class of each vector, or at least KVC_KVQ_ALONE */
	uint16_t members[KVC_KVQ_CLASSES]; /* vectors of each class */
	/* for each channel of each class */
	float mean[KVC_KVQ_CHANNELS], step[KVC_KVQ_CHANNELS], inverse[KVC_KVQ_CHANNELS];
	float first[KVC_KVQ_CHANNELS], sum[KVC_KVQ_CHANNELS], squares[KVC_KVQ_CHANNELS];
	float vector_step[KVC_KVQ_VECTORS]; /* of each lone vector; not used by fp8 */
	float error[KVC_KVQ_VECTORS], energy[KVC_KVQ_VECTORS];
	uint32_t zeros;                     /* symbols that are 0 */
	uint8_t sym[KVC_KVQ_ELEMENTS + 16]; /* dequantise reads beyond the last symbol */
};

/*
 * x and y are the elements of the block's vectors, at any address. The functions use the members of
 * *b that the comments name.
 */
struct kvc_kvq_kernels {
	const char *name;
	/* Returns whether all elements are finite. */
	bool (*finite)(const struct kvc_kvq_block *b, const void *x);
	/*
	 * For channels of classes: first, and the sums of the differences from it and of their
	 * squares. For lone vectors: the sum of squares, in energy.
	 */
	void (*sums)(struct kvc_kvq_block *b, const void *x);
	/*
	 * Sets sym from mean, step, inverse and vector_step, and y to the decoded elements; writes
	 * the elements of escapes, at most `most`, to raw. Returns the number of escapes. If that
	 * is above `most`, the results are incomplete. Otherwise sets zeros, and for each vector
	 * error to the sum of the squared errors of y, and energy to the sum of the squares of x
	 * (in a class: of the squares of the differences from the means).
	 */
	uint32_t (*quantise)(struct kvc_kvq_block *b, const void *x, void *y, void *raw,
			     uint32_t most);
	/* Sets y from sym, mean, step and vector_step. The values of escapes are wrong. */
	void (*dequantise)(const struct kvc_kvq_block *b, void *y);
	/*
	 * fp8: encode sets sym, and scale to the scale of each vector; decode sets y from these.
	 */
	void (*fp8_encode)(struct kvc_kvq_block *b, const void *x, uint8_t *scale);
	void (*fp8_decode)(const struct kvc_kvq_block *b, const uint8_t *scale, void *y);
	/* After fp8_encode: sets error, energy and zeros as quantise does. */
	void (*measure)(struct kvc_kvq_block *b, const void *x, const void *y);
	/*
	 * Returns the number of lost elements: not 0, with symbol 0, and y differs from x. Sets
	 * *nonzero to the number of elements that are not 0.
	 */
	uint32_t (*lost)(const struct kvc_kvq_block *b, const void *x, const void *y,
			 uint32_t *nonzero);
};

/*
 * Returns kernels by number, the fastest first: NULL after the last that this CPU can run. Number 0
 * is the one to use.
 */
const struct kvc_kvq_kernels *kvc_kvq_kernels_get(unsigned i);

/* Conversions of single elements, with the same rounding. */
float kvc_kvq_kernels_value(bool half, uint16_t bits);
uint16_t kvc_kvq_kernels_element(bool half, float value);

#endif
