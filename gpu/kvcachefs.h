/* SPDX-License-Identifier: Apache-2.0 */
/*
 * libkvcachefs: a library for programs that use more of a
 * kvcachefs mount than file calls. It computes chunk keys
 * from tokens, bit-identical to the keys of the engines;
 * takes leases on many objects at once; and transfers
 * data between files and a paged KV cache, in host memory
 * or, if the library was built with CUDA, on a GPU. See
 * libkvcachefs(3) and kvcachefs-gpu(7).
 *
 * Every fallible call returns 0 or a negative errno;
 * kvcachefs_error() has the details. Calls are safe from
 * any thread. A hasher, lease, buffer or transfer must be
 * used by one thread at a time; a queue may be used by
 * several threads. The library needs nothing of the
 * daemon's internals: it works only through the mount.
 */
#ifndef KVCACHEFS_H
#define KVCACHEFS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/*
 * A message about the last failed call of this thread. Never NULL; valid until the thread's next
 * call.
 */
const char *kvcachefs_error(void);
/* "0.1.0", with " cuda" appended if the library was built with CUDA. */
const char *kvcachefs_version(void);

/* ---- Chunk keys ------------------------------------------------------------------------------ */

/*
 * How an engine names a block or chunk of tokens. A key is H(parent, tokens, extra). The parent of
 * the first block is NONE_HASH, which is derived from PYTHONHASHSEED. All keys of a scheme have
 * the same length, kvcachefs_hasher_key_len(), which is at most KVCACHEFS_KEY_MAX.
 */
enum kvcachefs_scheme {
	/*
	 * vLLM, blocks of 16 tokens by default: hash((parent bytes, tuple of tokens, extra)),
	 * under the names of --prefix-caching-hash-algo (vllm/utils/hashing.py,
	 * v1/core/kv_cache_utils.py). sha256 and xxhash are computed over pickle protocol 5, the
	 * _cbor schemes over canonical CBOR. xxhash is XXH3-128 and has keys of 16 bytes, the
	 * others have 32.
	 */
	KVCACHEFS_VLLM_SHA256, /* vLLM's default */
	KVCACHEFS_VLLM_SHA256_CBOR,
	KVCACHEFS_VLLM_XXHASH,
	KVCACHEFS_VLLM_XXHASH_CBOR,
	/*
	 * LMCache 0.5.6 in the engine's process (lmcache/v1/token_database.py), chunks of 256:
	 * vLLM's hash of (parent, tokens, ()), folded to the number in its first 8 bytes, big
	 * endian. NONE_HASH is folded too, and the folded hash is the next parent. Keys have 8
	 * bytes, and their text is that number in hex without leading zeros. LMCache's default in
	 * this mode, Python's hash(), is not supported.
	 */
	KVCACHEFS_LMCACHE_SHA256,
	KVCACHEFS_LMCACHE_SHA256_CBOR,
	KVCACHEFS_LMCACHE_XXHASH,
	KVCACHEFS_LMCACHE_XXHASH_CBOR,
	/*
	 * LMCache's multiprocess server (multiprocess/token_hasher.py), chunks of 256, whole
	 * digests. BLAKE3 is the default: BLAKE3(parent || tokens as 32-bit big endian); if vLLM
	 * gives no NONE_HASH, it is BLAKE3(8 zero bytes || one zero token). The other schemes are
	 * vLLM's with extra None.
	 */
	KVCACHEFS_LMCACHE_MP_BLAKE3,
	KVCACHEFS_LMCACHE_MP_SHA256,
	KVCACHEFS_LMCACHE_MP_SHA256_CBOR,
	KVCACHEFS_LMCACHE_MP_XXHASH,
	KVCACHEFS_LMCACHE_MP_XXHASH_CBOR,
	/*
	 * SGLang get_hash_str (srt/mem_cache/utils.py): SHA-256(parent || tokens as 32-bit little
	 * endian), pages of 64 by default. The first page has no parent, or the seed of a
	 * namespace (extra_key, cache_salt).
	 */
	KVCACHEFS_SGLANG,
	KVCACHEFS_SCHEMES
};
#define KVCACHEFS_KEY_MAX 32

/*
 * The name of a scheme, such as "vllm-sha256_cbor"; NULL if the scheme does not exist. Never
 * freed.
 */
const char *kvcachefs_scheme_name(enum kvcachefs_scheme scheme);
/*
 * The scheme of that name to *out. -EINVAL: the name is unknown; kvcachefs_error() lists the names.
 */
int kvcachefs_scheme_find(const char *name, enum kvcachefs_scheme *out);

struct kvcachefs_mm {        /* a multimodal item among the tokens */
	const char *hash;    /* its identifier */
	uint64_t start, len; /* in tokens */
};

/* Initialize to zero. Strings and arrays belong to the caller and must outlive the hasher. */
struct kvcachefs_keys {
	enum kvcachefs_scheme scheme;
	unsigned block_tokens; /* 0: the default of the scheme; at most 2^24 */
	/*
	 * PYTHONHASHSEED as text, below 64 KiB. NULL: not set; newer vLLM then uses
	 * "vllm-none-hash". With xxhash vLLM then uses random bytes, so a hasher without seed and
	 * `none` is refused.
	 */
	const char *seed;
	/*
	 * NONE_HASH itself, if it is not derived from the seed (older vLLM without a seed uses
	 * random bytes). none_len is the length of the scheme's digest; LMCache in process also
	 * accepts the 8 bytes of the fold.
	 */
	const void *none;
	size_t none_len;
	/*
	 * Write a missing list of extra keys as an empty array instead of null, as some versions
	 * do. Only for CBOR without the fold.
	 */
	bool empty_extra_is_array;
	/*
	 * Extra keys, in vLLM's order, for its _cbor schemes only: the pickled bytes of extra keys
	 * depend on the identity of Python objects. LMCache has no extra keys. Other schemes
	 * refuse them. With tagged_extra they have the form of vLLM 0.32 and later: ("lora", name,
	 * path), ("mm", hash, offset), ("cache_salt", salt), ("prompt_embeds", sha). Without
	 * tagged_extra: name, (hash, offset), salt, sha.
	 */
	bool tagged_extra;
	const char *lora_name; /* in every block */
	const char *lora_path; /* with tagged_extra only; NULL: "" */
	const struct kvcachefs_mm *mm;
	size_t nmm; /* (hash, start - block's start) in every block that an item overlaps */
	/*
	 * vLLM: first block only; "" means no salt. SGLang: part of the namespace; "" and NULL
	 * differ.
	 */
	const char *cache_salt;
	const char *extra_key; /* part of SGLang's namespace only */
	/*
	 * Writes the SHA-256 of a block's prompt embeddings to sha and returns 1, or returns 0 if
	 * the block has none. NULL: the prompt has no embeddings.
	 */
	int (*embeds)(void *arg, uint64_t block, uint8_t sha[32]);
	void *embeds_arg;
};

struct kvcachefs_hasher;
/*
 * A hasher to *out, to be freed by kvcachefs_hasher_free(). -EINVAL: unknown scheme, or extra keys,
 * a missing seed or a none_len that the scheme does not support; -ENOMEM; -EIO: OpenSSL lacks the
 * digest.
 */
int kvcachefs_hasher_new(struct kvcachefs_hasher **out, const struct kvcachefs_keys *keys);
void kvcachefs_hasher_free(struct kvcachefs_hasher *h);
/*
 * Continues with n more tokens. The keys of the blocks that became full are written to out, without
 * gaps, and their number to *made. out has space for `capacity` keys; n / block_tokens + 1 is
 * always enough. A growing prompt costs only the work for its new blocks. -ENOSPC: out is too
 * small; no token was consumed. After any other error the hasher can only be freed.
 */
int kvcachefs_hasher_feed(struct kvcachefs_hasher *h, const uint32_t *tokens, size_t n, void *out,
			  size_t capacity, size_t *made);
/*
 * The key of the tokens that do not fill a block yet, as a shorter block of their own: the key that
 * LMCache uses with save_unfull_chunk. The hasher is not changed. -ENODATA: no such tokens.
 */
int kvcachefs_hasher_rest(struct kvcachefs_hasher *h, void *out);
/* Bytes of a key, and tokens of a block. */
size_t kvcachefs_hasher_key_len(const struct kvcachefs_hasher *h);
unsigned kvcachefs_hasher_block(const struct kvcachefs_hasher *h);
/*
 * NONE_HASH, the parent of the first block, as long as a key. SGLang without a namespace has no
 * NONE_HASH: the result is zeros.
 */
const uint8_t *kvcachefs_hasher_none(const struct kvcachefs_hasher *h);
/*
 * A key as the engine writes it in names, with a NUL: hex digits; for LMCache in process a number
 * in hex.
 */
#define KVCACHEFS_TEXT_MAX (2 * KVCACHEFS_KEY_MAX + 1)
void kvcachefs_hasher_text(const struct kvcachefs_hasher *h, const void *key,
			   char out[KVCACHEFS_TEXT_MAX]);

/*
 * vLLM's key of a KV cache group: the digest and the group as 32-bit big endian. Writes len + 4
 * bytes to out.
 */
void kvcachefs_group_key(const void *key, size_t len, uint32_t group, void *out);
/* vLLM's integer form of a key: the last 8 bytes, big endian. */
uint64_t kvcachefs_key_int(const void *key, size_t len);
/* Writes 2 * len hex digits and a NUL. */
void kvcachefs_hex(const void *p, size_t len, char *out);
/*
 * The folder of vLLM's ExampleConnector: MD5 of the tokens as 64-bit little endian, followed by "-"
 * and the multimodal hashes joined by "-" if the prompt has any. Only whole blocks of block_tokens
 * count (0: 16).
 */
int kvcachefs_example_folder(const uint32_t *tokens, size_t n, unsigned block_tokens,
			     const char *const *mm_hashes, size_t nmm, char out[33]);
/* BLAKE3 (256 bits) of any data. */
void kvcachefs_blake3(const void *data, size_t len, uint8_t out[32]);

/* ---- CacheBlend: content wherever it stands -------------------------------------------------- */

struct kvcachefs_segment {
	size_t start, end; /* tokens [start, end), as LMCache counts them */
	uint8_t key[8];    /* key_len is 8: KVCACHEFS_LMCACHE_* only */
};
/*
 * LMCache in process with blending (SegmentTokenDatabase): the tokens are split at each separator,
 * and each segment is hashed without the separators and with NONE_HASH as its parent. Segments may
 * be empty. At most `capacity` segments are written to out, and the number of segments to *made.
 * The scheme and NONE_HASH are those of `h`, which is not changed. Overlapping separators are split
 * as LMCache splits them. -EINVAL: the scheme is not KVCACHEFS_LMCACHE_*, or no separator; -ENOSPC:
 * out is too small; *made is set.
 */
int kvcachefs_segments(struct kvcachefs_hasher *h, const uint32_t *tokens, size_t n,
		       const uint32_t *separator, size_t nsep, struct kvcachefs_segment *out,
		       size_t capacity, size_t *made);
/*
 * LMCache's multiprocess server with blending (modules/blend/matcher.py) finds chunks of k tokens
 * at any offset by H = sum of x_i * b^(k-1-i) mod 2^64, b = 0x9E3779B97F4A7C15. Writes the H of
 * each window [i, i + k) to out[i], n - k + 1 values. With k = n the result is the fingerprint of
 * one chunk. -EINVAL: k is 0 or above n.
 */
int kvcachefs_fingerprints(const uint32_t *tokens, size_t n, size_t k, uint64_t *out);

/* ---- Names on disk --------------------------------------------------------------------------- */

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
	 * KEY[.POOL]_MODEL[_TP_RANK_TP_SIZE] [_PP_SIZE_PP_RANK][_cpR_N][_tpN_dcpR_N_pageP].bin,
	 * "/" in MODEL as "-". MLA models omit the TP pair, except for the pool mamba. A model
	 * whose own name ends in "_1_2" cannot be distinguished from ranks.
	 */
	KVCACHEFS_NAME_SGLANG_FILE,
	/*
	 * vLLM's file tier (v1/kv_offload/file_mapper.py):
	 * MODEL_CONFIG_rRANK/KKK/KK_gGROUP/KEY.bin, "/" in MODEL as "_". KKK and KK are the first
	 * digits of the key. CONFIG is 12 hex digits of the run's configuration; they are in the
	 * name of the folder with its config.json.
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
 * The relative path of a name to out, with a NUL. -EINVAL: the naming cannot express a member
 * (kvcachefs_error() names it); -ENAMETOOLONG: a component has more than 255 bytes. On error out is
 * unchanged.
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

/* ---- Leases ---------------------------------------------------------------------------------- */

struct kvcachefs_object {
	const char *path; /* below the mount */
	uint64_t ino, size;
	int err;           /* 0: resident and leased; otherwise a negative errno */
	const char *state; /* the mount's word for its state */
};
struct kvcachefs_lease;
/*
 * Loads these objects into the pool and keeps them there until the lease is freed or the process
 * dies. A path may be a folder, which stands for all files in it. Waits until all objects are
 * loaded or have failed. Returns 0 even if single objects failed: see their err. err is -ENODATA, a
 * miss, if no tier served the object in time.
 */
int kvcachefs_lease_new(struct kvcachefs_lease **out, const char *mount, const char *const *paths,
			size_t n);
void kvcachefs_lease_free(struct kvcachefs_lease *l);
size_t kvcachefs_lease_count(const struct kvcachefs_lease *l);
const struct kvcachefs_object *kvcachefs_lease_object(const struct kvcachefs_lease *l, size_t i);
/*
 * The bytes of object i, read-only; valid until the lease is freed. The first call for an object
 * opens and maps it. While the cache of mappings (below) keeps the mapping, a later lease on the
 * same object reuses it without a system call, and so does a load, which also reuses the layout
 * that it has checked.
 */
int kvcachefs_lease_map(struct kvcachefs_lease *l, size_t i, const void **data, size_t *len);
/*
 * Keeps mappings of up to this many bytes for later leases; 0: none. A mapped object is an open
 * file to the mount and stays in the pool while its mapping is kept, so choose a part of the pool.
 * If a process never calls this, it keeps mappings up to a sixteenth of the pool (of the smallest
 * mount on which it took a lease), at most 4 GiB, and unmaps objects that it has not used for 5
 * seconds. With a limit set by this call, mappings are kept without a time limit. Half of the limit
 * also bounds the files prepared for stores (below). Returns when the mappings above the limit are
 * unmapped and unregistered. A thread of the library does so and waits until all work on the device
 * has ended.
 */
void kvcachefs_map_cache(size_t bytes);
/* Starts loading objects, without waiting and without a lease. */
int kvcachefs_prefetch(const char *mount, const char *const *paths, size_t n);
/*
 * The currently resident objects, with one call to the mount: a lease that loads nothing. err is
 * -ENODATA for objects that are not in the pool.
 */
int kvcachefs_look(struct kvcachefs_lease **out, const char *mount, const char *const *paths,
		   size_t n);

/*
 * Writes to *count the number of leading paths that are cached, in the pool or in any tier: the
 * longest prefix on which a lease is possible. Makes one call to the mount and loads nothing. A
 * path may be a folder: the folder counts if it has at least one file and all its files are
 * cached. -EINVAL: an invalid path; errors of the mount. Blocks only for that call.
 */
int kvcachefs_prefix(const char *mount, const char *const *paths, size_t n, size_t *count);
/*
 * The same, and takes a lease on exactly these paths to *out (NULL if *count is 0). Waits, like
 * kvcachefs_lease_new(), until they are loaded. A path that cannot be loaded ends the prefix before
 * it.
 */
int kvcachefs_prefix_lease(struct kvcachefs_lease **out, const char *mount,
			   const char *const *paths, size_t n, size_t *count);

/*
 * Sets bit i of `bits` (bit i % 8 of byte i / 8; (n / per + 7) / 8 bytes) if all paths of group i
 * are cached: paths [i * per, (i + 1) * per), such as the files of all ranks. `tiers`: in the pool
 * or in any tier; otherwise in the pool. Makes one call to the mount, loads nothing and takes no
 * lease. -EINVAL: per is 0, n is not a multiple of it, or an invalid path; errors of the mount. On
 * error bits is unchanged.
 */
int kvcachefs_exists(const char *mount, const char *const *paths, size_t n, size_t per, bool tiers,
		     uint8_t *bits);

/* ---- Plain buffers --------------------------------------------------------------------------- */

/*
 * The bytes of one file as memory, registered (pinned) for a CUDA device if a device is given (-1:
 * no device). For programs that copy data themselves. All these calls may block on the mount.
 */
struct kvcachefs_buffer;
/*
 * The bytes of a file, read-only, with a lease for the lifetime of the buffer. Errors are those of
 * the object (-ENOENT) and of the mount; -ENODEV: no such device.
 */
int kvcachefs_buffer_open(struct kvcachefs_buffer **out, const char *mount, const char *path,
			  int device);
/*
 * len zero bytes of a new file of that path. The path does not exist before
 * kvcachefs_buffer_publish(): the file and its folders are created under a temporary name, with the
 * space reserved. -ENOSPC and other errors: no space; nothing is left behind.
 */
int kvcachefs_buffer_new(struct kvcachefs_buffer **out, const char *mount, const char *path,
			 size_t len, int device);
/*
 * The memory of a buffer (NULL if it is empty or was published) and its length; valid until the
 * buffer is freed or published.
 */
void *kvcachefs_buffer_data(const struct kvcachefs_buffer *b, size_t *len);
/*
 * Whether the buffer is registered. A mount or driver may refuse the registration; the memory can
 * be used nevertheless.
 */
bool kvcachefs_buffer_pinned(const struct kvcachefs_buffer *b);
/*
 * Gives the new file its name and replaces an existing file. No device may use the memory any more;
 * it is unmapped. May be called once. After success or an error the buffer can only be freed.
 */
int kvcachefs_buffer_publish(struct kvcachefs_buffer *b);
/*
 * The same, under another path than that of kvcachefs_buffer_new(), for programs that know the name
 * only when they know the bytes. Both paths should begin with the same folder; otherwise the bytes
 * may be copied. -EINVAL also for an empty path.
 */
int kvcachefs_buffer_publish_as(struct kvcachefs_buffer *b, const char *path);
/* Frees a buffer and removes a new file that was not published. NULL: nothing. */
void kvcachefs_buffer_free(struct kvcachefs_buffer *b);

/* ---- Paged KV caches ------------------------------------------------------------------------- */

/*
 * The layout of an engine's cache, under LMCache's names (csrc/engine_kv_format.h of 0.5.6; the
 * last two are of LMCache's main branch and have our numbers). NB is blocks, NL layers, BS slots
 * of a block, NH heads, HS head size, CS the contents of a head: its K, then its V, each HS. X
 * separates a list of pointers from the memory at which they point.
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
			KVCACHEFS_NL_X_NB_NH_BS_TWO_HS,   /* 10 as 12, its older name */
			KVCACHEFS_NL_X_NB_BS_NH_TWO_HS,   /* 11 as 13, its older name */
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
	 * For 10 to 13, 19 and 20, in which the K and V of a head are adjacent: files have the
	 * same order, as LMCache's do, [layer][token][head][K, V] (with a kv size of 1 and a
	 * doubled head size), instead of all K before all V.
	 */
	bool fused;
	uint32_t planes, plane_width[KVCACHEFS_PLANES]; /* 17 */
	uint64_t plane_stride[KVCACHEFS_PLANES];        /* 17: like block_stride, for each plane */
};

/*
 * The tokens, given by slots (block * block_size + offset; negative slots are skipped) or by block
 * ids (all slots of each block). Host arrays.
 */
struct kvcachefs_tokens {
	const int64_t *slots;
	const int64_t *block_ids;
	size_t n;    /* slots, or blocks */
	size_t skip; /* tokens at the beginning that are not touched */
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

/* ---- RoPE: cached keys at other positions ---------------------------------------------------- */

/*
 * fp8 as in PyTorch: e4m3fn (no infinity) and e5m2. Values that are too large become the largest
 * number.
 */
enum kvcachefs_float {
	KVCACHEFS_F32,
	KVCACHEFS_F16,
	KVCACHEFS_BF16,
	KVCACHEFS_E4M3,
	KVCACHEFS_E5M2
};

/*
 * Each key moves by delta positions: pair i of a head's rotated elements turns by delta * f_i.
 * Exactly one of theta, inv_freq and cos_sin defines f. Angles are computed once and cached by
 * value for later transfers. A scale of quantized keys, and YaRN's factor on cos and sin, are
 * already part of the keys and stay unchanged.
 */
struct kvcachefs_rope {
	/* f_i = theta^(-2i / dims), such as 10000 or 500000; 0: not used. */
	double theta;
	/* The f_i themselves, dims / 2 values, as the model scales them; NULL: not used. */
	const double *inv_freq;
	/*
	 * The engine's table (vLLM's cos_sin_cache): [rows][dims] floats, one row for each
	 * position: cos of all pairs, then sin. Row |delta| is used and scaled to length 1.
	 * |delta| at or above rows: -ERANGE. NULL: not used.
	 */
	const float *cos_sin;
	uint64_t rows;
	uint32_t first; /* the first rotated element: 512 if the last 64 of 576 are rotated */
	uint32_t dims;  /* number of rotated elements; even; 0: all from first on */
	/* true: pairs are neighbours (GPT-J, DeepSeek); false: halves (NeoX, Llama) */
	bool interleaved;
	int64_t delta; /* new position - old position */
	enum kvcachefs_float type;
};
/*
 * The f_i as models scale them, dims / 2 values to out. Llama 3.1's "llama3" (factor 8, low 1, high
 * 4 and original 8192 in that model) and "yarn" (beta_fast 32 and beta_slow 1 unless the model says
 * otherwise; `original` positions; truncated bounds): transformers/modeling_rope_utils.py,
 * _compute_llama3_parameters and _compute_yarn_parameters. -EINVAL: invalid numbers.
 */
int kvcachefs_rope_llama3(double theta, uint32_t dims, double factor, double low, double high,
			  double original, double *out);
int kvcachefs_rope_yarn(double theta, uint32_t dims, double factor, double beta_fast,
			double beta_slow, double original, double *out);
/*
 * Rotates the keys of n tokens with `heads` heads in place, [token][head][element], in host memory.
 * -EINVAL: an invalid rotation; -ERANGE: delta is outside the table; -ENOMEM.
 */
int kvcachefs_rope_shift(const struct kvcachefs_rope *r, void *keys, size_t n, uint32_t heads,
			 uint32_t head_size);

/* ---- Transfers ------------------------------------------------------------------------------- */

/*
 * Bytes that are contiguous in memory and in the file. The memory is on the device of the call, or
 * in host memory if that is -1.
 */
struct kvcachefs_part {
	void *at;
	size_t len;      /* not 0 */
	uint64_t offset; /* in the file */
};
/* The parts of all items of a call; more are refused with -E2BIG. */
#define KVCACHEFS_PARTS_MOST (1u << 20)

/*
 * One file, and the tokens of a paged cache or the parts of memory that it holds. Initialize to
 * zero. With parts, `layer` only orders the steps of a queue's transfer, and tokens, rope, cache
 * and nlayers stay zero.
 */
struct kvcachefs_item {
	const char *path; /* below the mount */
	uint32_t layer, nlayers;
	struct kvcachefs_tokens tokens;
	/* loads: shift the keys during the load; NULL: no shift */
	const struct kvcachefs_rope *rope;
	/*
	 * The cache of the item; NULL: the cache of the call. Hybrid models have several caches of
	 * different shapes (full and window attention, indexer), each with its own pointers, all
	 * on the device of the call.
	 */
	const struct kvcachefs_paged *cache;
	/*
	 * Parts instead of tokens; NULL: tokens. Parts of a store must not overlap in the file,
	 * and bytes of the file that no part holds are zero. Parts of a load must not overlap in
	 * memory. A load may name a file in several items, for example in one for each layer.
	 * Contiguous parts are copied directly between the memory and the file's pages.
	 */
	const struct kvcachefs_part *parts;
	size_t nparts;
	/*
	 * With parts. Stores: the length of the file; 0: the end of the last part. Loads: the
	 * length that the file must have, otherwise -EPROTOTYPE; 0: any length.
	 */
	uint64_t size;
	/* stores: an existing file is not replaced; that is not an error */
	bool skip_existing;
	bool skipped; /* out: the file existed */
	int err;      /* out */
};

/* A tensor of pages: page i is `len` bytes at `at` + i * stride. */
struct kvcachefs_pages {
	void *at;
	uint64_t stride; /* bytes; at least len */
	size_t len;      /* not 0 */
};
/*
 * Writes the parts of pages ids[0 .. n) of each tensor to out, which has space for ntensors * n
 * parts, and returns their number. In the file the pages of a tensor are adjacent, and tensors
 * follow each other; with by_block the pages of a block are adjacent, and blocks follow each other.
 * Parts that are adjacent in memory and in the file are merged. A negative id is a hole: no part,
 * but space in the file. Sets *size to the length of the file with its holes; NULL: not wanted.
 */
size_t kvcachefs_pages_parts(const struct kvcachefs_pages *tensors, size_t ntensors,
			     const int64_t *ids, size_t n, bool by_block,
			     struct kvcachefs_part *out, uint64_t *size);

struct kvcachefs_transfer;
/*
 * Stores or loads many objects. With device >= 0 the work is ordered with `stream` (a cudaStream_t;
 * NULL: the default stream), and the call returns when all work is queued: work that is queued on
 * the stream later sees the loaded data and may change the memory of a store. With device -1 the
 * work is complete when the call returns. Files are created at their final size, written through
 * their pages, and published when the transfer is freed. The attribute user.kvc.layout keeps their
 * layout; a load with a different layout is refused (-EPROTOTYPE). Loads keep their objects in the
 * pool until they are copied. A failed store leaves no file. The arrays must stay valid until
 * kvcachefs_transfer_free().
 *
 * If all items have parts, only the device of `p` counts, and NULL means host memory. Errors of
 * items with parts: -EINVAL: a part without bytes, overlapping parts, or tokens and parts in one
 * item; -ERANGE: a part beyond the end of the file; -EFAULT: memory that is not on the device;
 * -E2BIG for the whole call: too many parts. Files of parts have no layout.
 */
int kvcachefs_store(struct kvcachefs_transfer **out, const char *mount,
		    const struct kvcachefs_paged *p, struct kvcachefs_item *items, size_t n,
		    void *stream);
int kvcachefs_load(struct kvcachefs_transfer **out, const char *mount,
		   const struct kvcachefs_paged *p, struct kvcachefs_item *items, size_t n,
		   void *stream);
/*
 * The file of a store is new memory of the pool. Allocating it, its pages and, for a device, their
 * registration costs more than the copy. So a thread of the library prepares files in advance, as
 * many as stores of the same length had in use at the same time (from the second store on, for each
 * model folder: the first component of the path). Prepared files have no name, so none is left when
 * the process dies. They use at most half of the limit of kvcachefs_map_cache() or of its default,
 * and at most 128 descriptors and an eighth of the limit on descriptors. They are removed after 5
 * seconds without a store, when the pool is short of space, and by kvcachefs_map_cache(0). A file
 * that was stored through a registration is registered for its next load after it is published,
 * within the limit of the cache of mappings.
 */
struct kvcachefs_warm {
	unsigned transfers; /* how many of these run at the same time; 0: 1, at most 8 */
	bool files;         /* prepare their files too */
	unsigned keep_s;    /* seconds to keep them without a store; at least 5 */
};
/*
 * Allocates in advance the resources of transfers like this one, so that the transfers allocate
 * nothing: their memory, and on a device streams, events, buffers, pinned memory for data that
 * cannot be registered, and the kernels; and prepared files as described above. The items are those
 * of a store, with the shape, number and lengths of the later transfers. Of their paths only the
 * first folder matters; it is created. The cache is not changed. Blocks until everything is
 * allocated. -ENOSPC: the files exceed the limit on prepared files or the space in the pool;
 * -EINVAL, -ENODEV, -ENOMEM; errors of the mount. After an error, resources that were already
 * allocated stay.
 */
int kvcachefs_gpu_warm(const char *mount, const struct kvcachefs_paged *p,
		       const struct kvcachefs_item *items, size_t n,
		       const struct kvcachefs_warm *how);
/*
 * 0: complete; -EAGAIN: not complete yet; otherwise the error of the first failed item. Never
 * waits.
 */
int kvcachefs_transfer_poll(struct kvcachefs_transfer *t);
/* Waits until the transfer is complete. */
int kvcachefs_transfer_wait(struct kvcachefs_transfer *t);
/* Waits, publishes the stored files, releases the leases, and frees the transfer. */
int kvcachefs_transfer_free(struct kvcachefs_transfer *t);

/*
 * The bytes that transfers of this process have moved between files and devices so far, in both
 * directions; zero if the library was built without CUDA. Bytes count when their copy is queued.
 */
struct kvcachefs_gpu_counts {
	uint64_t pinned_bytes; /* copied by the copy engine from and to the files' own pages */
	uint64_t direct_bytes; /* copied from and to these pages by a kernel: small pinned files */
	/*
	 * Copied through other pinned memory, with an additional copy in host memory: pages that
	 * could not be registered, and small files of a store that were not prepared, because
	 * registering them does not pay.
	 */
	uint64_t staged_bytes;
	uint64_t refused; /* failed attempts to register a mapping */
	/*
	 * Host functions that streams ran for staged bytes: 0 unless the driver lacks
	 * cuStreamWaitValue32().
	 */
	uint64_t host_functions;
};
void kvcachefs_gpu_stats(struct kvcachefs_gpu_counts *out);

/* ---- A queue of transfers -------------------------------------------------------------------- */

/*
 * Transfers for one mount. The threads of a queue perform the leases, opens, registrations, copies
 * and publishing, layer by layer. All calls except kvcachefs_queue_free() may be made from several
 * threads at the same time. Only kvcachefs_layer_wait() and kvcachefs_queue_free() wait for the
 * mount or a device. Several transfers run at once and end in any order. A load is certain to see
 * a store only if the completion of the store was taken before.
 *
 * Items of the same `layer` form a step, and steps run in the order of their layers. All layers of
 * an item are done in the step of its first layer. A transfer on a device accesses the cache after
 * the work that the stream had when the transfer was submitted.
 */
struct kvcachefs_queue;
/*
 * A queue to *out, with `threads` threads (0: 4, at most 64), each of which handles one transfer at
 * a time. Does not access the mount. -EINVAL, -ENOMEM, -EAGAIN (no thread), -EMFILE. A queue does
 * not survive a fork.
 */
int kvcachefs_queue_new(struct kvcachefs_queue **out, const char *mount, unsigned threads);
/*
 * Cancels all transfers, waits for the work in progress (as long as the mount and the devices
 * take), and frees the queue. Completions that were not taken are lost. No other call may use the
 * queue at that time. NULL: nothing.
 */
void kvcachefs_queue_free(struct kvcachefs_queue *q);
/*
 * An eventfd for poll(2) and similar calls: readable while a completion can be taken. The caller
 * must not read, write or close it. -1: q is NULL.
 */
int kvcachefs_queue_fd(const struct kvcachefs_queue *q);
/*
 * Submits a store or a load with the
 * arguments of kvcachefs_store() and
 * kvcachefs_load(), and writes its number
 * to *id. All arguments are copied, except
 * three things that must stay valid until
 * the completion is taken: the memory of
 * the cache, the tables of a rotation
 * (inv_freq, cos_sin), and `items` itself,
 * whose `err` is written before the
 * completion (or before
 * kvcachefs_queue_free() returns). The
 * completion returns `tag`.
 *
 * With a device the work is ordered after
 * the work that is on `stream` at this
 * moment, so a cache can be stored while
 * it is still being computed on the
 * stream. Work that is queued on `stream`
 * later must wait with
 * kvcachefs_layer_wait(), after a store
 * only if it changes the cache. The files
 * of a store all appear at its end, and
 * none if it was cancelled.
 *
 * -EAGAIN: the queue has
 * KVCACHEFS_QUEUE_MOST transfers,
 * including those whose completion was not
 * taken; -EINVAL: an invalid shape;
 * -ENODEV; -EBUSY: the stream is being
 * captured; -ENOMEM. After an error no
 * transfer exists. All later errors are
 * reported by the completion.
 */
#define KVCACHEFS_QUEUE_MOST 1024
int kvcachefs_submit_store(struct kvcachefs_queue *q, const struct kvcachefs_paged *p,
			   struct kvcachefs_item *items, size_t n, void *stream, uint64_t tag,
			   uint64_t *id);
int kvcachefs_submit_load(struct kvcachefs_queue *q, const struct kvcachefs_paged *p,
			  struct kvcachefs_item *items, size_t n, void *stream, uint64_t tag,
			  uint64_t *id);

/*
 * Submits a lease on n paths, which form n / per groups of `per` paths: one group for each block,
 * one path for each rank. `prefix`: looks up the longest prefix of cached groups, promotes its
 * objects and pins them, as kvcachefs_prefix_lease() does; the completion's `count` is the number
 * of these groups. Otherwise the lease has all paths, as that of kvcachefs_lease_new(), and `count`
 * is the number of groups that are held whole; the err of each object tells which. The paths are
 * copied. The threads of transfers do not wait for leases: up to 16 other threads do. The lease is
 * the caller's when the completion was taken, and NULL if count is 0 or err is not.
 *
 * -EINVAL: per is 0, n is not a multiple of it, or a path is empty or contains a newline; -EAGAIN
 * and -ENOMEM as above, or a thread cannot be started.
 */
int kvcachefs_submit_lease(struct kvcachefs_queue *q, const char *const *paths, size_t n,
			   size_t per, bool prefix, uint64_t tag, uint64_t *id);

struct kvcachefs_completion {
	uint64_t tag, id;
	int err;         /* 0; the error of the first failed item; -ECANCELED */
	size_t failed;   /* number of items whose err is not 0 */
	char error[160]; /* the message of the error; "": none */
	size_t skipped;  /* number of items whose file existed */
	uint64_t bytes;  /* moved, by items that neither failed nor were skipped */
	uint64_t ns;     /* from the submission to the end */
	/* of kvcachefs_submit_lease(); NULL: none. The caller frees it. */
	struct kvcachefs_lease *lease;
	size_t count;
};
/*
 * Writes at most `capacity` completions to v and returns their number. Their work on the device is
 * complete too.
 */
size_t kvcachefs_take(struct kvcachefs_queue *q, struct kvcachefs_completion *v, size_t capacity);
/*
 * Waits until the items of layers 0 to `layer` are done: in the cache for a load; copied out for a
 * store, so that the cache may be changed. In host memory they are done when this call returns. On
 * a device this call returns when their work is queued, and work that is queued on `stream`
 * afterwards runs after it; a failure of the device itself is reported only by the completion.
 * Returns 0 or the error of the first failed item, which may be -ECANCELED. May be called again and
 * by several threads, and for the last 1024 transfers also after the completion was taken. -ENOENT:
 * the transfer does not exist or is older; -EBUSY: the stream is being captured.
 */
int kvcachefs_layer_wait(struct kvcachefs_queue *q, uint64_t id, uint32_t layer, void *stream);
/* The same without waiting; -EAGAIN: not done yet. */
int kvcachefs_layer_poll(struct kvcachefs_queue *q, uint64_t id, uint32_t layer, void *stream);
/*
 * Cancels a transfer. Work that has not started does not start. Work in progress is finished or
 * undone: a store leaves no file. 0: the completion, which may exist already, will have -ECANCELED;
 * until the completion the memory may still be accessed. -EALREADY: too late, the transfer ends
 * normally; -ENOENT: no such transfer.
 */
int kvcachefs_cancel(struct kvcachefs_queue *q, uint64_t id);

#ifdef __cplusplus
}
#endif
#endif
