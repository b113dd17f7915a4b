/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Coded blocks that move from one frame to another as they are (kvc_payload_encoder_copy), clear or
 * sealed on each side. The copy decodes to the same bytes. If one byte of the source is changed, a
 * sealed source is refused or the byte does not matter, and the copy of a clear source decodes like
 * the source. A hostile source is copied or refused.
 *
 * Input: a byte (bit 0: hostile, bit 1: with loss, bit 2: the lengths differ), the keys of both
 * frames, three bytes of length; then the input of sound() or hostile().
 * Longest input: 16384
 * Covers: engine/frames/payload.c
 */
#include "fuzz.h"
#include "payload.h"

#define MOST (5u << 18) /* two blocks */

struct side {
	struct kvc_frame f;
	uint8_t *stored; /* with zeros up to the next page */
};

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

static struct kvc_recipe recipe(uint64_t key)
{
	static const uint32_t ids[] = { 0, 7, 9 };

	return (struct kvc_recipe){
		.codec = KVC_CODEC_BF16, .level = 1, .keys = keys, .key_id = ids[key % 3]
	};
}

static void fill(struct kvc_frame *f, uint64_t ino, uint64_t raw_len)
{
	*f = (struct kvc_frame){ .ino = ino, .gen = 1, .size = raw_len, .raw_len = raw_len };
	strcpy(f->key_model, "model");
	snprintf(f->path, sizeof f->path, "model/%llx", (unsigned long long)ino);
}

/* Reads the payload, and sets the sum if it has a loss. */
static void read_all(struct kvc_encoder *e, struct side *s)
{
	uint64_t n = s->f.stored_len;
	struct kvc_payload_loss loss;

	s->stored = calloc(1, kvc_round_up(n, KVC_PAGE) + 1);
	fuzz_must(s->stored);
	for (uint64_t at = 0; at < n; at += 300000)
		fuzz_must(!kvc_payload_encoder_read(e, s->stored + at, kvc_min(300000, n - at)));
	if (kvc_payload_encoder_loss(e, &loss))
		s->f.raw_sum = loss.sum;
	kvc_payload_encoder_free(e);
}

static int decode(const struct side *s, uint8_t *raw)
{
	return kvc_payload_decode(&s->f, keys, s->stored,
				  s->stored + s->f.stored_len - kvc_payload_table(s->f.raw_len),
				  raw);
}

/* Copies the first `len` bytes of the source's payload. Returns the error of the call. */
static int copy(const struct side *from, struct side *to, uint64_t key, uint64_t len)
{
	struct kvc_recipe r = recipe(key);
	struct kvc_buffer b;
	struct kvc_encoder *e = NULL;
	int err;

	fuzz_must(!kvc_budget_buffer_wait(&b, KVC_BUDGET_COPY, len));
	memcpy(b.p, from->stored, len);
	err = kvc_payload_encoder_copy(&e, &to->f, &r, &from->f, keys, &b);
	kvc_budget_buffer_free(&b);
	fuzz_must(!e == !!err && (!err || err == -EBADMSG || err == -ENOKEY));
	if (e)
		read_all(e, to);
	return err;
}

/* The copy of a changed or unchanged payload, and the bytes that the unchanged one decodes to. */
static void compare(struct side *from, struct side *to, const uint8_t *first, bool changed)
{
	uint64_t n = from->f.raw_len;
	uint8_t *a = malloc(n + 1), *b = malloc(n + 1);
	int err;

	fuzz_must(a && b && to->f.codec == from->f.codec);
	to->f.raw_sum = from->f.raw_sum;
	if (from->f.flags & KVC_FRAME_SEALED) /* its own sum is not known */
		to->f.raw_sum = kvc_sum_of(first, n);
	err = decode(to, a);
	fuzz_must(changed || !err);
	if (from->f.flags & KVC_FRAME_SEALED) {
		fuzz_must(!err && !memcmp(a, first, n));
	} else if (!err) {
		from->f.raw_sum = kvc_sum_of(a, n);
		fuzz_must(!decode(from, b) && !memcmp(a, b, n));
	} else {
		fuzz_must(decode(from, b));
	}
	free(a);
	free(b);
}

/*
 * Input: three bytes of the place of a byte, and a byte that is added to it; the rest is repeated
 * as the payload.
 */
static void sound(struct fuzz_in *in, unsigned how, uint64_t key, uint64_t key_to, uint64_t len)
{
	static struct side from, to;
	struct kvc_codec_kv kv = { .code = KVC_KVQ_MID };
	struct kvc_recipe r = recipe(key);
	uint64_t at = fuzz_number(in, 3), mask = fuzz_number(in, 1);
	uint8_t *raw = calloc(1, len + 1), *first = malloc(len + 1);
	struct kvc_encoder *e;
	bool good;
	int err;

	fuzz_must(raw && first);
	for (size_t i = 0; i < len && in->n; i++)
		raw[i] = (uint8_t)(in->p[i % in->n] + (i & 1 ? 0 : i / in->n));
	fill(&from.f, 5, len);
	fill(&to.f, 77, how & 4 ? len + 1 : len);
	from.f.raw_sum = kvc_sum_of(raw, len);
	fuzz_must(!kvc_kv_layout_parse("bf16 t* d64", &kv.layout, NULL));
	if ((how & 2) && !kvc_kv_layout_fit(&kv.layout, len, &kv.vectors))
		r.kv = &kv;
	fuzz_must(!kvc_payload_encoder_new(&e, &from.f, &r, give, raw));
	if (!e) {
		from.stored = calloc(1, len + 1);
		fuzz_must(from.stored && copy(&from, &to, key_to, 0) == -EBADMSG);
		goto out;
	}
	read_all(e, &from);
	if (!(from.f.flags & KVC_FRAME_CODED)) {
		fuzz_must(copy(&from, &to, key_to, from.f.stored_len) == -EBADMSG);
		goto out;
	}
	fuzz_must(!decode(&from, first));
	from.stored[at % from.f.stored_len] ^= (uint8_t)mask;
	/* buffers have whole pages */
	fuzz_must(copy(&from, &to, key_to, from.f.stored_len - KVC_PAGE) == -EBADMSG);
	err = copy(&from, &to, key_to, from.f.stored_len);
	/* no frame is coded with neither a codec nor a key */
	good = !(how & 4) && (from.f.codec != KVC_CODEC_NONE || key_to % 3);
	fuzz_must(mask ? err || good : !err == good);
	if (!err) {
		compare(&from, &to, first, mask);
		free(to.stored);
	}
out:
	free(from.stored);
	free(raw);
	free(first);
}

/*
 * Input: three bytes of the stored length, one for flags, one each for codec and key, one for the
 * length of the source's payload that is given; the table; the rest is repeated as the blocks.
 */
static void hostile(struct fuzz_in *in, unsigned how, uint64_t key_to, uint64_t len)
{
	static struct side from, to;
	uint64_t table = kvc_payload_table(len), data, given, less;
	uint8_t *raw = malloc(len + 1), *entries;
	size_t n;

	fill(&from.f, 5, len);
	fill(&to.f, 77, how & 4 ? len / 2 : len);
	from.f.stored_len = fuzz_number(in, 3) % MOST;
	if (from.f.stored_len < table) /* otherwise it is refused without reading further */
		from.f.stored_len += table;
	from.f.flags = KVC_FRAME_CODED | (fuzz_number(in, 1) & ~(uint32_t)KVC_FRAME_SHARED);
	from.f.codec = (uint32_t)fuzz_number(in, 1);
	from.f.key_id = (uint32_t)fuzz_number(in, 1);
	less = fuzz_number(in, 1);
	data = from.f.stored_len - table;
	n = kvc_min(table, in->n / 2);
	entries = fuzz_bytes(in, n);
	from.stored = calloc(1, kvc_round_up(from.f.stored_len, KVC_PAGE) + 1);
	fuzz_must(from.stored && raw);
	for (uint64_t i = 0; i < data && in->n; i++)
		from.stored[i] = in->p[i % in->n];
	memcpy(from.stored + data, entries, n);
	given = less < 200 ? from.f.stored_len : from.f.stored_len / less;
	if (!copy(&from, &to, key_to, given)) {
		int err = decode(&to, raw);

		fuzz_must(kvc_round_up(given, KVC_PAGE) >= from.f.stored_len &&
			  (!err || err == -EBADMSG));
		free(to.stored);
	}
	free(from.stored);
	free(entries);
	free(raw);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct fuzz_in in = { data, size };
	unsigned how = (unsigned)fuzz_number(&in, 1);
	uint64_t key = fuzz_number(&in, 1), key_to = fuzz_number(&in, 1), len = fuzz_number(&in, 3);

	len = len % 33 ? len % 40000 : len % MOST; /* long payloads only rarely */
	if (how & 1)
		hostile(&in, how, key_to, len);
	else
		sound(&in, how, key, key_to, len);
	return 0;
}
