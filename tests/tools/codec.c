/* SPDX-License-Identifier: Apache-2.0 */
/*
 * codec: prints ratio and speed of the codecs on one core, a line each: LABEL RATIO ENCODE DECODE
 * (GB/s). The data resemble K and V: normal values whose scale differs between channels
 * (log-normal, sigma 0.8, 128 channels), some channels ten times larger like K's outliers, in bf16,
 * fp16 and fp8 (e4m3, by truncation); and random bytes, which cannot be compressed.
 */
#include "codec.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#define BLOCKS 48

static double normal(unsigned *seed)
{
	double u = (rand_r(seed) + 1.0) / (RAND_MAX + 2.0), v = rand_r(seed) / (RAND_MAX + 1.0);

	return sqrt(-2 * log(u)) * cos(2 * M_PI * v);
}

static void make(uint8_t *p, size_t len, int kind)
{
	unsigned seed = 42;
	float scale[128];

	for (int i = 0; i < 128; i++)
		scale[i] = (float)(exp(normal(&seed) * 0.8) * (i % 32 == 5 ? 10 : 1));
	for (size_t i = 0; i < len / (kind == 2 ? 1 : 2); i++) {
		float f = (float)normal(&seed) * scale[i % 128];
		_Float16 h = (_Float16)f;
		uint32_t u;
		uint16_t w;

		memcpy(&u, &f, 4);
		if (kind == 3) {
			w = (uint16_t)(rand_r(&seed) >> 5);
			memcpy(p + 2 * i, &w, 2);
		} else if (kind == 2) { /* sign, 4 bits of exponent (bias 7), 3 of mantissa */
			int e = (int)(u >> 23 & 255) - 127 + 7;

			p[i] = (uint8_t)(u >> 24 & 0x80) |
			       (uint8_t)(e < 0    ? 0
					 : e > 15 ? 0x7e
						  : e << 3 | (u >> 20 & 7));
		} else {
			w = (uint16_t)(u >> 16);
			memcpy(p + 2 * i, kind ? (void *)&h : (void *)&w, 2);
		}
	}
}

int main(void)
{
	static const char *const kinds[] = { "bf16", "fp16", "fp8", "random" };
	size_t len = (size_t)BLOCKS * KVC_BLOCK;
	uint8_t *in = malloc(len), *out = malloc((size_t)BLOCKS * KVC_BLOCK_ROOM),
		*back = malloc(KVC_BLOCK);
	struct kvc_codec_work *w = kvc_codec_work_get();

	if (!in || !out || !back || !w)
		return 2;
	memset(out, 1, (size_t)BLOCKS * KVC_BLOCK_ROOM);
	for (int kind = 0; kind < 4; kind++) {
		make(in, len, kind);
		for (int codec = KVC_CODEC_ZSTD; codec < KVC_CODECS; codec++) {
			double enc = 0, dec = 0;
			uint64_t total = 0;

			for (int r = 0; r < 5; r++) {
				uint64_t e = 0, d = 0, t;

				total = 0;
				for (int b = 0; b < BLOCKS; b++) {
					uint8_t *to = out + (size_t)b * KVC_BLOCK_ROOM;
					uint32_t k;

					t = kvc_mono_ns();
					size_t n = kvc_codec_encode(w, (enum kvc_codec)codec, 1,
								    in + (size_t)b * KVC_BLOCK,
								    KVC_BLOCK, to, &k);

					e += kvc_mono_ns() - t;
					total += n ? n : KVC_BLOCK;
					t = kvc_mono_ns();
					if (kvc_codec_decode(w, k,
							     n ? to : in + (size_t)b * KVC_BLOCK,
							     n ? n : KVC_BLOCK, back, KVC_BLOCK))
						return 1;
					d += kvc_mono_ns() - t;
					if (memcmp(back, in + (size_t)b * KVC_BLOCK, KVC_BLOCK))
						return 1;
				}
				enc = fmax(enc, (double)len / (double)e);
				dec = fmax(dec, (double)len / (double)d);
			}
			printf("%s on %s data %.2f %.2f %.2f\n", kvc_codec_names[codec],
			       kinds[kind], (double)len / (double)total, enc, dec);
		}
	}
	kvc_codec_work_put(w, false);
	free(in);
	free(out);
	free(back);
	return 0;
}
