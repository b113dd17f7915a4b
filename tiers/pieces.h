/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Frames in a store of values by key, for drivers whose service limits the size of a value (redis,
 * ext). A frame is a head and pieces:
 *
 *   head        the header, struct kvct_trailer, and the payload if it has at most
 *               KVCT_INLINE bytes
 *   piece I     bytes of the payload from I * KVCT_PIECE
 *
 * Each put has a random tag, which is part of the keys of its pieces, so a reader never mixes two
 * versions. The head is written last; then the pieces of the version that it replaced are removed.
 * A reader that misses a piece starts again.
 *
 * The driver supplies the calls in struct kvct_pieces_ops. Every call may be repeated: a set writes
 * the same bytes under the same key.
 */
#ifndef KVCT_PIECES_H
#define KVCT_PIECES_H

#include "budget.h"
#include "tier.h"

#define KVCT_PIECE (4u << 20)
#define KVCT_INLINE (64u << 10)
#define KVCT_HEAD_MAX (KVC_FRAME_HEADER + sizeof(struct kvct_trailer) + KVCT_INLINE)
/* bytes per second; lengthens the deadline of a call */
#define KVCT_SLOWEST (4ull << 20)

struct kvct_trailer {
	uint64_t tag, stored_len;
	uint32_t piece, pad; /* piece: bytes of each piece except the last; 0: inline */
};
/*
 * Reads a stored trailer, which any program may have written. Returns 0, or -EBADMSG; then *t is
 * undefined.
 */
int kvct_trailer_read(const uint8_t *p, struct kvct_trailer *t);

/* Identifies a value of the frame of the current call: its head, or piece `nr` of a version. */
struct kvct_value {
	bool head;
	uint64_t tag, nr;
};

struct kvct_pieces_ops {
	/*
	 * Starts a deadline for the following calls, which move `bytes` bytes together. It replaces
	 * the deadline before it. Calls after it fail with -ETIMEDOUT.
	 */
	void (*begin)(void *arg, uint64_t bytes);
	/*
	 * Reads `len` bytes of a value from byte `from`. Returns the number of bytes, which is
	 * smaller if the value ends; 0 if it does not exist; or a negative errno of tier.h.
	 */
	long (*get)(void *arg, const struct kvct_value *v, uint64_t from, uint64_t len, void *buf);
	/*
	 * Sets a value, which the service may delete after ttl_ms (0: never). If `before` is not
	 * NULL (v is a head), it gets the trailer of the replaced head, with piece 0 if there was
	 * none. Returns 0 or a negative errno; -EIO if the value may have been set.
	 */
	int (*set)(void *arg, const struct kvct_value *v, const void *data, size_t len,
		   uint64_t ttl_ms, struct kvct_trailer *before);
	/* Removes a value. Returns 0, and sets *existed; or a negative errno. */
	int (*unlink)(void *arg, const struct kvct_value *v, bool *existed);
	/*
	 * Bytes of the budget that the driver's calls use for a value of KVCT_PIECE bytes: when it
	 * is set, and in addition to the bytes themselves when it is read.
	 */
	uint64_t set_bytes, get_bytes;
};

/*
 * These implement put, get and remove of struct kvc_tier_ops. `arg` belongs to one call: it knows
 * the frame's name. They return what tier.h says.
 */
int kvct_pieces_put(const struct kvct_pieces_ops *ops, void *arg, const struct kvc_put *p,
		    struct kvc_where *out);
int kvct_pieces_get(const struct kvct_pieces_ops *ops, void *arg, uint64_t off,
		    const struct iovec *iov, int n);
int kvct_pieces_remove(const struct kvct_pieces_ops *ops, void *arg);

/*
 * Detects listings that never end: those that repeat a cursor, and those with millions of steps in
 * a row without a frame. One cursor is remembered, and replaced after twice as many steps, so a
 * cycle of any length is found (Brent's algorithm).
 */
struct kvct_progress {
	char cursor[32];
	uint64_t steps, next; /* next: 1 at the start */
	uint64_t empty;       /* steps since the last frame */
};
/* Notes a step. Returns false if the listing does not progress, so that the caller ends it. */
bool kvct_progress_step(struct kvct_progress *p, const char *cursor, bool frames);

#endif
