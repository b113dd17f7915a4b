/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Writers of the two codings that engines hash: canonical CBOR (RFC 8949, 4.2.1) and Python's
 * pickle, protocol 5. A writer that finds no memory sets `failed` and goes on doing nothing, so
 * that only the end of a stream is checked.
 */
#ifndef KVCACHEFS_CODE_H
#define KVCACHEFS_CODE_H

#include "priv.h"

struct kvcachefs_buf {
	uint8_t *p;
	size_t len, room;
	size_t frame; /* pickle: where the open frame begins; NO_FRAME: none is open */
	bool failed;
};

#pragma GCC visibility push(hidden)
void kvcachefs_put(struct kvcachefs_buf *b, const void *p, size_t n);

/* An array's head, then its items; an unsigned or negative integer; text and bytes. */
void kvcachefs_cbor_array(struct kvcachefs_buf *b, uint64_t n);
void kvcachefs_cbor_int(struct kvcachefs_buf *b, bool negative, uint64_t magnitude);
void kvcachefs_cbor_text(struct kvcachefs_buf *b, const char *s);
void kvcachefs_cbor_bytes(struct kvcachefs_buf *b, const void *p, size_t n);
void kvcachefs_cbor_none(struct kvcachefs_buf *b);

/*
 * What pickle.dumps(x, 5) of CPython writes, for values without an object in them twice (a second
 * mention would be a reference to the first, and which objects are the same only Python knows).
 */
void kvcachefs_pickle_begin(struct kvcachefs_buf *b);
void kvcachefs_pickle_end(struct kvcachefs_buf *b);
void kvcachefs_pickle_int(struct kvcachefs_buf *b, uint64_t v);
void kvcachefs_pickle_text(struct kvcachefs_buf *b, const char *s);
void kvcachefs_pickle_bytes(struct kvcachefs_buf *b, const void *p, size_t n);
void kvcachefs_pickle_none(struct kvcachefs_buf *b);
/* A tuple of n items: open, its items, close. */
void kvcachefs_pickle_tuple(struct kvcachefs_buf *b, uint64_t n);
void kvcachefs_pickle_tuple_end(struct kvcachefs_buf *b, uint64_t n);
#pragma GCC visibility pop

#endif
