/* SPDX-License-Identifier: Apache-2.0 */
/*
 * See code.h. Pickle's stream is PROTO 5, then frames. A frame is opened by the first write after
 * the previous one was closed. It is closed at the start of a value once it has 64 KiB or more
 * (CPython's Modules/_pickle.c: save(), _Pickler_OpcodeBoundary). The end of the stream closes the
 * last frame, and omits its head if it has less than 4 bytes. MEMOIZE follows every value of type
 * bytes, text or tuple, except the empty tuple.
 */
#include "code.h"

#include <stdlib.h>
#include <string.h>

#define NO_FRAME SIZE_MAX
#define FRAME_HEAD 9
#define FRAME_TARGET 65536
#define FRAME_LEAST 4

/* Opcodes, from Lib/pickle.py. */
enum {
	PROTO = 0x80,
	FRAME = 0x95,
	MEMOIZE = 0x94,
	STOP = '.',
	NONE = 'N',
	BININT = 'J',
	BININT1 = 'K',
	BININT2 = 'M',
	LONG1 = 0x8a,
	SHORT_BINUNICODE = 0x8c,
	BINUNICODE = 'X',
	SHORT_BINBYTES = 'C',
	BINBYTES = 'B',
	EMPTY_TUPLE = ')',
	MARK = '(',
	TUPLE = 't',
	TUPLE1 = 0x85
};

void kvcachefs_put(struct kvcachefs_buf *b, const void *p, size_t n)
{
	if (b->failed || !n)
		return;
	if (n > b->capacity - b->len) {
		size_t more = (b->len + n) * 2;
		uint8_t *q = more > n ? realloc(b->p, more) : NULL;

		if (!q) {
			b->failed = true;
			return;
		}
		b->p = q;
		b->capacity = more;
	}
	memcpy(b->p + b->len, p, n);
	b->len += n;
}

/* ---- CBOR ---- */

/* Writes a major type, and a number in its shortest form. */
static void head(struct kvcachefs_buf *b, unsigned major, uint64_t v)
{
	uint8_t h[9];
	int n = v < 24 ? 0 : v < 256 ? 1 : v < 65536 ? 2 : v >> 32 ? 8 : 4;

	h[0] = (uint8_t)(major << 5 | (n == 0 ? v : n == 1 ? 24 : n == 2 ? 25 : n == 4 ? 26 : 27));
	for (int i = 0; i < n; i++)
		h[1 + i] = (uint8_t)(v >> 8 * (n - 1 - i));
	kvcachefs_put(b, h, 1 + (size_t)n);
}

void kvcachefs_cbor_array(struct kvcachefs_buf *b, uint64_t n)
{
	head(b, 4, n);
}

void kvcachefs_cbor_int(struct kvcachefs_buf *b, bool negative, uint64_t magnitude)
{
	if (negative && magnitude)
		head(b, 1, magnitude - 1);
	else
		head(b, 0, magnitude);
}

void kvcachefs_cbor_text(struct kvcachefs_buf *b, const char *s)
{
	size_t n = strlen(s);

	head(b, 3, n);
	kvcachefs_put(b, s, n);
}

void kvcachefs_cbor_bytes(struct kvcachefs_buf *b, const void *p, size_t n)
{
	head(b, 2, n);
	kvcachefs_put(b, p, n);
}

void kvcachefs_cbor_none(struct kvcachefs_buf *b)
{
	kvcachefs_put(b, "\xf6", 1);
}

/* ---- Pickle ---- */

static void close_frame(struct kvcachefs_buf *b)
{
	size_t n;

	if (b->failed || b->frame == NO_FRAME)
		return;
	n = b->len - b->frame - FRAME_HEAD;
	if (n >= FRAME_LEAST) {
		b->p[b->frame] = FRAME;
		for (int i = 0; i < 8; i++)
			b->p[b->frame + 1 + (size_t)i] = (uint8_t)((uint64_t)n >> 8 * i);
	} else {
		memmove(b->p + b->frame, b->p + b->frame + FRAME_HEAD, n);
		b->len -= FRAME_HEAD;
	}
	b->frame = NO_FRAME;
}

static void op(struct kvcachefs_buf *b, const void *p, size_t n)
{
	if (b->frame == NO_FRAME) {
		size_t at = b->len;

		kvcachefs_put(b, "\0\0\0\0\0\0\0\0", FRAME_HEAD);
		b->frame = at;
	}
	kvcachefs_put(b, p, n);
}

static void op1(struct kvcachefs_buf *b, int code)
{
	uint8_t c = (uint8_t)code;

	op(b, &c, 1);
}

static void value_begins(struct kvcachefs_buf *b)
{
	if (b->frame != NO_FRAME && b->len - b->frame - FRAME_HEAD >= FRAME_TARGET)
		close_frame(b);
}

static void little(uint8_t *p, uint64_t v, int n)
{
	for (int i = 0; i < n; i++)
		p[i] = i < 8 ? (uint8_t)(v >> 8 * i) : 0;
}

void kvcachefs_pickle_begin(struct kvcachefs_buf *b)
{
	static const uint8_t proto[] = { PROTO, 5 };

	b->frame = NO_FRAME;
	kvcachefs_put(b, proto, sizeof proto);
}

void kvcachefs_pickle_end(struct kvcachefs_buf *b)
{
	op1(b, STOP);
	close_frame(b);
}

void kvcachefs_pickle_int(struct kvcachefs_buf *b, uint64_t v)
{
	uint8_t p[11];
	int n;

	value_begins(b);
	if (v < 256) {
		p[0] = BININT1;
		n = 1;
	} else if (v < 65536) {
		p[0] = BININT2;
		n = 2;
	} else if (v <= INT32_MAX) {
		p[0] = BININT;
		n = 4;
	} else { /* two's complement: if the top bit is set, a zero byte is added */
		p[0] = LONG1;
		n = (64 - __builtin_clzll(v)) / 8 + 1;
		p[1] = (uint8_t)n;
		little(p + 2, v, n);
		op(b, p, 2 + (size_t)n);
		return;
	}
	little(p + 1, v, n);
	op(b, p, 1 + (size_t)n);
}

/* Text or bytes: the short form has a length of one byte, the other of four. */
static void pickle_string(struct kvcachefs_buf *b, int small, int large, const void *s, size_t n)
{
	uint8_t p[5];

	value_begins(b);
	/* CPython writes longer strings outside of frames; no key contains one */
	if (n >= FRAME_TARGET) {
		b->failed = true;
		return;
	}
	p[0] = (uint8_t)(n < 256 ? small : large);
	little(p + 1, n, 4);
	op(b, p, n < 256 ? 2 : 5);
	op(b, s, n);
	op1(b, MEMOIZE);
}

void kvcachefs_pickle_text(struct kvcachefs_buf *b, const char *s)
{
	pickle_string(b, SHORT_BINUNICODE, BINUNICODE, s, strlen(s));
}

void kvcachefs_pickle_bytes(struct kvcachefs_buf *b, const void *p, size_t n)
{
	pickle_string(b, SHORT_BINBYTES, BINBYTES, p, n);
}

void kvcachefs_pickle_none(struct kvcachefs_buf *b)
{
	value_begins(b);
	op1(b, NONE);
}

void kvcachefs_pickle_tuple(struct kvcachefs_buf *b, uint64_t n)
{
	value_begins(b);
	if (n > 3)
		op1(b, MARK);
}

void kvcachefs_pickle_tuple_end(struct kvcachefs_buf *b, uint64_t n)
{
	if (!n) {
		op1(b, EMPTY_TUPLE);
		return;
	}
	op1(b, n > 3 ? TUPLE : TUPLE1 + (int)n - 1);
	op1(b, MEMOIZE);
}
