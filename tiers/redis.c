/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The redis tier: Redis or Valkey through hiredis.
 *
 *   redis://[USER@]HOST[:PORT]/[PREFIX]   rediss:// the same with TLS   redis+cluster://, rediss+cluster:// a cluster by one of its nodes
 *   ?also=HOST:PORT+HOST:PORT (other nodes to begin with)  ?password_file=PATH  ?db=N  ?ca=PATH  ?cert=PATH&key=PATH
 *
 * A frame is a head and pieces, since a value should not be large:
 *   PREFIX:{HEX}          the header, struct trailer, and the payload itself where that is at most INLINE bytes
 *   PREFIX:{HEX}:TAG:I    piece I of the payload
 * TAG is random for each put, so a reader never mixes two versions; the head is written last (SET ... GET, Redis 6.2), and the
 * pieces of the version that it took the place of are removed then; a reader whose pieces went begins again. The braces keep all keys of a frame in one slot of a cluster.
 *
 * Connections: a stack of idle ones for each node, used by one call at a time. The lock guards stacks, nodes and the slot
 * map; nothing is sent under it. Every call ends at the deadline: connecting and each command have it as their time limit,
 * and redirections are followed until then.
 */
#include "registry.h"

#include "log.h"

#include <endian.h>
#include <hiredis.h>
#include <hiredis_ssl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>

#define PIECE (4u << 20)
#define INLINE (64u << 10)
#define NODES 64
#define SLOTS 16384
#define IDLE 16

struct trailer {
	uint64_t tag, stored_len;
	uint32_t piece, pad; /* piece: bytes of each but the last; 0: inline */
};

struct node {
	char host[256];
	int port;
	redisContext *idle[IDLE];
	unsigned nidle;
};

struct redis {
	struct kvc_tier tier;
	pthread_mutex_t lock;
	struct node nodes[NODES];
	_Atomic unsigned nnodes;
	uint8_t slot[SLOTS]; /* the node of each; in a cluster */
	bool cluster;
	redisSSLContext *tls;
	char user[128], password[256], prefix[256];
	int db;
	uint64_t deadline_ms;
	_Atomic bool logged; /* once, until it works again */
};

static struct redis *of(struct kvc_tier *t)
{
	return kvc_of(t, struct redis, tier);
}

/* CRC-16/XMODEM, as the cluster specification has it. */
static unsigned slot_of(const char *hex)
{
	unsigned crc = 0;

	for (; *hex; hex++) {
		crc ^= (unsigned)(unsigned char)*hex << 8;
		for (int i = 0; i < 8; i++)
			crc = crc & 0x8000 ? (crc << 1) ^ 0x1021 : crc << 1;
	}
	return (crc & 0xffff) % SLOTS;
}

static void once(struct redis *r, const char *what, const char *why)
{
	if (!r->logged)
		kvc_warn("tier redis: %s: %s", what, why);
	r->logged = true;
}

static int simple(redisContext *c, int argc, const char **argv)
{
	redisReply *reply = redisCommandArgv(c, argc, argv, NULL);
	int err = !reply ? -EIO : reply->type == REDIS_REPLY_ERROR ? -EACCES : 0;

	freeReplyObject(reply);
	return err;
}

static int connect_to(struct redis *r, const char *host, int port, uint64_t until_ns, redisContext **out)
{
	uint64_t now = kvc_mono_ns(), left = until_ns > now ? until_ns - now : 1000000;
	struct timeval limit = { .tv_sec = (time_t)(left / 1000000000), .tv_usec = (suseconds_t)(left % 1000000000 / 1000) };
	redisOptions o = { 0 };
	redisContext *c;
	char db[16];
	int err = 0;

	REDIS_OPTIONS_SET_TCP(&o, host, port);
	o.connect_timeout = &limit;
	o.command_timeout = &limit;
	c = redisConnectWithOptions(&o);
	if (!c || c->err) {
		once(r, "cannot connect", c ? c->errstr : "out of memory");
		err = -ECONNREFUSED;
	}
	if (!err && r->tls && redisInitiateSSLWithContext(c, r->tls)) {
		once(r, "TLS", c->errstr);
		err = -EACCES;
	}
	if (!err && *r->password)
		err = *r->user ? simple(c, 3, (const char *[]){ "AUTH", r->user, r->password }) : simple(c, 2, (const char *[]){ "AUTH", r->password });
	snprintf(db, sizeof db, "%d", r->db);
	if (!err && r->db)
		err = simple(c, 2, (const char *[]){ "SELECT", db });
	if (err == -EACCES)
		once(r, "refused", "check user, password_file, db and certificates");
	if (err && c)
		redisFree(c);
	if (!err)
		*out = c;
	return err;
}

static void set_limit(redisContext *c, uint64_t until_ns)
{
	uint64_t now = kvc_mono_ns(), left = until_ns > now ? until_ns - now : 1000000;

	redisSetTimeout(c, (struct timeval){ .tv_sec = (time_t)(left / 1000000000), .tv_usec = (suseconds_t)(left % 1000000000 / 1000) });
}

static int node_locked(struct redis *r, const char *host, int port)
{
	for (unsigned i = 0; i < r->nnodes; i++)
		if (r->nodes[i].port == port && !strcmp(r->nodes[i].host, host))
			return (int)i;
	if (r->nnodes == NODES || strlen(host) >= sizeof r->nodes[0].host)
		return -1;
	memset(&r->nodes[r->nnodes], 0, sizeof r->nodes[0]);
	memcpy(r->nodes[r->nnodes].host, host, strlen(host) + 1);
	r->nodes[r->nnodes].port = port;
	return (int)r->nnodes++;
}

/* A connection to a node; *fresh says that it is new, so that a failure on it is the server's. */
static int take(struct redis *r, unsigned node, uint64_t until_ns, redisContext **c, bool *fresh)
{
	char host[256];
	int port;

	pthread_mutex_lock(&r->lock);
	struct node *n = &r->nodes[node];

	*c = n->nidle ? n->idle[--n->nidle] : NULL;
	memcpy(host, n->host, sizeof host);
	port = n->port;
	pthread_mutex_unlock(&r->lock);
	*fresh = !*c;
	if (*c) {
		set_limit(*c, until_ns);
		return 0;
	}
	return connect_to(r, host, port, until_ns, c);
}

static void give(struct redis *r, unsigned node, redisContext *c)
{
	pthread_mutex_lock(&r->lock);
	struct node *n = &r->nodes[node];
	bool keep = !c->err && n->nidle < IDLE;

	if (keep)
		n->idle[n->nidle++] = c;
	pthread_mutex_unlock(&r->lock);
	if (!keep)
		redisFree(c);
}

/* Asks any node that answers for the map of slots. */
static int learn_slots(struct redis *r, uint64_t until_ns)
{
	for (unsigned i = 0; i < r->nnodes && kvc_mono_ns() < until_ns; i++) {
		redisContext *c;
		redisReply *reply;
		bool fresh, good = false;

		if (take(r, i, kvc_min(until_ns, kvc_mono_ns() + 1000000000), &c, &fresh))
			continue;
		reply = redisCommand(c, "CLUSTER SLOTS");
		if (reply && reply->type == REDIS_REPLY_ARRAY && reply->elements) {
			pthread_mutex_lock(&r->lock);
			good = true;
			for (size_t e = 0; e < reply->elements; e++) {
				redisReply *x = reply->element[e], *m = x->type == REDIS_REPLY_ARRAY && x->elements > 2 ? x->element[2] : NULL;
				const char *host;
				int n;

				if (!m || m->type != REDIS_REPLY_ARRAY || m->elements < 2 || x->element[0]->type != REDIS_REPLY_INTEGER)
					continue;
				host = m->element[0]->type == REDIS_REPLY_STRING && m->element[0]->len ? m->element[0]->str : r->nodes[i].host;
				n = node_locked(r, host, (int)m->element[1]->integer);
				for (long long s = x->element[0]->integer; n >= 0 && s >= 0 && s <= x->element[1]->integer && s < SLOTS; s++)
					r->slot[s] = (uint8_t)n;
			}
			pthread_mutex_unlock(&r->lock);
		}
		freeReplyObject(reply);
		give(r, i, c);
		if (good)
			return 0;
	}
	return -EIO;
}

/* "MOVED 3999 host:port" or "ASK ...": the node. */
static int redirected(struct redis *r, const char *text, unsigned from, bool moved)
{
	char host[256] = "";
	unsigned slot;
	int port, n;
	const char *where = strchr(text, ' '), *colon;

	if (!where || sscanf(where, " %u", &slot) != 1 || slot >= SLOTS || !(where = strchr(where + 1, ' ')) || !(colon = strrchr(++where, ':')) ||
	    (size_t)(colon - where) >= sizeof host)
		return -1;
	memcpy(host, where, (size_t)(colon - where));
	port = atoi(colon + 1);
	pthread_mutex_lock(&r->lock);
	n = node_locked(r, *host ? host : r->nodes[from].host, port);
	if (n >= 0 && moved)
		r->slot[slot] = (uint8_t)n;
	pthread_mutex_unlock(&r->lock);
	return n;
}

static bool starts(const char *s, const char *with)
{
	return !strncmp(s, with, strlen(with));
}

struct command {
	int argc;
	const char *argv[8];
	size_t len[8];
};

static void arg(struct command *c, const void *p, size_t len)
{
	c->argv[c->argc] = p;
	c->len[c->argc++] = len;
}

static void word(struct command *c, const char *s)
{
	arg(c, s, strlen(s));
}

/* Sends a command to whoever has the slot. 0 with a reply that is no error, which the caller frees. */
static int ask(struct redis *r, unsigned slot, const struct command *cmd, uint64_t until_ns, redisReply **out)
{
	int forced = -1; /* ASK: only this once */
	unsigned nap_ms = 20, stale = 0;
	int err = -EIO;

	do {
		redisContext *c;
		redisReply *reply;
		unsigned node;
		bool fresh, asking = forced >= 0;

		pthread_mutex_lock(&r->lock);
		node = asking ? (unsigned)forced : r->cluster ? r->slot[slot] : 0;
		pthread_mutex_unlock(&r->lock);
		forced = -1;
		err = take(r, node, until_ns, &c, &fresh);
		if (err == -EACCES || (err && !r->cluster))
			return err;
		if (err) { /* a node that is gone: who has its slots now? */
			usleep(nap_ms * 1000);
			nap_ms = nap_ms < 400 ? nap_ms * 2 : 400;
			learn_slots(r, until_ns);
			continue;
		}
		reply = asking && simple(c, 1, (const char *[]){ "ASKING" }) ? NULL : redisCommandArgv(c, cmd->argc, (const char **)(uintptr_t)cmd->argv, cmd->len);
		if (!reply) {
			err = c->err == REDIS_ERR_IO && errno == EAGAIN ? -ETIMEDOUT : -EIO;
			redisFree(c);
			if (!fresh && err != -ETIMEDOUT && stale++ < IDLE)
				continue; /* an idle connection that the server had closed */
			if (!r->cluster || err == -ETIMEDOUT)
				return err;
			learn_slots(r, until_ns);
			continue;
		}
		give(r, node, c);
		if (reply->type != REDIS_REPLY_ERROR) {
			*out = reply;
			r->logged = false;
			return 0;
		}
		if (r->cluster && (starts(reply->str, "MOVED ") || starts(reply->str, "ASK "))) {
			bool moved = starts(reply->str, "MOVED ");
			int n = redirected(r, reply->str, node, moved);

			forced = moved ? -1 : n;
			err = -EIO;
			freeReplyObject(reply);
			if (n < 0)
				return -EIO;
			continue;
		}
		bool passing = starts(reply->str, "TRYAGAIN") || starts(reply->str, "CLUSTERDOWN") || starts(reply->str, "LOADING") ||
			       starts(reply->str, "MASTERDOWN");

		err = starts(reply->str, "OOM") ? -EDQUOT :
		      starts(reply->str, "NO") || starts(reply->str, "WRONGPASS") ? -EACCES : -EIO;
		if (!passing)
			once(r, cmd->argv[0], reply->str);
		freeReplyObject(reply);
		if (!passing)
			return err;
		usleep(nap_ms * 1000);
		nap_ms = nap_ms < 400 ? nap_ms * 2 : 400;
		if (r->cluster)
			learn_slots(r, until_ns);
	} while (kvc_mono_ns() < until_ns);
	return err == -EIO ? -ETIMEDOUT : err;
}

/* One call of the engine on one frame. */
struct call {
	struct redis *r;
	char hex[33], head[320];
	unsigned slot;
	uint64_t until_ns;
};

static struct call call_of(struct kvc_tier *t, const struct kvc_where *w)
{
	struct call c = { .r = of(t), .until_ns = kvc_mono_ns() + of(t)->deadline_ms * 1000000 };

	kvc_where_text(w, c.hex);
	c.slot = slot_of(c.hex);
	snprintf(c.head, sizeof c.head, "%s:{%s}", c.r->prefix, c.hex);
	return c;
}

static const char *piece_key(const struct call *c, uint64_t tag, uint64_t i, char *buf)
{
	snprintf(buf, 400, "%s:%016llx:%llu", c->head, (unsigned long long)tag, (unsigned long long)i);
	return buf;
}

/* Bytes [from, to] of a key's value into buf: the count, or a negative errno. */
static long range(struct call *c, const char *key, uint64_t from, uint64_t to, void *buf)
{
	struct command cmd = { 0 };
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
	if ((err = ask(c->r, c->slot, &cmd, c->until_ns, &reply)))
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
	return t->stored_len >> 48 || (t->piece && t->piece < 4096) || (!t->piece && t->stored_len > INLINE) ? -EBADMSG : 0;
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

static void unlink_pieces(struct call *c, const struct trailer *t)
{
	uint64_t n = t->piece ? (t->stored_len + t->piece - 1) / t->piece : 0;
	char key[400];

	for (uint64_t i = 0; i < n; i++) {
		struct command cmd = { 0 };
		redisReply *reply;

		word(&cmd, "UNLINK");
		word(&cmd, piece_key(c, t->tag, i, key));
		if (ask(c->r, c->slot, &cmd, c->until_ns, &reply))
			return; /* garbage is left, which a ttl or a flush takes */
		freeReplyObject(reply);
	}
}

/* Sets a key. With `before` (a head): what was there is read from the old value, stored_len UINT64_MAX where there was none. */
static int set(struct call *c, const char *key, const void *data, size_t len, uint64_t expires_ns, struct trailer *before)
{
	struct command cmd = { 0 };
	uint64_t now = kvc_now_ns();
	redisReply *reply;
	char ms[24];
	int err;

	word(&cmd, "SET");
	word(&cmd, key);
	arg(&cmd, data, len);
	if (expires_ns) {
		snprintf(ms, sizeof ms, "%llu", (unsigned long long)(expires_ns > now + 1000000 ? (expires_ns - now) / 1000000 : 1));
		word(&cmd, "PX");
		word(&cmd, ms);
	}
	if (before)
		word(&cmd, "GET");
	err = ask(c->r, c->slot, &cmd, c->until_ns, &reply);
	if (err)
		return err;
	if (before && (reply->type != REDIS_REPLY_STRING || reply->len < KVC_FRAME_HEADER + sizeof *before ||
		       trailer_read((const uint8_t *)reply->str + KVC_FRAME_HEADER, before)))
		before->piece = 0;
	freeReplyObject(reply);
	return 0;
}

static int redis_put(struct kvc_tier *t, const struct kvc_put *p, struct kvc_where *out)
{
	struct call c = call_of(t, &p->name);
	bool in_head = p->stored_len <= INLINE;
	size_t room = KVC_FRAME_HEADER + sizeof(struct trailer) + (in_head ? p->stored_len : 0);
	KVC_MEM uint8_t *head = malloc(room);
	KVC_MEM uint8_t *piece = in_head ? NULL : malloc(PIECE);
	struct trailer mine = { .stored_len = p->stored_len, .piece = in_head ? 0 : PIECE }, before, wire;
	char key[400];
	int err = head && (in_head || piece) ? 0 : -ENOMEM;

	if (err || getrandom(&mine.tag, sizeof mine.tag, 0) != sizeof mine.tag)
		return err ?: -EIO;
	if (in_head && p->stored_len)
		err = p->read(p->arg, head + KVC_FRAME_HEADER + sizeof wire, p->stored_len, 0);
	for (uint64_t off = 0, i = 0; !in_head && off < p->stored_len && !err; i++) {
		size_t len = kvc_min(p->stored_len - off, PIECE);

		c.until_ns = kvc_mono_ns() + c.r->deadline_ms * 1000000; /* each piece has the whole deadline */
		err = p->read(p->arg, piece, len, off) ?: set(&c, piece_key(&c, mine.tag, i, key), piece, len, p->expires_ns, NULL);
		off += len;
	}
	err = err ?: p->head(p->arg, head);
	wire = (struct trailer){ htole64(mine.tag), htole64(mine.stored_len), htole32(mine.piece), 0 };
	memcpy(head + KVC_FRAME_HEADER, &wire, sizeof wire);
	c.until_ns = kvc_mono_ns() + c.r->deadline_ms * 1000000;
	err = err ?: set(&c, c.head, head, room, p->expires_ns, &before);
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

/* [off, off + len) of the payload, which ends at stored_len and is followed by zeros up to a page. */
static int payload(struct call *c, const struct trailer *t, uint64_t off, uint64_t len, struct cursor *to)
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
			c->until_ns = kvc_mono_ns() + c->r->deadline_ms * 1000000;
			if (t->piece)
				got = range(c, piece_key(c, t->tag, off / unit, key), off % unit, off % unit + n - 1, p);
			else
				got = range(c, c->head, KVC_FRAME_HEADER + sizeof *t + off, KVC_FRAME_HEADER + sizeof *t + off + n - 1, p);
			if (got < 0)
				return (int)got;
			if ((uint64_t)got != n)
				return got ? -EBADMSG : -EAGAIN; /* the piece is gone: is there a newer version? */
		}
		to->at += n;
		off += n;
		len -= n;
	}
	return 0;
}

static int redis_get(struct kvc_tier *t, const struct kvc_where *w, uint64_t off, const struct iovec *iov, int n)
{
	struct call c = call_of(t, w);
	struct trailer trailer, last = { 0 };
	uint64_t len = 0;
	int err = -EAGAIN;

	for (int i = 0; i < n; i++)
		len += iov[i].iov_len;
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
			err = payload(&c, &trailer, off ? off - KVC_FRAME_HEADER : 0, off ? len : len - KVC_FRAME_HEADER, &to);
	}
	return err == -EAGAIN ? -EBUSY : err;
}

static int redis_remove(struct kvc_tier *t, const struct kvc_where *w)
{
	struct call c = call_of(t, w);
	struct command cmd = { 0 };
	struct trailer trailer;
	redisReply *reply;
	int err = head_get(&c, NULL, &trailer);

	if (err == -ENOENT)
		return 0;
	bool pieces = !err;

	word(&cmd, "UNLINK");
	word(&cmd, c.head);
	err = err && err != -EBADMSG ? err : ask(c.r, c.slot, &cmd, c.until_ns, &reply);
	if (err)
		return err;
	freeReplyObject(reply);
	if (pieces)
		unlink_pieces(&c, &trailer);
	return 0;
}

/* One key of a SCAN: is it a head of ours? */
static int list_key(struct kvc_tier *t, const char *key, uint8_t *page, struct kvc_frame *f,
		    int (*fn)(void *arg, const struct kvc_where *w, const struct kvc_frame *f), void *arg_)
{
	struct kvc_where w = { 0 };
	struct iovec iov = { page, KVC_FRAME_HEADER };
	const char *open = strchr(key, '{');
	unsigned long long a, b;
	int end = 0;

	if (!open || sscanf(open, "{%16llx%16llx}%n", &a, &b, &end) != 2 || end != 34 || open[34])
		return 0;
	w.at = a;
	w.hi = b;
	return redis_get(t, &w, 0, &iov, 1) || kvc_frame_decode(page, f) ? 0 : fn(arg_, &w, f);
}

static int scan_node(struct kvc_tier *t, unsigned node, uint8_t *page, struct kvc_frame *f,
		     int (*fn)(void *arg, const struct kvc_where *w, const struct kvc_frame *f), void *arg_)
{
	struct redis *r = of(t);
	char cursor[32] = "0", pattern[300];
	int err = 0;

	snprintf(pattern, sizeof pattern, "%s:{*}", r->prefix);
	do {
		redisContext *c;
		redisReply *reply;
		bool fresh;

		if ((err = take(r, node, kvc_mono_ns() + r->deadline_ms * 1000000, &c, &fresh)))
			return err;
		reply = redisCommand(c, "SCAN %s MATCH %s COUNT 500", cursor, pattern);
		if (!reply) {
			redisFree(c);
			if (fresh)
				return -EIO;
			continue; /* an idle one that had been closed */
		}
		give(r, node, c);
		if (reply->type != REDIS_REPLY_ARRAY || reply->elements != 2) {
			freeReplyObject(reply);
			return -EIO;
		}
		snprintf(cursor, sizeof cursor, "%s", reply->element[0]->str);
		for (size_t i = 0; i < reply->element[1]->elements && !err; i++)
			err = list_key(t, reply->element[1]->element[i]->str, page, f, fn, arg_);
		freeReplyObject(reply);
	} while (!err && strcmp(cursor, "0"));
	return err;
}

static int redis_list(struct kvc_tier *t, int (*fn)(void *arg, const struct kvc_where *w, const struct kvc_frame *f), void *arg_)
{
	struct redis *r = of(t);
	KVC_MEM uint8_t *page = malloc(KVC_FRAME_HEADER);
	KVC_MEM struct kvc_frame *f = malloc(sizeof *f);
	bool has[NODES] = { false };
	int err = page && f ? 0 : -ENOMEM;

	pthread_mutex_lock(&r->lock);
	for (int s = 0; s < SLOTS && r->cluster; s++)
		has[r->slot[s]] = true;
	if (!r->cluster)
		has[0] = true;
	pthread_mutex_unlock(&r->lock);
	for (unsigned n = 0; n < NODES && !err; n++)
		if (has[n])
			err = scan_node(t, n, page, f, fn, arg_);
	return err;
}

/* What the server has is its own affair, and asking would make looking at .kvcachefs/stats wait for it. */
static void redis_usage(struct kvc_tier *t, struct kvc_tier_usage *u)
{
	(void)t;
	*u = (struct kvc_tier_usage){ 0 };
}

static void redis_close(struct kvc_tier *t)
{
	struct redis *r = of(t);

	for (unsigned i = 0; i < r->nnodes; i++)
		while (r->nodes[i].nidle)
			redisFree(r->nodes[i].idle[--r->nodes[i].nidle]);
	if (r->tls)
		redisFreeSSLContext(r->tls);
	kvc_wipe(r->password, sizeof r->password);
	pthread_mutex_destroy(&r->lock);
	free(r);
}

static const struct kvc_tier_ops redis_ops = {
	.name = "redis", .caps = KVC_TIER_SHARED,
	.close = redis_close, .put = redis_put, .get = redis_get, .remove = redis_remove, .list = redis_list, .usage = redis_usage,
};

int kvct_redis_open(const struct kvct_url *u, uint64_t deadline_ms, struct kvc_tier **out, char *error)
{
	static const char *const params[] = { "password_file", "db", "ca", "cert", "key", "also", NULL };
	struct redis *r;
	char value[512], ca[512], cert[512], key[512];
	redisSSLContextError tls_error = 0;
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
		redisInitOpenSSL();
		kvct_url_get(u, "ca", ca, sizeof ca);
		kvct_url_get(u, "cert", cert, sizeof cert);
		kvct_url_get(u, "key", key, sizeof key);
		r->tls = redisCreateSSLContext(*ca ? ca : NULL, *ca ? NULL : "/etc/ssl/certs", *cert ? cert : NULL, *key ? key : NULL, u->host, &tls_error);
		if (!r->tls) {
			snprintf(error, 512, "option remote: TLS: %s", redisSSLContextGetError(tls_error));
			err = -EINVAL;
		}
	}
	if (err) {
		redis_close(&r->tier);
		return err;
	}
	node_locked(r, u->host, u->port ? (int)u->port : 6379);
	kvct_url_get(u, "also", value, sizeof value);
	for (char *save = NULL, *seed = strtok_r(value, "+", &save); seed && r->cluster; seed = strtok_r(NULL, "+", &save)) {
		char *colon = strrchr(seed, ':');

		if (colon)
			*colon = 0;
		node_locked(r, seed, colon ? atoi(colon + 1) : 6379);
	}
	if (r->cluster && learn_slots(r, kvc_mono_ns() + 1000000000))
		kvc_warn("tier redis: the cluster at %s does not answer now; it is asked again when it is needed", u->host);
	snprintf(r->tier.id, sizeof r->tier.id, "redis:%.100s:%u/%d/%.100s", u->host, u->port ? u->port : 6379, r->db, r->prefix);
	r->tier.ops = &redis_ops;
	*out = &r->tier;
	return 0;
}
