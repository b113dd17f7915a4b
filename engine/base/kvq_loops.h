/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Loops of kvq over the vectors of a block, for one instruction set. kvq_kernels.c includes this
 * file once for each set, with SET, its name, TARGET, the attribute of functions that use it, and
 * WIDE: whether it can move the bytes of 32-byte vectors. Inlined functions need the attribute,
 * too, because the compiler splits the vectors of a function before it inlines the function.
 */
#define LOOP static inline __attribute__((always_inline)) TARGET
#define FN_(name, set) name##_##set
#define FN__(name, set) FN_(name, set)
#define FN(name) FN__(name, SET)
#define TEXT_(name) #name
#define TEXT(name) TEXT_(name)

LOOP void FN(words_value)(floats *to, const words *w, bool half)
{
	if (half)
		*to = (floats)((words)((floats)((*w & 0x7fff) << 13) * 0x1p112f) | (*w & 0x8000)
											   << 16);
	else
		*to = (floats)(*w << 16);
}

/* Loads eight elements. */
LOOP void FN(floats_load)(floats *to, const element *x, bool half)
{
	elements8 e;
	words w;

	memcpy(&e, x, sizeof e);
	w = __builtin_convertvector(e, words);
	FN(words_value)(to, &w, half);
}

/*
 * Rounds eight floats to elements: stores the elements in *w, and replaces each float with the
 * value of its element.
 */
LOOP void FN(floats_round)(floats *f, words *w, bool half)
{
	words u = (words)*f;

	if (half) { /* as half_of */
		words a = u & 0x7fffffff, normal = (a + 0xfff + (a >> 13 & 1) - (112u << 23)) >> 13;
		words small = (words)((floats)a + 0.5f) - 0x3f000000u;
		words is_small = (words)((integers)a < 0x38800000);
		words is_large = (words)((integers)a >= 0x47800000);

		*w = (small & is_small) | (normal & ~is_small);
		*w = (0x7c00u & is_large) | (*w & ~is_large);
		*w |= u >> 16 & 0x8000;
		FN(words_value)(f, w, half);
	} else {
		u += 0x7fff + (u >> 16 & 1);
		*w = u >> 16;
		*f = (floats)(u & 0xffff0000);
	}
}

/*
 * Rounds sixteen floats to elements: stores the elements in y, and replaces each float with the
 * value of its element. The shuffles, here and below, do not cross the middle of a register and are
 * followed by one that moves whole words, because AVX2 has an instruction for each of these.
 */
LOOP void FN(lanes_store)(floats *low, floats *high, element *y, bool half)
{
	words w, v;
	elements16 e;
	longs l;

	FN(floats_round)(low, &w, half);
	FN(floats_round)(high, &v, half);
	if (!WIDE) {
		uint32_t all[LANES];

		memcpy(all, &w, sizeof w);
		memcpy(all + HALF, &v, sizeof v);
		for (uint32_t i = 0; i < LANES; i++)
			y[i] = (uint16_t)all[i];
		return;
	}
	e = (elements16)(w | v << 16);
	e = __builtin_shufflevector(e, e, 0, 2, 4, 6, 1, 3, 5, 7, 8, 10, 12, 14, 9, 11, 13, 15);
	l = __builtin_shufflevector((longs)e, (longs)e, 0, 2, 1, 3);
	memcpy(y, &l, sizeof l);
}

/* Stores the lowest byte of each of sixteen lanes. */
LOOP void FN(symbols_store)(const words *low, const words *high, uint8_t *sym)
{
	bytes32 b;
	words l;

	if (!WIDE) {
		uint32_t all[LANES];

		memcpy(all, low, sizeof *low);
		memcpy(all + HALF, high, sizeof *high);
		for (uint32_t i = 0; i < LANES; i++)
			sym[i] = (uint8_t)all[i];
		return;
	}
	b = (bytes32)((*low & 0xff) | (*high & 0xff) << 8);
	b = __builtin_shufflevector(b, b, 0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15, 16,
				    20, 24, 28, 17, 21, 25, 29, 18, 22, 26, 30, 19, 23, 27, 31);
	l = __builtin_shufflevector((words)b, (words)b, 0, 4, 1, 5, 2, 6, 3, 7);
	memcpy(sym, &l, sizeof(bytes16));
}

/* Converts sixteen symbols, which are signed, to floats. Reads sixteen bytes beyond them. */
LOOP void FN(symbols_load)(floats *low, floats *high, const uint8_t *sym)
{
	bytes32 b, s;

	if (!WIDE) {
		float all[LANES];

		for (uint32_t i = 0; i < LANES; i++)
			all[i] = (float)(int8_t)sym[i];
		memcpy(low, all, sizeof *low);
		memcpy(high, all + HALF, sizeof *high);
		return;
	}
	memcpy(&b, sym, sizeof b);
	b = (bytes32)__builtin_shufflevector((longs)b, (longs)b, 0, 1, 0, 1);
	/* in each lane, the symbol becomes the highest byte, and the others are shifted out */
	s = __builtin_shufflevector(b, b, 0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3, 20, 20,
				    20, 20, 21, 21, 21, 21, 22, 22, 22, 22, 23, 23, 23, 23);
	*low = __builtin_convertvector((integers)s >> 24, floats);
	s = __builtin_shufflevector(b, b, 8, 8, 8, 8, 9, 9, 9, 9, 10, 10, 10, 10, 11, 11, 11, 11,
				    28, 28, 28, 28, 29, 29, 29, 29, 30, 30, 30, 30, 31, 31, 31, 31);
	*high = __builtin_convertvector((integers)s >> 24, floats);
}

LOOP float FN(lanes_sum)(const floats *low, const floats *high)
{
	floats all = *low + *high;
	floats4 a, b;

	memcpy(&a, &all, sizeof a);
	memcpy(&b, (const char *)&all + sizeof a, sizeof b);
	a += b;
	return (a[0] + a[2]) + (a[1] + a[3]);
}

LOOP bool FN(finite_loop)(const struct kvc_kvq_block *b, const element *x, bool half)
{
	uint16_t mask = half ? 0x7c00 : 0x7f80, bad = 0;

	for (size_t i = 0; i < (size_t)b->vectors * b->d; i++)
		bad |= (uint16_t)-((x[i] & mask) == mask);
	return !bad;
}

LOOP float FN(squares_of)(const element *x, uint32_t d, bool half)
{
	floats low = { 0 }, high = { 0 }, f;
	uint32_t i = 0;

	for (; i + LANES <= d; i += LANES) {
		FN(floats_load)(&f, x + i, half);
		low += f * f;
		FN(floats_load)(&f, x + i + HALF, half);
		high += f * f;
	}
	if (i < d) {
		element rest[LANES] = { 0 };

		memcpy(rest, x + i, 2 * (size_t)(d - i));
		FN(floats_load)(&f, rest, half);
		low += f * f;
		FN(floats_load)(&f, rest + HALF, half);
		high += f * f;
	}
	return FN(lanes_sum)(&low, &high);
}

LOOP void FN(sums_loop)(struct kvc_kvq_block *b, const element *x, uint32_t d, bool half)
{
	memset(b->members, 0, b->classes * sizeof *b->members);
	for (uint32_t v = 0; v < b->vectors; v++, x += d) {
		uint16_t c = b->of[v];

		if (c >= KVC_KVQ_ALONE) {
			b->energy[v] = FN(squares_of)(x, d, half);
			continue;
		}
		float *restrict first = b->first + (size_t)c * d;
		float *restrict sum = b->sum + (size_t)c * d;
		float *restrict squares = b->squares + (size_t)c * d;

		if (!b->members[c]++) {
			for (uint32_t i = 0; i < d; i++) {
				first[i] = value_of(half, x[i]);
				sum[i] = squares[i] = 0;
			}
			continue;
		}
		for (uint32_t i = 0; i < d; i++) {
			float f = value_of(half, x[i]) - first[i];

			sum[i] += f;
			squares[i] += f * f;
		}
	}
}

/*
 * Quantises eight elements. The symbols are the lowest bytes of *c; f and n are the elements and
 * the decoded ones, which are not rounded yet.
 */
LOOP void FN(quantise_half)(const element *x, const struct scale *t, uint32_t i, bool alone,
			    bool half, floats *f, floats *c, floats *n, floats *energy,
			    words *beyond)
{
	floats m, step, inverse;

	FN(floats_load)(f, x, half);
	*c = *f;
	if (alone) {
		step = t->one_step - (floats){ 0 };
		inverse = t->one_inverse - (floats){ 0 };
	} else {
		memcpy(&m, t->mean + i, sizeof m);
		memcpy(&step, t->step + i, sizeof step);
		memcpy(&inverse, t->inverse + i, sizeof inverse);
		*c -= m;
	}
	*energy += *c * *c;
	*c *= inverse;
	/* sets the sign bit if the absolute value is above 127.0f */
	*beyond |= 0x42fe0000 - ((words)*c & 0x7fffffff);
	*c += ROUND;
	*n = step * (*c - ROUND);
	if (!alone)
		*n += m;
}

/* Quantises sixteen elements, and decodes them. */
LOOP void FN(quantise_lanes)(const element *x, element *y, uint8_t *sym, const struct scale *t,
			     uint32_t i, bool alone, bool half, struct loss_lanes *sums)
{
	floats f, g, c, e, n, o;

	FN(quantise_half)(x, t, i, alone, half, &f, &c, &n, &sums->energy[0], &sums->beyond);
	x += HALF;
	FN(quantise_half)(x, t, i + HALF, alone, half, &g, &e, &o, &sums->energy[1], &sums->beyond);
	FN(symbols_store)((const words *)&c, (const words *)&e, sym);
	FN(lanes_store)(&n, &o, y, half);
	f -= n;
	g -= o;
	sums->error[0] += f * f;
	sums->error[1] += g * g;
}

LOOP bool FN(any_beyond)(const struct loss_lanes *sums)
{
	uint32_t all = 0;

	for (unsigned j = 0; j < HALF; j++)
		all |= sums->beyond[j];
	return all >> 31;
}

/* Returns false if an element is beyond 127 steps: then the results are wrong. */
LOOP bool FN(quantise_vector)(struct kvc_kvq_block *b, uint32_t v, const element *x, element *y,
			      uint8_t *sym, const struct scale *t, uint32_t d, bool alone,
			      bool half)
{
	struct loss_lanes sums = { 0 };
	uint32_t i = 0;

	for (; i + LANES <= d; i += LANES)
		FN(quantise_lanes)(x + i, y + i, sym + i, t, i, alone, half, &sums);
	if (i < d) { /* the other lanes are zero */
		float tables[3][LANES] = { 0 };
		struct scale rest = {
			tables[0], tables[1], tables[2], t->one_step, t->one_inverse,
		};
		element from[LANES] = { 0 }, to[LANES];
		uint8_t symbols[LANES];

		memcpy(from, x + i, 2 * (size_t)(d - i));
		if (!alone) {
			memcpy(tables[0], t->mean + i, (d - i) * sizeof(float));
			memcpy(tables[1], t->step + i, (d - i) * sizeof(float));
			memcpy(tables[2], t->inverse + i, (d - i) * sizeof(float));
		}
		FN(quantise_lanes)(from, to, symbols, &rest, 0, alone, half, &sums);
		memcpy(y + i, to, 2 * (size_t)(d - i));
		memcpy(sym + i, symbols, d - i);
	}
	b->error[v] = FN(lanes_sum)(&sums.error[0], &sums.error[1]);
	b->energy[v] = FN(lanes_sum)(&sums.energy[0], &sums.energy[1]);
	return !FN(any_beyond)(&sums);
}

/* The same for a vector that may have escapes. Returns their number. */
LOOP uint32_t FN(quantise_escapes)(struct kvc_kvq_block *b, uint32_t v, const element *x,
				   element *y, uint8_t *sym, const struct scale *t, element *raw,
				   uint32_t most, uint32_t d, bool alone, bool half)
{
	floats error[2] = { { 0 } };
	uint32_t n = 0;

	for (uint32_t i = 0; i < d; i++) {
		float mean = alone ? 0 : t->mean[i], step = alone ? t->one_step : t->step[i];
		float f = value_of(half, x[i]), c, s;

		c = (alone ? f : f - mean) * (alone ? t->one_inverse : t->inverse[i]);
		if (c >= -127.0f && c <= 127.0f) {
			c += ROUND;
			sym[i] = (uint8_t)bits_of(c);
			s = step * (c - ROUND);
			y[i] = element_of(half, alone ? s : mean + s);
		} else {
			sym[i] = KVC_KVQ_ESCAPE;
			y[i] = x[i];
			if (n < most)
				raw[n] = x[i];
			n++;
		}
		f -= value_of(half, y[i]);
		error[i / HALF % 2][i % HALF] += f * f;
	}
	b->error[v] = FN(lanes_sum)(&error[0], &error[1]);
	return n;
}

/* Counts the symbols 0. */
LOOP uint32_t FN(zeros_of)(const uint8_t *sym, size_t n)
{
	uint32_t zeros = 0;
	size_t i = 0;

	while (i + sizeof(bytes32) <= n) {
		bytes32 s, count = { 0 };

		/* a lane counts up to 255 */
		for (int k = 0; k < 255 && i + sizeof s <= n; k++, i += sizeof s) {
			memcpy(&s, sym + i, sizeof s);
			count -= (bytes32)(s == 0);
		}
		for (unsigned j = 0; j < sizeof s; j++)
			zeros += count[j];
	}
	for (; i < n; i++)
		zeros += sym[i] == 0;
	return zeros;
}

LOOP uint32_t FN(quantise_loop)(struct kvc_kvq_block *b, const element *x, element *restrict y,
				element *raw, uint32_t most, uint32_t d, bool half)
{
	uint8_t *shared = b->sym, *lonely = b->sym + (size_t)b->in_classes * d, *sym;
	uint32_t escapes = 0, n;

	for (uint32_t v = 0; v < b->vectors && escapes <= most; v++, x += d, y += d) {
		uint16_t c = b->of[v];
		struct scale t = { 0 };
		bool fits;

		if (c >= KVC_KVQ_ALONE) {
			t.one_step = b->vector_step[v];
			t.one_inverse = 1.0f / t.one_step;
			sym = lonely;
			lonely += d;
			fits = FN(quantise_vector)(b, v, x, y, sym, &t, d, true, half);
		} else {
			t.mean = b->mean + (size_t)c * d;
			t.step = b->step + (size_t)c * d;
			t.inverse = b->inverse + (size_t)c * d;
			sym = shared;
			shared += d;
			fits = FN(quantise_vector)(b, v, x, y, sym, &t, d, false, half);
		}
		if (fits)
			continue;
		n = FN(quantise_escapes)(b, v, x, y, sym, &t, raw + escapes, most - escapes, d,
					 c >= KVC_KVQ_ALONE, half);
		escapes += n;
	}
	b->zeros = FN(zeros_of)(b->sym, (size_t)b->vectors * d);
	return escapes;
}

LOOP void FN(dequantise_half)(floats *f, const struct scale *t, uint32_t i, bool alone)
{
	floats m, step;

	if (alone) {
		*f *= t->one_step;
		return;
	}
	memcpy(&m, t->mean + i, sizeof m);
	memcpy(&step, t->step + i, sizeof step);
	*f = m + step * *f;
}

/* Decodes sixteen symbols. */
LOOP void FN(dequantise_lanes)(const uint8_t *sym, element *y, const struct scale *t, uint32_t i,
			       bool alone, bool half)
{
	floats f, g;

	FN(symbols_load)(&f, &g, sym);
	FN(dequantise_half)(&f, t, i, alone);
	FN(dequantise_half)(&g, t, i + HALF, alone);
	FN(lanes_store)(&f, &g, y, half);
}

LOOP void FN(dequantise_vector)(const uint8_t *sym, element *y, const struct scale *t, uint32_t d,
				bool alone, bool half)
{
	uint32_t i = 0;

	for (; i + LANES <= d; i += LANES)
		FN(dequantise_lanes)(sym + i, y + i, t, i, alone, half);
	if (i < d) {
		float tables[2][LANES] = { 0 };
		struct scale rest = { tables[0], tables[1], NULL, t->one_step, 0 };
		uint8_t symbols[2 * LANES] = { 0 };
		element to[LANES];

		memcpy(symbols, sym + i, d - i);
		if (!alone) {
			memcpy(tables[0], t->mean + i, (d - i) * sizeof(float));
			memcpy(tables[1], t->step + i, (d - i) * sizeof(float));
		}
		FN(dequantise_lanes)(symbols, to, &rest, 0, alone, half);
		memcpy(y + i, to, 2 * (size_t)(d - i));
	}
}

LOOP void FN(dequantise_loop)(const struct kvc_kvq_block *b, element *restrict y, uint32_t d,
			      bool half)
{
	const uint8_t *shared = b->sym, *lonely = b->sym + (size_t)b->in_classes * d;

	for (uint32_t v = 0; v < b->vectors; v++, y += d) {
		uint16_t c = b->of[v];
		struct scale t = { 0 };

		if (c >= KVC_KVQ_ALONE) {
			t.one_step = b->vector_step[v];
			FN(dequantise_vector)(lonely, y, &t, d, true, half);
			lonely += d;
		} else {
			t.mean = b->mean + (size_t)c * d;
			t.step = b->step + (size_t)c * d;
			FN(dequantise_vector)(shared, y, &t, d, false, half);
			shared += d;
		}
	}
}

/*
 * fp8: a code has a sign, four bits of exponent and three of mantissa. The vector's scale is the
 * exponent that code 0 would have; codes 1 to 7, of that exponent, are not used, and code 0 is
 * zero. The codes are the upper bits of the elements, so only integers are needed. `shift` is the
 * number of lost bits of the mantissa.
 */
LOOP void FN(fp8_encode_loop)(struct kvc_kvq_block *b, const element *x, uint8_t *scale, uint32_t d,
			      bool half)
{
	const int shift = half ? 7 : 4, mantissa = half ? 10 : 7;
	uint8_t *restrict sym = b->sym;

	for (uint32_t v = 0; v < b->vectors; v++, x += d, sym += d) {
		uint16_t most = 0, sub;
		int e;

		for (uint32_t i = 0; i < d; i++) {
			uint16_t a = x[i] & 0x7fff;

			most = a > most ? a : most;
		}
		/* the largest exponent after rounding must be the code's largest */
		e = ((most + (1 << (shift - 1))) >> mantissa) - 15;
		e = e > 0 ? e : 0;
		scale[v] = (uint8_t)e;
		sub = (uint16_t)(e << mantissa);
		for (uint32_t i = 0; i < d; i++) {
			uint16_t a = x[i] & 0x7fff;
			uint16_t r = (uint16_t)(a + (1 << (shift - 1)) - 1 + (a >> shift & 1));
			uint16_t code = r > sub ? (uint16_t)((uint16_t)(r - sub) >> shift) : 0;

			code = code > 127 ? 127 : code;
			code = code < 8 ? 0 : code;
			sym[i] = (uint8_t)(code | (x[i] >> 8 & 0x80));
		}
	}
}

LOOP void FN(fp8_decode_loop)(const struct kvc_kvq_block *b, const uint8_t *scale,
			      element *restrict y, uint32_t d, bool half)
{
	const int shift = half ? 7 : 4, mantissa = half ? 10 : 7;
	const uint8_t *restrict sym = b->sym;

	for (uint32_t v = 0; v < b->vectors; v++, y += d, sym += d) {
		uint16_t sub = (uint16_t)(scale[v] << mantissa);

		for (uint32_t i = 0; i < d; i++) {
			uint16_t code = sym[i] & 127;
			uint16_t a = code ? (uint16_t)((code << shift) + sub) : 0;

			y[i] = (uint16_t)((a & 0x7fff) | (uint16_t)(sym[i] & 0x80) << 8);
		}
	}
}

/*
 * Counts the lost elements: those that are not 0, have the symbol 0, and are decoded to another
 * value.
 */
LOOP uint32_t FN(lost_loop)(const struct kvc_kvq_block *b, const element *x, const element *y,
			    uint32_t *nonzero, uint32_t d)
{
	const uint8_t *shared = b->sym, *alone = b->sym + (size_t)b->in_classes * d;
	uint32_t lost = 0, some = 0;

	for (uint32_t v = 0; v < b->vectors; v++, x += d, y += d) {
		const uint8_t **at = b->of[v] >= KVC_KVQ_ALONE ? &alone : &shared, *sym = *at;

		*at += d;
		for (uint32_t i = 0; i < d; i++) {
			lost += (uint32_t)((sym[i] == 0) & (x[i] != y[i]) & ((x[i] & 0x7fff) != 0));
			some += (x[i] & 0x7fff) != 0;
		}
	}
	*nonzero = some;
	return lost;
}

LOOP void FN(measure_loop)(struct kvc_kvq_block *b, const element *x, const element *y, uint32_t d,
			   bool half)
{
	for (uint32_t v = 0; v < b->vectors; v++, x += d, y += d) {
		floats error[2] = { { 0 } }, energy[2] = { { 0 } }, f, g;

		for (uint32_t i = 0; i < d; i += LANES) {
			const element *px = x + i, *py = y + i;
			element pad[2][LANES] = { { 0 } };

			if (d - i < LANES) {
				memcpy(pad[0], px, 2 * (size_t)(d - i));
				memcpy(pad[1], py, 2 * (size_t)(d - i));
				px = pad[0];
				py = pad[1];
			}
			for (int j = 0; j < 2; j++) {
				FN(floats_load)(&f, px + HALF * j, half);
				FN(floats_load)(&g, py + HALF * j, half);
				g = f - g;
				error[j] += g * g;
				energy[j] += f * f;
			}
		}
		b->error[v] = FN(lanes_sum)(&error[0], &error[1]);
		b->energy[v] = FN(lanes_sum)(&energy[0], &energy[1]);
	}
	b->zeros = FN(zeros_of)(b->sym, (size_t)b->vectors * d);
}

/* The size of most vectors is known to the compiler, and so is the type. */
#define SIZED(loop, d, half, ...)                                                          \
	((half) ? ((d) == 128 ? loop(__VA_ARGS__, 128, true) : loop(__VA_ARGS__, d, true)) \
		: ((d) == 128 ? loop(__VA_ARGS__, 128, false) : loop(__VA_ARGS__, d, false)))

TARGET static bool FN(finite)(const struct kvc_kvq_block *b, const void *x)
{
	return FN(finite_loop)(b, x, b->half);
}

TARGET static void FN(sums)(struct kvc_kvq_block *b, const void *x)
{
	SIZED(FN(sums_loop), b->d, b->half, b, x);
}

TARGET static uint32_t FN(quantise)(struct kvc_kvq_block *b, const void *x, void *y, void *raw,
				    uint32_t most)
{
	return SIZED(FN(quantise_loop), b->d, b->half, b, x, y, raw, most);
}

TARGET static void FN(dequantise)(const struct kvc_kvq_block *b, void *y)
{
	SIZED(FN(dequantise_loop), b->d, b->half, b, y);
}

TARGET static void FN(fp8_encode)(struct kvc_kvq_block *b, const void *x, uint8_t *scale)
{
	SIZED(FN(fp8_encode_loop), b->d, b->half, b, x, scale);
}

TARGET static void FN(fp8_decode)(const struct kvc_kvq_block *b, const uint8_t *scale, void *y)
{
	SIZED(FN(fp8_decode_loop), b->d, b->half, b, scale, y);
}

TARGET static void FN(measure)(struct kvc_kvq_block *b, const void *x, const void *y)
{
	SIZED(FN(measure_loop), b->d, b->half, b, x, y);
}

TARGET static uint32_t FN(lost)(const struct kvc_kvq_block *b, const void *x, const void *y,
				uint32_t *nonzero)
{
	return FN(lost_loop)(b, x, y, nonzero, b->d);
}

static const struct kvc_kvq_kernels FN(kernels) = {
	TEXT(SET),      FN(finite),     FN(sums),    FN(quantise), FN(dequantise),
	FN(fp8_encode), FN(fp8_decode), FN(measure), FN(lost),
};

#undef SIZED
#undef TEXT
#undef TEXT_
#undef FN
#undef FN__
#undef FN_
#undef LOOP
#undef TARGET
#undef WIDE
#undef SET
