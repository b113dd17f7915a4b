/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Blocks of every codec. A hostile block decodes to all of its bytes or to an error, whatever the
 * memory contained before. Encoded bytes decode to the same bytes.
 *
 * Input: a byte (lowest bit: encode, or decode; codec or kind; zstd's level), three bytes of the
 * block's length, then the bytes. A block to encode repeats them, every second one with a drift,
 * like the lower bytes of floats.
 * Longest input: 65536
 * Covers: engine/base/codec.c
 */
#include "fuzz.h"
#include "codec.h"

static void decode(struct kvc_codec_work *w, uint32_t kind, size_t len, const uint8_t *in, size_t n)
{
	uint8_t *a = malloc(len ? len : 1), *b = malloc(len ? len : 1);
	int err;

	fuzz_must(a && b);
	memset(a, 0, len);
	memset(b, 0xff, len);
	err = kvc_codec_decode(w, kind, in, n, a, len);
	fuzz_must(!err || err == -EBADMSG);
	fuzz_must(err == kvc_codec_decode(w, kind, in, n, b, len));
	fuzz_must(err || !memcmp(a, b, len));
	free(a);
	free(b);
}

static void code(struct kvc_codec_work *w, enum kvc_codec codec, int level, size_t len,
		 const uint8_t *in, size_t n)
{
	static uint8_t capacity[KVC_BLOCK_ROOM];
	uint8_t *block = malloc(len), *back = malloc(len), *out = NULL;
	uint32_t kind = KVC_KINDS;
	size_t stored;

	fuzz_must(block && back);
	for (size_t i = 0; i < len; i++)
		block[i] = n ? (uint8_t)(in[i % n] + (i & 1 ? 0 : i / n)) : 0;
	stored = kvc_codec_encode(w, codec, level, block, len, capacity, &kind);
	fuzz_must(kind < KVC_KINDS && stored < len && !stored == (kind == KVC_KIND_RAW));
	if (stored) {
		out = malloc(stored);
		fuzz_must(out);
		memcpy(out, capacity, stored);
		fuzz_must(!kvc_codec_decode(w, kind, out, stored, back, len));
		fuzz_must(!memcmp(block, back, len));
	}
	free(block);
	free(out);
	free(back);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct fuzz_in in = { data, size };
	unsigned how = (unsigned)fuzz_number(&in, 1);
	size_t len = fuzz_number(&in, 3), n = in.n;
	uint8_t *bytes = fuzz_bytes(&in, n);
	struct kvc_codec_work *w = kvc_codec_work_get();

	fuzz_must(w);
	if (how & 1)
		/* long blocks only rarely */
		code(w, (enum kvc_codec)(how >> 1 & 3), 1 + (int)(how >> 3 & 3),
		     1 + (len % 257 ? len % 16384 : len % KVC_BLOCK), bytes, n);
	else
		decode(w, how >> 1 & 3, len % 257 ? len % 16384 : len % (KVC_BLOCK + 2), bytes, n);
	kvc_codec_work_put(w, how == 255);
	free(bytes);
	return 0;
}
