/* SPDX-License-Identifier: Apache-2.0 */
/*
 * libkvcachefs: chunk keys of engines, computed from tokens and bit-identical to theirs, and the
 * segments and fingerprints of CacheBlend. A connector that gets keys from its engine needs none of
 * this. See libkvcachefs(3).
 */
#ifndef KVCACHEFS_KEYS_H
#define KVCACHEFS_KEYS_H

#include "kvcachefs.h"

#ifdef __cplusplus
extern "C" {
#endif

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
 * Sets *out to the scheme of that name. -EINVAL: unknown name; kvcachefs_error() lists the names.
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
	 * PYTHONHASHSEED as text, below 64 KiB. NULL: not set. Newer vLLM then uses
	 * "vllm-none-hash", but random bytes for xxhash; so a hasher for xxhash with
	 * neither seed nor `none` is refused.
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
	/* every block that an item overlaps has (hash, item's start - block's start) */
	const struct kvcachefs_mm *mm;
	size_t nmm;
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
 * Sets *out to a hasher, to be freed by kvcachefs_hasher_free(). -EINVAL: unknown scheme, or extra
 * keys, a missing seed or a none_len that the scheme does not support; -ENOMEM; -EIO: OpenSSL lacks
 * the digest.
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

/* ---- CacheBlend: equal content at any position ----------------------------------------------- */

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

#ifdef __cplusplus
}
#endif
#endif
