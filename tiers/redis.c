/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The redis tier: frames in Redis or Valkey. redis_open.c has the URL, redis_list.c the listing,
 * redis_conn.h the connections, and redis_reply.c the meanings of errors.
 *
 * A frame is a head and pieces, since a value should not be large:
 *   PREFIX:{HEX}          the header, struct trailer, and the payload itself if that is at most
 *                         INLINE bytes
 *   PREFIX:{HEX}:TAG:I    piece I of the payload
 * TAG is random for each put, so a reader never mixes two versions. The head is written last (SET
 * ... GET, Redis 6.2), and then the pieces of the version that it replaced are removed; a reader
 * that misses a piece starts again. The braces keep all keys of a frame in one slot of a cluster.
 *
 * Every command may be repeated: a SET writes the same bytes under the same tag. Answers have a
 * largest size, whatever is stored: a head is read with GETRANGE, and the old head that SET ... GET
 * answers with is not read if it is longer than a head of ours can be.
 */
#include "redis_conn.h"
#include "budget.h"

#include <endian.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>

#define PIECE (4u << 20)
#define INLINE (64u << 10)
/* bytes a second that a call is given time for, beside the deadline */
#define SLOWEST (4ull << 20)
#define HEAD_MOST (KVC_FRAME_HEADER + sizeof(struct trailer) + INLINE)
#define PIECES (1u << 16) /* of a frame at most: so many deletions a trailer may ask for */

struct trailer {
	uint64_t tag, stored_len;
	uint32_t piece, pad; /* piece: bytes of each but the last; 0: inline */
};

/* Memory of the budget's, for what hiredis allocates. */
struct share {
	enum kvc_budget_use use;
	uint64_t bytes;
};
static void share_end(struct share *s)
{
	kvc_budget_give(s->use, s->bytes);
}
#define SHARE __attribute__((cleanup(share_end))) struct share

static int share_take(struct share *s, enum kvc_budget_use use, uint64_t bytes)
{
	int err = kvc_budget_wait(use, bytes);

	if (!err)
		*s = (struct share){ use, bytes };
	return err;
}

static struct kvct_redis *of(struct kvc_tier *t)
{
	return kvc_of(t, struct kvct_redis, tier);
}

/* One call of the engine on one frame. */
struct call {
	struct kvct_redis *r;
	char hex[33], head[320]; /* the key of the head */
	unsigned slot;
	uint64_t until_ns;
};

uint64_t kvct_redis_until(const struct kvct_redis *r, uint64_t bytes)
{
	return kvc_mono_ns() + r->deadline_ms * 1000000 + bytes * 1000 / SLOWEST * 1000000;
}

/* All of it, with so many bytes, has one time, so that no server keeps it for longer. */
static struct call call_of(struct kvc_tier *t, const struct kvc_where *w, uint64_t bytes)
{
	struct call c = { .r = of(t), .until_ns = kvct_redis_until(of(t), bytes) };

	kvc_frame_where_text(w, c.hex);
	c.slot = kvct_redis_slot(c.hex);
	snprintf(c.head, sizeof c.head, "%s:{%s}", c.r->prefix, c.hex);
	return c;
}

static const char *piece_key(const struct call *c, uint64_t tag, uint64_t i, char *buf)
{
	snprintf(buf, 400, "%s:%016llx:%llu", c->head, (unsigned long long)tag,
		 (unsigned long long)i);
	return buf;
}

/* Bytes [from, to] of a key's value into buf: the count, or a negative errno. */
static long range(struct call *c, const char *key, uint64_t from, uint64_t to, void *buf)
{
	struct kvct_redis_command cmd = {
		.most = to - from + 1 + KVCT_REDIS_TEXT,
		.into = buf,
		.into_len = to - from + 1,
	};
	char a[24], b[24];
	redisReply *reply;
	long n = -EIO;
	int err;

	snprintf(a, sizeof a, "%llu", (unsigned long long)from);
	snprintf(b, sizeof b, "%llu", (unsigned long long)to);
	word(&cmd, "GETRANGE");
	word(&cmd, key);
	word(&cmd, a);
	word(&cmd, b);
	if ((err = kvct_redis_ask(c->r, c->slot, &cmd, c->until_ns, &reply)))
		return err;
	if (reply->type == REDIS_REPLY_STRING)
		n = (long)reply->len;
	freeReplyObject(reply);
	return n;
}

static int trailer_read(const uint8_t *p, struct trailer *t)
{
	memcpy(t, p, sizeof *t);
	t->tag = le64toh(t->tag);
	t->stored_len = le64toh(t->stored_len);
	t->piece = le32toh(t->piece);
	return t->stored_len >> 48 || (t->piece && t->piece < 4096) ||
			       (t->piece && t->stored_len / t->piece >= PIECES) ||
			       (!t->piece && t->stored_len > INLINE)
		       ? -EBADMSG
		       : 0;
}

/* Header and trailer, of one and the same version. */
static int head_get(struct call *c, uint8_t *header, struct trailer *t)
{
	uint8_t buf[KVC_FRAME_HEADER + sizeof *t];
	long n = range(c, c->head, 0, sizeof buf - 1, buf);

	if (n < 0)
		return (int)n;
	if (n != sizeof buf)
		return n ? -EBADMSG : -ENOENT;
	if (header)
		memcpy(header, buf, KVC_FRAME_HEADER);
	return trailer_read(buf + KVC_FRAME_HEADER, t);
}

/* Up to the first that is not there, and for one call's time: others write trailers too. */
static void unlink_pieces(struct call *c, const struct trailer *t)
{
	uint64_t n = t->piece ? (t->stored_len + t->piece - 1) / t->piece : 0;
	char key[400];
	bool there = true;

	c->until_ns = kvct_redis_until(c->r, 0);
	for (uint64_t i = 0; i < n && there && kvc_mono_ns() < c->until_ns; i++) {
		struct kvct_redis_command cmd = { 0 };
		redisReply *reply;

		word(&cmd, "UNLINK");
		word(&cmd, piece_key(c, t->tag, i, key));
		if (kvct_redis_ask(c->r, c->slot, &cmd, c->until_ns, &reply))
			return; /* garbage is left, which a ttl or a flush takes */
		there = reply->type == REDIS_REPLY_INTEGER && reply->integer > 0;
		freeReplyObject(reply);
	}
}

/*
 * Sets a key. With `before` (a head): the trailer of the value that it replaces, with piece 0 if
 * there was none or it was not a head.
 */
static int set(struct call *c, const char *key, const void *data, size_t len, uint64_t ttl_ms,
	       struct trailer *before)
{
	struct kvct_redis_command cmd = { .most = before ? HEAD_MOST + KVCT_REDIS_TEXT : 0 };
	redisReply *reply;
	char ms[24];
	int err;

	word(&cmd, "SET");
	word(&cmd, key);
	arg(&cmd, data, len);
	if (ttl_ms) {
		snprintf(ms, sizeof ms, "%llu", (unsigned long long)ttl_ms);
		word(&cmd, "PX");
		word(&cmd, ms);
	}
	if (before)
		word(&cmd, "GET");
	err = kvct_redis_ask(c->r, c->slot, &cmd, c->until_ns, &reply);
	if (err)
		return err;
	if (before &&
	    (reply->type != REDIS_REPLY_STRING || reply->len < KVC_FRAME_HEADER + sizeof *before ||
	     trailer_read((const uint8_t *)reply->str + KVC_FRAME_HEADER, before)))
		before->piece = 0;
	freeReplyObject(reply);
	return 0;
}

/* The payload in pieces; *sent: there are some to remove if the put fails. */
static int pieces_put(struct call *c, const struct kvc_put *p, const struct trailer *mine,
		      bool *sent)
{
	KVC_MEM uint8_t *piece = malloc(PIECE);
	char key[400];
	int err = piece ? 0 : -ENOMEM;

	for (uint64_t off = 0, i = 0; off < p->stored_len && !err; i++) {
		size_t len = kvc_min(p->stored_len - off, PIECE);

		err = p->read(p->arg, piece, len, off)
			      ?: set(c, piece_key(c, mine->tag, i, key), piece, len, p->ttl_ms,
				     NULL);
		*sent |= !err;
		off += len;
	}
	return err;
}

/*
 * Sets the head, and removes the pieces of the one before. An answer that was too long to read was
 * the old value of somebody else's, and the head is in its place; or it was not: one more look.
 */
static int head_put(struct call *c, const uint8_t *head, size_t len, uint64_t ttl_ms,
		    const struct trailer *mine)
{
	struct trailer before = { 0 }, now;
	int err = set(c, c->head, head, len, ttl_ms, &before);

	if (err == -EIO && !head_get(c, NULL, &now) && now.tag == mine->tag)
		return 0;
	/* The tag is the same if the answer was lost and the command was sent twice. */
	if (!err && before.piece && before.tag != mine->tag)
		unlink_pieces(c, &before);
	return err;
}

static int redis_put(struct kvc_tier *t, const struct kvc_put *p, struct kvc_where *out)
{
	struct call c = call_of(t, &p->name, p->stored_len);
	bool in_head = p->stored_len <= INLINE, sent = false;
	size_t len = KVC_FRAME_HEADER + sizeof(struct trailer) + (in_head ? p->stored_len : 0);
	struct trailer mine = { .stored_len = p->stored_len, .piece = in_head ? 0 : PIECE }, wire;
	KVC_MEM uint8_t *head = malloc(len);
	SHARE memory = { 0 };
	int err = head ? 0 : -ENOMEM;

	if (!err && p->stored_len > PIECE * (uint64_t)PIECES)
		err = -EFBIG;
	/* A piece here, and one in hiredis' buffer, which grows by a mebibyte more at a time. */
	if (!err && !in_head)
		err = share_take(&memory, KVC_BUDGET_COPY, 2 * PIECE + (1u << 20));
	if (err || getrandom(&mine.tag, sizeof mine.tag, 0) != sizeof mine.tag)
		return err ?: -EIO;
	if (in_head && p->stored_len)
		err = p->read(p->arg, head + KVC_FRAME_HEADER + sizeof wire, p->stored_len, 0);
	else if (!in_head)
		err = pieces_put(&c, p, &mine, &sent);
	err = err ?: p->head(p->arg, head);
	wire = (struct trailer){
		htole64(mine.tag),
		htole64(mine.stored_len),
		htole32(mine.piece),
		0,
	};
	memcpy(head + KVC_FRAME_HEADER, &wire, sizeof wire);
	err = err ?: head_put(&c, head, len, p->ttl_ms, &mine);
	if (err) {
		if (sent)
			unlink_pieces(&c, &mine);
		return err;
	}
	*out = p->name;
	out->len = KVC_FRAME_HEADER + kvc_round_up(p->stored_len, KVC_PAGE);
	return 0;
}

/* Where the next bytes of a call go. */
struct cursor {
	const struct iovec *iov;
	int n;
	size_t at;
};

static void *space(struct cursor *c, uint64_t want, uint64_t *len)
{
	while (c->n && c->at == c->iov->iov_len) {
		c->iov++;
		c->n--;
		c->at = 0;
	}
	*len = c->n ? kvc_min(want, c->iov->iov_len - c->at) : 0;
	return c->n ? (char *)c->iov->iov_base + c->at : NULL;
}

/*
 * [off, off + len) of the payload, which ends at stored_len and is followed by zeros up to a page.
 */
static int payload(struct call *c, const struct trailer *t, uint64_t off, uint64_t len,
		   struct cursor *to)
{
	char key[400];

	if (off + len > kvc_round_up(t->stored_len, KVC_PAGE))
		return -EBADMSG;
	while (len) {
		uint64_t n, unit = t->piece ? t->piece : INLINE;
		void *p = space(to, len, &n);
		long got;

		if (!p)
			return -EBADMSG;
		if (off >= t->stored_len) {
			memset(p, 0, n);
		} else {
			n = kvc_min(n, kvc_min(t->stored_len - off, unit - off % unit));
			if (t->piece)
				got = range(c, piece_key(c, t->tag, off / unit, key), off % unit,
					    off % unit + n - 1, p);
			else
				got = range(c, c->head, KVC_FRAME_HEADER + sizeof *t + off,
					    KVC_FRAME_HEADER + sizeof *t + off + n - 1, p);
			if (got < 0)
				return (int)got;
			if ((uint64_t)got != n)
				/* the piece is gone: is there a newer version? */
				return got ? -EBADMSG : -EAGAIN;
		}
		to->at += n;
		off += n;
		len -= n;
	}
	return 0;
}

int kvct_redis_get(struct kvc_tier *t, const struct kvc_where *w, uint64_t off,
		   const struct iovec *iov, int n)
{
	struct trailer trailer, last = { 0 };
	struct call c;
	uint64_t len = 0;
	SHARE memory = { 0 };
	int err = -EAGAIN;

	for (int i = 0; i < n; i++)
		len += iov[i].iov_len;
	if (off % KVC_PAGE || (!off && (!n || iov->iov_len < KVC_FRAME_HEADER)))
		return -EINVAL;
	/* hiredis' buffer, which grows by a mebibyte at a time */
	if (len > INLINE && share_take(&memory, KVC_BUDGET_LOAD, kvc_min(len, PIECE) + (1u << 20)))
		return -ENOMEM;
	c = call_of(t, w, len);
	for (int tries = 0; tries < 8 && err == -EAGAIN; tries++) {
		struct cursor to = { iov, n, off ? 0 : KVC_FRAME_HEADER };

		if ((err = head_get(&c, off ? NULL : iov->iov_base, &trailer)))
			return err;
		if (tries && last.tag == trailer.tag)
			return -EBADMSG; /* the same version, and a piece of it is missing */
		last = trailer;
		if (off || len > KVC_FRAME_HEADER)
			err = payload(&c, &trailer, off ? off - KVC_FRAME_HEADER : 0,
				      off ? len : len - KVC_FRAME_HEADER, &to);
	}
	return err == -EAGAIN ? -EBUSY : err;
}

static int redis_remove(struct kvc_tier *t, const struct kvc_where *w)
{
	struct call c = call_of(t, w, 0);
	struct kvct_redis_command cmd = { 0 };
	struct trailer trailer;
	redisReply *reply;
	int err = head_get(&c, NULL, &trailer);

	if (err == -ENOENT)
		return 0;
	bool pieces = !err;

	word(&cmd, "UNLINK");
	word(&cmd, c.head);
	err = err && err != -EBADMSG ? err : kvct_redis_ask(c.r, c.slot, &cmd, c.until_ns, &reply);
	if (err)
		return err;
	freeReplyObject(reply);
	if (pieces)
		unlink_pieces(&c, &trailer);
	return 0;
}

/*
 * What the server has is its own affair, and asking would make looking at .kvcachefs/stats wait for
 * it.
 */
static void redis_usage(struct kvc_tier *t, struct kvc_tier_usage *u)
{
	(void)t;
	*u = (struct kvc_tier_usage){ 0 };
}

const struct kvc_tier_ops kvct_redis_ops = {
	.name = "redis",
	.caps = KVC_TIER_SHARED | KVC_TIER_MEDIA,
	.close = kvct_redis_close,
	.put = redis_put,
	.get = kvct_redis_get,
	.remove = redis_remove,
	.list = kvct_redis_list,
	.usage = redis_usage,
};
