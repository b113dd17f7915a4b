/* SPDX-License-Identifier: Apache-2.0 */
/* See redis_conn.h. */
#include "redis_conn.h"

#include "log.h"

#include <errno.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

/* CRC-16/XMODEM, as the cluster specification has it. */
unsigned kvct_redis_slot(const char *hex)
{
	unsigned crc = 0;

	for (; *hex; hex++) {
		crc ^= (unsigned)(unsigned char)*hex << 8;
		for (int i = 0; i < 8; i++)
			crc = crc & 0x8000 ? (crc << 1) ^ 0x1021 : crc << 1;
	}
	return (crc & 0xffff) % KVCT_REDIS_SLOTS;
}

static void once(struct kvct_redis *r, const char *what, const char *why)
{
	if (!r->logged)
		kvc_warn("tier redis: %s: %s", what, why);
	r->logged = true;
}

int kvct_redis_ready(int fd, short events, uint64_t until_ns)
{
	struct pollfd p = { .fd = fd, .events = events };

	for (;;) {
		uint64_t now = kvc_mono_ns();
		int n;

		if (now >= until_ns)
			return -ETIMEDOUT;
		n = poll(&p, 1, (int)kvc_min((until_ns - now) / 1000000 + 1, INT_MAX));
		if (n > 0)
			return 0;
		if (n < 0 && errno != EINTR)
			return -errno;
	}
}

int kvct_redis_command(redisContext *c, const struct kvct_redis_command *cmd, uint64_t until_ns,
		       redisReply **out)
{
	void *reply = NULL;
	int sent = 0, err;

	if (!(c->flags & REDIS_BLOCK))
		kvct_redis_tls_clear();
	if (redisAppendCommandArgv(c, cmd->argc, (const char **)(uintptr_t)cmd->argv, cmd->len))
		return -ENOMEM;
	for (;;) {
		if (redisGetReplyFromReader(c, &reply))
			return -ECONNRESET;
		if (reply)
			break;
		if ((err = kvct_redis_ready(c->fd, sent ? POLLIN : POLLOUT, until_ns)))
			return err;
		if (sent ? redisBufferRead(c) : redisBufferWrite(c, &sent))
			return c->err == REDIS_ERR_IO && errno == EAGAIN ? -ETIMEDOUT : -ECONNRESET;
	}
	*out = reply;
	return 0;
}

static int simple(redisContext *c, uint64_t until_ns, const struct kvct_redis_command *cmd)
{
	redisReply *reply;
	int err = kvct_redis_command(c, cmd, until_ns, &reply);

	if (err)
		return err;
	err = reply->type == REDIS_REPLY_ERROR ? -EACCES : 0;
	freeReplyObject(reply);
	return err;
}

/* Says who we are, and which database is meant. */
static int greet(const struct kvct_redis *r, redisContext *c, uint64_t until_ns)
{
	struct kvct_redis_command auth = { 0 }, select = { 0 };
	char db[16];
	int err = 0;

	word(&auth, "AUTH");
	if (*r->user)
		word(&auth, r->user);
	word(&auth, r->password);
	if (*r->password)
		err = simple(c, until_ns, &auth);
	snprintf(db, sizeof db, "%d", r->db);
	word(&select, "SELECT");
	word(&select, db);
	if (!err && r->db)
		err = simple(c, until_ns, &select);
	return err;
}

static int connect_to(struct kvct_redis *r, const char *host, int port, uint64_t until_ns,
		      redisContext **out)
{
	uint64_t now = kvc_mono_ns(), left = until_ns > now ? until_ns - now : 1000000;
	struct timeval limit = {
		.tv_sec = (time_t)(left / 1000000000),
		.tv_usec = (suseconds_t)(left % 1000000000 / 1000),
	};
	redisOptions o = { 0 };
	const char *why;
	redisContext *c;
	int err = 0;

	REDIS_OPTIONS_SET_TCP(&o, host, port);
	o.connect_timeout = &limit;
	o.command_timeout = &limit;
	c = redisConnectWithOptions(&o);
	if (!c || c->err) {
		once(r, "cannot connect", c ? c->errstr : "out of memory");
		err = -ECONNREFUSED;
	}
	if (!err && r->tls && (err = kvct_redis_tls_start(r->tls, c, host, until_ns, &why)))
		once(r, "TLS", why);
	err = err ?: greet(r, c, until_ns);
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

	redisSetTimeout(c, (struct timeval){ .tv_sec = (time_t)(left / 1000000000),
					     .tv_usec = (suseconds_t)(left % 1000000000 / 1000) });
}

static void forget_locked(struct kvct_redis_node *n)
{
	while (n->nidle)
		redisFree(n->idle[--n->nidle]);
	memset(n, 0, sizeof *n);
}

/* Forgets the nodes without slots; the first place that is free then, or -1. */
static int forget_gone_locked(struct kvct_redis *r)
{
	bool has[KVCT_REDIS_NODES] = { false };
	int free_at = -1;

	for (unsigned s = 0; s < KVCT_REDIS_SLOTS; s++)
		has[r->slot[s]] = true;
	for (unsigned i = r->nnodes; i-- > 0;) {
		struct kvct_redis_node *n = &r->nodes[i];

		if (*n->host && !n->seed && !has[i])
			forget_locked(n);
		if (!*n->host)
			free_at = (int)i;
	}
	return free_at;
}

int kvct_redis_node_locked(struct kvct_redis *r, const char *host, int port)
{
	int at = -1;

	if (!*host || strlen(host) >= sizeof r->nodes[0].host)
		return -1;
	for (unsigned i = 0; i < r->nnodes; i++) {
		if (r->nodes[i].port == port && !strcmp(r->nodes[i].host, host))
			return (int)i;
		if (!*r->nodes[i].host)
			at = (int)i;
	}
	if (at < 0)
		at = r->nnodes < KVCT_REDIS_NODES ? (int)r->nnodes++ : forget_gone_locked(r);
	if (at < 0)
		return -1;
	memset(&r->nodes[at], 0, sizeof r->nodes[at]);
	memcpy(r->nodes[at].host, host, strlen(host) + 1);
	r->nodes[at].port = port;
	return at;
}

/* A connection to a node; *fresh says that it is new, so that a failure on it is the server's. */
int kvct_redis_take(struct kvct_redis *r, unsigned node, uint64_t until_ns, redisContext **c,
		    bool *fresh)
{
	char host[256];
	int port;

	pthread_mutex_lock(&r->lock);
	struct kvct_redis_node *n = &r->nodes[node];

	*c = n->nidle ? n->idle[--n->nidle] : NULL;
	memcpy(host, n->host, sizeof host);
	port = n->port;
	pthread_mutex_unlock(&r->lock);
	*fresh = !*c;
	if (*c) {
		set_limit(*c, until_ns);
		return 0;
	}
	if (!*host)
		return -ECONNRESET; /* forgotten meanwhile */
	return connect_to(r, host, port, until_ns, c);
}

void kvct_redis_give(struct kvct_redis *r, unsigned node, redisContext *c)
{
	pthread_mutex_lock(&r->lock);
	struct kvct_redis_node *n = &r->nodes[node];
	/* The place may be another node's by now. */
	bool keep = !c->err && n->nidle < KVCT_REDIS_IDLE && n->port == c->tcp.port &&
		    c->tcp.host && !strcmp(n->host, c->tcp.host);

	if (keep)
		n->idle[n->nidle++] = c;
	pthread_mutex_unlock(&r->lock);
	if (!keep)
		redisFree(c);
}

/* Asks any node that answers for the map of slots. */
int kvct_redis_learn(struct kvct_redis *r, uint64_t until_ns)
{
	struct kvct_redis_command ask = { 0 };

	word(&ask, "CLUSTER");
	word(&ask, "SLOTS");
	for (unsigned i = 0; i < r->nnodes && kvc_mono_ns() < until_ns; i++) {
		redisContext *c;
		redisReply *reply = NULL;
		uint64_t until = kvc_min(until_ns, kvc_mono_ns() + 1000000000);
		bool fresh, good = false;

		if (kvct_redis_take(r, i, until, &c, &fresh))
			continue;
		if (kvct_redis_command(c, &ask, until, &reply)) {
			redisFree(c);
			continue;
		}
		if (reply->type == REDIS_REPLY_ARRAY && reply->elements) {
			pthread_mutex_lock(&r->lock);
			good = true;
			/* whose slots nobody tells, the first node tells when it is asked */
			memset(r->slot, 0, sizeof r->slot);
			for (size_t e = 0; e < reply->elements; e++) {
				redisReply *x = reply->element[e],
					   *m = x->type == REDIS_REPLY_ARRAY && x->elements > 2
							? x->element[2]
							: NULL;
				const char *host;
				int n;

				if (!m || m->type != REDIS_REPLY_ARRAY || m->elements < 2 ||
				    x->element[0]->type != REDIS_REPLY_INTEGER)
					continue;
				host = m->element[0]->type == REDIS_REPLY_STRING &&
						       m->element[0]->len
					       ? m->element[0]->str
					       : c->tcp.host ?: "";
				n = kvct_redis_node_locked(r, host, (int)m->element[1]->integer);
				for (long long s = x->element[0]->integer;
				     n >= 0 && s >= 0 && s <= x->element[1]->integer &&
				     s < KVCT_REDIS_SLOTS;
				     s++)
					r->slot[s] = (uint8_t)n;
			}
			forget_gone_locked(r);
			pthread_mutex_unlock(&r->lock);
		}
		freeReplyObject(reply);
		kvct_redis_give(r, i, c);
		if (good)
			return 0;
	}
	return -EIO;
}

/* "MOVED 3999 host:port" or "ASK ...": the node. */
static int redirected(struct kvct_redis *r, const char *text, unsigned from, bool moved)
{
	char host[256] = "";
	unsigned slot;
	int port, n;
	const char *where = strchr(text, ' '), *colon;

	if (!where || sscanf(where, " %u", &slot) != 1 || slot >= KVCT_REDIS_SLOTS ||
	    !(where = strchr(where + 1, ' ')) || !(colon = strrchr(++where, ':')) ||
	    (size_t)(colon - where) >= sizeof host)
		return -1;
	memcpy(host, where, (size_t)(colon - where));
	port = atoi(colon + 1);
	pthread_mutex_lock(&r->lock);
	n = kvct_redis_node_locked(r, *host ? host : r->nodes[from].host, port);
	if (n >= 0 && moved)
		r->slot[slot] = (uint8_t)n;
	pthread_mutex_unlock(&r->lock);
	return n;
}

/* What an error is: *passing where it may be asked again in a moment. */
static int refused(const char *text, bool *passing)
{
	*passing = starts(text, "TRYAGAIN") || starts(text, "CLUSTERDOWN") ||
		   starts(text, "LOADING") || starts(text, "MASTERDOWN");
	if (starts(text, "OOM"))
		return -ENOSPC;
	if (starts(text, "NOPERM"))
		return -EIO; /* it may be of this key alone */
	return starts(text, "NO") || starts(text, "WRONGPASS") ? -EACCES : -EIO;
}

int kvct_redis_ask(struct kvct_redis *r, unsigned slot, const struct kvct_redis_command *cmd,
		   uint64_t until_ns, redisReply **out)
{
	struct kvct_redis_command first = { 0 };
	int forced = -1; /* ASK: only this once */
	unsigned nap_ms = 20, stale = 0;
	int err = -EIO;

	word(&first, "ASKING");
	do {
		redisContext *c;
		redisReply *reply;
		unsigned node;
		bool fresh, passing, asking = forced >= 0;

		pthread_mutex_lock(&r->lock);
		node = asking ? (unsigned)forced : r->cluster ? r->slot[slot] : 0;
		pthread_mutex_unlock(&r->lock);
		forced = -1;
		err = kvct_redis_take(r, node, until_ns, &c, &fresh);
		if (err == -EACCES || (err && !r->cluster))
			return err;
		if (err) { /* a node that is gone: who has its slots now? */
			usleep(nap_ms * 1000);
			nap_ms = nap_ms < 400 ? nap_ms * 2 : 400;
			kvct_redis_learn(r, until_ns);
			continue;
		}
		err = (asking ? simple(c, until_ns, &first) : 0)
			      ?: kvct_redis_command(c, cmd, until_ns, &reply);
		if (err) {
			err = err == -ETIMEDOUT ? err : -ECONNRESET;
			redisFree(c);
			if (!fresh && err != -ETIMEDOUT && stale++ < KVCT_REDIS_IDLE)
				continue; /* an idle connection that the server had closed */
			if (!r->cluster || err == -ETIMEDOUT)
				return err;
			kvct_redis_learn(r, until_ns);
			continue;
		}
		kvct_redis_give(r, node, c);
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
			if (n < 0) /* too many that are gone: who is there now? */
				kvct_redis_learn(r, until_ns);
			continue;
		}
		err = refused(reply->str, &passing);
		if (!passing)
			once(r, cmd->argv[0], reply->str);
		freeReplyObject(reply);
		if (!passing)
			return err;
		usleep(nap_ms * 1000);
		nap_ms = nap_ms < 400 ? nap_ms * 2 : 400;
		if (r->cluster)
			kvct_redis_learn(r, until_ns);
	} while (kvc_mono_ns() < until_ns);
	return err == -EIO || err == -ECONNRESET ? -ETIMEDOUT : err;
}
