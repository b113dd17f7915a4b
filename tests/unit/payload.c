/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Codecs, sealing and coded payloads: published vectors, encoding and decoding in every mode, and
 * refusal of every kind of damage.
 */
#include "payload.h"

#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <cmocka.h>

static size_t unhex(const char *hex, uint8_t *out)
{
	size_t n = strlen(hex) / 2;

	for (size_t i = 0; i < n; i++) {
		unsigned v;

		assert_int_equal(sscanf(hex + 2 * i, "%2x", &v), 1);
		out[i] = (uint8_t)v;
	}
	return n;
}

/* RFC 5869, appendix A, test cases 1 and 3. */
static void hkdf_vectors(void **state)
{
	uint8_t key[32], salt[16], info[16], want[64], got[64];
	size_t k, s, i, n;

	(void)state;
	k = unhex("0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b", key);
	s = unhex("000102030405060708090a0b0c", salt);
	i = unhex("f0f1f2f3f4f5f6f7f8f9", info);
	n = unhex("3cb25f25faacd57a90434f64d0362f2a2d2d0a90cf1a5a4c5db02d56ecc4c5bf34007208d5b88718"
		  "5865",
		  want);
	assert_int_equal(kvc_keys_hkdf(key, k, salt, s, info, i, got, n), 0);
	assert_memory_equal(got, want, n);
	n = unhex("8da4e775a563c18f715f802a063c5a31b8a11f5c5ee1879ec3454e5f3c738d2d9d201395faa4b61a"
		  "96c8",
		  want);
	assert_int_equal(kvc_keys_hkdf(key, k, salt, 0, info, 0, got, n), 0);
	assert_memory_equal(got, want, n);
}

/* RFC 4231, test cases 1 and 2, with keys of 32 bytes (appended zeros change nothing). */
static void mac_vectors(void **state)
{
	static const uint8_t one[16] = {
		0xb0, 0x34, 0x4c, 0x61, 0xd8, 0xdb, 0x38, 0x53,
		0x5c, 0xa8, 0xaf, 0xce, 0xaf, 0x0b, 0xf1, 0x2b,
	};
	static const uint8_t two[16] = {
		0x5b, 0xdc, 0xc1, 0x46, 0xbf, 0x60, 0x75, 0x4e,
		0x6a, 0x04, 0x24, 0x26, 0x08, 0x95, 0x75, 0xc7,
	};
	static const uint8_t jefe[4] = { 'J', 'e', 'f', 'e' };
	uint8_t key[32] = { 0 }, got[16];

	(void)state;
	memset(key, 0x0b, 20);
	assert_int_equal(kvc_keys_mac(key, "Hi There", 8, "", 0, got), 0);
	assert_memory_equal(got, one, 16);
	memset(key, 0, sizeof key);
	memcpy(key, jefe, sizeof jefe);
	assert_int_equal(kvc_keys_mac(key, "what do ya want ", 16, "for nothing?", 12, got), 0);
	assert_memory_equal(got, two, 16);
}

/*
 * AES-256-GCM, test cases 13 and 14 of McGrew and Viega: a zero key and a zero nonce, which is the
 * nonce of block 0.
 */
static void gcm_vectors(void **state)
{
	uint8_t key[32] = { 0 }, zero[16] = { 0 }, out[16], tag[16], want[16];

	(void)state;
	assert_int_equal(kvc_keys_seal(key, 0, "", 0, zero, 0, out, tag), 0);
	unhex("530f8afbc74536b9a963b4f1c4cb738b", want);
	assert_memory_equal(tag, want, 16);
	assert_int_equal(kvc_keys_seal(key, 0, "", 0, zero, 16, out, tag), 0);
	unhex("cea7403d4d606b6e074ec5d3baf39d18", want);
	assert_memory_equal(out, want, 16);
	unhex("d0d1c8a799996bf0265b98b5d48ab919", want);
	assert_memory_equal(tag, want, 16);
	assert_int_equal(kvc_keys_unseal(key, 0, "", 0, out, 16, out, tag), 0);
	assert_memory_equal(out, zero, 16);
}

static char *key_text(const char *text, mode_t mode)
{
	static char path[64];
	int fd;

	snprintf(path, sizeof path, "/tmp/kvc-keys-%d", (int)getpid());
	unlink(path);
	fd = open(path, O_WRONLY | O_CREAT, 0600);
	assert_true(fd >= 0);
	assert_int_equal(write(fd, text, strlen(text)), (ssize_t)strlen(text));
	assert_int_equal(fchmod(fd, mode), 0);
	close(fd);
	return path;
}

#define K1 "0101010101010101010101010101010101010101010101010101010101010101"
#define K2 "0202020202020202020202020202020202020202020202020202020202020202"

static void key_files(void **state)
{
	static const char *const bad[] = {
		"",
		"\n# nothing\n",
		"1\n",
		"x " K1 "\n",
		"0 " K1 "\n",
		"1 0101\n",
		"1 " K1 "\n1 " K2 "\n",
		"1 " K1 " a/b\n",
		"1 " K1 " a b\n",
		"4294967296 " K1 "\n",
		"1 " K1 "\n2 " K2 "g\n",
	};
	struct kvc_keys *k;
	char error[512], a[33], b[33];
	uint8_t one[32], two[32], nonce[12] = { 0 };

	(void)state;
	for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
		*error = 0;
		assert_int_not_equal(kvc_keys_open(&k, key_text(bad[i], 0600), error), 0);
		assert_non_null(strstr(error, "keyfile"));
		assert_null(strstr(error, "0101")); /* a key is never shown */
	}
	assert_int_equal(kvc_keys_open(&k, key_text("1 " K1 "\n", 0644), error), -EACCES);
	assert_int_equal(kvc_keys_open(&k, "/nonexistent", error), -ENOENT);
	assert_int_equal(
		kvc_keys_open(&k, key_text("# two\n1 " K1 "\n5 " K2 "\n9 " K1 " llama\n", 0600),
			      error),
		0);
	assert_int_equal(kvc_keys_for(k, "other"), 5);
	assert_int_equal(kvc_keys_for(k, "llama"), 9);
	assert_true(kvc_keys_has(k, 1) && !kvc_keys_has(k, 2));
	assert_int_equal(kvc_keys_proof(k, 1, a), 0);
	assert_int_equal(kvc_keys_proof(k, 5, b), 0);
	assert_string_not_equal(a, b);
	assert_int_equal(kvc_keys_frame_key(k, 1, "m", nonce, 2, 3, one), 0);
	assert_int_equal(kvc_keys_frame_key(k, 1, "m", nonce, 2, 4, two), 0);
	assert_memory_not_equal(one, two, 32);
	assert_int_equal(kvc_keys_frame_key(k, 1, "n", nonce, 2, 3, two), 0);
	assert_memory_not_equal(one, two, 32);
	/* key 9 belongs to another model */
	assert_int_equal(kvc_keys_frame_key(k, 9, "m", nonce, 2, 3, two), -ENOKEY);
	assert_int_equal(kvc_keys_frame_key(k, 2, "m", nonce, 2, 3, two), -ENOKEY);
	/*
	 * the key that proves headers depends on the model too, and differs from the keys of frames
	 */
	assert_int_equal(kvc_keys_header_key(k, 1, "m", one), 0);
	assert_int_equal(kvc_keys_header_key(k, 1, "n", two), 0);
	assert_memory_not_equal(one, two, 32);
	assert_int_equal(kvc_keys_header_key(k, 5, "m", two), 0);
	assert_memory_not_equal(one, two, 32);
	assert_int_equal(kvc_keys_header_key(k, 9, "m", two), -ENOKEY);
	assert_int_equal(kvc_keys_header_key(k, 9, "llama", two), 0);
	kvc_keys_close(k);
	unlink(key_text("x", 0600));
}

/*
 * Data of a kind; 2-byte floats as K and V have them: normal, with a scale for each channel of 128.
 */
static void fill(uint8_t *p, size_t len, int kind, unsigned seed)
{
	for (size_t i = 0; i < len; i++)
		switch (kind) {
		case 0: p[i] = 0; break;
		case 1: p[i] = (uint8_t)(rand_r(&seed) >> 7); break;
		case 2: {
			float f = (float)((rand_r(&seed) & 0xffff) + (rand_r(&seed) & 0xffff) +
					  (rand_r(&seed) & 0xffff) - 98301) /
				  30000.0f * (float)(1 + i / 2 % 128 * 7 % 13);
			uint32_t u;

			memcpy(&u, &f, 4);
			p[i] = (uint8_t)(u >> 16);
			if (i + 1 < len)
				p[++i] = (uint8_t)(u >> 24);
			break;
		}
		case 3: p[i] = (uint8_t)("the same words again and again, "[i % 32]); break;
		case 4:
			p[i] = (uint8_t)((rand_r(&seed) & 7) * (rand_r(&seed) & 15));
			break; /* fp8-like: few values */
		}
}

struct source {
	const uint8_t *p;
};

static int give(void *arg, void *buf, size_t len, uint64_t off)
{
	memcpy(buf, ((struct source *)arg)->p + off, len);
	return 0;
}

struct coded {
	struct kvc_frame f;
	uint8_t *stored;
};

static struct coded *code(const uint8_t *p, size_t len, enum kvc_codec codec, struct kvc_keys *keys,
			  bool shared, size_t step)
{
	struct coded *c = calloc(1, sizeof *c);
	struct kvc_recipe r = { codec, 1, keys, keys ? 1 : 0, NULL, NULL };
	struct source s = { p };
	struct kvc_encoder *e;

	c->f.ino = 5;
	c->f.gen = 6;
	c->f.size = c->f.raw_len = len;
	c->f.flags = shared ? KVC_FRAME_SHARED : 0;
	strcpy(c->f.path, "model/chunk/layer");
	strcpy(c->f.key_model, "model");
	assert_int_equal(kvc_payload_encoder_new(&e, &c->f, &r, give, &s), 0);
	c->f.raw_sum = keys ? (struct kvc_sum){ 0 } : kvc_sum_of(p, len);
	c->stored = malloc(c->f.stored_len + 1);
	for (uint64_t at = 0; e && at < c->f.stored_len; at += step)
		assert_int_equal(kvc_payload_encoder_read(e, c->stored + at,
							  kvc_min(step, c->f.stored_len - at)),
				 0);
	if (!e)
		memcpy(c->stored, p, len);
	kvc_payload_encoder_free(e);
	return c;
}

static int decode(const struct coded *c, const struct kvc_keys *keys, uint8_t *out)
{
	uint64_t table = kvc_payload_table(c->f.raw_len);

	return kvc_payload_decode(&c->f, keys, c->stored, c->stored + c->f.stored_len - table, out);
}

static void drop(struct coded *c)
{
	free(c->stored);
	free(c);
}

static struct kvc_keys *keys_new(void)
{
	struct kvc_keys *k;
	char error[512];

	assert_int_equal(kvc_keys_open(&k, key_text("1 " K1 "\n", 0600), error), 0);
	unlink(key_text("x", 0600));
	return k;
}

static void there_and_back(void **state)
{
	static const size_t sizes[] = {
		0, 1, 4096, 5001, 300001, 1 << 20, (1 << 20) + 1, (3 << 20) + 77,
	};
	/* parts of a block, whole blocks, all at once */
	static const size_t steps[] = { 70000, 1 << 20, 5 << 20 };
	struct kvc_keys *keys = keys_new();
	uint8_t *in = malloc(4 << 20), *out = malloc(4 << 20);

	(void)state;
	for (size_t s = 0; s < sizeof sizes / sizeof sizes[0]; s++)
		for (int kind = 0; kind < 5; kind++)
			for (int codec = 0; codec < KVC_CODECS; codec++)
				for (int way = 0; way < 6; way++) {
					int sealed = way & 1;

					fill(in, sizes[s], kind, (unsigned)(s * 7 + 1));
					struct coded *c = code(in, sizes[s], (enum kvc_codec)codec,
							       sealed ? keys : NULL, kind & 1,
							       steps[way / 2]);

					assert_true(c->f.stored_len <=
						    sizes[s] + 2 * KVC_PAGE +
							    kvc_payload_table(sizes[s]));
					if (sealed)
						assert_true(c->f.flags & KVC_FRAME_SEALED);
					if (c->f.flags & KVC_FRAME_CODED) {
						memset(out, 0xaa, 4 << 20);
						assert_int_equal(decode(c, keys, out), 0);
						assert_memory_equal(out, in, sizes[s]);
						if (sealed)
							assert_int_equal(decode(c, NULL, out),
									 -ENOKEY);
					} else {
						assert_int_equal(c->f.stored_len, sizes[s]);
						assert_memory_equal(c->stored, in, sizes[s]);
					}
					drop(c);
				}
	/* bf16 data must become at least 1.3 times smaller */
	fill(in, 3 << 20, 2, 1);
	struct coded *c = code(in, 3 << 20, KVC_CODEC_BF16, NULL, false, 1 << 20);

	assert_true(c->f.stored_len * 13 < (3 << 20) * 10);
	drop(c);
	free(in);
	free(out);
	kvc_keys_close(keys);
}

/* A sealed payload opens only unchanged, in its own place and with its own header. */
static void sealed_means_sealed(void **state)
{
	struct kvc_keys *keys = keys_new();
	size_t len = (2 << 20) + 9000;
	uint8_t *in = malloc(len), *out = malloc(len), swap[KVC_BLOCK];

	(void)state;
	fill(in, len, 1, 3);
	struct coded *c = code(in, len, KVC_CODEC_NONE, keys, true, 1 << 20), *other;
	uint64_t table = c->f.stored_len - kvc_payload_table(len);
	struct kvc_frame f = c->f;

	assert_int_equal(decode(c, keys, out), 0);
#define refused(change, undo)                                     \
	do {                                                      \
		change;                                           \
		assert_int_equal(decode(c, keys, out), -EBADMSG); \
		undo;                                             \
		c->f = f;                                         \
	} while (0)
	refused(c->stored[100] ^= 1, c->stored[100] ^= 1);
	refused(c->stored[len - 1] ^= 128, c->stored[len - 1] ^= 128);
	refused(c->stored[table + 9] ^= 1, c->stored[table + 9] ^= 1); /* a tag */
	refused(c->f.ino++, );
	refused(c->f.gen--, );
	refused(c->f.size++, );
	refused(c->f.store[3] ^= 1, );
	refused(c->f.nonce[0] ^= 1, );
	refused(strcpy(c->f.path, "model/chunk/other"), );
	refused(strcpy(c->f.key_model, "modem"), );
	refused(c->f.mode ^= 04000, );
	refused(c->f.flags &= ~(unsigned)KVC_FRAME_SHARED, );
	refused(c->f.codec = KVC_CODEC_ZSTD, );
	refused((c->f.raw_len = len - KVC_BLOCK), );
	/* two blocks in each other's place, tags too */
	memcpy(swap, c->stored, KVC_BLOCK);
	memcpy(c->stored, c->stored + KVC_BLOCK, KVC_BLOCK);
	memcpy(c->stored + KVC_BLOCK, swap, KVC_BLOCK);
	assert_int_equal(decode(c, keys, out), -EBADMSG);
	memcpy(swap, c->stored + table, 24);
	memcpy(c->stored + table, c->stored + table + 24, 24);
	memcpy(c->stored + table + 24, swap, 24);
	assert_int_equal(decode(c, keys, out), -EBADMSG);
	/* the same bytes sealed twice have nothing in common */
	other = code(in, len, KVC_CODEC_NONE, keys, true, 1 << 20);
	assert_memory_not_equal(other->f.nonce, c->f.nonce, 12);
	assert_memory_not_equal(other->stored, c->stored + KVC_BLOCK, 64);
	/* the header of an older version with the payload of the newer one */
	c->f.nonce[0]++;
	assert_int_equal(kvc_payload_decode(&c->f, keys, other->stored, other->stored + table, out),
			 -EBADMSG);
	drop(other);
	drop(c);
	free(in);
	free(out);
	kvc_keys_close(keys);
}

/* A table of a payload of two blocks. The memory after the payload's data cannot be read. */
struct told {
	const char *what;
	uint32_t codec;
	size_t data; /* bytes before the table */
	uint32_t table[2][2];
	int err;
};

#define LAST 4096u /* bytes of the second block */

static const struct told told[] = {
	{ "as it is", 0, KVC_BLOCK + LAST, { { KVC_BLOCK, 0 }, { LAST, 0 } }, 0 },
	{ "a page too many",
	  0,
	  KVC_BLOCK + LAST + KVC_PAGE,
	  { { KVC_BLOCK, 0 }, { LAST, 0 } },
	  -EBADMSG },
	{ "no second block", 0, KVC_BLOCK, { { KVC_BLOCK, 0 }, { LAST, 0 } }, -EBADMSG },
	{ "no block", 0, 0, { { KVC_BLOCK, 0 }, { LAST, 0 } }, -EBADMSG },
	{ "a raw block that is too short",
	  0,
	  KVC_BLOCK + LAST,
	  { { KVC_BLOCK, 0 }, { LAST - 1, 0 } },
	  -EBADMSG },
	{ "a coded block without a codec",
	  0,
	  KVC_BLOCK + LAST,
	  { { KVC_BLOCK, 0 }, { LAST, KVC_KIND_ZSTD } },
	  -EBADMSG },
	{ "an unknown codec",
	  KVC_CODECS,
	  KVC_BLOCK + LAST,
	  { { KVC_BLOCK, 0 }, { LAST, 0 } },
	  -EBADMSG },
	{ "an unknown kind",
	  KVC_CODEC_ZSTD,
	  KVC_BLOCK + LAST,
	  { { KVC_BLOCK, 0 }, { LAST, KVC_KINDS } },
	  -EBADMSG },
};

static void no_further(void **state)
{
	const size_t raw_len = KVC_BLOCK + LAST, capacity = raw_len + KVC_PAGE;
	struct kvc_frame *f = kvc_frame_new();
	uint8_t *out = malloc(raw_len), *in = malloc(raw_len), table[KVC_PAGE] = { 0 };
	uint8_t *map = mmap(NULL, capacity + KVC_PAGE, PROT_READ | PROT_WRITE,
			    MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	(void)state;
	assert_ptr_not_equal(map, MAP_FAILED);
	assert_int_equal(mprotect(map + capacity, KVC_PAGE, PROT_NONE), 0);
	assert_int_equal(kvc_payload_table(raw_len), sizeof table);
	fill(in, raw_len, 1, 3);
	f->flags = KVC_FRAME_CODED;
	f->size = f->raw_len = raw_len;
	f->raw_sum = kvc_sum_of(in, raw_len);
	for (size_t i = 0; i < sizeof told / sizeof told[0]; i++) {
		const struct told *t = &told[i];
		uint8_t *data = map + capacity - t->data;

		memcpy(data, in, kvc_min(t->data, raw_len));
		for (int b = 0; b < 2; b++)
			memcpy(table + b * 24, t->table[b], 8);
		f->codec = t->codec;
		f->stored_len = t->data + sizeof table;
		if (kvc_payload_decode(f, NULL, data, table, out) != t->err)
			fail_msg("%s", t->what);
		if (!t->err)
			assert_memory_equal(out, in, raw_len);
	}
	/* and a frame that is shorter than its table */
	memcpy(table, told[0].table[0], 8);
	f->codec = KVC_CODEC_NONE;
	f->stored_len = sizeof table - 1;
	assert_int_equal(kvc_payload_decode(f, NULL, map + capacity, table, out), -EBADMSG);
	munmap(map, capacity + KVC_PAGE);
	free(in);
	free(out);
	free(f);
}

/*
 * Hostile payloads: every byte of header, table and blocks may be anything. FUZZ in the environment
 * sets their number.
 */
static void hostile(void **state)
{
	unsigned long rounds = getenv("FUZZ") ? strtoul(getenv("FUZZ"), NULL, 10) : 3000;
	unsigned seed = getenv("SEED") ? (unsigned)atoi(getenv("SEED")) : (unsigned)time(NULL);
	size_t len = 200000;
	uint8_t *in = malloc(len), *out = malloc(len);
	struct coded *base[4];

	(void)state;
	print_message("SEED=%u\n", seed);
	for (int i = 0; i < 4; i++) {
		fill(in, len, i == 3 ? 4 : 2 + (i & 1), seed + (unsigned)i);
		base[i] = code(in, len, i < 2 ? KVC_CODEC_BF16 : KVC_CODEC_ZSTD, NULL, false,
			       1 << 20);
		assert_true(base[i]->f.flags & KVC_FRAME_CODED);
	}
	for (unsigned long r = 0; r < rounds; r++) {
		const struct coded *b = base[r & 3];
		uint64_t table_len = kvc_payload_table(len), capacity = b->f.stored_len;
		/* exact allocations, so that a sanitizer sees the first byte beyond */
		uint8_t *stored = malloc(capacity);
		struct coded c = { b->f, stored };
		int flips = 1 + (int)(rand_r(&seed) % 8), err;

		memcpy(stored, b->stored, capacity);
		for (int i = 0; i < flips; i++) {
			uint64_t at = rand_r(&seed) % 3 ? capacity - table_len + rand_r(&seed) % 24
							: rand_r(&seed) % (capacity - table_len);

			if (rand_r(&seed) & 1)
				at = rand_r(&seed) % 64; /* the codec's own headers */
			stored[at] = (uint8_t)(rand_r(&seed) % 3   ? rand_r(&seed)
					       : rand_r(&seed) & 1 ? 0xff
								   : 0);
		}
		if (rand_r(&seed) % 16 == 0)
			c.f.codec = rand_r(&seed) % 5;
		err = decode(&c, NULL, out);
		assert_true(err == 0 || err == -EBADMSG);
		if (!err) { /* the changed bytes did not matter */
			struct kvc_sum s = kvc_sum_of(out, len);

			assert_memory_equal(s.b, b->f.raw_sum.b, 16);
		}
		free(stored);
	}
	/* a bomb: small blocks that decode to more bytes than the header states */
	uint8_t *zeros = calloc(1, 2 << 20);
	struct coded *bomb = code(zeros, 2 << 20, KVC_CODEC_ZSTD, NULL, false, 1 << 20);

	assert_true(bomb->f.stored_len < 100000);
	bomb->f.raw_len = bomb->f.size = 100000; /* less than it decodes to */
	assert_int_equal(kvc_payload_decode(&bomb->f, NULL, bomb->stored,
					    bomb->stored + bomb->f.stored_len - 4096, out),
			 -EBADMSG);
	drop(bomb);
	for (int i = 0; i < 4; i++)
		drop(base[i]);
	free(zeros);
	free(in);
	free(out);
}

/* Header pages of any content: decoded, or refused; never beyond the page. */
static void hostile_headers(void **state)
{
	unsigned seed = (unsigned)time(NULL);
	struct kvc_frame *f = calloc(1, sizeof *f), *g = calloc(1, sizeof *g);
	uint8_t *page = malloc(KVC_FRAME_HEADER);

	(void)state;
	f->size = f->raw_len = f->stored_len = 77;
	memset(f->path, 'x', KVC_FRAME_PATH_MAX);
	memset(f->key_model, 'y', KVC_MODEL_NAME);
	kvc_frame_encode(f, page);
	assert_int_equal(kvc_frame_decode(page, g), 0);
	assert_string_equal(g->path, f->path);
	assert_string_equal(g->key_model, f->key_model);
	for (int r = 0; r < 20000; r++) {
		int at = rand_r(&seed) % KVC_FRAME_HEADER;
		uint8_t old = page[at];

		page[at] ^= (uint8_t)(1 << rand_r(&seed) % 8);
		int err = kvc_frame_decode(page, g);

		if (at < KVC_FRAME_IDENTITY)
			assert_int_equal(err, -EBADMSG);
		else
			assert_true(!err && !*g->path);
		page[at] = old;
	}
	free(page);
	free(f);
	free(g);
}

/* If every second page is empty, the coded size is about half. */
static void empty_pages(void **state)
{
	const size_t len = KVC_BLOCK;
	struct kvc_codec_work *w = kvc_codec_work_get();
	uint8_t *in = malloc(len);
	uint32_t kind;
	size_t dense, sparse;

	(void)state;
	fill(in, len, 2, 6);
	dense = kvc_codec_encode(w, KVC_CODEC_BF16, 1, in, len, kvc_codec_work_out(w), &kind);
	assert_int_equal(kind, KVC_KIND_PLANES);
	for (size_t at = 0; at < len; at += 2ul * KVC_PAGE)
		memset(in + at, 0, KVC_PAGE);
	sparse = kvc_codec_encode(w, KVC_CODEC_BF16, 1, in, len, kvc_codec_work_out(w), &kind);
	assert_int_equal(kind, KVC_KIND_PLANES);
	print_message("dense %zu, with empty pages %zu\n", dense, sparse);
	assert_true(dense < len * 3 / 4 && sparse < dense * 11 / 20);
	kvc_codec_work_put(w, false);
	free(in);
}

/* A payload that does not fit in the memory is coded twice, with the same result. */
static void coded_twice(void **state)
{
	static struct kvc_stats stats;
	const size_t len = 20u << 20;
	uint8_t *in = malloc(len), *out = malloc(len);
	struct kvc_budget_state b;

	(void)state;
	fill(in, len, 2, 5);
	for (int sealed = 0; sealed < 2; sealed++) {
		struct kvc_keys *keys = sealed ? keys_new() : NULL;
		struct coded *once = code(in, len, KVC_CODEC_ZSTD, keys, false, 300000), *twice;

		kvc_budget_start(32u << 20, 0, 100, &stats);
		twice = code(in, len, KVC_CODEC_ZSTD, keys, false, 300000);
		kvc_budget_state(&b);
		kvc_budget_stop(&stats);
		assert_true(b.peak < len);
		assert_int_equal(twice->f.stored_len, once->f.stored_len);
		assert_int_equal(decode(twice, keys, out), 0);
		assert_memory_equal(out, in, len);
		if (!sealed)
			assert_memory_equal(once->stored, twice->stored, once->f.stored_len);
		drop(once);
		drop(twice);
		kvc_keys_close(keys);
	}
	free(in);
	free(out);
}

/* Keys with means, and values, as "bf16 p* k2 t64 h2 d64 @28" has them; the header is random. */
static void fill_kv(uint8_t *p, size_t len, unsigned seed)
{
	fill(p, len, 1, seed);
	for (size_t v = 0; 28 + 128 * (v + 1) <= len; v++)
		for (size_t i = 0; i < 64; i++) {
			float f = 0;
			uint32_t u;

			for (int n = 0; n < 4; n++)
				f += (float)(rand_r(&seed) & 0xffff) / 65536.0f - 0.5f;
			f += v / 128 % 2 ? 0 : (float)(i % 7);
			memcpy(&u, &f, 4);
			p[28 + 128 * v + 2 * i] = (uint8_t)(u >> 16);
			p[28 + 128 * v + 2 * i + 1] = (uint8_t)(u >> 24);
		}
}

/*
 * Codes with loss into *c, which has f->raw_len bytes. Returns whether any block has a loss.
 * changed: a byte that is changed before the payload is read; or NULL.
 */
static bool code_lossy(struct coded *c, const uint8_t *p, struct kvc_keys *keys, uint8_t *changed,
		       struct kvc_payload_loss *loss)
{
	struct kvc_codec_kv kv = { .code = KVC_KVQ_MID };
	struct kvc_recipe r = { .keys = keys, .key_id = keys ? 1 : 0, .kv = &kv };
	struct source s = { p };
	struct kvc_encoder *e;
	bool lossy;

	assert_int_equal(kvc_kv_layout_parse("bf16 p* k2 t64 h2 d64 @28", &kv.layout, NULL), 0);
	assert_int_equal(kvc_kv_layout_fit(&kv.layout, c->f.raw_len, &kv.vectors), 0);
	assert_int_equal(kvc_payload_encoder_new(&e, &c->f, &r, give, &s), 0);
	if (changed) /* a client writes to the header, which is not coded */
		*changed ^= 1;
	c->stored = malloc(c->f.stored_len + 1);
	for (uint64_t at = 0; at < c->f.stored_len; at += 300000)
		assert_int_equal(kvc_payload_encoder_read(e, c->stored + at,
							  kvc_min(300000, c->f.stored_len - at)),
				 0);
	lossy = kvc_payload_encoder_loss(e, loss);
	assert_int_equal(!!(c->f.flags & KVC_FRAME_DECODED), lossy);
	if (!keys)
		c->f.raw_sum = lossy ? loss->sum : kvc_sum_of(p, c->f.raw_len);
	kvc_payload_encoder_free(e);
	return lossy;
}

/*
 * A payload with loss: the encoder knows the sum of the bytes that the decoder returns, also if it
 * codes the payload twice. Blocks that the guard refuses return as they were.
 */
static void lossy(void **state)
{
	static struct kvc_stats stats;
	const size_t len = (19u << 20) + 12345, bad = 5u << 20;
	uint8_t *in = malloc(len), *out = malloc(len), *first = malloc(len);

	(void)state;
	fill_kv(in, len, 7);
	fill(in + bad, 1u << 20, 1, 8); /* one block is random */
	for (int how = 0; how < 4; how++) {
		struct kvc_keys *keys = how & 1 ? keys_new() : NULL;
		struct coded c = { .f = { .ino = 5, .gen = 6, .size = len, .raw_len = len } };
		struct kvc_payload_loss loss;
		struct kvc_sum sum;

		strcpy(c.f.key_model, "model");
		if (how & 2) /* copies get less than the payload, which is coded twice then */
			kvc_budget_start(KVC_BUDGET_MIN, 0, 100, &stats);
		assert_true(code_lossy(&c, in, keys, how & 2 ? in + 3 : NULL, &loss));
		if (how & 2)
			kvc_budget_stop(&stats);
		assert_int_equal(c.f.codec, KVC_CODEC_KVQ + KVC_KVQ_MID);
		/* the last block has no whole page */
		assert_true(c.f.stored_len < len / 2 && loss.bytes == 18u << 20);
		assert_int_equal(loss.refused, 2);
		assert_true(loss.error > 0 && loss.error < 0.1 && loss.worst >= loss.error);
		assert_int_equal(decode(&c, keys, out), 0);
		sum = kvc_sum_of(out, len);
		assert_memory_equal(sum.b, loss.sum.b, 16);
		assert_memory_equal(out + bad, in + bad, 1u << 20);
		assert_memory_equal(out, in, 28);
		assert_memory_not_equal(out, in, len);
		if (!how)
			memcpy(first, out, len);
		assert_memory_equal(first + 28, out + 28, len - 28);
		if (!keys) { /* the frame has the sum of the written bytes: refused */
			c.f.raw_sum = kvc_sum_of(in, len);
			assert_int_equal(decode(&c, keys, out), -EBADMSG);
		}
		free(c.stored);
		kvc_keys_close(keys);
	}
	free(in);
	free(out);
	free(first);
}

/* The guard refuses all blocks: the payload is plain, or sealed, and nothing is lost. */
static void lossy_refused(void **state)
{
	const size_t len = (3u << 20) + 777;
	uint8_t *in = malloc(len), *out = malloc(len);

	(void)state;
	for (int how = 0; how < 4; how++) {
		struct kvc_keys *keys = how & 1 ? keys_new() : NULL;
		struct coded c = { .f = { .ino = 5, .gen = 6, .size = len, .raw_len = len } };
		struct kvc_payload_loss loss;

		strcpy(c.f.key_model, "model");
		fill(in, len, how & 2 ? 3 : 1, 9);
		assert_false(code_lossy(&c, in, keys, NULL, &loss));
		assert_int_equal(c.f.codec, how & 2 ? KVC_CODEC_BF16 : KVC_CODEC_NONE);
		if (c.f.flags & KVC_FRAME_CODED)
			assert_int_equal(decode(&c, keys, out), 0);
		assert_memory_equal(c.f.flags & KVC_FRAME_CODED ? out : c.stored, in, len);
		free(c.stored);
		kvc_keys_close(keys);
	}
	free(in);
	free(out);
}

/* Moves the payload of `from` to a frame of another inode, sealed with `keys` or not. */
static int move(struct coded *to, const struct coded *from, struct kvc_keys *have,
		struct kvc_keys *keys)
{
	struct kvc_recipe r = { .keys = keys, .key_id = keys ? 1 : 0 };
	struct kvc_buffer b = { .use = KVC_BUDGET_COPY };
	struct kvc_encoder *e = NULL;
	int err;

	*to = (struct coded){ .f = { .ino = 77, .gen = 1 } };
	to->f.size = to->f.raw_len = from->f.raw_len;
	strcpy(to->f.key_model, "other");
	assert_int_equal(kvc_budget_buffer_grow(&b, from->f.stored_len), 0);
	memcpy(b.p, from->stored, from->f.stored_len);
	err = kvc_payload_encoder_copy(&e, &to->f, &r, &from->f, have, &b);
	kvc_budget_buffer_free(&b);
	if (err) {
		assert_null(e);
		return err;
	}
	to->stored = malloc(to->f.stored_len);
	for (uint64_t at = 0; at < to->f.stored_len; at += 300000)
		assert_int_equal(kvc_payload_encoder_read(e, to->stored + at,
							  kvc_min(300000, to->f.stored_len - at)),
				 0);
	kvc_payload_encoder_free(e);
	return 0;
}

/*
 * Coded blocks move to another frame as they are, between clear and sealed frames. A payload that
 * is damaged, or sealed with an unknown key, does not.
 */
static void moved(void **state)
{
	const size_t len = (3u << 20) + 12345;
	uint8_t *in = malloc(len), *out = malloc(len), *first = malloc(len);
	struct kvc_keys *keys = keys_new();
	struct kvc_payload_loss loss;

	(void)state;
	fill_kv(in, len, 7);
	for (int how = 0; how < 4; how++) {
		struct coded c = { .f = { .ino = 5, .gen = 6, .size = len, .raw_len = len } }, m;
		uint64_t table = kvc_payload_table(len);

		strcpy(c.f.key_model, "model");
		assert_true(code_lossy(&c, in, how & 1 ? keys : NULL, NULL, &loss));
		assert_int_equal(decode(&c, keys, first), 0);
		assert_int_equal(move(&m, &c, keys, how & 2 ? keys : NULL), 0);
		assert_int_equal(m.f.stored_len, c.f.stored_len);
		assert_int_equal(m.f.codec, c.f.codec);
		assert_int_equal(m.f.flags, KVC_FRAME_CODED | KVC_FRAME_DECODED |
						    (how & 2 ? KVC_FRAME_SEALED : 0));
		if (!how)
			assert_memory_equal(m.stored, c.stored, c.f.stored_len);
		if (!(how & 2))
			m.f.raw_sum = loss.sum;
		assert_int_equal(decode(&m, keys, out), 0);
		assert_memory_equal(out, first, len);
		free(m.stored);
		if (how & 1) {
			assert_int_equal(move(&m, &c, NULL, NULL), -ENOKEY);
			c.stored[1000] ^= 1;
			assert_int_equal(move(&m, &c, keys, keys), -EBADMSG);
			c.stored[1000] ^= 1;
		}
		c.stored[c.f.stored_len - table + 1] ^= 32; /* the length of a block */
		assert_int_equal(move(&m, &c, keys, NULL), -EBADMSG);
		c.f.raw_len = table; /* more than there is */
		c.f.stored_len = 1;
		assert_int_equal(move(&m, &c, keys, NULL), -EBADMSG);
		free(c.stored);
	}
	free(in);
	free(out);
	free(first);
	kvc_keys_close(keys);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(mac_vectors),     cmocka_unit_test(hkdf_vectors),
		cmocka_unit_test(gcm_vectors),     cmocka_unit_test(key_files),
		cmocka_unit_test(there_and_back),  cmocka_unit_test(sealed_means_sealed),
		cmocka_unit_test(no_further),      cmocka_unit_test(hostile),
		cmocka_unit_test(hostile_headers), cmocka_unit_test(coded_twice),
		cmocka_unit_test(empty_pages),     cmocka_unit_test(lossy),
		cmocka_unit_test(lossy_refused),   cmocka_unit_test(moved),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
