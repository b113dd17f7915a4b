/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Blocks of KV caches that are coded with loss. A hostile block decodes to all of its bytes or to
 * an error, whatever the memory contained before. Any bytes with any layout are coded, and decode
 * to what the encoder said; bytes outside vectors, and blocks that the guard refuses, are the same.
 *
 * Input: a byte (lowest bit: encode, or decode; the code), three bytes of the block's length. To
 * encode: two bytes of a block's number, the layout as text with a newline, and bytes that are
 * repeated, every second one with a drift. To decode: bytes of a block's head with its tables.
 * Longest input: 65536
 * Covers: engine/base/kvq.c engine/base/kvq_kernels.c
 */
#include "fuzz.h"
#include "codec.h"

static void decode(struct kvc_codec_work *w, size_t len, const uint8_t *in, size_t n)
{
	uint8_t *a = malloc(len ? len : 1), *b = malloc(len ? len : 1);
	int err;

	fuzz_must(a && b);
	memset(a, 0, len);
	memset(b, 0xff, len);
	err = kvc_codec_decode(w, KVC_KIND_KVQ, in, n, a, len);
	fuzz_must(!err || err == -EBADMSG);
	fuzz_must(err == kvc_codec_decode(w, KVC_KIND_KVQ, in, n, b, len));
	fuzz_must(err || !memcmp(a, b, len));
	kvc_kvq_describe(in, n, NULL, NULL, NULL);
	free(a);
	free(b);
}

static void code(struct kvc_codec_work *w, enum kvc_kvq_code code, size_t len, struct fuzz_in *in)
{
	static uint8_t room[KVC_BLOCK_ROOM], back[KVC_BLOCK];
	uint64_t off = fuzz_number(in, 2) * KVC_BLOCK;
	char *text = fuzz_text(in, '\n'), error[KVC_KV_LAYOUT_ERROR];
	struct kvc_codec_kv kv = { .code = code };
	uint8_t *block = malloc(len), *to = malloc(len), *out;
	struct kvc_kvq_loss loss;
	uint32_t kind = KVC_KINDS;
	size_t stored;

	fuzz_must(block && to);
	for (size_t i = 0; i < len; i++)
		block[i] = in->n ? (uint8_t)(in->p[i % in->n] + (i & 1 ? 0 : i / in->n)) : 0;
	if (!kvc_kv_layout_parse(text, &kv.layout, error) &&
	    !kvc_kv_layout_fit(&kv.layout, off + len, &kv.vectors)) {
		stored = kvc_codec_encode_kv(w, &kv, off, block, len, room, &kind, back, &loss);
		fuzz_must(kind < KVC_KINDS && stored < len && !stored == (kind == KVC_KIND_RAW));
		out = malloc(stored ? stored : 1);
		fuzz_must(out);
		memcpy(out, room, stored);
		if (stored) {
			fuzz_must(!kvc_codec_decode(w, kind, out, stored, to, len));
			fuzz_must(!memcmp(to, kind == KVC_KIND_KVQ ? back : block, len));
		}
		free(out);
	}
	free(text);
	free(block);
	free(to);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct fuzz_in in = { data, size };
	unsigned how = (unsigned)fuzz_number(&in, 1);
	size_t len = fuzz_number(&in, 3), n;
	struct kvc_codec_work *w = kvc_codec_work_get();
	uint8_t *bytes;

	fuzz_must(w);
	len = 1 + (len % 257 ? len % 16384 : len % KVC_BLOCK); /* long blocks only rarely */
	if (how & 1) {
		code(w, (enum kvc_kvq_code)(how >> 1 & 3), len, &in);
	} else {
		n = in.n;
		bytes = fuzz_bytes(&in, n);
		decode(w, len, bytes, n);
		free(bytes);
	}
	kvc_codec_work_put(w, how == 255);
	return 0;
}
