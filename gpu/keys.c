/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Chunk keys. A scheme is a row: the encoding of (parent, tokens, extra), its digest, and whether
 * the digest is folded to a number. One context of OpenSSL's digest is reused. A block is written
 * into one buffer and hashed in one pass. Tokens that do not fill a block wait in h->tokens.
 */
#include "code.h"

#include <openssl/evp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#define XXH_INLINE_ALL /* header only, nothing to link */
#include <xxhash.h>

static _Thread_local char message[1024];

const char *kvcachefs_error(void)
{
	return message;
}

int kvcachefs_fail(int err, const char *format, ...)
{
	va_list ap;

	va_start(ap, format);
	vsnprintf(message, sizeof message, format, ap);
	va_end(ap);
	return err;
}

const char *kvcachefs_version(void)
{
#ifdef KVCACHEFS_CUDA
	return KVC_VERSION " cuda";
#else
	return KVC_VERSION;
#endif
}

struct kvcachefs_hasher {
	struct kvcachefs_keys k;
	const struct scheme *s;
	EVP_MD_CTX *ctx;
	EVP_MD *sha;
	size_t key_len, digest_len;
	uint8_t none[KVCACHEFS_KEY_MAX], parent[KVCACHEFS_KEY_MAX];
	bool rootless; /* the first block has no parent */
	unsigned block, have;
	uint64_t blocks;  /* completed blocks */
	uint32_t *tokens; /* space for one block */
	struct kvcachefs_buf buf;
};

enum engine { VLLM, LMCACHE, LMCACHE_MP, SGLANG };
enum code { CBOR, PICKLE, BIG_WORDS, LITTLE_WORDS };
enum digest { SHA, XXH3, BLAKE };

static const struct scheme {
	const char *name;
	enum engine engine;
	enum code code;
	enum digest digest;
	unsigned block;
} schemes[KVCACHEFS_SCHEMES] = {
	[KVCACHEFS_VLLM_SHA256] = { "vllm-sha256", VLLM, PICKLE, SHA, 16 },
	[KVCACHEFS_VLLM_SHA256_CBOR] = { "vllm-sha256_cbor", VLLM, CBOR, SHA, 16 },
	[KVCACHEFS_VLLM_XXHASH] = { "vllm-xxhash", VLLM, PICKLE, XXH3, 16 },
	[KVCACHEFS_VLLM_XXHASH_CBOR] = { "vllm-xxhash_cbor", VLLM, CBOR, XXH3, 16 },
	[KVCACHEFS_LMCACHE_SHA256] = { "lmcache-sha256", LMCACHE, PICKLE, SHA, 256 },
	[KVCACHEFS_LMCACHE_SHA256_CBOR] = { "lmcache-sha256_cbor", LMCACHE, CBOR, SHA, 256 },
	[KVCACHEFS_LMCACHE_XXHASH] = { "lmcache-xxhash", LMCACHE, PICKLE, XXH3, 256 },
	[KVCACHEFS_LMCACHE_XXHASH_CBOR] = { "lmcache-xxhash_cbor", LMCACHE, CBOR, XXH3, 256 },
	[KVCACHEFS_LMCACHE_MP_BLAKE3] = { "lmcache-mp-blake3", LMCACHE_MP, BIG_WORDS, BLAKE, 256 },
	[KVCACHEFS_LMCACHE_MP_SHA256] = { "lmcache-mp-sha256", LMCACHE_MP, PICKLE, SHA, 256 },
	[KVCACHEFS_LMCACHE_MP_SHA256_CBOR] = { "lmcache-mp-sha256_cbor", LMCACHE_MP, CBOR, SHA,
					       256 },
	[KVCACHEFS_LMCACHE_MP_XXHASH] = { "lmcache-mp-xxhash", LMCACHE_MP, PICKLE, XXH3, 256 },
	[KVCACHEFS_LMCACHE_MP_XXHASH_CBOR] = { "lmcache-mp-xxhash_cbor", LMCACHE_MP, CBOR, XXH3,
					       256 },
	[KVCACHEFS_SGLANG] = { "sglang", SGLANG, LITTLE_WORDS, SHA, 64 },
};

const char *kvcachefs_scheme_name(enum kvcachefs_scheme scheme)
{
	return (unsigned)scheme < KVCACHEFS_SCHEMES ? schemes[scheme].name : NULL;
}

int kvcachefs_scheme_find(const char *name, enum kvcachefs_scheme *out)
{
	char list[512];
	size_t n = 0;

	for (int i = 0; i < KVCACHEFS_SCHEMES; i++)
		if (!strcmp(schemes[i].name, name)) {
			*out = (enum kvcachefs_scheme)i;
			return 0;
		}
	for (int i = 0; i < KVCACHEFS_SCHEMES && n < sizeof list; i++)
		n += (size_t)snprintf(list + n, sizeof list - n, "%s%s", i ? ", " : "",
				      schemes[i].name);
	return kvcachefs_fail(-EINVAL, "unknown scheme '%.60s'; the schemes are %s", name, list);
}

/* ---- Digests ---- */

static int sha256(struct kvcachefs_hasher *h, const void *p, size_t len, uint8_t out[32])
{
	unsigned n = 32;

	if (EVP_DigestInit_ex2(h->ctx, h->sha, NULL) != 1 ||
	    EVP_DigestUpdate(h->ctx, p, len) != 1 || EVP_DigestFinal_ex(h->ctx, out, &n) != 1)
		return kvcachefs_fail(-EIO, "OpenSSL cannot compute SHA-256");
	return 0;
}

/* Computes the key: the digest of the buffer, folded if the scheme requires it. */
static int digest(struct kvcachefs_hasher *h, uint8_t *out)
{
	uint8_t sum[KVCACHEFS_KEY_MAX];
	XXH128_canonical_t xxh;
	int err = 0;

	if (h->buf.failed)
		return kvcachefs_fail(-ENOMEM, "out of memory for the coding of a block of tokens");
	switch (h->s->digest) {
	case SHA: err = sha256(h, h->buf.p, h->buf.len, sum); break;
	case XXH3:
		XXH128_canonicalFromHash(&xxh, XXH3_128bits(h->buf.p, h->buf.len));
		memcpy(sum, xxh.digest, 16);
		break;
	case BLAKE: kvcachefs_blake3(h->buf.p, h->buf.len, sum); break;
	}
	if (!err)
		memcpy(out, sum, h->key_len); /* the fold is the first 8 bytes, big endian */
	return err;
}

static uint64_t big_endian(const uint8_t *p, size_t n)
{
	uint64_t v = 0;

	for (size_t i = 0; i < n; i++)
		v = v << 8 | p[i];
	return v;
}

/* ---- Blocks ---- */

static bool touches(const struct kvcachefs_mm *m, uint64_t start, uint64_t end)
{
	return m->start < end && m->len && m->start + (m->len - 1) >= start;
}

static void tag(struct kvcachefs_hasher *h, unsigned items, const char *name)
{
	if (!h->k.tagged_extra)
		return;
	kvcachefs_cbor_array(&h->buf, items);
	kvcachefs_cbor_text(&h->buf, name);
}

/* vLLM's extra keys (generate_block_hash_extra_keys). */
static int extra_keys(struct kvcachefs_hasher *h)
{
	const struct kvcachefs_keys *k = &h->k;
	struct kvcachefs_buf *b = &h->buf;
	uint64_t start = h->blocks * h->block, end = start + h->block, n;
	bool salt = k->cache_salt && *k->cache_salt && !h->blocks;
	uint8_t sha[32];
	int has = k->embeds ? k->embeds(k->embeds_arg, h->blocks, sha) : 0;

	if (has < 0)
		return kvcachefs_fail(has,
				      "the hash of the prompt embeddings of block %llu is missing",
				      (unsigned long long)h->blocks);
	n = (uint64_t)(k->lora_name != NULL) + salt + (has > 0);
	for (size_t i = 0; i < k->nmm; i++)
		n += touches(&k->mm[i], start, end);
	if (!n && !k->empty_extra_is_array) {
		kvcachefs_cbor_none(b);
		return 0;
	}
	kvcachefs_cbor_array(b, n);
	if (k->lora_name) {
		tag(h, 3, "lora");
		kvcachefs_cbor_text(b, k->lora_name);
		if (k->tagged_extra)
			kvcachefs_cbor_text(b, k->lora_path ? k->lora_path : "");
	}
	for (size_t i = 0; i < k->nmm; i++) {
		const struct kvcachefs_mm *m = &k->mm[i];

		if (!touches(m, start, end))
			continue;
		if (k->tagged_extra)
			tag(h, 3, "mm");
		else
			kvcachefs_cbor_array(b, 2);
		kvcachefs_cbor_text(b, m->hash);
		kvcachefs_cbor_int(b, m->start < start,
				   m->start < start ? start - m->start : m->start - start);
	}
	if (salt) {
		tag(h, 2, "cache_salt");
		kvcachefs_cbor_text(b, k->cache_salt);
	}
	if (has > 0) {
		tag(h, 2, "prompt_embeds");
		kvcachefs_cbor_bytes(b, sha, 32);
	}
	return 0;
}

static int write_cbor(struct kvcachefs_hasher *h, const uint8_t *parent, const uint32_t *tokens,
		      size_t n)
{
	struct kvcachefs_buf *b = &h->buf;

	kvcachefs_cbor_array(b, 3);
	if (h->s->engine == LMCACHE)
		kvcachefs_cbor_int(b, false, big_endian(parent, 8));
	else
		kvcachefs_cbor_bytes(b, parent, h->key_len);
	kvcachefs_cbor_array(b, n);
	for (size_t i = 0; i < n; i++)
		kvcachefs_cbor_int(b, false, tokens[i]);
	if (h->s->engine != LMCACHE)
		return extra_keys(h);
	kvcachefs_cbor_array(b, 0);
	return 0;
}

static void write_pickle(struct kvcachefs_hasher *h, const uint8_t *parent, const uint32_t *tokens,
			 size_t n)
{
	struct kvcachefs_buf *b = &h->buf;

	kvcachefs_pickle_begin(b);
	kvcachefs_pickle_tuple(b, 3);
	if (h->s->engine == LMCACHE)
		kvcachefs_pickle_int(b, big_endian(parent, 8));
	else
		kvcachefs_pickle_bytes(b, parent, h->key_len);
	kvcachefs_pickle_tuple(b, n);
	for (size_t i = 0; i < n; i++)
		kvcachefs_pickle_int(b, tokens[i]);
	kvcachefs_pickle_tuple_end(b, n);
	if (h->s->engine == LMCACHE) {
		kvcachefs_pickle_tuple(b, 0);
		kvcachefs_pickle_tuple_end(b, 0);
	} else {
		kvcachefs_pickle_none(b);
	}
	kvcachefs_pickle_tuple_end(b, 3);
	kvcachefs_pickle_end(b);
}

static void write_words(struct kvcachefs_hasher *h, const uint8_t *parent, const uint32_t *tokens,
			size_t n)
{
	bool big = h->s->code == BIG_WORDS;

	if (parent)
		kvcachefs_put(&h->buf, parent, h->key_len);
	for (size_t i = 0; i < n; i++) {
		uint32_t t = tokens[i];
		uint8_t w[4];

		for (int j = 0; j < 4; j++)
			w[j] = (uint8_t)(t >> 8 * (big ? 3 - j : j));
		kvcachefs_put(&h->buf, w, 4);
	}
}

/* Computes the key of n tokens after a parent; out may be parent. */
static int block_key(struct kvcachefs_hasher *h, const uint8_t *parent, const uint32_t *tokens,
		     size_t n, uint8_t *out)
{
	int err = 0;

	h->buf.len = 0;
	if (h->s->code == CBOR)
		err = write_cbor(h, parent, tokens, n);
	else if (h->s->code == PICKLE)
		write_pickle(h, parent, tokens, n);
	else
		write_words(h, parent, tokens, n);
	return err ? err : digest(h, out);
}

/* ---- The first parent ---- */

/*
 * storage_namespace_seed of sglang/srt/mem_cache/utils.py: the names and lengths of the given
 * values, then their bytes.
 */
static int sglang_namespace(struct kvcachefs_hasher *h)
{
	const char *parts[] = { h->k.extra_key, h->k.cache_salt };

	if (!parts[0] && !parts[1]) {
		h->rootless = true;
		return 0;
	}
	kvcachefs_put(&h->buf, "sglang-cache-namespace-v1", 25);
	for (int i = 0; i < 2; i++) {
		uint64_t n = parts[i] ? strlen(parts[i]) : 0;
		uint8_t len[9] = { parts[i] != NULL };

		for (int j = 0; j < 8; j++)
			len[1 + j] = (uint8_t)(n >> 8 * j);
		kvcachefs_put(&h->buf, len, parts[i] ? 9 : 1);
		kvcachefs_put(&h->buf, parts[i] ? parts[i] : "", n);
	}
	return digest(h, h->none);
}

static int first_parent(struct kvcachefs_hasher *h)
{
	const char *seed = h->k.seed ? h->k.seed : "vllm-none-hash";
	static const uint8_t zeros[12];

	if (h->k.none) {
		if (h->k.none_len != h->digest_len && h->k.none_len != h->key_len)
			return kvcachefs_fail(-EINVAL, "%s: NONE_HASH has %zu bytes, not %zu",
					      h->s->name, h->digest_len, h->k.none_len);
		memcpy(h->none, h->k.none, h->key_len);
		return 0;
	}
	if (h->s->engine == SGLANG)
		return sglang_namespace(h);
	if (h->s->digest == XXH3 && !h->k.seed)
		return kvcachefs_fail(-EINVAL,
				      "%s: NONE_HASH is random without PYTHONHASHSEED: give the "
				      "seed or NONE_HASH",
				      h->s->name);
	if (h->s->code == BIG_WORDS) {
		kvcachefs_put(&h->buf, zeros, sizeof zeros);
	} else if (h->s->code == CBOR) {
		kvcachefs_cbor_text(&h->buf, seed);
	} else {
		kvcachefs_pickle_begin(&h->buf);
		kvcachefs_pickle_text(&h->buf, seed);
		kvcachefs_pickle_end(&h->buf);
	}
	return digest(h, h->none);
}

static int check_keys(const struct kvcachefs_keys *k)
{
	const struct scheme *s;
	bool vllm = k->lora_name || k->nmm || k->embeds || k->tagged_extra;

	if ((unsigned)k->scheme >= KVCACHEFS_SCHEMES)
		return kvcachefs_fail(-EINVAL, "unknown scheme %d of chunk keys", (int)k->scheme);
	s = &schemes[k->scheme];
	if (k->block_tokens > 1u << 24)
		return kvcachefs_fail(-EINVAL, "a block of %u tokens is too large",
				      k->block_tokens);
	if (s->engine != SGLANG)
		vllm |= k->cache_salt && *k->cache_salt;
	if (vllm && s->engine == VLLM && s->code == PICKLE)
		return kvcachefs_fail(-EINVAL,
				      "%s: extra keys are not supported, because their pickle "
				      "depends on Python's objects; use a _cbor scheme of vLLM",
				      s->name);
	if (vllm && s->engine != VLLM)
		return kvcachefs_fail(-EINVAL, "%s does not support extra keys", s->name);
	if (k->extra_key && s->engine != SGLANG)
		return kvcachefs_fail(-EINVAL, "%s does not support extra_key; only SGLang does",
				      s->name);
	if (k->empty_extra_is_array && (s->code != CBOR || s->engine == LMCACHE))
		return kvcachefs_fail(-EINVAL, "%s does not support empty_extra_is_array", s->name);
	if (k->seed && strlen(k->seed) >= 65536)
		return kvcachefs_fail(-EINVAL, "a seed of %zu bytes is too long", strlen(k->seed));
	return 0;
}

int kvcachefs_hasher_new(struct kvcachefs_hasher **out, const struct kvcachefs_keys *keys)
{
	struct kvcachefs_hasher *h;
	int err = check_keys(keys);

	if (err)
		return err;
	h = calloc(1, sizeof *h);
	if (!h)
		return kvcachefs_fail(-ENOMEM, "out of memory");
	h->k = *keys;
	h->s = &schemes[keys->scheme];
	h->digest_len = h->s->digest == XXH3 ? 16 : 32;
	h->key_len = h->s->engine == LMCACHE ? 8 : h->digest_len;
	h->block = keys->block_tokens ? keys->block_tokens : h->s->block;
	h->ctx = EVP_MD_CTX_new();
	h->sha = EVP_MD_fetch(NULL, "SHA256", NULL);
	h->tokens = calloc(h->block, sizeof *h->tokens);
	if (!h->ctx || !h->tokens)
		err = kvcachefs_fail(-ENOMEM, "out of memory");
	else if (!h->sha)
		err = kvcachefs_fail(-EIO, "OpenSSL has no SHA-256");
	else
		err = first_parent(h);
	if (err) {
		kvcachefs_hasher_free(h);
		return err;
	}
	memcpy(h->parent, h->none, h->key_len);
	*out = h;
	return 0;
}

void kvcachefs_hasher_free(struct kvcachefs_hasher *h)
{
	if (!h)
		return;
	EVP_MD_CTX_free(h->ctx);
	EVP_MD_free(h->sha);
	free(h->tokens);
	free(h->buf.p);
	free(h);
}

/* Returns the parent of the next block; NULL: it has none. */
static const uint8_t *parent_of(const struct kvcachefs_hasher *h)
{
	return h->rootless && !h->blocks ? NULL : h->parent;
}

int kvcachefs_hasher_feed(struct kvcachefs_hasher *h, const uint32_t *tokens, size_t n, void *out,
			  size_t capacity, size_t *made)
{
	uint8_t *to = out;
	size_t all = (h->have + n) / h->block;

	if (all > capacity)
		return kvcachefs_fail(-ENOSPC, "%zu keys will not fit into %zu", all, capacity);
	*made = 0;
	while (n) {
		size_t take = h->block - h->have < n ? h->block - h->have : n;
		int err;

		memcpy(h->tokens + h->have, tokens, take * sizeof *tokens);
		h->have += (unsigned)take;
		tokens += take;
		n -= take;
		if (h->have < h->block)
			break;
		err = block_key(h, parent_of(h), h->tokens, h->block, h->parent);
		if (err)
			return err;
		memcpy(to + (*made)++ * h->key_len, h->parent, h->key_len);
		h->blocks++;
		h->have = 0;
	}
	return 0;
}

int kvcachefs_hasher_rest(struct kvcachefs_hasher *h, void *out)
{
	if (!h->have)
		return kvcachefs_fail(-ENODATA, "no tokens remain");
	return block_key(h, parent_of(h), h->tokens, h->have, out);
}

size_t kvcachefs_hasher_key_len(const struct kvcachefs_hasher *h)
{
	return h->key_len;
}

const uint8_t *kvcachefs_hasher_none(const struct kvcachefs_hasher *h)
{
	return h->none;
}

unsigned kvcachefs_hasher_block(const struct kvcachefs_hasher *h)
{
	return h->block;
}

void kvcachefs_hasher_text(const struct kvcachefs_hasher *h, const void *key,
			   char out[KVCACHEFS_TEXT_MAX])
{
	if (h->s->engine == LMCACHE)
		snprintf(out, KVCACHEFS_TEXT_MAX, "%llx", (unsigned long long)big_endian(key, 8));
	else
		kvcachefs_hex(key, h->key_len, out);
}

/* ---- CacheBlend ---- */

int kvcachefs_segments(struct kvcachefs_hasher *h, const uint32_t *tokens, size_t n,
		       const uint32_t *separator, size_t nsep, struct kvcachefs_segment *out,
		       size_t capacity, size_t *made)
{
	size_t start = 0, count = 0, at = 0;

	if (h->s->engine != LMCACHE || !nsep)
		return kvcachefs_fail(-EINVAL,
				      "%s: segments need a separator and LMCache's in-process keys",
				      h->s->name);
	for (size_t i = 0; i <= n; i++) {
		bool last = i == n;
		/*
		 * if separators overlap, LMCache produces an empty segment and continues after the
		 * second
		 */
		size_t end = i > start ? i : start,
		       len = (last ? n > start ? n : start : end) - start;

		if (!last && (n - i < nsep || memcmp(tokens + i, separator, nsep * sizeof *tokens)))
			continue;
		if (count < capacity) {
			int err = block_key(h, h->none, tokens + start, len, out[count].key);

			if (err)
				return err;
			out[count].start = at;
			out[count].end = at + len;
		}
		count++;
		at += len + nsep;
		start = i + nsep;
	}
	*made = count;
	if (count > capacity)
		return kvcachefs_fail(-ENOSPC, "%zu segments will not fit into %zu", count,
				      capacity);
	return 0;
}

int kvcachefs_fingerprints(const uint32_t *tokens, size_t n, size_t k, uint64_t *out)
{
	const uint64_t base = 0x9E3779B97F4A7C15ull;
	uint64_t power = 1, sum = 0;

	if (!k || k > n)
		return kvcachefs_fail(-EINVAL, "%zu tokens are fewer than a window of %zu", n, k);
	for (size_t i = 1; i < k; i++)
		power *= base;
	for (size_t i = 0; i < n; i++) {
		if (i >= k)
			sum -= tokens[i - k] * power;
		sum = sum * base + tokens[i];
		if (i + 1 >= k)
			out[i + 1 - k] = sum;
	}
	return 0;
}

/* ---- Small things ---- */

void kvcachefs_group_key(const void *key, size_t len, uint32_t group, void *out)
{
	uint8_t *to = out;

	memcpy(to, key, len);
	for (int i = 0; i < 4; i++)
		to[len + (size_t)i] = (uint8_t)(group >> 8 * (3 - i));
}

uint64_t kvcachefs_key_int(const void *key, size_t len)
{
	size_t n = len < 8 ? len : 8;

	return big_endian((const uint8_t *)key + len - n, n);
}

void kvcachefs_hex(const void *p, size_t len, char *out)
{
	static const char digits[] = "0123456789abcdef";
	const uint8_t *b = p;

	for (size_t i = 0; i < len; i++) {
		out[2 * i] = digits[b[i] >> 4];
		out[2 * i + 1] = digits[b[i] & 15];
	}
	out[2 * len] = 0;
}

int kvcachefs_example_folder(const uint32_t *tokens, size_t n, unsigned block_tokens,
			     const char *const *mm_hashes, size_t nmm, char out[33])
{
	EVP_MD_CTX *c = EVP_MD_CTX_new();
	uint8_t sum[16];
	unsigned len = sizeof sum, block = block_tokens ? block_tokens : 16;
	int ok = c && EVP_DigestInit_ex(c, EVP_md5(), NULL) == 1;

	for (size_t i = 0; i < n / block * block && ok; i++) {
		uint8_t b[8] = {
			(uint8_t)tokens[i],
			(uint8_t)(tokens[i] >> 8),
			(uint8_t)(tokens[i] >> 16),
			(uint8_t)(tokens[i] >> 24),
		};

		ok = EVP_DigestUpdate(c, b, 8) == 1;
	}
	for (size_t i = 0; i < nmm && ok; i++)
		ok = EVP_DigestUpdate(c, "-", 1) == 1 &&
		     EVP_DigestUpdate(c, mm_hashes[i], strlen(mm_hashes[i])) == 1;
	ok = ok && EVP_DigestFinal_ex(c, sum, &len) == 1;
	EVP_MD_CTX_free(c);
	if (!ok)
		return kvcachefs_fail(-EIO, "OpenSSL cannot compute MD5");
	kvcachefs_hex(sum, 16, out);
	return 0;
}
