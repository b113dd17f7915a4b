/* SPDX-License-Identifier: Apache-2.0 */
/*
 * libkvcachefs: rotations, which shift cached keys to other positions (RoPE). See libkvcachefs(3).
 */
#ifndef KVCACHEFS_ROPE_SHIFT_H
#define KVCACHEFS_ROPE_SHIFT_H

#include "kvcachefs.h"

#ifdef __cplusplus
extern "C" {
#endif

/*
 * fp8 as in PyTorch: e4m3fn (no infinity) and e5m2. Values that are too large become the largest
 * number.
 */
enum kvcachefs_float {
	KVCACHEFS_F32,
	KVCACHEFS_F16,
	KVCACHEFS_BF16,
	KVCACHEFS_E4M3,
	KVCACHEFS_E5M2
};

/*
 * Each key moves by delta positions: pair i of a head's rotated elements turns by delta * f_i.
 * Exactly one of theta, inv_freq and cos_sin defines f. Angles are computed once and cached by
 * value for later transfers. A scale of quantized keys, and YaRN's factor on cos and sin, are
 * already part of the keys and stay unchanged.
 */
struct kvcachefs_rope {
	/* f_i = theta^(-2i / dims), such as 10000 or 500000; 0: not used. */
	double theta;
	/* The f_i themselves, dims / 2 values, as the model scales them; NULL: not used. */
	const double *inv_freq;
	/*
	 * The engine's table (vLLM's cos_sin_cache): [rows][dims] floats, one row for each
	 * position: cos of all pairs, then sin. Row |delta| is used and scaled to length 1.
	 * |delta| at or above rows: -ERANGE. NULL: not used.
	 */
	const float *cos_sin;
	uint64_t rows;
	uint32_t first; /* the first rotated element: 512 if the last 64 of 576 are rotated */
	uint32_t dims;  /* number of rotated elements; even; 0: all from first on */
	/* true: pairs are neighbours (GPT-J, DeepSeek); false: halves (NeoX, Llama) */
	bool interleaved;
	int64_t delta; /* new position - old position */
	enum kvcachefs_float type;
};
/*
 * The f_i as models scale them, dims / 2 values to out. Llama 3.1's "llama3" (factor 8, low 1, high
 * 4 and original 8192 in that model) and "yarn" (beta_fast 32 and beta_slow 1 unless the model says
 * otherwise; `original` positions; truncated bounds): transformers/modeling_rope_utils.py,
 * _compute_llama3_parameters and _compute_yarn_parameters. -EINVAL: invalid numbers.
 */
int kvcachefs_rope_llama3(double theta, uint32_t dims, double factor, double low, double high,
			  double original, double *out);
int kvcachefs_rope_yarn(double theta, uint32_t dims, double factor, double beta_fast,
			double beta_slow, double original, double *out);
/*
 * Rotates the keys of n tokens with `heads` heads in place, [token][head][element], in host memory.
 * -EINVAL: an invalid rotation; -ERANGE: delta is outside the table; -ENOMEM.
 */
int kvcachefs_rope_shift(const struct kvcachefs_rope *r, void *keys, size_t n, uint32_t heads,
			 uint32_t head_size);

#ifdef __cplusplus
}
#endif
#endif
