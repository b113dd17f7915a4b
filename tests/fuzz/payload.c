/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Coded payloads: an encoded and sealed payload decodes to the same bytes. With one byte changed it
 * is refused, or the byte does not matter. A hostile payload with a hostile header is refused.
 *
 * Input: a byte (bit 0: hostile), then the input of round_trip() or hostile().
 * Longest input: 16384
 * Covers: engine/frames/payload.c, engine/base/codec.c
 */
#include "fuzz.h"
#include "payload.h"

#define MOST (5u << 18) /* two blocks */

static struct kvc_keys *keys;

int LLVMFuzzerInitialize(int *argc, char ***argv)
{
	static const char text[] =
		"7 0101010101010101010101010101010101010101010101010101010101010101\n"
		"9 0202020202020202020202020202020202020202020202020202020202020202 model\n";
	char error[512];

	(void)argc;
	(void)argv;
	fuzz_must(!kvc_keys_open(&keys, fuzz_file("keys", text, sizeof text - 1), error));
	return 0;
}

static int give(void *arg, void *buf, size_t len, uint64_t off)
{
	memcpy(buf, (const uint8_t *)arg + off, len);
	return 0;
}

/* Makes long payloads from short inputs, by repeating the rest of the input. */
static void repeat(const struct fuzz_in *in, uint8_t *to, size_t len)
{
	for (size_t at = 0, n; at < len && in->n; at += n) {
		n = kvc_min(in->n, len - at);
		memcpy(to + at, in->p, n);
		to[at] = (uint8_t)(to[at] + at);
	}
}

static void fill(struct kvc_frame *f, struct fuzz_in *in, size_t most)
{
	memset(f, 0, sizeof *f);
	f->raw_len = f->size = fuzz_number(in, 3) % most;
	f->ino = fuzz_number(in, 1);
	f->gen = fuzz_number(in, 1);
	f->flags = fuzz_number(in, 1) & (KVC_FRAME_SPARSE | KVC_FRAME_SHARED);
	snprintf(f->key_model, sizeof f->key_model, "model");
	snprintf(f->path, sizeof f->path, "model/%llx", (unsigned long long)f->ino);
}

/*
 * Input: three bytes of length; one byte each for codec, key, pieces and so on; the rest is the
 * payload.
 */
static void round_trip(struct fuzz_in *in)
{
	static struct kvc_frame f;
	uint8_t *raw, *back, *stored, *table;
	struct kvc_encoder *e;

	/* long payloads only rarely */
	fill(&f, in, in->n && *in->p ? 40000 : MOST);

	struct kvc_recipe r = {
		.codec = (enum kvc_codec)(fuzz_number(in, 1) % KVC_CODECS),
		.level = 1,
		.keys = keys,
		.key_id = (uint32_t[]){ 0, 7, 9 }[fuzz_number(in, 1) % 3],
	};
	uint64_t piece = 1 + fuzz_number(in, 2), at = fuzz_number(in, 3), mask = fuzz_number(in, 1);

	raw = calloc(1, f.raw_len + 1);
	back = malloc(f.raw_len + 1);
	fuzz_must(raw && back);
	repeat(in, raw, f.raw_len);
	f.raw_sum = kvc_sum_of(raw, f.raw_len);
	fuzz_must(!kvc_payload_encoder_new(&e, &f, &r, give, raw));
	if (!e)
		goto out;
	/* zeros from the end to the next page, like in a tier */
	stored = calloc(1, kvc_round_up(f.stored_len, KVC_PAGE) + 1);
	fuzz_must(stored);
	for (uint64_t i = 0; i < f.stored_len; i += piece)
		fuzz_must(!kvc_payload_encoder_read(e, stored + i,
						    kvc_min(piece, f.stored_len - i)));
	kvc_payload_encoder_free(e);
	if (f.flags & KVC_FRAME_CODED) {
		table = stored + f.stored_len - kvc_payload_table(f.raw_len);
		fuzz_must(!kvc_payload_decode(&f, keys, stored, table, back));
		fuzz_must(!memcmp(raw, back, f.raw_len));
		memset(back, 0, f.raw_len);
		stored[at % f.stored_len] ^= (uint8_t)mask;
		fuzz_must(kvc_payload_decode(&f, keys, stored, table, back) ||
			  !memcmp(raw, back, f.raw_len));
	}
	free(stored);
out:
	free(raw);
	free(back);
}

/*
 * Input: three bytes each for lengths, one for flags, four for codec and for key; the table; the
 * rest.
 */
static void hostile(struct fuzz_in *in)
{
	static struct kvc_frame f;
	uint64_t table_len, data_len, given;
	uint8_t *stored, *raw, *table;
	int err;

	fill(&f, in, in->n && *in->p ? 40000 : MOST);
	f.stored_len = fuzz_number(in, 3) % MOST;
	f.flags |= KVC_FRAME_CODED | (fuzz_number(in, 1) % 4 ? 0 : KVC_FRAME_SEALED);
	f.codec = (uint32_t)fuzz_number(in, 1);
	f.key_id = (uint32_t)fuzz_number(in, 1);
	table_len = kvc_payload_table(f.raw_len);
	if (f.stored_len < table_len) /* otherwise it is refused without reading further */
		f.stored_len %= table_len;
	data_len = f.stored_len < table_len ? 0 : f.stored_len - table_len;
	/* the table is first in the input, so that mutations reach it */
	given = kvc_min(table_len, in->n / 2);
	table = fuzz_bytes(in, given);
	stored = calloc(1, data_len + table_len);
	raw = malloc(f.raw_len + 1);
	fuzz_must(stored && raw);
	memcpy(stored + data_len, table, given);
	repeat(in, stored, data_len);
	err = kvc_payload_decode(&f, keys, stored, stored + data_len, raw);
	fuzz_must(!err || err == -EBADMSG || err == -ENOKEY);
	free(table);
	free(stored);
	free(raw);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct fuzz_in in = { data, size };

	if (fuzz_number(&in, 1) & 1)
		hostile(&in);
	else
		round_trip(&in);
	return 0;
}
