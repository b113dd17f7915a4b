/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Serialized state of a policy: numbers one after another, little endian. After a failure all
 * functions still may be called and have no effect; the caller checks for failure at the end.
 */
#ifndef KVC_STATE_H
#define KVC_STATE_H

#include "util.h"

struct kvc_out {
	uint8_t *v; /* the caller frees it */
	size_t n, capacity;
	bool failed; /* memory was short */
};

struct kvc_in {
	const uint8_t *v;
	size_t n; /* bytes left */
	bool bad; /* the input was too short or had an invalid value; the caller sets it too */
};

/*
 * Saving in pieces, each in bounded time; the cache may change between pieces
 * (kvc_replacer_save_piece). The policy uses part, pass and row for its position.
 */
struct kvc_saving {
	struct kvc_out out;
	const void *policy;
	unsigned part, pass;
	uint64_t row, last; /* last: the id at that row */
	/*
	 * Data gathered as it is in memory. After the last piece, the converted `rows` are inserted
	 * at rows_at of `out`, and the converted `more` are appended.
	 */
	struct kvc_out rows, more[2];
	size_t rows_at, capacity[2]; /* approximate sizes that `more` will have */
	uint32_t n[2], now, from;
	/* ghosts.c: number of ghosts by age; ghosts younger than `young` are saved */
	uint32_t *ages;
	uint64_t young;
};

#define KVC_PIECE 4096u /* rows of a table that one piece reads, in about 0.1 ms */

void kvc_state_saving_fini(struct kvc_saving *s);
/* Inserts `from` at s->rows_at of s->out, and frees `from`. */
void kvc_state_saving_insert(struct kvc_saving *s, struct kvc_out *from);

/*
 * Allocates memory for n bytes in all and touches it. Without this call, or if memory is short, the
 * buffer grows as bytes are written.
 */
void kvc_state_out_reserve(struct kvc_out *o, size_t n);
void kvc_state_out_bytes(struct kvc_out *o, const void *v, size_t n);
void kvc_state_out_8(struct kvc_out *o, uint8_t v);
void kvc_state_out_32(struct kvc_out *o, uint32_t v);
void kvc_state_out_64(struct kvc_out *o, uint64_t v);
/* Overwrite a number at offset `at`. */
void kvc_state_out_32_at(struct kvc_out *o, size_t at, uint32_t v);
void kvc_state_out_64_at(struct kvc_out *o, size_t at, uint64_t v);
void kvc_state_out_float(struct kvc_out *o, float v);
void kvc_state_out_double(struct kvc_out *o, double v);

/* Return 0 past the end. */
uint8_t kvc_state_in_8(struct kvc_in *in);
uint32_t kvc_state_in_32(struct kvc_in *in);
uint64_t kvc_state_in_64(struct kvc_in *in);
/* Infinite and NaN values are invalid. */
float kvc_state_in_float(struct kvc_in *in);
double kvc_state_in_double(struct kvc_in *in);
/*
 * Reads a number of elements. It is valid if it is at most `most` and that many elements of `bytes`
 * bytes each are left; otherwise returns 0.
 */
uint32_t kvc_state_in_count(struct kvc_in *in, uint64_t most, size_t bytes);
/* Skips n bytes. */
void kvc_state_in_skip(struct kvc_in *in, uint64_t n);

#endif
