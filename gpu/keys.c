/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Chunk keys. One context of OpenSSL's digest is used over and over; the CBOR of a block is built in one buffer and hashed in one pass. Tokens that do not
 * fill a block wait in h->tokens.
 */
#include "priv.h"

#include <openssl/evp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static _Thread_local char message[256];

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
	EVP_MD_CTX *ctx;
	EVP_MD *sha;
	uint8_t none[32], parent[32];
	unsigned block, have;
	uint64_t blocks;      /* made so far */
	uint32_t *tokens;     /* block of them */
	uint8_t *buf;         /* what is hashed */
	size_t len, room;
};

static int put(struct kvcachefs_hasher *h, const void *p, size_t n)
{
	if (h->len + n > h->room) {
		size_t more = (h->len + n) * 2;
		uint8_t *b = realloc(h->buf, more);

		if (!b)
			return -ENOMEM;
		h->buf = b;
		h->room = more;
	}
	memcpy(h->buf + h->len, p, n);
	h->len += n;
	return 0;
}

/* CBOR's head: a major type and a number in its shortest form (RFC 8949, 4.2.1). */
static int head(struct kvcachefs_hasher *h, unsigned major, uint64_t v)
{
	uint8_t b[9];
	int n = v < 24 ? 0 : v < 256 ? 1 : v < 65536 ? 2 : v >> 32 ? 8 : 4;

	b[0] = (uint8_t)(major << 5 | (n == 0 ? v : n == 1 ? 24 : n == 2 ? 25 : n == 4 ? 26 : 27));
	for (int i = 0; i < n; i++)
		b[1 + i] = (uint8_t)(v >> 8 * (n - 1 - i));
	return put(h, b, 1 + (size_t)n);
}

static int text(struct kvcachefs_hasher *h, const char *s)
{
	size_t n = strlen(s);
	int err = head(h, 3, n);

	return err ? err : put(h, s, n);
}

static int digest(struct kvcachefs_hasher *h, uint8_t out[32])
{
	unsigned n = 32;

	if (EVP_DigestInit_ex2(h->ctx, h->sha, NULL) != 1 || EVP_DigestUpdate(h->ctx, h->buf, h->len) != 1 || EVP_DigestFinal_ex(h->ctx, out, &n) != 1)
		return kvcachefs_fail(-EIO, "OpenSSL cannot compute SHA-256");
	return 0;
}

static bool touches(const struct kvcachefs_mm *m, uint64_t start, uint64_t end)
{
	return m->start < end && m->start + m->len > start;
}

static int extra(struct kvcachefs_hasher *h)
{
	const struct kvcachefs_keys *k = &h->k;
	uint64_t start = h->blocks * h->block, end = start + h->block, n = 0;
	uint8_t sha[32];
	int has = k->embeds ? k->embeds(k->embeds_arg, h->blocks, sha) : 0, err;

	if (has < 0)
		return kvcachefs_fail(has, "the hash of the prompt embeddings of block %llu is not known", (unsigned long long)h->blocks);
	n = (k->lora_name != NULL) + (k->cache_salt && !h->blocks) + (has > 0);
	for (size_t i = 0; i < k->nmm; i++)
		n += touches(&k->mm[i], start, end);
	if (!n && !k->empty_extra_is_array)
		return put(h, "\xf6", 1);
	err = head(h, 4, n);
	if (!err && k->lora_name)
		err = text(h, k->lora_name);
	for (size_t i = 0; i < k->nmm && !err; i++) {
		int64_t at = (int64_t)k->mm[i].start - (int64_t)start;

		if (!touches(&k->mm[i], start, end))
			continue;
		err = head(h, 4, 2);
		if (!err)
			err = text(h, k->mm[i].hash);
		if (!err)
			err = at < 0 ? head(h, 1, (uint64_t)(-1 - at)) : head(h, 0, (uint64_t)at);
	}
	if (!err && k->cache_salt && !h->blocks)
		err = text(h, k->cache_salt);
	if (!err && has > 0) {
		err = head(h, 2, 32);
		if (!err)
			err = put(h, sha, 32);
	}
	return err;
}

static int block_cbor(struct kvcachefs_hasher *h)
{
	int err = head(h, 4, 3);

	if (!err)
		err = head(h, 2, 32);
	if (!err)
		err = put(h, h->parent, 32);
	if (!err)
		err = head(h, 4, h->block);
	for (unsigned i = 0; i < h->block && !err; i++)
		err = head(h, 0, h->tokens[i]);
	if (!err)
		err = extra(h);
	return err ? err : digest(h, h->parent);
}

static int block_words(struct kvcachefs_hasher *h)
{
	bool big = h->k.scheme == KVCACHEFS_LMCACHE_BLAKE3, first = h->k.scheme == KVCACHEFS_SGLANG && !h->blocks;
	int err = first ? 0 : put(h, h->parent, 32);

	for (unsigned i = 0; i < h->block && !err; i++) {
		uint32_t t = h->tokens[i];
		uint8_t b[4];

		for (int j = 0; j < 4; j++)
			b[j] = (uint8_t)(t >> 8 * (big ? 3 - j : j));
		err = put(h, b, 4);
	}
	if (err)
		return err;
	if (!big)
		return digest(h, h->parent);
	kvcachefs_blake3(h->buf, h->len, h->parent);
	return 0;
}

static const struct {
	unsigned block;
	int (*make)(struct kvcachefs_hasher *h);
} schemes[] = {
	[KVCACHEFS_VLLM] = { 16, block_cbor },
	[KVCACHEFS_LMCACHE] = { 256, block_cbor },
	[KVCACHEFS_LMCACHE_BLAKE3] = { 256, block_words },
	[KVCACHEFS_SGLANG] = { 64, block_words },
};

/* The parent of the first block. */
static int first_parent(struct kvcachefs_hasher *h)
{
	const char *seed = h->k.seed ? h->k.seed : "vllm-none-hash";
	static const uint8_t zeros[12];
	int err = 0;

	h->len = 0;
	if (h->k.none) {
		memcpy(h->none, h->k.none, 32);
	} else if (h->k.scheme == KVCACHEFS_LMCACHE_BLAKE3) {
		kvcachefs_blake3(zeros, sizeof zeros, h->none); /* BLAKE3(8 zero bytes || one zero token): its fallback */
	} else if (h->k.scheme != KVCACHEFS_SGLANG) {
		err = text(h, seed);
		if (!err)
			err = digest(h, h->none);
	}
	memcpy(h->parent, h->none, 32);
	return err;
}

int kvcachefs_hasher_new(struct kvcachefs_hasher **out, const struct kvcachefs_keys *keys)
{
	struct kvcachefs_hasher *h;
	int err;

	if ((unsigned)keys->scheme >= sizeof schemes / sizeof schemes[0])
		return kvcachefs_fail(-EINVAL, "there is no scheme %d of chunk keys", (int)keys->scheme);
	h = calloc(1, sizeof *h);
	if (!h)
		return kvcachefs_fail(-ENOMEM, "out of memory");
	h->k = *keys;
	h->block = keys->block_tokens ? keys->block_tokens : schemes[keys->scheme].block;
	h->ctx = EVP_MD_CTX_new();
	h->sha = EVP_MD_fetch(NULL, "SHA256", NULL);
	h->tokens = calloc(h->block, sizeof *h->tokens);
	err = h->ctx && h->sha && h->tokens ? first_parent(h) : kvcachefs_fail(-ENOMEM, "out of memory");
	if (err) {
		kvcachefs_hasher_free(h);
		return err;
	}
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
	free(h->buf);
	free(h);
}

int kvcachefs_hasher_feed(struct kvcachefs_hasher *h, const uint32_t *tokens, size_t n, uint8_t (*out)[32], size_t room, size_t *made)
{
	if ((h->have + n) / h->block > room)
		return kvcachefs_fail(-ENOSPC, "%zu keys will not fit into %zu", (h->have + n) / h->block, room);
	*made = 0;
	while (n) {
		size_t take = h->block - h->have < n ? h->block - h->have : n;

		memcpy(h->tokens + h->have, tokens, take * sizeof *tokens);
		h->have += (unsigned)take;
		tokens += take;
		n -= take;
		if (h->have < h->block)
			break;
		h->len = 0;
		int err = schemes[h->k.scheme].make(h);

		if (err)
			return err;
		memcpy(out[(*made)++], h->parent, 32);
		h->blocks++;
		h->have = 0;
	}
	return 0;
}

const uint8_t *kvcachefs_hasher_none(const struct kvcachefs_hasher *h)
{
	return h->none;
}

unsigned kvcachefs_hasher_block(const struct kvcachefs_hasher *h)
{
	return h->block;
}

void kvcachefs_group_key(const uint8_t key[32], uint32_t group, uint8_t out[36])
{
	memcpy(out, key, 32);
	for (int i = 0; i < 4; i++)
		out[32 + i] = (uint8_t)(group >> 8 * (3 - i));
}

uint64_t kvcachefs_key_int(const uint8_t key[32])
{
	uint64_t v = 0;

	for (int i = 24; i < 32; i++)
		v = v << 8 | key[i];
	return v;
}

void kvcachefs_hex(const uint8_t *p, size_t len, char *out)
{
	static const char digits[] = "0123456789abcdef";

	for (size_t i = 0; i < len; i++) {
		out[2 * i] = digits[p[i] >> 4];
		out[2 * i + 1] = digits[p[i] & 15];
	}
	out[2 * len] = 0;
}

int kvcachefs_example_folder(const uint32_t *tokens, size_t n, unsigned block_tokens, const char *const *mm_hashes, size_t nmm, char out[33])
{
	EVP_MD_CTX *c = EVP_MD_CTX_new();
	uint8_t sum[16];
	unsigned len = sizeof sum, block = block_tokens ? block_tokens : 16;
	int ok = c && EVP_DigestInit_ex(c, EVP_md5(), NULL) == 1;

	for (size_t i = 0; i < n / block * block && ok; i++) {
		uint8_t b[8] = { (uint8_t)tokens[i], (uint8_t)(tokens[i] >> 8), (uint8_t)(tokens[i] >> 16), (uint8_t)(tokens[i] >> 24) };

		ok = EVP_DigestUpdate(c, b, 8) == 1;
	}
	for (size_t i = 0; i < nmm && ok; i++)
		ok = EVP_DigestUpdate(c, "-", 1) == 1 && EVP_DigestUpdate(c, mm_hashes[i], strlen(mm_hashes[i])) == 1;
	ok = ok && EVP_DigestFinal_ex(c, sum, &len) == 1;
	EVP_MD_CTX_free(c);
	if (!ok)
		return kvcachefs_fail(-EIO, "OpenSSL cannot compute MD5");
	kvcachefs_hex(sum, 16, out);
	return 0;
}
