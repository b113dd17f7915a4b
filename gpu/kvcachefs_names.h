/* SPDX-License-Identifier: Apache-2.0 */
/* libkvcachefs: the names of files as engines build them from keys. See libkvcachefs(3). */
#ifndef KVCACHEFS_NAMES_H
#define KVCACHEFS_NAMES_H

#include "kvcachefs_keys.h"

#ifdef __cplusplus
extern "C" {
#endif

/* How an engine names the file of a key, relative to the engine's folder. */
enum kvcachefs_naming {
	/*
	 * LMCache FSConnector: CacheEngineKey.to_string() with "/" as "-SEP-", ".data"
	 * (lmcache/utils.py, connector/fs_connector.py):
	 * MODEL@WORLD_SIZE@WORKER@KEY@DTYPE[@LAYER][@TAG%VALUE...]
	 */
	KVCACHEFS_NAME_LMCACHE_FS,
	/*
	 * LMCache LocalDiskBackend: the same with "/" as "-" (the model cannot be recovered from
	 * the name), ".pt".
	 */
	KVCACHEFS_NAME_LMCACHE_DISK,
	/*
	 * LMCache's fs L2 adapters, ObjectKey (distributed/l2_adapters/fs_l2_adapter.py):
	 * MODEL@0xKV_RANK@GROUP@KEY[@SALT].data, KV_RANK and GROUP in hex, "/" in MODEL as "-SEP-"
	 */
	KVCACHEFS_NAME_LMCACHE_L2,
	/*
	 * SGLang HiCacheFile (srt/mem_cache/hicache_storage.py):
	 * KEY[.POOL]_MODEL[_TP_RANK_TP_SIZE][_PP_SIZE_PP_RANK][_cpR_N][_tpN_dcpR_N_pageP].bin,
	 * "/" in MODEL as "-". MLA models omit the TP pair, except for the pool mamba. A model
	 * whose own name ends in "_1_2" cannot be distinguished from ranks.
	 */
	KVCACHEFS_NAME_SGLANG_FILE,
	/*
	 * vLLM's file tier (v1/kv_offload/file_mapper.py):
	 * MODEL_CONFIG_rRANK/KKK/KK_gGROUP/KEY.bin, "/" in MODEL as "_". KKK and KK are the first
	 * digits of the key. CONFIG is 12 hex digits that identify the run's configuration; the
	 * folder that holds the run's config.json has them in its name.
	 */
	KVCACHEFS_NAME_VLLM_FS,
	KVCACHEFS_NAMINGS
};

/*
 * The contents of a name. Initialize to zero; sizes of 0 mean 1. A naming ignores the members that
 * it does not use.
 */
struct kvcachefs_name {
	char model[256];
	char key[KVCACHEFS_TEXT_MAX + 1]; /* as kvcachefs_hasher_text() writes it */
	/* LMCache's CacheEngineKey. */
	uint32_t world_size, worker;
	/* half, bfloat16, float, fp8_e4m3fn, ... as LMCache names it; "" is bfloat16 */
	char dtype[16];
	bool has_layer; /* layer-wise */
	uint32_t layer;
	char tags[256]; /* "tag%value" joined by "@" */
	/* LMCache's ObjectKey. */
	uint32_t kv_rank; /* world_size << 24 | global_rank << 16 | local_world_size << 8 |
			     local_rank */
	uint32_t group;   /* object group; vLLM: KV cache group */
	char salt[513];   /* at most 128 characters */
	/* SGLang. */
	char pool[32]; /* "": the KV pool */
	bool mla;
	uint32_t tp_rank, tp_size, pp_rank, pp_size, cp_rank, cp_size;
	uint32_t dcp_rank, dcp_size, page; /* dcp_size above 1: MLA only; page is the number of
					      tokens in the logical page */
	/* vLLM. */
	char config[13];
	uint32_t rank;
};
/* Longer paths are refused. */
#define KVCACHEFS_PATH_MAX 1024

/*
 * The name of a naming, such as "lmcache-fs"; NULL if the naming does not exist. The reverse call
 * returns -EINVAL for an unknown name and lists the names in the error.
 */
const char *kvcachefs_naming_name(enum kvcachefs_naming as);
int kvcachefs_naming_find(const char *name, enum kvcachefs_naming *out);
/*
 * Writes the relative path of a name to out, with a NUL. -EINVAL: the naming cannot express a
 * member (kvcachefs_error() names it); -ENAMETOOLONG: a component has more than 255 bytes. On error
 * out is unchanged.
 */
int kvcachefs_name_build(enum kvcachefs_naming as, const struct kvcachefs_name *n,
			 char out[KVCACHEFS_PATH_MAX]);
/*
 * Parses a relative path to *out. Exactly the paths that kvcachefs_name_build() writes are
 * accepted, so that building a parsed name gives the same path. -EINVAL: the path does not follow
 * that naming; *out is unchanged.
 */
int kvcachefs_name_parse(enum kvcachefs_naming as, const char *path, struct kvcachefs_name *out);
/*
 * Sets the member of that name from text ("tp_size", "2"). -EINVAL: the member does not exist, or
 * the value has the wrong type.
 */
int kvcachefs_name_set(struct kvcachefs_name *n, const char *member, const char *value);

/* ---- SGLang's unified keys ------------------------------------------------------------------- */

/*
 * The unified key scheme of SGLang 0.5.23 (srt/mem_cache/hicache_key_scheme.py): a key names the
 * layers and heads of a page that an object holds, never the rank that wrote it. These are the
 * facts that all deployments which share the objects must agree on. Initialize to zero.
 */
struct kvcachefs_unified {
	const char *model; /* not empty; at most 1024 bytes, like the other texts */
	const char *dtype; /* the logical type: bfloat16, float8_e4m3fn, ... */
	uint32_t page_size;
	bool replicated; /* MLA: each rank has all; total_kv_heads and head_group are 0 */
	uint32_t total_kv_heads;
	uint32_t layer_partition;  /* layers of an object; 0: those of the rank */
	uint32_t head_group;       /* KV heads of an object; divides total_kv_heads */
	const char *object_layout; /* order of the bytes; NULL: "page-unified-v1" */
};
/*
 * The digest of such a namespace with a NUL, "ukv1-" and 16 hex digits. -EINVAL: a fact is missing
 * or contradicts another, and out is unchanged; -EIO: OpenSSL lacks SHA-256.
 */
#define KVCACHEFS_UNIFIED_DIGEST 22
int kvcachefs_unified_digest(const struct kvcachefs_unified *u, char out[KVCACHEFS_UNIFIED_DIGEST]);
/*
 * The key of an object with a NUL: PAGE_DIGEST_Lfirst-end[_Hhead]. page: the hash of the page, as
 * KVCACHEFS_SGLANG computes it, in hex; layers [first, end) of the model; head: number of the head
 * group in the model, or -1 for replicated KV. -EINVAL: no layers, or the key is too long.
 */
#define KVCACHEFS_UNIFIED_KEY_MAX 160
int kvcachefs_unified_key(const char *page, const char *digest, uint32_t first, uint32_t end,
			  int64_t head, char out[KVCACHEFS_UNIFIED_KEY_MAX]);

#ifdef __cplusplus
}
#endif
#endif
