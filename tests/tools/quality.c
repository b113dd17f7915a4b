/* SPDX-License-Identifier: Apache-2.0 */
/*
 * quality CODEC LAYOUT: codes the bytes of its input, a file of this layout, as a tier would store
 * them, and writes the bytes that return. Prints to stderr: the coded size, the size of the blocks
 * that were coded with loss, and the size of the input. scripts/quality uses it.
 */
#include "codec.h"

#include <stdio.h>
#include <string.h>

#define MOST (64u << 20)

static size_t input_read(uint8_t *to)
{
	size_t n = 0, got;

	while (n < MOST && (got = fread(to + n, 1, MOST - n, stdin)) > 0)
		n += got;
	return n;
}

/* Codes a block, decodes it into `back`, and returns its coded size, or 0 if that failed. */
static size_t block_code(struct kvc_codec_work *w, const struct kvc_codec_kv *kv, bool lossy,
			 const uint8_t *in, size_t off, size_t len, uint8_t *back, uint32_t *kind)
{
	static uint8_t out[KVC_BLOCK_ROOM], promised[KVC_BLOCK];
	struct kvc_kvq_loss loss;
	size_t n = lossy ? kvc_codec_encode_kv(w, kv, off, in, len, out, kind, promised, &loss)
			 : kvc_codec_encode(w, KVC_CODEC_BF16, 0, in, len, out, kind);

	if (kvc_codec_decode(w, *kind, n ? out : in, n ? n : len, back, len) ||
	    memcmp(back, *kind == KVC_KIND_KVQ ? promised : in, len) != 0)
		return 0;
	return n ? n : len;
}

int main(int argc, char **argv)
{
	static uint8_t back[KVC_BLOCK];
	char error[KVC_KV_LAYOUT_ERROR] = "the size is wrong";
	size_t len, stored = 0, lossy = 0;
	struct kvc_codec_kv kv = { 0 };
	struct kvc_codec_work *w = kvc_codec_work_get();
	uint8_t *in = malloc(MOST);
	int code = 0;

	if (argc != 3 || !w || !in)
		return 2;
	while (kvc_kvq_names[code] && strcmp(kvc_kvq_names[code], argv[1]) != 0)
		code++;
	if (!kvc_kvq_names[code] && strcmp(argv[1], kvc_codec_names[KVC_CODEC_BF16]) != 0)
		return 2;
	len = input_read(in);
	kv.code = (enum kvc_kvq_code)code;
	if (kvc_kv_layout_parse(argv[2], &kv.layout, error) ||
	    kvc_kv_layout_fit(&kv.layout, len, &kv.vectors)) {
		fprintf(stderr, "%s: %s\n", argv[2], error);
		return 2;
	}
	for (size_t off = 0; off < len; off += KVC_BLOCK) {
		size_t part = kvc_min(len - off, KVC_BLOCK), n;
		uint32_t kind;

		n = block_code(w, &kv, code < KVC_KVQ_CODES, in + off, off, part, back, &kind);
		if (!n || fwrite(back, 1, part, stdout) != part)
			return 1;
		stored += n;
		lossy += kind == KVC_KIND_KVQ ? part : 0;
	}
	fprintf(stderr, "%zu %zu %zu\n", stored, lossy, len);
	kvc_codec_work_put(w, false);
	free(in);
	return fflush(stdout) ? 1 : 0;
}
