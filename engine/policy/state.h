/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Bytes in which a policy outlives its process: numbers one after another, little endian. Writing
 * and reading both go on after a failure, without effect, and it is asked for at the end.
 */
#ifndef KVC_STATE_H
#define KVC_STATE_H

#include "util.h"

struct kvc_out {
	uint8_t *v; /* the caller's, who frees it */
	size_t n, capacity;
	bool failed; /* out of memory */
};

struct kvc_in {
	const uint8_t *v;
	size_t n; /* what is left */
	bool bad; /* it ended too early, or had what cannot be: who reads says so too */
};

/*
 * Writing in pieces, each of a bounded time: what is saved may change between two of them
 * (kvc_replacer_save_piece). Where it goes on is the policy's to use: a part, a pass over that, a
 * row.
 */
struct kvc_saving {
	struct kvc_out out;
	const void *policy;
	unsigned part, pass;
	uint64_t row, last; /* last: the id there */
	/*
	 * gathered as it was found: what becomes of rows is put in at rows_at of `out` in the end,
	 * and what becomes of the others behind it
	 */
	struct kvc_out rows, more[2];
	size_t rows_at, capacity[2]; /* that `more` will take, about */
	uint32_t n[2], now, from;
	/* ghosts.c: how many there are by age; and who is younger than that is new enough */
	uint32_t *ages;
	uint64_t young;
};

#define KVC_PIECE 4096u /* rows of a table: some 0.1 ms */

void kvc_state_saving_fini(struct kvc_saving *s);
/* What was written elsewhere comes in at s->rows_at; it is freed. */
void kvc_state_saving_insert(struct kvc_saving *s, struct kvc_out *from);

/* It has room for so much in all, and that memory is there. Without it room is made as it goes. */
void kvc_state_out_room(struct kvc_out *o, size_t n);
void kvc_state_out_bytes(struct kvc_out *o, const void *v, size_t n);
void kvc_state_out_8(struct kvc_out *o, uint8_t v);
void kvc_state_out_32(struct kvc_out *o, uint32_t v);
void kvc_state_out_64(struct kvc_out *o, uint64_t v);
/* In the place of one that is there. */
void kvc_state_out_32_at(struct kvc_out *o, size_t at, uint32_t v);
void kvc_state_out_64_at(struct kvc_out *o, size_t at, uint64_t v);
void kvc_state_out_float(struct kvc_out *o, float v);
void kvc_state_out_double(struct kvc_out *o, double v);

/* Zero past the end. */
uint8_t kvc_state_in_8(struct kvc_in *in);
uint32_t kvc_state_in_32(struct kvc_in *in);
uint64_t kvc_state_in_64(struct kvc_in *in);
/* Only finite ones are good. */
float kvc_state_in_float(struct kvc_in *in);
double kvc_state_in_double(struct kvc_in *in);
/* A number that is at most that, and of things with `bytes` each, which must be there: else 0. */
uint32_t kvc_state_in_count(struct kvc_in *in, uint64_t most, size_t bytes);
/* Goes over so many bytes. */
void kvc_state_in_skip(struct kvc_in *in, uint64_t n);

#endif
