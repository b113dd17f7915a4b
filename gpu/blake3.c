/* SPDX-License-Identifier: Apache-2.0 */
/*
 * BLAKE3, 256 bits, without key, in portable C: the specification's reference algorithm
 * (github.com/BLAKE3-team/BLAKE3-specs), because Debian 12 has no library of it. Chunks of 1024
 * bytes are compressed in blocks of 64 and joined by a binary tree whose left side is always full;
 * a stack of at most 54 chaining values holds the subtrees that wait for their right side.
 */
#include "kvcachefs_keys.h"

#include <string.h>

enum { CHUNK_START = 1, CHUNK_END = 2, PARENT = 4, ROOT = 8 };

static const uint32_t iv[8] = {
	0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
	0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19,
};
static const uint8_t order[16] = { 2, 6, 3, 10, 7, 0, 4, 13, 1, 11, 12, 5, 9, 14, 15, 8 };

static uint32_t rotr(uint32_t x, int n)
{
	return x >> n | x << (32 - n);
}

static void g(uint32_t s[16], int a, int b, int c, int d, uint32_t x, uint32_t y)
{
	s[a] += s[b] + x;
	s[d] = rotr(s[d] ^ s[a], 16);
	s[c] += s[d];
	s[b] = rotr(s[b] ^ s[c], 12);
	s[a] += s[b] + y;
	s[d] = rotr(s[d] ^ s[a], 8);
	s[c] += s[d];
	s[b] = rotr(s[b] ^ s[c], 7);
}

static void compress(const uint32_t cv[8], const uint8_t block[64], uint64_t counter, uint32_t len,
		     uint32_t flags, uint32_t out[8])
{
	uint32_t s[16], m[16], next[16];

	memcpy(s, cv, 32);
	memcpy(s + 8, iv, 16);
	s[12] = (uint32_t)counter;
	s[13] = (uint32_t)(counter >> 32);
	s[14] = len;
	s[15] = flags;
	for (int i = 0; i < 16; i++)
		m[i] = (uint32_t)block[4 * i] | (uint32_t)block[4 * i + 1] << 8 |
		       (uint32_t)block[4 * i + 2] << 16 | (uint32_t)block[4 * i + 3] << 24;
	for (int r = 0; r < 7; r++) {
		g(s, 0, 4, 8, 12, m[0], m[1]);
		g(s, 1, 5, 9, 13, m[2], m[3]);
		g(s, 2, 6, 10, 14, m[4], m[5]);
		g(s, 3, 7, 11, 15, m[6], m[7]);
		g(s, 0, 5, 10, 15, m[8], m[9]);
		g(s, 1, 6, 11, 12, m[10], m[11]);
		g(s, 2, 7, 8, 13, m[12], m[13]);
		g(s, 3, 4, 9, 14, m[14], m[15]);
		for (int i = 0; i < 16; i++)
			next[i] = m[order[i]];
		memcpy(m, next, sizeof m);
	}
	for (int i = 0; i < 8; i++)
		out[i] = s[i] ^ s[i + 8];
}

/* Compresses a chunk of at most 1024 bytes. root: it is the only chunk. */
static void chunk(const uint8_t *p, size_t len, uint64_t counter, uint32_t root, uint32_t cv[8])
{
	uint32_t flags = CHUNK_START;

	memcpy(cv, iv, sizeof iv);
	do {
		uint8_t block[64] = { 0 };
		size_t n = len < 64 ? len : 64;

		memcpy(block, p, n);
		p += n;
		len -= n;
		if (!len)
			flags |= CHUNK_END | root;
		compress(cv, block, counter, (uint32_t)n, flags, cv);
		flags = 0;
	} while (len);
}

static void words(const uint32_t cv[8], uint8_t *out)
{
	for (int i = 0; i < 8; i++)
		for (int b = 0; b < 4; b++)
			out[4 * i + b] = (uint8_t)(cv[i] >> 8 * b);
}

static void join(const uint32_t l[8], const uint32_t r[8], uint32_t root, uint32_t cv[8])
{
	uint8_t block[64];

	words(l, block);
	words(r, block + 32);
	compress(iv, block, 0, 64, PARENT | root, cv);
}

void kvcachefs_blake3(const void *data, size_t len, uint8_t out[32])
{
	const uint8_t *p = data;
	uint32_t stack[54][8], cv[8];
	unsigned depth = 0;
	uint64_t n = 0;

	while (len > 1024) {
		chunk(p, 1024, n++, 0, cv);
		p += 1024;
		len -= 1024;
		for (uint64_t t = n; !(t & 1); t >>= 1) /* subtrees that are complete now */
			join(stack[--depth], cv, 0, cv);
		memcpy(stack[depth++], cv, sizeof cv);
	}
	chunk(p, len, n, depth ? 0 : ROOT, cv);
	while (depth) {
		depth--;
		join(stack[depth], cv, depth ? 0 : ROOT, cv);
	}
	words(cv, out);
}
