/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Writers of the two encodings that engines hash: canonical CBOR (RFC 8949, 4.2.1) and Python's
 * pickle, protocol 5. If memory runs out, a writer sets `failed` and later calls do nothing, so
 * only the end of a stream is checked.
 */
#ifndef KVCACHEFS_CODE_H
#define KVCACHEFS_CODE_H

#include "priv.h"

struct kvcachefs_buf {
	uint8_t *p;
	size_t len, capacity;
	size_t frame; /* pickle: the start of the open frame; NO_FRAME: none is open */
	bool failed;
};

#pragma GCC visibility push(hidden)
void kvcachefs_put(struct kvcachefs_buf *b, const void *p, size_t n);

/*
 * Write the head of an array (its items follow), an unsigned or negative integer, text, bytes, and
 * null.
 */
void kvcachefs_cbor_array(struct kvcachefs_buf *b, uint64_t n);
void kvcachefs_cbor_int(struct kvcachefs_buf *b, bool negative, uint64_t magnitude);
void kvcachefs_cbor_text(struct kvcachefs_buf *b, const char *s);
void kvcachefs_cbor_bytes(struct kvcachefs_buf *b, const void *p, size_t n);
void kvcachefs_cbor_none(struct kvcachefs_buf *b);

/*
 * Write what CPython's pickle.dumps(x, 5) writes, for values that contain no object twice. (Pickle
 * writes a second occurrence as a reference, and only Python knows which objects are identical.)
 */
void kvcachefs_pickle_begin(struct kvcachefs_buf *b);
void kvcachefs_pickle_end(struct kvcachefs_buf *b);
void kvcachefs_pickle_int(struct kvcachefs_buf *b, uint64_t v);
void kvcachefs_pickle_text(struct kvcachefs_buf *b, const char *s);
void kvcachefs_pickle_bytes(struct kvcachefs_buf *b, const void *p, size_t n);
void kvcachefs_pickle_none(struct kvcachefs_buf *b);
/* A tuple of n items: tuple, the items, tuple_end. */
void kvcachefs_pickle_tuple(struct kvcachefs_buf *b, uint64_t n);
void kvcachefs_pickle_tuple_end(struct kvcachefs_buf *b, uint64_t n);
#pragma GCC visibility pop

#endif
