/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The lossy codes for KV caches: a table of layouts and sizes that every code must hold, with each
 * instruction set of the CPU; data that the guard must refuse; and hostile blocks.
 */
#include "codec.h"
#include "kvq_kernels.h"

#include <float.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

static double uniform(uint64_t *s)
{
	*s ^= *s << 13;
	*s ^= *s >> 7;
	*s ^= *s << 17;
	return ((double)(*s >> 11) + 0.5) / 9007199254740992.0;
}

static double normal(uint64_t *s)
{
	return sqrt(-2 * log(uniform(s))) * cos(6.283185307179586 * uniform(s));
}

static struct kvc_kv_layout layout(const char *text)
{
	char error[KVC_KV_LAYOUT_ERROR];
	struct kvc_kv_layout l;

	assert_int_equal(kvc_kv_layout_parse(text, &l, error), 0);
	return l;
}

/* Whether a vector of the layout is a value. */
static bool is_value(const struct kvc_kv_layout *l, uint64_t vector)
{
	for (int i = l->naxes - 2; i >= 0; i--) {
		uint32_t size = l->axis[i].size;

		if (l->axis[i].name == 'k')
			return vector % 2;
		vector = size ? vector / size : vector;
	}
	return false;
}

/*
 * Keys have a mean and a deviation of their own for each channel, and some channels are ten times
 * as large; values have a scale for each vector. Bytes outside the vectors are random.
 */
static void fill(uint8_t *p, uint64_t size, const struct kvc_kv_layout *l, uint64_t vectors,
		 uint64_t seed)
{
	uint64_t s = seed * 2654435761u + 88172645463325252ull;
	uint32_t d = l->axis[l->naxes - 1].size;
	float mean[KVC_KV_VECTOR_MAX], scale[KVC_KV_VECTOR_MAX];

	for (uint64_t i = 0; i < size; i++)
		p[i] = (uint8_t)(uniform(&s) * 256);
	for (uint32_t i = 0; i < d; i++) {
		scale[i] = (float)exp(0.5 * normal(&s));
		mean[i] = (float)(i % 31 == 7 ? 12 * scale[i] : 0.5 * normal(&s));
	}
	for (uint64_t v = 0; v < vectors; v++) {
		bool value = is_value(l, v);
		float k = (float)(0.3 * exp(0.3 * normal(&s)));

		for (uint32_t i = 0; i < d; i++) {
			float f = (float)normal(&s);
			uint16_t e = kvc_kvq_kernels_element(
				l->element == KVC_KV_FP16, value ? k * f : mean[i] + scale[i] * f);

			memcpy(p + l->at + 2 * (v * d + i), &e, 2);
		}
	}
}

/* Exact allocations, so that a sanitizer sees the first byte beyond. */
static uint8_t *copy_of(const uint8_t *p, size_t len)
{
	uint8_t *c = malloc(len ? len : 1);

	assert_non_null(c);
	memcpy(c, p, len);
	return c;
}

struct result {
	uint64_t stored, lossy; /* bytes, and bytes of blocks that were coded with loss */
	double error, energy, worst;
	struct kvc_sum sum; /* of all coded blocks */
};

static double relative(double error, double energy)
{
	return energy > 0 ? sqrt(error / energy) : 0;
}

/*
 * Codes a block. Checks that it decodes to the bytes and the loss that the encoder announced.
 * Returns its kind.
 */
static uint32_t block(struct kvc_codec_work *w, const struct kvc_codec_kv *kv, uint64_t off,
		      const uint8_t *in, size_t len, struct result *r, uint8_t *decoded)
{
	static uint8_t out[KVC_BLOCK_ROOM], back[KVC_BLOCK];
	struct kvc_kvq_loss loss, noted;
	struct kvc_kv_layout read;
	uint32_t kind = KVC_KINDS;
	size_t n = kvc_codec_encode_kv(w, kv, off, in, len, out, &kind, back, &loss);
	uint8_t *stored = copy_of(n ? out : in, n ? n : len), *to = malloc(len);
	struct kvc_sum s = kvc_sum_of(stored, n ? n : len);
	bool fp8;

	assert_true(n < len && kind < KVC_KINDS && (n != 0) == (kind != KVC_KIND_RAW));
	memset(to, 0xaa, len);
	assert_int_equal(kvc_codec_decode(w, kind, stored, n ? n : len, to, len), 0);
	assert_memory_equal(to, kind == KVC_KIND_KVQ ? back : in, len);
	if (kind == KVC_KIND_KVQ) {
		assert_int_equal(kvc_kvq_describe(stored, n, &read, &fp8, &noted), 0);
		assert_int_equal(read.naxes, kv->layout.naxes);
		assert_true(fp8 == (kv->code == KVC_KVQ_FP8));
		assert_memory_equal(&noted, &loss, sizeof loss);
	} else {
		assert_true(loss.error == 0 && loss.energy == 0);
	}
	if (decoded)
		memcpy(decoded, to, len);
	r->stored += n ? n : len;
	r->lossy += kind == KVC_KIND_KVQ ? len : 0;
	r->error += (double)loss.error;
	r->energy += (double)loss.energy;
	r->worst = fmax(r->worst, relative(loss.error, loss.energy));
	for (int i = 0; i < 16; i++)
		r->sum.b[i] ^= s.b[i];
	free(stored);
	free(to);
	return kind;
}

static void file(struct kvc_codec_work *w, const struct kvc_codec_kv *kv, const uint8_t *in,
		 uint64_t size, struct result *r, uint8_t *decoded)
{
	memset(r, 0, sizeof *r);
	for (uint64_t off = 0; off < size; off += KVC_BLOCK)
		block(w, kv, off, in + off, (size_t)kvc_min(size - off, KVC_BLOCK), r,
		      decoded + off);
}

/* Bytes outside whole vectors of a block are the same after decoding. */
static void edges_same(const struct kvc_kv_layout *l, uint64_t vectors, const uint8_t *in,
		       const uint8_t *out, uint64_t size)
{
	uint64_t vector = kvc_kv_layout_vector(l), end = l->at + vectors * vector;

	for (uint64_t i = 0; i < size; i++) {
		uint64_t from = i >= l->at && i < end ? l->at + (i - l->at) / vector * vector : i;
		bool whole = i >= l->at && i < end &&
			     from / KVC_BLOCK == (from + vector - 1) / KVC_BLOCK;

		if (!whole)
			assert_int_equal(in[i], out[i]);
	}
}

/* The bounds of each code: ratio, and relative error of keys and values together. */
static const struct {
	const char *name;
	double ratio, error;
} codes[KVC_KVQ_CODES] = {
	[KVC_KVQ_HIGH] = { "kvq-high", 2.2, 0.035 },
	[KVC_KVQ_MID] = { "kvq-mid", 2.7, 0.07 },
	[KVC_KVQ_LOW] = { "kvq-low", 3.3, 0.14 },
	[KVC_KVQ_FP8] = { "fp8", 1.8, 0.035 },
};

static const struct {
	const char *layout;
	uint64_t more; /* bytes after one element of a free axis, or after the layout */
} cases[] = {
	{ "bf16 k2 l2 t256 h8 d128", 0 }, /* two classes of tokens for each block */
	{ "bf16 t256 k2 h8 d128", 0 },    /* keys and values alternate */
	{ "bf16 t* k2 h8 d128", 4096 * 300 + 77 },
	{ "bf16 p* k2 t16 h8 d128 @28", 65536 * 33 + 5 },
	{ "bf16 k2 l2 h4 t300 d96 @5", 100 }, /* vectors across the ends of blocks, odd addresses */
	{ "bf16 l3 t256 d576", 0 },           /* MLA */
	{ "bf16 t* d576 @28", 576 * 2 * 1500 },
	{ "fp16 k2 l2 t256 h8 d128", 0 },
	{ "fp16 p* k2 t16 h4 d64", 16384 * 70 + 3 },
	{ "fp16 l2 t256 d576", 0 },
	{ "bf16 k2 t70 h1 d16", 17 },
	{ "bf16 k2 t63 h4 d128", 0 }, /* too few tokens for classes */
	{ "bf16 k2 l1 t3000 h1 d64", 0 },
	{ "bf16 t8 l32 k2 h8 d128", 0 },
	{ "bf16 k2 l2 t200 h2 d100", 0 }, /* not a multiple of sixteen */
	{ "bf16 k2 l2 t128 h1 d1024", 0 },
};

static void conformance(void **state)
{
	struct kvc_codec_work *w = kvc_codec_work_get();
	uint64_t most = 4u << 20;
	uint8_t *in = malloc(most), *out = malloc(most);

	(void)state;
	assert_non_null(w);
	for (size_t c = 0; c < sizeof cases / sizeof cases[0]; c++) {
		struct kvc_codec_kv kv = { .layout = layout(cases[c].layout) };
		uint64_t size = 2, inner = 1;

		for (int i = 0; i < kv.layout.naxes; i++)
			inner *= kv.layout.axis[i].size ? kv.layout.axis[i].size : 1;
		size = 2 * inner + kv.layout.at + cases[c].more;
		assert_true(size <= most);
		assert_int_equal(kvc_kv_layout_fit(&kv.layout, size, &kv.vectors), 0);
		fill(in, size, &kv.layout, kv.vectors, c + 1);
		for (int code = 0; code < KVC_KVQ_CODES; code++) {
			struct result r;
			double ratio, error;

			kv.code = (enum kvc_kvq_code)code;
			file(w, &kv, in, size, &r, out);
			ratio = (double)size / (double)r.stored;
			error = relative(r.error, r.energy);
			print_message("%-28s %-8s ratio %.2f error %.4f worst %.4f\n",
				      cases[c].layout, codes[code].name, ratio, error, r.worst);
			assert_true(r.lossy > size - KVC_BLOCK || r.lossy == size);
			assert_true(ratio > codes[code].ratio && error < codes[code].error);
			assert_true(error > 0 && r.worst >= error * 0.99);
			edges_same(&kv.layout, kv.vectors, in, out, size);
		}
	}
	kvc_codec_work_put(w, false);
	free(in);
	free(out);
}

/* All instruction sets give the same bytes, both coded and decoded. */
static void same_bytes(void **state)
{
	static uint8_t out[2][KVC_BLOCK], back[2][KVC_BLOCK], again[KVC_BLOCK];
	struct kvc_kvq *q = kvc_kvq_new();
	uint8_t *in = malloc(KVC_BLOCK), *sym;
	const uint8_t *from;
	size_t n[2], nsym, m;
	unsigned sets = 0;

	(void)state;
	assert_non_null(q);
	while (kvc_kvq_use(q, sets))
		print_message("%s\n", kvc_kvq_kernels_get(sets++)->name);
	for (size_t c = 0; c < sizeof cases / sizeof cases[0]; c++)
		for (int code = 0; code < KVC_KVQ_CODES; code++) {
			struct kvc_kv_layout l = layout(cases[c].layout);
			uint64_t vectors = (KVC_BLOCK - l.at) / kvc_kv_layout_vector(&l);

			fill(in, KVC_BLOCK, &l, vectors, c);
			for (unsigned s = 0; s < sets; s++) {
				struct kvc_kvq_loss loss;

				kvc_kvq_use(q, s);
				assert_true(kvc_kvq_start(q, (enum kvc_kvq_code)code, &l, vectors,
							  0, in, KVC_BLOCK) > 0);
				memset(again, (int)s + 1, KVC_BLOCK);
				n[s > 0] = kvc_kvq_encode(q, 0, out[s > 0], KVC_BLOCK, &from, &nsym,
							  again);
				assert_true(kvc_kvq_judge(q, again, out[s > 0], &loss));
				assert_true(n[s > 0] && n[s > 0] + nsym <= KVC_BLOCK);
				memcpy(out[s > 0] + n[s > 0], from, nsym);
				kvc_kvq_finish(q, out[s > 0], nsym);
				n[s > 0] += nsym;
				assert_int_equal(kvc_kvq_open(q, out[s > 0], n[s > 0], KVC_BLOCK,
							      &sym, &nsym, &from, &m),
						 0);
				memcpy(sym, from, nsym);
				memset(back[s > 0], (int)s, KVC_BLOCK);
				assert_int_equal(kvc_kvq_decode(q, back[s > 0]), 0);
				assert_memory_equal(back[s > 0], again, KVC_BLOCK);
				if (!s)
					continue;
				assert_int_equal(n[1], n[0]);
				assert_memory_equal(out[1], out[0], n[0]);
				assert_memory_equal(back[1], back[0], KVC_BLOCK);
			}
		}
	kvc_kvq_free(q);
	free(in);
}

/* Converts every fp16 to a float and back, and many floats to fp16 as the compiler does. */
static void half_floats(void **state)
{
	uint64_t s = 88172645463325252ull;

	(void)state;
	for (uint32_t h = 0; h < 65536; h++) {
		uint16_t bits = (uint16_t)h;
		_Float16 want;

		if ((h & 0x7c00) == 0x7c00)
			continue;
		memcpy(&want, &bits, 2);
		assert_true(kvc_kvq_kernels_value(true, bits) == (float)want);
		assert_int_equal(kvc_kvq_kernels_element(true, (float)want), bits);
	}
	for (int i = 0; i < 2000000; i++) {
		/* exponents from below the subnormal numbers to above the largest */
		float f = (float)((uniform(&s) - 0.5) * exp2(uniform(&s) * 44 - 27));
		_Float16 want = (_Float16)f;
		uint16_t bits;

		memcpy(&bits, &want, 2);
		assert_int_equal(kvc_kvq_kernels_element(true, f), bits);
	}
	assert_int_equal(kvc_kvq_kernels_element(true, 65519.0f), 0x7bff);
	assert_int_equal(kvc_kvq_kernels_element(true, 65520.0f), 0x7c00);
	assert_int_equal(kvc_kvq_kernels_element(true, 1e30f), 0x7c00);
}

/* Data that is not what the layout says, or that cannot be coded: the guard refuses it. */
static void refused(void **state)
{
	enum {
		NAN_BF16,
		INFINITE,
		TEXT,
		RANDOM,
		HALF_AS_BF16,
		FP8_AS_BF16,
		TINY,
		HUGE_VALUES,
		ZEROS,
		KINDS
	};
	struct kvc_codec_work *w = kvc_codec_work_get();
	struct kvc_codec_kv kv = { .layout = layout("bf16 k2 t256 h8 d128") };
	struct kvc_kv_layout half = layout("fp16 k2 t256 h8 d128");
	uint16_t *in = malloc(KVC_BLOCK);
	size_t n = KVC_BLOCK / 2;

	(void)state;
	assert_int_equal(kvc_kv_layout_fit(&kv.layout, KVC_BLOCK, &kv.vectors), 0);
	for (int code = 0; code < KVC_KVQ_CODES; code++)
		for (int kind = 0; kind < KINDS; kind++) {
			uint64_t s = 88172645463325252ull;
			struct result r = { 0 };
			uint32_t got;

			kv.code = (enum kvc_kvq_code)code;
			fill((uint8_t *)in, KVC_BLOCK, kind == HALF_AS_BF16 ? &half : &kv.layout,
			     kv.vectors, 3);
			for (size_t i = 0; i < n; i++)
				switch (kind) {
				case NAN_BF16: in[i] = i == 4711 ? 0x7fc1 : in[i]; break;
				case INFINITE: in[i] = i == n - 1 ? 0xff80 : in[i]; break;
				case TEXT:
					memcpy(in + i, &"keys and values "[2 * (i % 8)], 2);
					break;
				case RANDOM: in[i] = (uint16_t)(uniform(&s) * 65536); break;
				case FP8_AS_BF16:
					in[i] = (uint16_t)((uint8_t)(56 + 10 * normal(&s)) << 8 |
							   (uint8_t)(56 + 10 * normal(&s)));
					break;
				case TINY:
					in[i] = kvc_kvq_kernels_element(false, (float)(1e-30 *
										       normal(&s)));
					break;
				case HUGE_VALUES:
					in[i] = kvc_kvq_kernels_element(false,
									(float)(1e30 * normal(&s)));
					break;
				case ZEROS: in[i] = 0; break;
				}
			got = block(w, &kv, 0, (uint8_t *)in, KVC_BLOCK, &r, NULL);
			/* fp8 keeps the exponents, so it can code these */
			if (code == KVC_KVQ_FP8 &&
			    (kind == TINY || kind == HUGE_VALUES || kind == HALF_AS_BF16))
				continue;
			if (got == KVC_KIND_KVQ)
				print_message("%s codes kind %d, error %f\n", codes[code].name,
					      kind, relative(r.error, r.energy));
			assert_true(got != KVC_KIND_KVQ);
		}
	kvc_codec_work_put(w, false);
	free(in);
}

static unsigned setting_of(struct kvc_codec_work *w, const struct kvc_codec_kv *kv,
			   const uint8_t *in)
{
	static uint8_t out[KVC_BLOCK_ROOM], back[KVC_BLOCK];
	struct kvc_kvq_loss loss;
	uint32_t kind;

	assert_true(kvc_codec_encode_kv(w, kv, 0, in, KVC_BLOCK, out, &kind, back, &loss) > 0);
	return kind == KVC_KIND_KVQ ? out[2] : 99;
}

/*
 * Values that all lie halfway between two steps have more than the allowed error. Half the step
 * hits them exactly. One value of that kind among many blocks is enough.
 */
static void finer(void **state)
{
	static const float halves[4] = { 3.5f, -4.5f, -3.5f, 4.5f };
	struct kvc_codec_work *w = kvc_codec_work_get();
	struct kvc_codec_kv kv = { KVC_KVQ_MID, layout("bf16 k2 t256 h8 d128"), 0 };
	uint8_t *in = malloc(KVC_BLOCK);

	(void)state;
	assert_int_equal(kvc_kv_layout_fit(&kv.layout, KVC_BLOCK, &kv.vectors), 0);
	fill(in, KVC_BLOCK, &kv.layout, kv.vectors, 1);
	assert_int_equal(setting_of(w, &kv, in), 0);
	for (int i = 0; i < 128; i++) {
		uint16_t e = kvc_kvq_kernels_element(false, halves[i % 4]);

		memcpy(in + KVC_BLOCK - 256 + 2 * (size_t)i, &e, 2);
	}
	assert_int_equal(setting_of(w, &kv, in), 1);
	/* a key that is lost in a class of ordinary ones is not seen; a lost value is */
	memset(in + KVC_BLOCK - 256, 0, 256);
	for (int i = 0; i < 128; i++) {
		uint16_t e = 0x0001; /* subnormal: its square is zero */

		memcpy(in + KVC_BLOCK - 256 + 2 * (size_t)i, &e, 2);
	}
	assert_int_equal(setting_of(w, &kv, in), 99);
	kvc_codec_work_put(w, false);
	free(in);
}

/* Elements beyond 127 steps are exact. */
static void escapes(void **state)
{
	struct kvc_codec_work *w = kvc_codec_work_get();
	struct kvc_codec_kv kv = { KVC_KVQ_HIGH, layout("bf16 k2 t256 h8 d128"), 0 };
	uint8_t *in = malloc(KVC_BLOCK), *out = malloc(KVC_BLOCK);
	struct result r = { 0 };
	size_t at[] = { 3, 1000, 77777, 262143, 262144 + 5, 400000, 524287 };

	(void)state;
	assert_int_equal(kvc_kv_layout_fit(&kv.layout, KVC_BLOCK, &kv.vectors), 0);
	fill(in, KVC_BLOCK, &kv.layout, kv.vectors, 9);
	for (size_t i = 0; i < 5; i++) { /* keys and one value, far from all others */
		uint16_t e = kvc_kvq_kernels_element(false, (float)(3000 + i) * (i & 1 ? -1 : 1));

		memcpy(in + 2 * at[i < 4 ? i : 0], &e, 2);
	}
	assert_int_equal(block(w, &kv, 0, in, KVC_BLOCK, &r, out), KVC_KIND_KVQ);
	for (size_t i = 0; i < 4; i++)
		assert_memory_equal(in + 2 * at[i], out + 2 * at[i], 2);
	kvc_codec_work_put(w, false);
	free(in);
	free(out);
}

/* Damaged blocks: an error, or some decoded bytes; the same ones whatever was in memory before. */
static void hostile(void **state)
{
	unsigned long rounds = getenv("ROUNDS") ? strtoul(getenv("ROUNDS"), NULL, 10) : 3000;
	unsigned seed = getenv("SEED") ? (unsigned)strtoul(getenv("SEED"), NULL, 10)
				       : (unsigned)time(NULL);
	static uint8_t out[KVC_BLOCK_ROOM], back[KVC_BLOCK];
	static const size_t len = 40000;
	struct kvc_codec_work *w = kvc_codec_work_get();
	uint8_t *in = malloc(len), *a = malloc(len), *b = malloc(len);
	struct kvc_kvq_loss loss;
	uint32_t kind;

	(void)state;
	print_message("SEED=%u\n", seed);
	for (unsigned long r = 0; r < rounds; r++) {
		struct kvc_codec_kv kv = {
			(enum kvc_kvq_code)(r % KVC_KVQ_CODES),
			layout(r & 4 ? "bf16 t* k2 h1 d64 @7" : "fp16 k2 t150 h1 d64 @8"), 0
		};
		size_t n, stored;
		uint8_t *block;
		int err;

		assert_int_equal(kvc_kv_layout_fit(&kv.layout, len, &kv.vectors), 0);
		fill(in, len, &kv.layout, kv.vectors, r);
		n = kvc_codec_encode_kv(w, &kv, 0, in, len, out, &kind, back, &loss);
		assert_true(n && kind == KVC_KIND_KVQ);
		for (int flips = 1 + rand_r(&seed) % 4; flips; flips--) {
			size_t at = (size_t)rand_r(&seed) % (rand_r(&seed) & 1 ? KVC_KVQ_HEAD : n);

			out[at] = rand_r(&seed) & 1 ? (uint8_t)rand_r(&seed)
						    : (uint8_t)(out[at] ^ 1 << rand_r(&seed) % 8);
		}
		stored = rand_r(&seed) % 8 ? n : (size_t)rand_r(&seed) % (n + 1);
		block = copy_of(out, stored);
		memset(a, 0, len);
		memset(b, 0xff, len);
		n = rand_r(&seed) % 8 ? len : 1 + (size_t)rand_r(&seed) % len;
		err = kvc_codec_decode(w, KVC_KIND_KVQ, block, stored, a, n);
		assert_true(err == 0 || err == -EBADMSG);
		assert_int_equal(kvc_codec_decode(w, KVC_KIND_KVQ, block, stored, b, n), err);
		if (!err)
			assert_memory_equal(a, b, n);
		kvc_kvq_describe(block, stored, NULL, NULL, NULL);
		free(block);
	}
	kvc_codec_work_put(w, true);
	free(in);
	free(a);
	free(b);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(half_floats), cmocka_unit_test(conformance),
		cmocka_unit_test(same_bytes),  cmocka_unit_test(refused),
		cmocka_unit_test(finer),       cmocka_unit_test(escapes),
		cmocka_unit_test(hostile),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
