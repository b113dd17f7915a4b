/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The layout of a KV cache in a file: the type of its elements and its axes, outermost first, as in
 *
 *   bf16 k2 l32 t256 h8 d128
 *
 * The axes are k (keys and values, size 2), l (layers), p (pages), t (tokens), h (heads) and d (the
 * elements of a vector), each at most once. d is the last axis. The first axis can have a free size
 * if it is p or t, as in "fp16 p* k2 t16 h8 d128": the length of the file gives its size. Without k
 * the file has one latent vector (MLA) for each token of each layer. "@28" at the end says that 28
 * bytes precede the first element, and "@safetensors" that a header of the format safetensors does.
 *
 * Nothing here allocates memory or blocks.
 */
#ifndef KVC_KV_LAYOUT_H
#define KVC_KV_LAYOUT_H

#include "util.h"

#define KVC_KV_AXES 6           /* maximum number of axes */
#define KVC_KV_LAYOUT_TEXT 96   /* maximum size of a layout as text, with its NUL */
#define KVC_KV_LAYOUT_ERROR 160 /* maximum size of an error message, with its NUL */
#define KVC_KV_VECTOR_MIN 16    /* limits of the size of d */
#define KVC_KV_VECTOR_MAX 1024
/* maximum of the product of k, l and h: the number of vectors of one token */
#define KVC_KV_KEYS_MAX 65536u

/* Coded blocks contain these values, so none may change. */
enum kvc_kv_element { KVC_KV_BF16, KVC_KV_FP16, KVC_KV_ELEMENTS };

struct kvc_kv_layout {
	uint8_t element; /* enum kvc_kv_element */
	uint8_t naxes;
	bool safetensors; /* `at` is not known: kvc_kv_layout_locate finds it in the file */
	uint32_t at;      /* offset of the first element in the file, in bytes */
	struct {
		char name;
		uint32_t size; /* 0: free */
	} axis[KVC_KV_AXES];
};

/*
 * Parses `text` into *out. Returns 0; or -EINVAL with one line in error[KVC_KV_LAYOUT_ERROR] that
 * names the mistake, unless error is NULL.
 */
int kvc_kv_layout_parse(const char *text, struct kvc_kv_layout *out, char *error);
/*
 * Checks a layout whose members come from outside. Returns 0 or -EINVAL; error as above, or NULL.
 */
int kvc_kv_layout_check(const struct kvc_kv_layout *l, char *error);
#define KVC_KV_LAYOUT_FIRST 8 /* bytes of a file that kvc_kv_layout_locate reads */
/*
 * If the layout says @safetensors, reads the length of the header from the first `len` bytes of a
 * file, and replaces @safetensors with the offset of the first element. Returns 0; or -EINVAL if
 * the file has no such header, or a header that is too long.
 */
int kvc_kv_layout_locate(struct kvc_kv_layout *l, const uint8_t *first, size_t len);
/* Writes the layout as text, in the form that the parser reads. */
void kvc_kv_layout_print(const struct kvc_kv_layout *l, char text[KVC_KV_LAYOUT_TEXT]);

/* Returns the size of an axis: 1 if the layout has no such axis, 0 if its size is free. */
uint32_t kvc_kv_layout_axis(const struct kvc_kv_layout *l, char name);
/* Returns the length of a vector in bytes. */
static inline size_t kvc_kv_layout_vector(const struct kvc_kv_layout *l)
{
	return 2 * (size_t)l->axis[l->naxes - 1].size;
}
/*
 * Sets *vectors to the number of whole vectors in a file of `size` bytes. Bytes after them are not
 * part of the layout: less than one more step of a free axis, or at most a page if all axes are
 * fixed.
 * Returns 0; or -EINVAL if a file of this size does not have the layout.
 */
int kvc_kv_layout_fit(const struct kvc_kv_layout *l, uint64_t size, uint64_t *vectors);

#endif
