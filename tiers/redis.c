/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The redis tier: Redis or Valkey through hiredis.
 *
 *   redis://[USER@]HOST[:PORT]/[PREFIX]
 *   rediss:// the same with TLS
 *   redis+cluster://, rediss+cluster:// a cluster by one of its nodes
 *   ?also=HOST:PORT+HOST:PORT (other nodes to begin with)
 *   ?password_file=PATH  ?db=N  ?ca=PATH  ?cert=PATH&key=PATH
 *
 * A frame is a head and pieces, since a value should not be large:
 *   PREFIX:{HEX}          the header, struct trailer, and the payload itself where that is at most
 *                         INLINE bytes
 *   PREFIX:{HEX}:TAG:I    piece I of the payload
 * TAG is random for each put, so a reader never mixes two versions; the head is written last (SET
 * ... GET, Redis 6.2), and the pieces of the version that it took the place of are removed then; a
 * reader whose pieces went begins again. The braces keep all keys of a frame in one slot of a
 * cluster.
 *
 * Connections and clusters are redis_conn.c's. What the server says of a key (a value of another
 * type, no permission for it) is -EIO, which is of that frame until others have it too; a
 * connection that breaks is -ECONNRESET.
 */
#include "redis_conn.h"
#include "registry.h"

#include "log.h"

#include <endian.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>

#define PIECE (4u << 20)
#define INLINE (64u << 10)
/* bytes a second that a call is given time for, beside the deadline */
#define SLOWEST (4ull << 20)
#define PIECES (1u << 16) /* of a frame at most: so many deletions a trailer may ask for */

struct trailer {
	uint64_t tag, stored_len;
	uint32_t piece, pad; /* piece: bytes of each but the last; 0: inline */
};

static struct kvct_redis *of(struct kvc_tier *t)
{
	return kvc_of(t, struct kvct_redis, tier);
}

/* One call of the engine on one frame. */
struct call {
	struct kvct_redis *r;
	char hex[33], head[320];
	unsigned slot;
	uint64_t until_ns;
};

static uint64_t until(const struct kvct_redis *r, uint64_t bytes)
{
	return kvc_mono_ns() + r->deadline_ms * 1000000 + bytes * 1000 / SLOWEST * 1000000;
}

/* All of it, with so many bytes, has one time, so that no server keeps it for longer. */
static struct call call_of(struct kvc_tier *t, const struct kvc_where *w, uint64_t bytes)
{
	struct call c = { .r = of(t), .until_ns = until(of(t), bytes) };

	kvc_where_text(w, c.hex);
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
	struct kvct_redis_command cmd = { 0 };
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
	if (reply->type == REDIS_REPLY_STRING && reply->len <= to - from + 1) {
		memcpy(buf, reply->str, reply->len);
		n = (long)reply->len;
	}
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

	c->until_ns = until(c->r, 0);
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
 * Sets a key. With `before` (a head): what was there is read from the old value, stored_len
 * UINT64_MAX where there was none.
 */
static int set(struct call *c, const char *key, const void *data, size_t len, uint64_t ttl_ms,
	       struct trailer *before)
{
	struct kvct_redis_command cmd = { 0 };
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

static int redis_put(struct kvc_tier *t, const struct kvc_put *p, struct kvc_where *out)
{
	struct call c = call_of(t, &p->name, p->stored_len);
	bool in_head = p->stored_len <= INLINE;
	size_t room = KVC_FRAME_HEADER + sizeof(struct trailer) + (in_head ? p->stored_len : 0);
	KVC_MEM uint8_t *head = malloc(room);
	KVC_MEM uint8_t *piece = in_head ? NULL : malloc(PIECE);
	struct trailer mine = { .stored_len = p->stored_len, .piece = in_head ? 0 : PIECE }, before,
		       wire;
	char key[400];
	int err = head && (in_head || piece) ? 0 : -ENOMEM;

	if (err || getrandom(&mine.tag, sizeof mine.tag, 0) != sizeof mine.tag)
		return err ?: -EIO;
	if (in_head && p->stored_len)
		err = p->read(p->arg, head + KVC_FRAME_HEADER + sizeof wire, p->stored_len, 0);
	for (uint64_t off = 0, i = 0; !in_head && off < p->stored_len && !err; i++) {
		size_t len = kvc_min(p->stored_len - off, PIECE);

		err = p->read(p->arg, piece, len, off)
			      ?: set(&c, piece_key(&c, mine.tag, i, key), piece, len, p->ttl_ms,
				     NULL);
		off += len;
	}
	err = err ?: p->head(p->arg, head);
	wire = (struct trailer){
		htole64(mine.tag),
		htole64(mine.stored_len),
		htole32(mine.piece),
		0,
	};
	memcpy(head + KVC_FRAME_HEADER, &wire, sizeof wire);
	err = err ?: set(&c, c.head, head, room, p->ttl_ms, &before);
	if (err) {
		unlink_pieces(&c, &mine);
		return err;
	}
	if (before.tag != mine.tag) /* the same: the answer was lost and the command sent twice */
		unlink_pieces(&c, &before);
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

static int redis_get(struct kvc_tier *t, const struct kvc_where *w, uint64_t off,
		     const struct iovec *iov, int n)
{
	struct trailer trailer, last = { 0 };
	struct call c;
	uint64_t len = 0;
	int err = -EAGAIN;

	for (int i = 0; i < n; i++)
		len += iov[i].iov_len;
	c = call_of(t, w, len);
	if (off % KVC_PAGE || (!off && (!n || iov->iov_len < KVC_FRAME_HEADER)))
		return -EINVAL;
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

/* One key of a SCAN: is it a head of ours? */
static int list_key(struct kvc_tier *t, const char *key, uint8_t *page, struct kvc_frame *f,
		    int *unread,
		    int (*fn)(void *arg, const struct kvc_where *w, const struct kvc_frame *f),
		    void *arg_)
{
	struct kvc_where w = { 0 };
	struct iovec iov = { page, KVC_FRAME_HEADER };
	const char *open = strchr(key, '{');
	unsigned long long a, b;
	int end = 0, err;

	if (!open || sscanf(open, "{%16llx%16llx}%n", &a, &b, &end) != 2 || end != 34 || open[34])
		return 0;
	w.at = a;
	w.hi = b;
	err = redis_get(t, &w, 0, &iov, 1);
	if (err && !kvct_of_one(err))
		*unread = err;
	return err || kvc_frame_decode(page, f) ? 0 : fn(arg_, &w, f);
}

static int scan_node(struct kvc_tier *t, unsigned node, uint8_t *page, struct kvc_frame *f,
		     int *unread,
		     int (*fn)(void *arg, const struct kvc_where *w, const struct kvc_frame *f),
		     void *arg_)
{
	struct kvct_redis *r = of(t);
	char cursor[32] = "0", pattern[300];
	bool more = true;
	int err = 0;

	snprintf(pattern, sizeof pattern, "%s:{*}", r->prefix);
	while (more && !err) {
		struct kvct_redis_command scan = { 0 };
		uint64_t by = until(r, 0);
		redisContext *c;
		redisReply *reply, **of;
		bool fresh;

		word(&scan, "SCAN");
		word(&scan, cursor);
		word(&scan, "MATCH");
		word(&scan, pattern);
		word(&scan, "COUNT");
		word(&scan, "500");
		if ((err = kvct_redis_take(r, node, by, &c, &fresh)))
			return err;
		err = kvct_redis_command(c, &scan, by, &reply);
		if (err) {
			redisFree(c);
			if (fresh || err == -ETIMEDOUT)
				return err;
			err = 0;
			continue; /* an idle one that had been closed */
		}
		kvct_redis_give(r, node, c);
		of = reply->element;
		if (reply->type != REDIS_REPLY_ARRAY || reply->elements != 2 ||
		    of[0]->type != REDIS_REPLY_STRING || of[1]->type != REDIS_REPLY_ARRAY) {
			freeReplyObject(reply);
			return -EIO;
		}
		snprintf(cursor, sizeof cursor, "%s", of[0]->str);
		more = strcmp(cursor, "0");
		for (size_t i = 0; i < of[1]->elements && !err; i++)
			if (of[1]->element[i]->type == REDIS_REPLY_STRING)
				err = list_key(t, of[1]->element[i]->str, page, f, unread, fn,
					       arg_);
		freeReplyObject(reply);
	}
	return err;
}

static int redis_list(struct kvc_tier *t,
		      int (*fn)(void *arg, const struct kvc_where *w, const struct kvc_frame *f),
		      void *arg_)
{
	struct kvct_redis *r = of(t);
	KVC_MEM uint8_t *page = malloc(KVC_FRAME_HEADER);
	KVC_MEM struct kvc_frame *f = malloc(sizeof *f);
	bool has[KVCT_REDIS_NODES] = { false };
	int err = page && f ? 0 : -ENOMEM, unread = 0;

	pthread_mutex_lock(&r->lock);
	for (int s = 0; s < KVCT_REDIS_SLOTS && r->cluster; s++)
		has[r->slot[s]] = true;
	if (!r->cluster)
		has[0] = true;
	pthread_mutex_unlock(&r->lock);
	for (unsigned n = 0; n < KVCT_REDIS_NODES && !err; n++)
		if (has[n])
			err = scan_node(t, n, page, f, &unread, fn, arg_);
	return err ?: unread;
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

static void redis_close(struct kvc_tier *t)
{
	struct kvct_redis *r = of(t);

	for (unsigned i = 0; i < r->nnodes; i++)
		while (r->nodes[i].nidle)
			redisFree(r->nodes[i].idle[--r->nodes[i].nidle]);
	kvct_redis_tls_close(r->tls);
	kvc_wipe(r->password, sizeof r->password);
	pthread_mutex_destroy(&r->lock);
	free(r);
}

static const struct kvc_tier_ops redis_ops = {
	.name = "redis",
	.caps = KVC_TIER_SHARED | KVC_TIER_MEDIA,
	.close = redis_close,
	.put = redis_put,
	.get = redis_get,
	.remove = redis_remove,
	.list = redis_list,
	.usage = redis_usage,
};

static void add_seed(struct kvct_redis *r, const char *host, int port)
{
	int n = kvct_redis_node_locked(r, host, port);

	if (n >= 0)
		r->nodes[n].seed = true;
}

int kvct_redis_open(const struct kvct_url *u, uint64_t deadline_ms, struct kvc_tier **out,
		    char *error)
{
	static const char *const params[] = {
		"password_file", "db", "ca", "cert", "key", "also", NULL,
	};
	struct kvct_redis *r;
	char value[512], ca[512], cert[512], key[512];
	int err;

	if ((err = kvct_url_check(u, params, error)))
		return err;
	if (!*u->host) {
		snprintf(error, 512, "option remote: %s:// needs a host", u->scheme);
		return -EINVAL;
	}
	r = calloc(1, sizeof *r);
	if (!r) {
		snprintf(error, 512, "out of memory");
		return -ENOMEM;
	}
	pthread_mutex_init(&r->lock, NULL);
	r->deadline_ms = deadline_ms;
	r->cluster = strstr(u->scheme, "+cluster");
	memcpy(r->user, u->user, sizeof r->user);
	snprintf(r->prefix, sizeof r->prefix, "%.200s", *u->path ? u->path : "kvcachefs");
	r->prefix[strcspn(r->prefix, "{}*?[]\\ ")] = 0;
	r->db = atoi(kvct_url_get(u, "db", value, sizeof value));
	if (*kvct_url_get(u, "password_file", value, sizeof value))
		err = kvct_secret(value, r->password, sizeof r->password, error);
	if (!err && starts(u->scheme, "rediss")) {
		kvct_url_get(u, "ca", ca, sizeof ca);
		kvct_url_get(u, "cert", cert, sizeof cert);
		kvct_url_get(u, "key", key, sizeof key);
		err = kvct_redis_tls_open(&r->tls, ca, cert, key, error);
	}
	if (err) {
		redis_close(&r->tier);
		return err;
	}
	add_seed(r, u->host, u->port ? (int)u->port : 6379);
	kvct_url_get(u, "also", value, sizeof value);
	for (char *save = NULL, *seed = strtok_r(value, "+", &save); seed && r->cluster;
	     seed = strtok_r(NULL, "+", &save)) {
		char *colon = strrchr(seed, ':');

		if (colon)
			*colon = 0;
		add_seed(r, seed, colon ? atoi(colon + 1) : 6379);
	}
	if (r->cluster && kvct_redis_learn(r, kvc_mono_ns() + 1000000000))
		kvc_warn("tier redis: the cluster at %s does not answer now; it is asked again "
			 "when it is needed",
			 u->host);
	snprintf(r->tier.id, sizeof r->tier.id, "redis:%.100s:%u/%d/%.100s", u->host,
		 u->port ? u->port : 6379, r->db, r->prefix);
	r->tier.ops = &redis_ops;
	*out = &r->tier;
	return 0;
}
