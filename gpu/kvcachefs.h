/* SPDX-License-Identifier: Apache-2.0 */
/*
 * libkvcachefs: for programs that want more from a kvcachefs mount than file calls. Chunk keys from tokens, bit-identical to the engines';
 * leases on many objects at once; and transfers between files and a paged KV cache, in host memory or, where the library was built
 * with CUDA, on a GPU. libkvcachefs(3), kvcachefs-gpu(7).
 *
 * Every fallible call returns 0 or a negative errno, and kvcachefs_error() says more. Calls are safe from any thread; one object (hasher, lease,
 * transfer) is used by one thread at a time. Nothing here needs the daemon's internals: it all goes through the mount.
 */
#ifndef KVCACHEFS_H
#define KVCACHEFS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* What went wrong in the last call of this thread, for people. Never NULL; valid until the thread's next call. */
const char *kvcachefs_error(void);
/* "0.1.0" and, where it was built with CUDA, " cuda". */
const char *kvcachefs_version(void);

/* ---- Chunk keys ---------------------------------------------------------------------------------------------------------- */

enum kvcachefs_scheme {
	/* vLLM sha256_cbor: SHA-256 of canonical CBOR [parent, tokens, extra], 16 tokens a block. vllm/v1/core/kv_cache_utils.py */
	KVCACHEFS_VLLM,
	/* LMCache in-process with sha256_cbor: the same with 256 tokens. lmcache/v1/token_database.py */
	KVCACHEFS_LMCACHE,
	/* LMCache multi-process: BLAKE3(prefix || tokens as 32-bit big endian), 256 tokens. multiprocess/token_hasher.py */
	KVCACHEFS_LMCACHE_BLAKE3,
	/* SGLang get_hash_str: SHA-256(prior || tokens as 32-bit little endian), a page (64 tokens unless told). */
	KVCACHEFS_SGLANG,
};

struct kvcachefs_mm { /* a multimodal item among the tokens */
	const char *hash;      /* its identifier */
	uint64_t start, len;   /* in tokens */
};

/* Zero is a good beginning. Strings and arrays are the caller's and must outlive the hasher. */
struct kvcachefs_keys {
	enum kvcachefs_scheme scheme;
	unsigned block_tokens;       /* 0: the scheme's own */
	/*
	 * vLLM and LMCache: PYTHONHASHSEED as text; NULL: not set, which newer vLLM takes for "vllm-none-hash". Older ones use random bytes then:
	 * give those as `none` (32 bytes).
	 */
	const char *seed;
	const uint8_t *none;
	bool empty_extra_is_array;   /* no extra keys are [] and not null: what some versions of LMCache do */
	/* Extra keys, in vLLM's order. */
	const char *lora_name;       /* every block */
	const struct kvcachefs_mm *mm;
	size_t nmm;                  /* (hash, start - block's start) in every block that an item touches */
	const char *cache_salt;      /* first block only */
	/* SHA-256 of the prompt embeddings of a block into sha: 1 there is one, 0 none. NULL: there are no embeddings. */
	int (*embeds)(void *arg, uint64_t block, uint8_t sha[32]);
	void *embeds_arg;
};

struct kvcachefs_hasher;
int kvcachefs_hasher_new(struct kvcachefs_hasher **out, const struct kvcachefs_keys *keys);
void kvcachefs_hasher_free(struct kvcachefs_hasher *h);
/*
 * Goes on with n more tokens. The keys of the blocks that became full go to out (room for `room`; n / block_tokens + 1 is always enough) and their
 * number to *made. A growing prompt costs its new blocks only. -ENOSPC: out is too small; nothing was taken.
 */
int kvcachefs_hasher_feed(struct kvcachefs_hasher *h, const uint32_t *tokens, size_t n, uint8_t (*out)[32], size_t room, size_t *made);
/* NONE_HASH: the parent of the first block. */
const uint8_t *kvcachefs_hasher_none(const struct kvcachefs_hasher *h);
unsigned kvcachefs_hasher_block(const struct kvcachefs_hasher *h);

/* vLLM's key of a KV cache group: the digest and the group as 32-bit big endian. */
void kvcachefs_group_key(const uint8_t key[32], uint32_t group, uint8_t out[36]);
/* vLLM's integer form: the last 8 bytes, big endian. */
uint64_t kvcachefs_key_int(const uint8_t key[32]);
/* 2 * len hex digits and a NUL. */
void kvcachefs_hex(const uint8_t *p, size_t len, char *out);
/*
 * The folder of vLLM's ExampleConnector: MD5 of the tokens as 64-bit little endian, then "-" and the multimodal hashes joined by "-" where there are
 * any; only whole blocks of block_tokens count (0: 16).
 */
int kvcachefs_example_folder(const uint32_t *tokens, size_t n, unsigned block_tokens, const char *const *mm_hashes, size_t nmm, char out[33]);
/* BLAKE3 (256 bits) of anything. */
void kvcachefs_blake3(const void *data, size_t len, uint8_t out[32]);

/* ---- Leases -------------------------------------------------------------------------------------------------------------- */

struct kvcachefs_object {
	const char *path;  /* below the mount */
	uint64_t ino, size;
	int err;           /* 0: resident and held; or why not, negative */
	const char *state; /* as the mount says it */
};
struct kvcachefs_lease;
/*
 * Loads these objects into the pool and holds them there until the lease is freed or the process dies. A path may be a folder: all files in it. Waits
 * until all are there or have failed. 0 also where single objects failed: see their err.
 */
int kvcachefs_lease_new(struct kvcachefs_lease **out, const char *mount, const char *const *paths, size_t n);
void kvcachefs_lease_free(struct kvcachefs_lease *l);
size_t kvcachefs_lease_count(const struct kvcachefs_lease *l);
const struct kvcachefs_object *kvcachefs_lease_object(const struct kvcachefs_lease *l, size_t i);
/*
 * The bytes of object i, read-only; valid until the lease is freed. The first call for an object opens and maps it; with a cache of mappings
 * (below) a later lease on the same object finds the mapping without a system call.
 */
int kvcachefs_lease_map(struct kvcachefs_lease *l, size_t i, const void **data, size_t *len);
/*
 * Keeps mappings of up to this many bytes for later leases; 0 (the beginning) keeps none. A mapped object stays in the pool while
 * its mapping is kept: choose a part of the pool.
 */
void kvcachefs_map_cache(size_t bytes);
/* Asks for objects without waiting and without holding. */
int kvcachefs_prefetch(const char *mount, const char *const *paths, size_t n);
/* What is resident now, one call for all: as a lease, but loads nothing. err is -ENODATA for what is not in the pool. */
int kvcachefs_look(struct kvcachefs_lease **out, const char *mount, const char *const *paths, size_t n);

/* ---- Paged KV caches ----------------------------------------------------------------------------------------------------- */

/* Engine formats, numbered as in LMCache's engine_kv_format.h. NB blocks, NL layers, BS slots a block, NH heads, HS head size. */
enum kvcachefs_format {
	KVCACHEFS_NB_NL_TWO_BS_NH_HS,   /* 0  vLLM across layers; one pointer */
	KVCACHEFS_NL_X_TWO_NB_BS_NH_HS, /* 1  FlashAttention NHD; a pointer a layer */
	KVCACHEFS_NL_X_NB_TWO_BS_NH_HS, /* 2  FlashInfer NHD */
	KVCACHEFS_NL_X_NB_BS_HS,        /* 3  vLLM MLA */
	KVCACHEFS_TWO_X_NL_X_NBBS_NH_HS,/* 4  SGLang MHA; pointers of all K layers, then of all V layers */
	KVCACHEFS_NL_X_NBBS_ONE_HS,     /* 5  SGLang MLA */
	KVCACHEFS_NL_X_TWO_NB_NH_BS_HS, /* 6  FlashAttention HND */
	KVCACHEFS_NL_X_NB_TWO_NH_BS_HS, /* 7  FlashInfer HND */
	KVCACHEFS_NB_NL_TWO_NH_BS_HS,   /* 8  TensorRT-LLM across layers, HND; one pointer */
	KVCACHEFS_TWO_X_NL_X_NB_BS_NH_HS, /* 9  SGLang multi-process: as 4 in blocks (taken from its name; check yours) */
	KVCACHEFS_NL_X_NB_NH_BS_TWO_HS, /* 10 vLLM >= 0.26: K and V of a token beside each other */
	KVCACHEFS_FORMATS
};

struct kvcachefs_paged {
	enum kvcachefs_format format;
	uint32_t layers, heads, head_size, block_size; /* MLA: heads 1 */
	uint64_t blocks;
	uint32_t elem;              /* bytes of an element: 1, 2 or 4 */
	uint64_t block_stride;      /* elements from one block to the next; 0: dense */
	void *const *pointers;      /* host array: 1, `layers` or 2 * `layers` of them, as the format says */
	int device;                 /* -1: host memory; else a CUDA device */
};

/* Which tokens: by slots (block * block_size + offset, negative: skipped), or by block ids (all slots of each). Host arrays. */
struct kvcachefs_tokens {
	const int64_t *slots;
	const int64_t *block_ids;
	size_t n;                   /* slots, or blocks */
	size_t skip;                /* tokens at the beginning that are left alone */
};

/*
 * A file holds [K and V][layer][token][head][element] (LMCache's KV_2LTD); of MLA [layer][token][element]. A layer's file has one layer. Its
 * length in bytes for these tokens: 0 where the shape is none.
 */
uint64_t kvcachefs_file_size(const struct kvcachefs_paged *p, uint32_t nlayers, const struct kvcachefs_tokens *t);

/*
 * Copies between contiguous host memory of that size and the paged cache, layers [layer, layer + nlayers). Synchronous. -EINVAL: a shape that
 * is none; -ERANGE: a slot, block or layer outside; then nothing was written.
 */
int kvcachefs_gather(const struct kvcachefs_paged *p, uint32_t layer, uint32_t nlayers, const struct kvcachefs_tokens *t, void *out);
int kvcachefs_scatter(const struct kvcachefs_paged *p, uint32_t layer, uint32_t nlayers, const struct kvcachefs_tokens *t, const void *in);

/* Re-rotates cached keys to other positions (RoPE): each token moves by delta. */
enum kvcachefs_float { KVCACHEFS_F32, KVCACHEFS_F16, KVCACHEFS_BF16 };
struct kvcachefs_rope {
	double theta;        /* base, such as 10000 or 500000 */
	uint32_t dims;       /* how many of a head's elements are rotated; 0: all */
	bool interleaved;    /* pairs are neighbours (GPT-J); otherwise halves (NeoX, Llama) */
	int64_t delta;       /* new position - old position */
	enum kvcachefs_float type;
};
/* The keys of n tokens of `heads` heads in place, [token][head][element], in host memory. */
int kvcachefs_rope_shift(const struct kvcachefs_rope *r, void *keys, size_t n, uint32_t heads, uint32_t head_size);

/* ---- Transfers ----------------------------------------------------------------------------------------------------------- */

struct kvcachefs_item { /* one file and what of the cache it holds */
	const char *path;        /* below the mount */
	uint32_t layer, nlayers;
	struct kvcachefs_tokens tokens;
	const struct kvcachefs_rope *rope; /* loads: shift the keys on the way; NULL: as they are */
	int err;                 /* out */
};
struct kvcachefs_transfer;
/*
 * Stores or loads many objects. With device >= 0 the work is ordered with `stream` (a cudaStream_t, NULL: the default one) and the call returns when
 * all is queued: what is queued there later sees what was loaded, and may change what is being stored. With device -1 it is done when the call
 * returns. Files are created at their final size, written through their pages and published when the transfer is freed; their layout is kept in user.kvc.layout, and a load of another layout is refused (-EPROTOTYPE). Loads lease their
 * objects. A store that fails leaves no file. The arrays must live until kvcachefs_transfer_free.
 */
int kvcachefs_store(struct kvcachefs_transfer **out, const char *mount, const struct kvcachefs_paged *p, struct kvcachefs_item *items, size_t n, void *stream);
int kvcachefs_load(struct kvcachefs_transfer **out, const char *mount, const struct kvcachefs_paged *p, struct kvcachefs_item *items, size_t n, void *stream);
/* 0: complete; -EAGAIN: not yet; otherwise the first item's error. Never waits. */
int kvcachefs_transfer_poll(struct kvcachefs_transfer *t);
/* Waits for it. */
int kvcachefs_transfer_wait(struct kvcachefs_transfer *t);
/* Waits, publishes what was stored, gives up leases, frees. */
int kvcachefs_transfer_free(struct kvcachefs_transfer *t);

#ifdef __cplusplus
}
#endif
#endif
