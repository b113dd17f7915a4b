/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Frames as heads and pieces; see pieces.h. A call has no state outside its own stack, and the
 * memory of its buffers is from the budget.
 */
#include "pieces.h"

#include <endian.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

/* pieces of a frame, which also bounds the deletions that a trailer can cause */
#define PIECES (1u << 16)
/*
 * Steps of a listing in a row without a frame. A nearly empty table of 2^32 buckets takes this many
 * steps of 500; a server that answers each in .1 ms needs a quarter of an hour.
 */
#define EMPTY_STEPS (9u << 20)

static const struct kvct_value head_value = { .head = true };

/* The calls of one operation. */
struct op {
	const struct kvct_pieces_ops *ops;
	void *arg;
};

/* Memory of the budget, for the driver's allocations. */
struct budget_part {
	enum kvc_budget_use use;
	uint64_t bytes;
};
static void budget_part_end(struct budget_part *s)
{
	kvc_budget_release(s->use, s->bytes);
}
#define BUDGET_PART __attribute__((cleanup(budget_part_end))) struct budget_part

static int budget_part_take(struct budget_part *s, enum kvc_budget_use use, uint64_t bytes)
{
	int err = kvc_budget_wait(use, bytes);

	if (!err)
		*s = (struct budget_part){ use, bytes };
	return err;
}

int kvct_trailer_read(const uint8_t *p, struct kvct_trailer *t)
{
	memcpy(t, p, sizeof *t);
	t->tag = le64toh(t->tag);
	t->stored_len = le64toh(t->stored_len);
	t->piece = le32toh(t->piece);
	return t->stored_len >> 48 || (t->piece && t->piece < 4096) ||
			       (t->piece && t->stored_len / t->piece >= PIECES) ||
			       (!t->piece && t->stored_len > KVCT_INLINE)
		       ? -EBADMSG
		       : 0;
}

static struct kvct_value piece_value(const struct kvct_trailer *t, uint64_t nr)
{
	return (struct kvct_value){ .tag = t->tag, .nr = nr };
}

/* Reads the header and the trailer of the same version. */
static int head_get(const struct op *o, uint8_t *header, struct kvct_trailer *t)
{
	uint8_t buf[KVC_FRAME_HEADER + sizeof *t];
	long n = o->ops->get(o->arg, &head_value, 0, sizeof buf, buf);

	if (n < 0)
		return (int)n;
	if (n != sizeof buf)
		return n ? -EBADMSG : -ENOENT;
	if (header)
		memcpy(header, buf, KVC_FRAME_HEADER);
	return kvct_trailer_read(buf + KVC_FRAME_HEADER, t);
}

/*
 * Removes the pieces up to the first missing one. The removal has a deadline of its own, since
 * another program may have written the trailer.
 */
static void unlink_pieces(const struct op *o, const struct kvct_trailer *t)
{
	uint64_t n = t->piece ? (t->stored_len + t->piece - 1) / t->piece : 0;
	bool exists = true;

	o->ops->begin(o->arg, 0);
	for (uint64_t i = 0; i < n && exists; i++) {
		struct kvct_value v = piece_value(t, i);

		if (o->ops->unlink(o->arg, &v, &exists))
			return; /* the pieces stay until their ttl ends or the server is emptied */
	}
}

/* Stores the payload in pieces. Sets *sent if pieces must be removed after a failure. */
static int pieces_put(const struct op *o, const struct kvc_put *p, const struct kvct_trailer *mine,
		      bool *sent)
{
	KVC_MEM uint8_t *piece = malloc(KVCT_PIECE);
	int err = piece ? 0 : -ENOMEM;

	for (uint64_t off = 0, i = 0; off < p->stored_len && !err; i++) {
		size_t len = kvc_min(p->stored_len - off, KVCT_PIECE);
		struct kvct_value v = piece_value(mine, i);

		err = p->read(p->arg, piece, len, off)
			      ?: o->ops->set(o->arg, &v, piece, len, p->ttl_ms, NULL);
		*sent |= !err;
		off += len;
	}
	return err;
}

/*
 * Sets the head, and removes the pieces of the replaced one. After -EIO the head is read again to
 * check whether it was set.
 */
static int head_put(const struct op *o, const uint8_t *head, size_t len, uint64_t ttl_ms,
		    const struct kvct_trailer *mine)
{
	struct kvct_trailer before = { 0 }, now;
	int err = o->ops->set(o->arg, &head_value, head, len, ttl_ms, &before);

	if (err == -EIO && !head_get(o, NULL, &now) && now.tag == mine->tag)
		return 0;
	/* The tag is the same if the call was made twice because an answer was lost. */
	if (!err && before.piece && before.tag != mine->tag)
		unlink_pieces(o, &before);
	return err;
}

int kvct_pieces_put(const struct kvct_pieces_ops *ops, void *arg, const struct kvc_put *p,
		    struct kvc_where *out)
{
	const struct op o = { ops, arg };
	bool in_head = p->stored_len <= KVCT_INLINE, sent = false;
	size_t len = KVC_FRAME_HEADER + sizeof(struct kvct_trailer) + (in_head ? p->stored_len : 0);
	struct kvct_trailer mine = { .stored_len = p->stored_len,
				     .piece = in_head ? 0 : KVCT_PIECE },
			    wire;
	KVC_MEM uint8_t *head = malloc(len);
	BUDGET_PART memory = { 0 };
	int err = head ? 0 : -ENOMEM;

	ops->begin(arg, p->stored_len);
	if (!err && p->stored_len > KVCT_PIECE * (uint64_t)PIECES)
		err = -EFBIG;
	if (!err && !in_head)
		err = budget_part_take(&memory, KVC_BUDGET_COPY, KVCT_PIECE + ops->set_bytes);
	if (err || getrandom(&mine.tag, sizeof mine.tag, 0) != sizeof mine.tag)
		return err ?: -EIO;
	if (in_head && p->stored_len)
		err = p->read(p->arg, head + KVC_FRAME_HEADER + sizeof wire, p->stored_len, 0);
	else if (!in_head)
		err = pieces_put(&o, p, &mine, &sent);
	err = err ?: p->head(p->arg, head);
	wire = (struct kvct_trailer){
		htole64(mine.tag),
		htole64(mine.stored_len),
		htole32(mine.piece),
		0,
	};
	memcpy(head + KVC_FRAME_HEADER, &wire, sizeof wire);
	err = err ?: head_put(&o, head, len, p->ttl_ms, &mine);
	if (err) {
		if (sent)
			unlink_pieces(&o, &mine);
		return err;
	}
	*out = p->name;
	out->len = KVC_FRAME_HEADER + kvc_round_up(p->stored_len, KVC_PAGE);
	return 0;
}

/* The position in a call's buffers. */
struct cursor {
	const struct iovec *iov;
	int n;
	size_t at;
};

static void *cursor_space(struct cursor *c, uint64_t want, uint64_t *len)
{
	while (c->n && c->at == c->iov->iov_len) {
		c->iov++;
		c->n--;
		c->at = 0;
	}
	*len = c->n ? kvc_min(want, c->iov->iov_len - c->at) : 0;
	return c->n ? (char *)c->iov->iov_base + c->at : NULL;
}

/* Reads `n` bytes of the payload, which are in one value. Returns like struct kvct_pieces_ops. */
static long read_part(const struct op *o, const struct kvct_trailer *t, uint64_t off, uint64_t n,
		      void *to)
{
	struct kvct_value v;

	if (!t->piece)
		return o->ops->get(o->arg, &head_value, KVC_FRAME_HEADER + sizeof *t + off, n, to);
	v = piece_value(t, off / t->piece);
	return o->ops->get(o->arg, &v, off % t->piece, n, to);
}

/*
 * Reads [off, off + len) of the payload, which is followed by zeros from stored_len to the end of
 * the page.
 */
static int read_payload(const struct op *o, const struct kvct_trailer *t, uint64_t off,
			uint64_t len, struct cursor *to)
{
	if (off + len > kvc_round_up(t->stored_len, KVC_PAGE))
		return -EBADMSG;
	while (len) {
		uint64_t n, unit = t->piece ? t->piece : KVCT_INLINE;
		void *p = cursor_space(to, len, &n);
		long got;

		if (!p)
			return -EBADMSG;
		if (off >= t->stored_len) {
			memset(p, 0, n);
		} else {
			n = kvc_min(n, kvc_min(t->stored_len - off, unit - off % unit));
			got = read_part(o, t, off, n, p);
			if (got < 0)
				return (int)got;
			if ((uint64_t)got != n)
				/*
				 * a missing piece: read the head again, there may be a newer
				 * version
				 */
				return got ? -EBADMSG : -EAGAIN;
		}
		to->at += n;
		off += n;
		len -= n;
	}
	return 0;
}

int kvct_pieces_get(const struct kvct_pieces_ops *ops, void *arg, uint64_t off,
		    const struct iovec *iov, int n)
{
	const struct op o = { ops, arg };
	struct kvct_trailer trailer, last = { 0 };
	uint64_t len = 0;
	BUDGET_PART memory = { 0 };
	int err = -EAGAIN;

	for (int i = 0; i < n; i++)
		len += iov[i].iov_len;
	if (off % KVC_PAGE || (!off && (!n || iov->iov_len < KVC_FRAME_HEADER)))
		return -EINVAL;
	if (len > KVCT_INLINE && ops->get_bytes &&
	    budget_part_take(&memory, KVC_BUDGET_LOAD, kvc_min(len, KVCT_PIECE) + ops->get_bytes))
		return -ENOMEM;
	ops->begin(arg, len);
	for (int tries = 0; tries < 8 && err == -EAGAIN; tries++) {
		struct cursor to = { iov, n, off ? 0 : KVC_FRAME_HEADER };

		if ((err = head_get(&o, off ? NULL : iov->iov_base, &trailer)))
			return err;
		if (tries && last.tag == trailer.tag)
			return -EBADMSG; /* still this version, so the piece is lost */
		last = trailer;
		if (off || len > KVC_FRAME_HEADER)
			err = read_payload(&o, &trailer, off ? off - KVC_FRAME_HEADER : 0,
					   off ? len : len - KVC_FRAME_HEADER, &to);
	}
	return err == -EAGAIN ? -EBUSY : err;
}

int kvct_pieces_remove(const struct kvct_pieces_ops *ops, void *arg)
{
	const struct op o = { ops, arg };
	struct kvct_trailer trailer;
	bool existed, pieces;
	int err;

	ops->begin(arg, 0);
	err = head_get(&o, NULL, &trailer);
	if (err == -ENOENT)
		return 0;
	pieces = !err;
	err = err && err != -EBADMSG ? err : ops->unlink(arg, &head_value, &existed);
	if (!err && pieces)
		unlink_pieces(&o, &trailer);
	return err;
}

bool kvct_progress_step(struct kvct_progress *p, const char *cursor, bool frames)
{
	if (!strcmp(cursor, p->cursor))
		return false;
	if (++p->steps >= p->next) {
		snprintf(p->cursor, sizeof p->cursor, "%s", cursor);
		p->next = p->steps * 2;
	}
	p->empty = frames ? 0 : p->empty + 1;
	return p->empty < EMPTY_STEPS;
}
