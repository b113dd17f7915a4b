/* SPDX-License-Identifier: Apache-2.0 */
/*
 * libkvcachefs: paged KV caches, whose tokens a transfer gathers and scatters. Memory that is
 * contiguous in the file needs no layout: it is stored and loaded as parts (kvcachefs.h). See
 * libkvcachefs(3).
 */
#ifndef KVCACHEFS_LAYOUT_FORMATS_H
#define KVCACHEFS_LAYOUT_FORMATS_H

#include "kvcachefs.h"

#ifdef __cplusplus
extern "C" {
#endif

/*
 * The layout of an engine's cache, under LMCache's names and numbers (csrc/engine_kv_format.h of
 * 0.5.6). The last four have numbers of our own: two are from LMCache's main branch, two from
 * vLLM's kv_cache_layout.py. NB is blocks, NL layers, BS slots of a block, NH heads, HS head size,
 * CS the contents of a head: its K, then its V, each HS. X separates a list of pointers from the
 * memory to which they point.
 */
enum kvcachefs_format {                                  /* one pointer per layer unless stated */
			KVCACHEFS_NB_NL_TWO_BS_NH_HS,    /* 0  vLLM across layers; one pointer */
			KVCACHEFS_NL_X_TWO_NB_BS_NH_HS,  /* 1  FlashAttention NHD */
			KVCACHEFS_NL_X_NB_TWO_BS_NH_HS,  /* 2  FlashInfer NHD */
			KVCACHEFS_NL_X_NB_BS_HS,         /* 3  vLLM MLA, SGLang MLA multiprocess */
			KVCACHEFS_TWO_X_NL_X_NBBS_NH_HS, /* 4  SGLang MHA; all K layers, then all V
							    layers */
			KVCACHEFS_NL_X_NBBS_ONE_HS,      /* 5  SGLang MLA */
			KVCACHEFS_NL_X_TWO_NB_NH_BS_HS,  /* 6  FlashAttention HND */
			KVCACHEFS_NL_X_NB_TWO_NH_BS_HS,  /* 7  FlashInfer HND */
			KVCACHEFS_NB_NL_TWO_NH_BS_HS, /* 8  TensorRT-LLM across layers; one pointer
						       */
			KVCACHEFS_TWO_X_NL_X_NB_BS_NH_HS, /* 9  SGLang MHA multiprocess; pointers as
							     4 */
			KVCACHEFS_NL_X_NB_NH_BS_TWO_HS,   /* 10 older name of 12 */
			KVCACHEFS_NL_X_NB_BS_NH_TWO_HS,   /* 11 older name of 13 */
			KVCACHEFS_NL_X_NB_NH_BS_CS,       /* 12 vLLM's newer back ends, HND */
			KVCACHEFS_NL_X_NB_BS_NH_CS,       /* 13 the same, NHD */
			/*
			 * 14 vLLM's DSA indexer: a block has the values of all slots, then 4 bytes
			 * of scale for each slot. head_size is the row of a token with both (132
			 * with elem 1). In a file the scale follows the values of the token.
			 */
			KVCACHEFS_NL_X_NB_BSV_BSS,
			KVCACHEFS_NL_X_TWO_NB_NH_ONE_BS_HS, /* 15 vLLM-RBLN; bytes as 6 */
			KVCACHEFS_NL_X_TWO_X_NB_BS_NH_HS,   /* 16 vLLM-Ascend; pointers K0, V0, K1,
							       V1, ... */
			/*
			 * 17 vLLM-Ascend MLA and DSA: each layer has `planes` planes, [NB, BS, 1,
			 * plane_width[i]]; pointers layer by layer. In a file the planes of a
			 * token are adjacent; head_size is the sum of their widths. For planes of
			 * different types use elem 1 and widths in bytes.
			 */
			KVCACHEFS_NL_X_NP_X_NB_BS_ONE_HS,
			KVCACHEFS_NL_X_NB_BS_NH_HS, /* 18 SGLang; each "layer" is a separate K or V
						     */
			KVCACHEFS_NB_NL_NH_BS_CS, /* 19 blocks first across layers, HND; one pointer
						   */
			KVCACHEFS_NB_NL_BS_NH_CS, /* 20 the same, NHD */
			/*
			 * 21 vLLM's LHBNC, heads first in a layer (ROCm). With K and V as the two
			 * "heads" of a layer it is the same as format 1.
			 */
			KVCACHEFS_NL_X_NH_NB_BS_CS,
			/* 22 vLLM's BHLNC, blocks and heads first across layers; one pointer */
			KVCACHEFS_NB_NH_NL_BS_CS,
			KVCACHEFS_FORMATS
};
#define KVCACHEFS_PLANES 4

/*
 * The name of a format, such as "NL_X_NB_BS_HS"; NULL if the format does not exist. The reverse
 * call returns -EINVAL for an unknown name.
 */
const char *kvcachefs_format_name(enum kvcachefs_format format);
int kvcachefs_format_find(const char *name, enum kvcachefs_format *out);

struct kvcachefs_paged {
	enum kvcachefs_format format;
	uint32_t layers, heads, head_size, block_size; /* 3, 5, 14, 17: heads 1 */
	uint64_t blocks;
	uint32_t elem; /* bytes of an element: 1, 2 or 4 */
	/*
	 * Elements from one block to the next, if that is more than a block (a padded view); 0:
	 * dense. Not for 17.
	 */
	uint64_t block_stride;
	void *const *pointers; /* host array; the format determines the length */
	int device;            /* -1: host memory; else a CUDA device */
	/*
	 * For 10 to 13 and 19 to 22, in which the K and V of a head are adjacent: files have the
	 * same order, as LMCache's do, [layer][token][head][K, V] (with a kv size of 1 and a
	 * doubled head size), instead of all K before all V.
	 */
	bool fused;
	uint32_t planes, plane_width[KVCACHEFS_PLANES]; /* 17 */
	uint64_t plane_stride[KVCACHEFS_PLANES];        /* 17: like block_stride, for each plane */
};

/*
 * A file contains [K and V][layer][token][head][element] (LMCache's KV_2LTD). The first dimension
 * is missing if the format has one component (MLA, 14, 17, 18, fused). The file of a layer has one
 * layer. Returns the length in bytes for these tokens, or 0 if the shape is invalid or the length
 * is 2^62 or more. The pointers may be missing.
 */
uint64_t kvcachefs_file_size(const struct kvcachefs_paged *p, uint32_t nlayers,
			     const struct kvcachefs_tokens *t);

/*
 * Copies between contiguous host memory of that size and the layers [layer, layer + nlayers) of
 * the paged cache. Synchronous. -EINVAL: an invalid shape; -ERANGE: a slot, block or layer is out
 * of range. On error nothing was written.
 */
int kvcachefs_gather(const struct kvcachefs_paged *p, uint32_t layer, uint32_t nlayers,
		     const struct kvcachefs_tokens *t, void *out);
int kvcachefs_scatter(const struct kvcachefs_paged *p, uint32_t layer, uint32_t nlayers,
		      const struct kvcachefs_tokens *t, const void *in);

#ifdef __cplusplus
}
#endif
#endif
