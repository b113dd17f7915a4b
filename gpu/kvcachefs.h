/* SPDX-License-Identifier: Apache-2.0 */
/*
 * libkvcachefs: for programs that want more from a kvcachefs mount than file calls. Chunk keys from
 * tokens, bit-identical to the engines'; leases on many objects at once; and transfers between
 * files and a paged KV cache, in host memory or, where the library was built with CUDA, on a GPU.
 * libkvcachefs(3), kvcachefs-gpu(7).
 *
 * Every fallible call returns 0 or a negative errno, and kvcachefs_error() says more. Calls are
 * safe from any thread; one object (hasher, lease, buffer, transfer) is used by one thread at a
 * time, but for a queue. Nothing here needs the daemon's internals: it all goes through the mount.
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
 * What went wrong in the last call of this thread, for people. Never NULL; valid until the thread's
 * next call.
 */
const char *kvcachefs_error(void);
/* "0.1.0" and, where it was built with CUDA, " cuda". */
const char *kvcachefs_version(void);

/* ---- Chunk keys ------------------------------------------------------------------------------ */

/*
 * How an engine names a block or chunk of tokens. A key is H(parent, tokens, extra), the parent of
 * the first block being NONE_HASH, which comes from PYTHONHASHSEED. Keys of a scheme have one
 * length, kvcachefs_hasher_key_len(); none is longer than KVCACHEFS_KEY_MAX.
 */
enum kvcachefs_scheme {
	/*
	 * vLLM, blocks of 16 tokens unless told: hash((parent bytes, tuple of tokens, extra)), as
	 * --prefix-caching-hash-algo names it (vllm/utils/hashing.py, v1/core/kv_cache_utils.py).
	 * sha256 and xxhash are over pickle protocol 5, the _cbor ones over canonical CBOR; xxhash
	 * is XXH3-128 with keys of 16 bytes, the others have 32.
	 */
	KVCACHEFS_VLLM_SHA256, /* vLLM's own choice */
	KVCACHEFS_VLLM_SHA256_CBOR,
	KVCACHEFS_VLLM_XXHASH,
	KVCACHEFS_VLLM_XXHASH_CBOR,
	/*
	 * LMCache in the engine's process, 0.5.6 (lmcache/v1/token_database.py), chunks of 256:
	 * vLLM's hash of (parent, tokens, ()), folded to the number that its first 8 bytes are, big
	 * endian; NONE_HASH is folded too, and the fold is the next parent. Keys have 8 bytes, and
	 * their text is that number in hex without leading zeros. (LMCache's own choice there,
	 * Python's hash(), is not offered.)
	 */
	KVCACHEFS_LMCACHE_SHA256,
	KVCACHEFS_LMCACHE_SHA256_CBOR,
	KVCACHEFS_LMCACHE_XXHASH,
	KVCACHEFS_LMCACHE_XXHASH_CBOR,
	/*
	 * LMCache's multiprocess server (multiprocess/token_hasher.py), chunks of 256, whole
	 * digests. BLAKE3, its own choice: BLAKE3(parent || tokens as 32-bit big endian), NONE_HASH
	 * as it is where vLLM gives none: BLAKE3(8 zero bytes || one zero token). The others: as
	 * vLLM's, extra None.
	 */
	KVCACHEFS_LMCACHE_MP_BLAKE3,
	KVCACHEFS_LMCACHE_MP_SHA256,
	KVCACHEFS_LMCACHE_MP_SHA256_CBOR,
	KVCACHEFS_LMCACHE_MP_XXHASH,
	KVCACHEFS_LMCACHE_MP_XXHASH_CBOR,
	/*
	 * SGLang get_hash_str (srt/mem_cache/utils.py): SHA-256(parent || tokens as 32-bit little
	 * endian), a page of 64 unless told. The first page has no parent, or a namespace's seed
	 * (extra_key, cache_salt).
	 */
	KVCACHEFS_SGLANG,
	KVCACHEFS_SCHEMES
};
#define KVCACHEFS_KEY_MAX 32

/* "vllm-sha256_cbor" and so on; NULL where there is no such scheme. Never freed. */
const char *kvcachefs_scheme_name(enum kvcachefs_scheme scheme);
/* The scheme of that name to *out. -EINVAL: there is none; kvcachefs_error() lists them. */
int kvcachefs_scheme_find(const char *name, enum kvcachefs_scheme *out);

struct kvcachefs_mm {        /* a multimodal item among the tokens */
	const char *hash;    /* its identifier */
	uint64_t start, len; /* in tokens */
};

/* Zero is a good beginning. Strings and arrays are the caller's and must outlive the hasher. */
struct kvcachefs_keys {
	enum kvcachefs_scheme scheme;
	unsigned block_tokens; /* 0: the scheme's own; at most 2^24 */
	/*
	 * PYTHONHASHSEED as text, below 64 KiB. NULL: not set, which newer vLLM takes for
	 * "vllm-none-hash"; with xxhash it takes random bytes then, so a hasher without seed and
	 * `none` is refused.
	 */
	const char *seed;
	/*
	 * NONE_HASH itself, where it is not the seed's (older vLLM without a seed: random).
	 * none_len is the length of the scheme's digest; LMCache in process also takes the 8 bytes
	 * of the fold.
	 */
	const void *none;
	size_t none_len;
	/*
	 * No extra keys are an empty array and not null, as some versions have it. CBOR without the
	 * fold only.
	 */
	bool empty_extra_is_array;
	/*
	 * Extra keys, in vLLM's order, and for its _cbor schemes only: a pickle of them depends on
	 * which Python objects are the same. LMCache has none. Given to another scheme, they are
	 * refused. With tagged_extra they are as from vLLM 0.32 on: ("lora", name, path), ("mm",
	 * hash, offset), ("cache_salt", salt), ("prompt_embeds",
	 * sha); without: name, (hash, offset), salt, sha.
	 */
	bool tagged_extra;
	const char *lora_name; /* every block */
	const char *lora_path; /* tagged only; NULL: "" */
	const struct kvcachefs_mm *mm;
	size_t nmm; /* (hash, start - block's start) in every block that an item touches */
	/*
	 * vLLM: first block only; "" is none. SGLang: part of the namespace, and there "" is not
	 * NULL.
	 */
	const char *cache_salt;
	const char *extra_key; /* SGLang's namespace only */
	/*
	 * SHA-256 of the prompt embeddings of a block into sha: 1 there is one, 0 none. NULL: there
	 * are none.
	 */
	int (*embeds)(void *arg, uint64_t block, uint8_t sha[32]);
	void *embeds_arg;
};

struct kvcachefs_hasher;
/*
 * A hasher to *out, freed by kvcachefs_hasher_free(). -EINVAL: no such scheme, or what cannot be
 * written in it (extra keys, a missing seed, none_len); -ENOMEM; -EIO: OpenSSL has no such digest.
 */
int kvcachefs_hasher_new(struct kvcachefs_hasher **out, const struct kvcachefs_keys *keys);
void kvcachefs_hasher_free(struct kvcachefs_hasher *h);
/*
 * Goes on with n more tokens. The keys of the blocks that became full go to out, one after another
 * without gaps, and their number to *made. There is room for `room` keys; n / block_tokens + 1 is
 * always enough. A growing prompt costs its new blocks only. -ENOSPC: out is too small; nothing was
 * taken. After any other error the hasher can only be freed.
 */
int kvcachefs_hasher_feed(struct kvcachefs_hasher *h, const uint32_t *tokens, size_t n, void *out,
			  size_t room, size_t *made);
/*
 * The key that the tokens which fill no block yet would have as a shorter block of their own:
 * LMCache's with save_unfull_chunk. The hasher stays as it is. -ENODATA: there are none.
 */
int kvcachefs_hasher_rest(struct kvcachefs_hasher *h, void *out);
/* Bytes of a key; tokens of a block. */
size_t kvcachefs_hasher_key_len(const struct kvcachefs_hasher *h);
unsigned kvcachefs_hasher_block(const struct kvcachefs_hasher *h);
/*
 * NONE_HASH, the parent of the first block: as long as a key. SGLang without a namespace has none:
 * zeros.
 */
const uint8_t *kvcachefs_hasher_none(const struct kvcachefs_hasher *h);
/*
 * A key as the engine writes it in names: hex; LMCache in process: a number in hex. With its NUL.
 */
#define KVCACHEFS_TEXT_MAX (2 * KVCACHEFS_KEY_MAX + 1)
void kvcachefs_hasher_text(const struct kvcachefs_hasher *h, const void *key,
			   char out[KVCACHEFS_TEXT_MAX]);

/*
 * vLLM's key of a KV cache group: the digest and the group as 32-bit big endian; len + 4 bytes to
 * out.
 */
void kvcachefs_group_key(const void *key, size_t len, uint32_t group, void *out);
/* vLLM's integer form: the last 8 bytes, big endian. */
uint64_t kvcachefs_key_int(const void *key, size_t len);
/* 2 * len hex digits and a NUL. */
void kvcachefs_hex(const void *p, size_t len, char *out);
/*
 * The folder of vLLM's ExampleConnector: MD5 of the tokens as 64-bit little endian, then "-" and
 * the multimodal hashes joined by "-" where there are any; only whole blocks of block_tokens
 * count (0: 16).
 */
int kvcachefs_example_folder(const uint32_t *tokens, size_t n, unsigned block_tokens,
			     const char *const *mm_hashes, size_t nmm, char out[33]);
/* BLAKE3 (256 bits) of anything. */
void kvcachefs_blake3(const void *data, size_t len, uint8_t out[32]);

/* ---- CacheBlend: content wherever it stands -------------------------------------------------- */

struct kvcachefs_segment {
	size_t start, end; /* tokens [start, end), as LMCache counts them */
	uint8_t key[8];    /* of a key_len of 8: KVCACHEFS_LMCACHE_* only */
};
/*
 * LMCache in process with blending (SegmentTokenDatabase): the tokens are split where the separator
 * stands, and each segment is hashed with NONE_HASH as its parent, the separators left out;
 * segments may be empty. At most `room` go to out, *made says how many there are. `h` lends its
 * scheme and NONE_HASH, and is not changed. Separators that overlap cut as LMCache's do. -EINVAL:
 * another scheme than KVCACHEFS_LMCACHE_*, or no separator; -ENOSPC: out is too small, *made is
 * set.
 */
int kvcachefs_segments(struct kvcachefs_hasher *h, const uint32_t *tokens, size_t n,
		       const uint32_t *separator, size_t nsep, struct kvcachefs_segment *out,
		       size_t room, size_t *made);
/*
 * LMCache's multiprocess server with blending (modules/blend/matcher.py) finds chunks of k tokens
 * at any offset by H = sum of x_i * b^(k-1-i) mod 2^64, b = 0x9E3779B97F4A7C15. The H of each
 * window [i, i + k) to out[i], n - k + 1 of them; k = n is the fingerprint of one chunk. -EINVAL: k
 * is 0 or above n.
 */
int kvcachefs_fingerprints(const uint32_t *tokens, size_t n, size_t k, uint64_t *out);

/* ---- Names on disk --------------------------------------------------------------------------- */

/* How an engine names the file of a key, below the folder that it was given. */
enum kvcachefs_naming {
	/*
	 * LMCache FSConnector: CacheEngineKey.to_string() with "/" as "-SEP-", ".data"
	 * (lmcache/utils.py, connector/fs_connector.py):
	 * MODEL@WORLD_SIZE@WORKER@KEY@DTYPE[@LAYER][@TAG%VALUE...]
	 */
	KVCACHEFS_NAME_LMCACHE_FS,
	/* LMCache LocalDiskBackend: the same with "/" as "-" (the model cannot be told from it),
	   ".pt". */
	KVCACHEFS_NAME_LMCACHE_DISK,
	/*
	 * LMCache's fs L2 adapters, ObjectKey (distributed/l2_adapters/fs_l2_adapter.py):
	 * MODEL@0xKV_RANK@GROUP@KEY[@SALT].data, KV_RANK and GROUP in hex, "/" in MODEL as "-SEP-"
	 */
	KVCACHEFS_NAME_LMCACHE_L2,
	/*
	 * SGLang HiCacheFile (srt/mem_cache/hicache_storage.py): KEY[.POOL]_MODEL[_TP_RANK_TP_SIZE]
	 * [_PP_SIZE_PP_RANK][_cpR_N][_tpN_dcpR_N_pageP].bin, "/" in MODEL as "-"; MLA models
	 * without their TP pair, but for the pool mamba. A model whose own name ends in "_1_2"
	 * cannot be told from ranks.
	 */
	KVCACHEFS_NAME_SGLANG_FILE,
	/*
	 * vLLM's file tier (v1/kv_offload/file_mapper.py):
	 * MODEL_CONFIG_rRANK/KKK/KK_gGROUP/KEY.bin, "/" in MODEL as "_"; KKK and KK are the key's
	 * first digits, CONFIG 12 hex digits of the run's configuration, which stand in the name of
	 * the folder with its config.json.
	 */
	KVCACHEFS_NAME_VLLM_FS,
	KVCACHEFS_NAMINGS
};

/*
 * All that a name says; zero is a good beginning, and sizes of 0 are 1. What a naming has not, it
 * ignores.
 */
struct kvcachefs_name {
	char model[256];
	char key[KVCACHEFS_TEXT_MAX + 1]; /* as kvcachefs_hasher_text() writes it */
	/* LMCache's CacheEngineKey. */
	uint32_t world_size, worker;
	char dtype[16]; /* half, bfloat16, float, fp8_e4m3fn, ... as LMCache says it; "" is bfloat16
			 */
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
	uint32_t dcp_rank, dcp_size,
		page; /* dcp_size above 1: MLA only, page is the logical page's tokens */
	/* vLLM. */
	char config[13];
	uint32_t rank;
};
/* A path of more is none. */
#define KVCACHEFS_PATH_MAX 1024

/*
 * "lmcache-fs" and so on; NULL: there is no such naming. And back: -EINVAL, with their list as the
 * error.
 */
const char *kvcachefs_naming_name(enum kvcachefs_naming as);
int kvcachefs_naming_find(const char *name, enum kvcachefs_naming *out);
/*
 * The path of a name, relative, with its NUL, to out. -EINVAL: something in it cannot be said in
 * that naming (kvcachefs_error() says what); -ENAMETOOLONG: a part has more than 255 bytes. Then
 * out is unchanged.
 */
int kvcachefs_name_build(enum kvcachefs_naming as, const struct kvcachefs_name *n,
			 char out[KVCACHEFS_PATH_MAX]);
/*
 * What a relative path says, to *out. Exactly what kvcachefs_name_build() writes is taken, so that
 * building what was parsed gives the same path. -EINVAL: it is none of that naming; *out is
 * unchanged.
 */
int kvcachefs_name_parse(enum kvcachefs_naming as, const char *path, struct kvcachefs_name *out);
/*
 * Sets the member of that name from text ("tp_size", "2"). -EINVAL: there is none, or it is not its
 * kind.
 */
int kvcachefs_name_set(struct kvcachefs_name *n, const char *member, const char *value);

/* ---- Leases ---------------------------------------------------------------------------------- */

struct kvcachefs_object {
	const char *path; /* below the mount */
	uint64_t ino, size;
	int err;           /* 0: resident and held; or why not, negative */
	const char *state; /* as the mount says it */
};
struct kvcachefs_lease;
/*
 * Loads these objects into the pool and holds them there until the lease is freed or the process
 * dies. A path may be a folder: all files in it. Waits until all are there or have failed. 0 also
 * where single objects failed: see their err. It is -ENODATA, a miss, if no tier served the object
 * in time.
 */
int kvcachefs_lease_new(struct kvcachefs_lease **out, const char *mount, const char *const *paths,
			size_t n);
void kvcachefs_lease_free(struct kvcachefs_lease *l);
size_t kvcachefs_lease_count(const struct kvcachefs_lease *l);
const struct kvcachefs_object *kvcachefs_lease_object(const struct kvcachefs_lease *l, size_t i);
/*
 * The bytes of object i, read-only; valid until the lease is freed. The first call for an object
 * opens and maps it; a later lease on the same object finds the mapping, and the layout that a load
 * has looked at, without a system call, while the cache of mappings (below) keeps it.
 */
int kvcachefs_lease_map(struct kvcachefs_lease *l, size_t i, const void **data, size_t *len);
/*
 * Keeps mappings of up to this many bytes for later leases; 0: none. A mapped object is an open
 * file to the mount: it stays in the pool while its mapping is kept, so choose a part of the pool.
 * Where this is not called a process keeps a sixteenth of the pool (of the smallest mount it has
 * leased from), at most 4 GiB, and lets go of what has not been used for 5 seconds; what is kept
 * with a bound of the caller's choice stays. Half of it is also the bound of files that are ready
 * for stores (below). Returns when what is over the bound is unmapped and unregistered, which a
 * thread of the library's own does, and which waits until all that runs on the device is over.
 */
void kvcachefs_map_cache(size_t bytes);
/* Asks for objects without waiting and without holding. */
int kvcachefs_prefetch(const char *mount, const char *const *paths, size_t n);
/*
 * What is resident now, one call for all: as a lease, but loads nothing. err is -ENODATA for what
 * is not in the pool.
 */
int kvcachefs_look(struct kvcachefs_lease **out, const char *mount, const char *const *paths,
		   size_t n);

/*
 * How many of the leading paths are cached, in the pool or in any tier, to *count: the longest
 * prefix that a lease could have. One call to the mount; loads nothing. A path may be a folder: it
 * counts with at least one file in it, and all that are in it must be there. -EINVAL: a path that
 * is none; errors of the mount. Blocks for that call only.
 */
int kvcachefs_prefix(const char *mount, const char *const *paths, size_t n, size_t *count);
/*
 * The same, and takes the lease of exactly those, to *out (NULL where *count is 0); as
 * kvcachefs_lease_new() it waits until they are loaded. What could not be had ends the prefix
 * before it.
 */
int kvcachefs_prefix_lease(struct kvcachefs_lease **out, const char *mount,
			   const char *const *paths, size_t n, size_t *count);

/* ---- Plain buffers --------------------------------------------------------------------------- */

/*
 * The bytes of one file as memory, and registered (pinned) for a CUDA device where one is named;
 * device -1: none. For programs with copies of their own. All of them may block on the mount.
 */
struct kvcachefs_buffer;
/*
 * A file's bytes, read-only, leased for as long as the buffer lives. Errors are those of the object
 * (-ENOENT) and of the mount; -ENODEV: no such device.
 */
int kvcachefs_buffer_open(struct kvcachefs_buffer **out, const char *mount, const char *path,
			  int device);
/*
 * len bytes, zero at first, of a new file of that path, which is not there before
 * kvcachefs_buffer_publish(): it is made under a temporary name, with its folders and with room.
 * -ENOSPC and so on: no room; nothing is left.
 */
int kvcachefs_buffer_new(struct kvcachefs_buffer **out, const char *mount, const char *path,
			 size_t len, int device);
/*
 * Its memory (NULL where it is empty, or was published) and length. Until it is freed or published.
 */
void *kvcachefs_buffer_data(const struct kvcachefs_buffer *b, size_t *len);
/*
 * Whether it is registered: a mount or driver may refuse that, and the memory is usable all the
 * same.
 */
bool kvcachefs_buffer_pinned(const struct kvcachefs_buffer *b);
/*
 * Gives the new file its name, replacing what is there. No device may use the memory any more, and
 * it is gone afterwards. Once; after an error, as after success, the buffer can only be freed.
 */
int kvcachefs_buffer_publish(struct kvcachefs_buffer *b);
/* A new file that was not published is removed. NULL: nothing. */
void kvcachefs_buffer_free(struct kvcachefs_buffer *b);

/* ---- Paged KV caches ------------------------------------------------------------------------- */

/*
 * How an engine lays its cache out, by LMCache's names (csrc/engine_kv_format.h of 0.5.6; the last
 * two are of its main branch and have numbers of ours). NB blocks, NL layers, BS slots a block, NH
 * heads, HS head size, CS content of a head: its K, then its V, each HS; X between a list of
 * pointers and what they point at.
 */
enum kvcachefs_format { /* a pointer a layer, where nothing else is said */
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
			 * 14 vLLM's DSA indexer: in a block the values of all slots, then 4 bytes
			 * of scale for each. head_size is a token's row of both (132 with elem 1);
			 * in a file the scale stands behind the token's values.
			 */
			KVCACHEFS_NL_X_NB_BSV_BSS,
			KVCACHEFS_NL_X_TWO_NB_NH_ONE_BS_HS, /* 15 vLLM-RBLN; bytes as 6 */
			KVCACHEFS_NL_X_TWO_X_NB_BS_NH_HS,   /* 16 vLLM-Ascend; pointers K0, V0, K1,
							       V1, ... */
			/*
			 * 17 vLLM-Ascend MLA and DSA: each layer has `planes` of them, [NB, BS, 1,
			 * plane_width[i]]; pointers layer by layer. In a file a token's planes
			 * stand behind each other; head_size is the sum of their widths. Planes of
			 * different types: elem 1, and widths in bytes.
			 */
			KVCACHEFS_NL_X_NP_X_NB_BS_ONE_HS,
			KVCACHEFS_NL_X_NB_BS_NH_HS, /* 18 SGLang; each "layer" is a K or a V of its
						       own */
			KVCACHEFS_NB_NL_NH_BS_CS, /* 19 blocks first across layers, HND; one pointer
						   */
			KVCACHEFS_NB_NL_BS_NH_CS, /* 20 the same, NHD */
			KVCACHEFS_FORMATS
};
#define KVCACHEFS_PLANES 4

/* "NL_X_NB_BS_HS" and so on; NULL: there is no such format. And back: -EINVAL. */
const char *kvcachefs_format_name(enum kvcachefs_format format);
int kvcachefs_format_find(const char *name, enum kvcachefs_format *out);

struct kvcachefs_paged {
	enum kvcachefs_format format;
	uint32_t layers, heads, head_size, block_size; /* 3, 5, 14, 17: heads 1 */
	uint64_t blocks;
	uint32_t elem; /* bytes of an element: 1, 2 or 4 */
	/*
	 * Elements from one block to the next, where that is more than a block (a padded view); 0:
	 * dense. Not for 17.
	 */
	uint64_t block_stride;
	void *const *pointers; /* host array; how many: the format says */
	int device;            /* -1: host memory; else a CUDA device */
	/*
	 * 10 to 13, 19, 20, whose K and V of a head lie together: files hold them so, as LMCache's
	 * do, [layer][token][head][K, V] (its kv size 1 and doubled head size), and not all K
	 * before all V.
	 */
	bool fused;
	uint32_t planes, plane_width[KVCACHEFS_PLANES]; /* 17 */
	uint64_t plane_stride[KVCACHEFS_PLANES];        /* 17: as block_stride, of each plane */
};

/*
 * Which tokens: by slots (block * block_size + offset, negative: skipped), or by block ids (all
 * slots of each). Host arrays.
 */
struct kvcachefs_tokens {
	const int64_t *slots;
	const int64_t *block_ids;
	size_t n;    /* slots, or blocks */
	size_t skip; /* tokens at the beginning that are left alone */
};

/*
 * A file holds [K and V][layer][token][head][element] (LMCache's KV_2LTD), without the first
 * dimension where there is one component (MLA, 14, 17, 18, fused). A layer's file has one layer.
 * Its length in bytes for these tokens: 0 where the shape is none, or that is 2^62 or more. The
 * pointers may be missing.
 */
uint64_t kvcachefs_file_size(const struct kvcachefs_paged *p, uint32_t nlayers,
			     const struct kvcachefs_tokens *t);

/*
 * Copies between contiguous host memory of that size and the paged cache, layers [layer, layer +
 * nlayers). Synchronous. -EINVAL: a shape that is none; -ERANGE: a slot, block or layer outside;
 * then nothing was written.
 */
int kvcachefs_gather(const struct kvcachefs_paged *p, uint32_t layer, uint32_t nlayers,
		     const struct kvcachefs_tokens *t, void *out);
int kvcachefs_scatter(const struct kvcachefs_paged *p, uint32_t layer, uint32_t nlayers,
		      const struct kvcachefs_tokens *t, const void *in);

/* ---- RoPE: cached keys at other positions ---------------------------------------------------- */

/*
 * fp8 as in PyTorch: e4m3fn (no infinity) and e5m2. What is too large becomes the largest number.
 */
enum kvcachefs_float {
	KVCACHEFS_F32,
	KVCACHEFS_F16,
	KVCACHEFS_BF16,
	KVCACHEFS_E4M3,
	KVCACHEFS_E5M2
};

/*
 * Each key moves by delta positions: the pair i of a head's rotated elements turns by delta * f_i.
 * Exactly one of theta, inv_freq and cos_sin says what f is. Turns are computed once and kept for
 * the next transfers, by value. A scale of quantised keys, and the factor that YaRN puts on cos and
 * sin, are in the keys already and stay.
 */
struct kvcachefs_rope {
	/* f_i = theta^(-2i / dims), such as 10000 or 500000; 0: not this. */
	double theta;
	/* The f_i themselves, dims / 2 of them, as the model scales them; NULL: not this. */
	const double *inv_freq;
	/*
	 * The engine's table (vLLM's cos_sin_cache): [rows][dims] floats, a row a position: cos of
	 * all pairs, then sin. Row |delta| is taken, and scaled to length 1. |delta| at or above
	 * rows: -ERANGE. NULL: not this.
	 */
	const float *cos_sin;
	uint64_t rows;
	uint32_t first;   /* the first rotated element: 512 where the last 64 of 576 are */
	uint32_t dims;    /* how many are rotated; even; 0: all behind the first */
	bool interleaved; /* pairs are neighbours (GPT-J, DeepSeek); else halves (NeoX, Llama) */
	int64_t delta;    /* new position - old position */
	enum kvcachefs_float type;
};
/*
 * f_i as models scale them, dims / 2 to out. Llama 3.1's "llama3" (factor 8, low 1, high 4,
 * original 8192 there) and "yarn" (beta_fast 32, beta_slow 1 unless the model says otherwise;
 * `original` positions; truncated bounds): transformers/modeling_rope_utils.py,
 * _compute_llama3_parameters and _compute_yarn_parameters. -EINVAL: numbers that are none.
 */
int kvcachefs_rope_llama3(double theta, uint32_t dims, double factor, double low, double high,
			  double original, double *out);
int kvcachefs_rope_yarn(double theta, uint32_t dims, double factor, double beta_fast,
			double beta_slow, double original, double *out);
/*
 * The keys of n tokens of `heads` heads in place, [token][head][element], in host memory. -EINVAL:
 * a rotation that is none; -ERANGE: delta is outside the table; -ENOMEM.
 */
int kvcachefs_rope_shift(const struct kvcachefs_rope *r, void *keys, size_t n, uint32_t heads,
			 uint32_t head_size);

/* ---- Transfers ------------------------------------------------------------------------------- */

struct kvcachefs_item {   /* one file and what of the cache it holds */
	const char *path; /* below the mount */
	uint32_t layer, nlayers;
	struct kvcachefs_tokens tokens;
	const struct kvcachefs_rope *rope; /* loads: shift the keys on the way; NULL: as they are */
	/*
	 * The cache that it belongs to; NULL: the call's. Hybrid models have several, of other
	 * shapes (full and window attention, indexer), each with its own pointers; all on the
	 * call's device.
	 */
	const struct kvcachefs_paged *cache;
	int err; /* out */
};
struct kvcachefs_transfer;
/*
 * Stores or loads many objects. With device >= 0 the work is ordered with `stream` (a cudaStream_t,
 * NULL: the default one) and the call returns when all is queued: what is queued there later sees
 * what was loaded, and may change what is being stored. With device -1 it is done when the call
 * returns. Files are created at their final size, written through their pages and published when
 * the transfer is freed; their layout is kept in user.kvc.layout, and a load of another layout is
 * refused (-EPROTOTYPE). Loads lease their objects. A store that fails leaves no file. The arrays
 * must live until kvcachefs_transfer_free.
 */
int kvcachefs_store(struct kvcachefs_transfer **out, const char *mount,
		    const struct kvcachefs_paged *p, struct kvcachefs_item *items, size_t n,
		    void *stream);
int kvcachefs_load(struct kvcachefs_transfer **out, const char *mount,
		   const struct kvcachefs_paged *p, struct kvcachefs_item *items, size_t n,
		   void *stream);
/*
 * A store's file is fresh memory of the pool: getting it, its pages and, for a device, their
 * registration, costs more than the copy. So a thread of the library's own makes files ready, as
 * many as stores of such a length had in hand at once (from the second on, by the folder of the
 * model, its first name). They have no name, and so nothing is left of them when the process dies;
 * they take at most half of what kvcachefs_map_cache() says or a process keeps without it, and 128
 * descriptors (an eighth of the limit), and go after 5 seconds without a store, when the pool is
 * short, and with kvcachefs_map_cache(0). A file that was stored through a registration is
 * registered for its next load when it was published, as far as the cache of mappings goes.
 */
struct kvcachefs_warm {
	unsigned transfers; /* how many of these are under way at once; 0: 1, at most 8 */
	bool files;         /* make their files ready too */
	unsigned keep_s;    /* and keep them so long without a store; at least 5 seconds */
};
/*
 * Brings what transfers like this one will take, so that they allocate nothing: their memory, and
 * on a device streams, events, buffers, pinned memory for what cannot be registered, the kernels;
 * and files as above. Items are as of a store, with the shape, number and lengths of those to come;
 * of their paths the first folder counts, which is made; nothing of the cache is changed. Blocks
 * until all is there. -ENOSPC: the files are more than may be ready, or than the pool has room for;
 * -EINVAL, -ENODEV, -ENOMEM; errors of the mount. What was made by then stays.
 */
int kvcachefs_gpu_warm(const char *mount, const struct kvcachefs_paged *p,
		       const struct kvcachefs_item *items, size_t n,
		       const struct kvcachefs_warm *how);
/* 0: complete; -EAGAIN: not yet; otherwise the first item's error. Never waits. */
int kvcachefs_transfer_poll(struct kvcachefs_transfer *t);
/* Waits for it. */
int kvcachefs_transfer_wait(struct kvcachefs_transfer *t);
/* Waits, publishes what was stored, gives up leases, frees. */
int kvcachefs_transfer_free(struct kvcachefs_transfer *t);

/*
 * What transfers between files and devices have moved in this process so far, both ways; zero where
 * the library was built without CUDA. Bytes count when they are queued.
 */
struct kvcachefs_gpu_counts {
	uint64_t pinned_bytes; /* by the copy engine, from and to the files' own pages */
	uint64_t direct_bytes; /* from and to those by a kernel: small files that are pinned too */
	/*
	 * By way of other pinned memory, with a copy in host memory more: pages that could not be
	 * registered, and small files of a store that were not ready: that is not worth it.
	 */
	uint64_t staged_bytes;
	uint64_t refused; /* mappings that could not be registered, each time it was tried */
	/*
	 * Functions of the host that streams ran for what is staged: 0 but where the driver lacks
	 * cuStreamWaitValue32().
	 */
	uint64_t host_functions;
};
void kvcachefs_gpu_stats(struct kvcachefs_gpu_counts *out);

/* ---- A queue of transfers -------------------------------------------------------------------- */

/*
 * Transfers for one mount that threads of the queue carry out, layer by layer: their leases, opens,
 * registrations, copies and publishing. All calls but kvcachefs_queue_free() are safe from any
 * threads at the same time, and none but kvcachefs_layer_wait() and kvcachefs_queue_free() waits
 * for the mount or a device. Several transfers run at once, and end in any order: a load sees a
 * store whose completion has been taken, and else perhaps.
 *
 * Items of the same `layer` are a step, and steps go in the order of their layers; the layers of an
 * item are done with its first. Within a transfer on a device, the cache is touched after what was
 * queued on the stream when it was submitted.
 */
struct kvcachefs_queue;
/*
 * To *out; `threads` of them (0: 4, at most 64), each with one transfer at a time. The mount is not
 * looked at. -EINVAL, -ENOMEM, -EAGAIN (no thread), -EMFILE. It does not survive a fork.
 */
int kvcachefs_queue_new(struct kvcachefs_queue **out, const char *mount, unsigned threads);
/*
 * Cancels all that is in it, waits for what had begun (as long as the mount and the devices take),
 * and frees; completions that were not taken are lost. Nobody may be in another call. NULL:
 * nothing.
 */
void kvcachefs_queue_free(struct kvcachefs_queue *q);
/*
 * An eventfd, for poll(2) and its like: readable while there is a completion to take. Not to be
 * read, written or closed. -1: q is NULL.
 */
int kvcachefs_queue_fd(const struct kvcachefs_queue *q);
/*
 * Submits a store or a load as kvcachefs_store() and kvcachefs_load() take it, and its number to
 * *id. All that is named is copied, but for three things that must stay until the completion is
 * taken: the cache's memory, the tables of a rotation (inv_freq, cos_sin), and `items` itself,
 * whose `err` is written before the completion (or before kvcachefs_queue_free() returns). `tag`
 * comes back with it.
 *
 * With a device the work is ordered behind what is on `stream` at this moment. A store may be of a
 * cache that is still being computed there; what is queued on `stream` later must wait by
 * kvcachefs_layer_wait(), for a store too where it changes the cache. Files of a store appear all
 * at its end, and none where it was cancelled.
 *
 * -EAGAIN: KVCACHEFS_QUEUE_MOST transfers are in the queue, counting those whose completion was not
 * taken; -EINVAL: a shape that is none; -ENODEV; -EBUSY: the stream is being captured; -ENOMEM.
 * Then there is no transfer. All else is told by the completion.
 */
#define KVCACHEFS_QUEUE_MOST 1024
int kvcachefs_submit_store(struct kvcachefs_queue *q, const struct kvcachefs_paged *p,
			   struct kvcachefs_item *items, size_t n, void *stream, uint64_t tag,
			   uint64_t *id);
int kvcachefs_submit_load(struct kvcachefs_queue *q, const struct kvcachefs_paged *p,
			  struct kvcachefs_item *items, size_t n, void *stream, uint64_t tag,
			  uint64_t *id);

struct kvcachefs_completion {
	uint64_t tag, id;
	int err;         /* 0; of the first item that failed; -ECANCELED */
	size_t failed;   /* items whose err is not 0 */
	char error[160]; /* what went wrong, for people; "" */
};
/* Completions to v, at most `room`; how many there were. The device's work of them is done too. */
size_t kvcachefs_take(struct kvcachefs_queue *q, struct kvcachefs_completion *v, size_t room);
/*
 * Waits until the items of layers 0 to `layer` are done: a load's are in the cache, a store's are
 * out of it, and it may be changed. In host memory they are so when this returns. On a device this
 * returns when their work is queued, and what is queued on `stream` from now on comes after it; a
 * failure of the device itself is told by the completion alone. 0, or the error of the first of
 * these items that failed, -ECANCELED among them. It may be called again, by several threads, and
 * for the last 1024 transfers also when the completion was taken. -ENOENT: no such transfer, or an
 * older one; -EBUSY: the stream is being captured.
 */
int kvcachefs_layer_wait(struct kvcachefs_queue *q, uint64_t id, uint32_t layer, void *stream);
/* The same without waiting; -EAGAIN: not yet. */
int kvcachefs_layer_poll(struct kvcachefs_queue *q, uint64_t id, uint32_t layer, void *stream);
/*
 * What has not begun does not begin; what has is finished, or undone: a store leaves no file. 0:
 * its completion will say -ECANCELED; it may be there already. Until it is, memory may be touched.
 * -EALREADY: too late, it ends as it ends; -ENOENT: no such transfer.
 */
int kvcachefs_cancel(struct kvcachefs_queue *q, uint64_t id);

#ifdef __cplusplus
}
#endif
#endif
