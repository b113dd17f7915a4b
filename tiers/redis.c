/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The redis tier: frames in Redis or Valkey. redis_open.c handles the URL, redis_list.c the
 * listing, redis_conn.h the connections, and redis_reply.c the meanings of errors.
 *
 * A frame is stored as a head and pieces, since a value should not be large:
 *   PREFIX:{HEX}          the header, struct trailer, and the payload if it has at most INLINE
 *                         bytes
 *   PREFIX:{HEX}:TAG:I    piece I of the payload
 *
 * TAG is random for each put, so a reader never mixes two versions. The head is written last (SET
 * ... GET, Redis 6.2); then the pieces of the version that it replaced are removed. A reader that
 * misses a piece starts again. The braces keep all keys of a frame in one slot of a cluster.
 *
 * Every command may be repeated: a SET writes the same bytes under the same tag. The size of an
 * answer is bounded, whatever is stored: a head is read with GETRANGE, and the old head in the
 * answer of SET ... GET is not read if it is longer than a head of ours can be.
 */
#include "redis_conn.h"
#include "budget.h"

#include <endian.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>

#define PIECE (4u << 20)
#define INLINE (64u << 10)
/* bytes per second; lengthens the deadline of a call */
#define SLOWEST (4ull << 20)
#define HEAD_MOST (KVC_FRAME_HEADER + sizeof(struct trailer) + INLINE)
/* pieces of a frame, which also bounds the deletions that a trailer can cause */
#define PIECES (1u << 16)

struct trailer {
	uint64_t tag, stored_len;
	uint32_t piece, pad; /* piece: bytes of each piece except the last; 0: inline */
};

/* Memory of the budget, for hiredis' allocations. */
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

static struct kvct_redis *redis_of(struct kvc_tier *t)
{
	return kvc_of(t, struct kvct_redis, tier);
}

/* One call of the engine for one frame. */
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

/* Begins a call that moves `bytes` bytes. All its commands share one deadline. */
static struct call call_of(struct kvc_tier *t, const struct kvc_where *w, uint64_t bytes)
{
	struct call c = { .r = redis_of(t), .until_ns = kvct_redis_until(redis_of(t), bytes) };

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

/* Reads bytes [from, to] of a key's value into buf. Returns the count or a negative errno. */
static long get_range(struct call *c, const char *key, uint64_t from, uint64_t to, void *buf)
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
	command_word(&cmd, "GETRANGE");
	command_word(&cmd, key);
	command_word(&cmd, a);
	command_word(&cmd, b);
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

/* Reads the header and the trailer of the same version. */
static int head_get(struct call *c, uint8_t *header, struct trailer *t)
{
	uint8_t buf[KVC_FRAME_HEADER + sizeof *t];
	long n = get_range(c, c->head, 0, sizeof buf - 1, buf);

	if (n < 0)
		return (int)n;
	if (n != sizeof buf)
		return n ? -EBADMSG : -ENOENT;
	if (header)
		memcpy(header, buf, KVC_FRAME_HEADER);
	return trailer_read(buf + KVC_FRAME_HEADER, t);
}

/*
 * Removes the pieces up to the first missing one. The removal has a deadline of its own, since
 * another program may have written the trailer.
 */
static void unlink_pieces(struct call *c, const struct trailer *t)
{
	uint64_t n = t->piece ? (t->stored_len + t->piece - 1) / t->piece : 0;
	char key[400];
	bool exists = true;

	c->until_ns = kvct_redis_until(c->r, 0);
	for (uint64_t i = 0; i < n && exists && kvc_mono_ns() < c->until_ns; i++) {
		struct kvct_redis_command cmd = { 0 };
		redisReply *reply;

		command_word(&cmd, "UNLINK");
		command_word(&cmd, piece_key(c, t->tag, i, key));
		if (kvct_redis_ask(c->r, c->slot, &cmd, c->until_ns, &reply))
			return; /* garbage stays until its ttl ends or a flush */
		exists = reply->type == REDIS_REPLY_INTEGER && reply->integer > 0;
		freeReplyObject(reply);
	}
}

/*
 * Sets a key. If `before` is not NULL (the key is a head), it gets the trailer of the replaced
 * value, with piece 0 if there was none or it was not a head.
 */
static int set_key(struct call *c, const char *key, const void *data, size_t len, uint64_t ttl_ms,
		   struct trailer *before)
{
	struct kvct_redis_command cmd = { .most = before ? HEAD_MOST + KVCT_REDIS_TEXT : 0 };
	redisReply *reply;
	char ms[24];
	int err;

	command_word(&cmd, "SET");
	command_word(&cmd, key);
	command_arg(&cmd, data, len);
	if (ttl_ms) {
		snprintf(ms, sizeof ms, "%llu", (unsigned long long)ttl_ms);
		command_word(&cmd, "PX");
		command_word(&cmd, ms);
	}
	if (before)
		command_word(&cmd, "GET");
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

/* Stores the payload in pieces. Sets *sent if pieces must be removed after a failure. */
static int pieces_put(struct call *c, const struct kvc_put *p, const struct trailer *mine,
		      bool *sent)
{
	KVC_MEM uint8_t *piece = malloc(PIECE);
	char key[400];
	int err = piece ? 0 : -ENOMEM;

	for (uint64_t off = 0, i = 0; off < p->stored_len && !err; i++) {
		size_t len = kvc_min(p->stored_len - off, PIECE);

		err = p->read(p->arg, piece, len, off)
			      ?: set_key(c, piece_key(c, mine->tag, i, key), piece, len, p->ttl_ms,
					 NULL);
		*sent |= !err;
		off += len;
	}
	return err;
}

/*
 * Sets the head, and removes the pieces of the replaced one. If the answer was too long to read,
 * the old value was another program's. Then the head is read again to check that it was replaced.
 */
static int head_put(struct call *c, const uint8_t *head, size_t len, uint64_t ttl_ms,
		    const struct trailer *mine)
{
	struct trailer before = { 0 }, now;
	int err = set_key(c, c->head, head, len, ttl_ms, &before);

	if (err == -EIO && !head_get(c, NULL, &now) && now.tag == mine->tag)
		return 0;
	/* The tag is the same if the command was sent twice because an answer was lost. */
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
	BUDGET_PART memory = { 0 };
	int err = head ? 0 : -ENOMEM;

	if (!err && p->stored_len > PIECE * (uint64_t)PIECES)
		err = -EFBIG;
	/* One piece here, and one in hiredis' buffer, which grows by one MiB at a time. */
	if (!err && !in_head)
		err = budget_part_take(&memory, KVC_BUDGET_COPY, 2 * PIECE + (1u << 20));
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

/*
 * Reads [off, off + len) of the payload, which is followed by zeros from stored_len to the end of
 * the page.
 */
static int read_payload(struct call *c, const struct trailer *t, uint64_t off, uint64_t len,
			struct cursor *to)
{
	char key[400];

	if (off + len > kvc_round_up(t->stored_len, KVC_PAGE))
		return -EBADMSG;
	while (len) {
		uint64_t n, unit = t->piece ? t->piece : INLINE;
		void *p = cursor_space(to, len, &n);
		long got;

		if (!p)
			return -EBADMSG;
		if (off >= t->stored_len) {
			memset(p, 0, n);
		} else {
			n = kvc_min(n, kvc_min(t->stored_len - off, unit - off % unit));
			if (t->piece)
				got = get_range(c, piece_key(c, t->tag, off / unit, key),
						off % unit, off % unit + n - 1, p);
			else
				got = get_range(c, c->head, KVC_FRAME_HEADER + sizeof *t + off,
						KVC_FRAME_HEADER + sizeof *t + off + n - 1, p);
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

int kvct_redis_get(struct kvc_tier *t, const struct kvc_where *w, uint64_t off,
		   const struct iovec *iov, int n)
{
	struct trailer trailer, last = { 0 };
	struct call c;
	uint64_t len = 0;
	BUDGET_PART memory = { 0 };
	int err = -EAGAIN;

	for (int i = 0; i < n; i++)
		len += iov[i].iov_len;
	if (off % KVC_PAGE || (!off && (!n || iov->iov_len < KVC_FRAME_HEADER)))
		return -EINVAL;
	/* hiredis' buffer grows by one MiB at a time */
	if (len > INLINE &&
	    budget_part_take(&memory, KVC_BUDGET_LOAD, kvc_min(len, PIECE) + (1u << 20)))
		return -ENOMEM;
	c = call_of(t, w, len);
	for (int tries = 0; tries < 8 && err == -EAGAIN; tries++) {
		struct cursor to = { iov, n, off ? 0 : KVC_FRAME_HEADER };

		if ((err = head_get(&c, off ? NULL : iov->iov_base, &trailer)))
			return err;
		if (tries && last.tag == trailer.tag)
			return -EBADMSG; /* still this version, so the piece is lost */
		last = trailer;
		if (off || len > KVC_FRAME_HEADER)
			err = read_payload(&c, &trailer, off ? off - KVC_FRAME_HEADER : 0,
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

	command_word(&cmd, "UNLINK");
	command_word(&cmd, c.head);
	err = err && err != -EBADMSG ? err : kvct_redis_ask(c.r, c.slot, &cmd, c.until_ns, &reply);
	if (err)
		return err;
	freeReplyObject(reply);
	if (pieces)
		unlink_pieces(&c, &trailer);
	return 0;
}

/*
 * Reports nothing: the server's memory is not the tier's, and asking would make readers of
 * .kvcachefs/stats wait.
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
