/* SPDX-License-Identifier: Apache-2.0 */
/*
 * See redis_reply.h. hiredis' reader takes an answer of any size, with a buffer as long as its
 * longest string, arrays as long as they claim to be and as deep as they are. So the bytes that it
 * is fed are counted here, and it makes its objects through functions of ours that refuse.
 */
#include "redis_reply.h"

#include "redis_tls.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <unistd.h>

/* Of the answer that a reader is reading; its privdata. */
struct bounds {
	const struct kvct_redis_command *cmd;
	redisReplyObjectFunctions *usual;
	size_t elements;
	bool over;
};

static void *string_within(const redisReadTask *t, char *s, size_t len)
{
	struct bounds *b = t->privdata;

	if (!b->cmd->into || t->parent || t->type != REDIS_REPLY_STRING)
		return b->usual->createString(t, s, len);
	if (len > b->cmd->into_len) {
		b->over = true;
		return NULL;
	}
	/* An empty one is made, for its type and length. */
	redisReply *r = b->usual->createInteger(t, 0);

	if (!r)
		return NULL;
	r->type = REDIS_REPLY_STRING;
	r->integer = 0;
	r->len = len;
	memcpy(b->cmd->into, s, len);
	return r;
}

static void *array_within(const redisReadTask *t, size_t n)
{
	struct bounds *b = t->privdata;
	unsigned depth = 0;

	for (const redisReadTask *up = t->parent; up; up = up->parent)
		depth++;
	if (depth >= KVCT_REDIS_DEPTH || n > b->cmd->most_elements - b->elements) {
		b->over = true;
		return NULL;
	}
	b->elements += n;
	return b->usual->createArray(t, n);
}

redisContext *kvct_redis_context(int fd)
{
	redisContext *c = redisConnectFd(fd);

	if (!c || c->err) {
		if (c) {
			c->fd = REDIS_INVALID_FD;
			redisFree(c);
		}
		close(fd);
		return NULL;
	}
	c->flags &= ~REDIS_BLOCK;
	return c;
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

/* Feeds the reader once: the bytes, 0 where it would block, or a negative errno. */
static long feed(redisContext *c)
{
	char buf[16384];
	ssize_t n = c->funcs->read(c, buf, sizeof buf);

	if (n < 0)
		return kvct_redis_tls_refused() ? -EACCES : -ECONNRESET;
	return n && redisReaderFeed(c->reader, buf, (size_t)n) ? -EIO : (long)n;
}

/* The answer, as far as the bytes that are there go: NULL for more. */
static int next_reply(redisContext *c, struct bounds *b, redisReply **reply)
{
	void *r;

	do {
		r = NULL;
		if (redisReaderGetReply(c->reader, &r))
			return b->over || c->reader->err != REDIS_ERR_OOM ? -EIO : -ENOMEM;
		*reply = r;
		if (!r || (*reply)->type != REDIS_REPLY_PUSH)
			return 0;
		freeReplyObject(r); /* news that nobody asked for */
		*reply = NULL;
	} while (true);
}

static int exchange(redisContext *c, struct bounds *b, uint64_t until_ns, uint64_t quiet_ns,
		    redisReply **out)
{
	size_t most = b->cmd->most ?: KVCT_REDIS_TEXT, got = 0, left = sdslen(c->obuf);
	uint64_t by = kvc_min(until_ns, kvc_mono_ns() + quiet_ns);
	int sent = 0, err, broken = 0;
	long n;

	for (*out = NULL;;) {
		if ((err = next_reply(c, b, out)))
			return err;
		if (*out)
			return 0;
		if (broken)
			return broken;
		if (got > most)
			return -EIO;
		if ((err = kvct_redis_ready(c->fd, sent ? POLLIN : POLLOUT, by)))
			return err;
		n = 0;
		if (sent) {
			if ((n = feed(c)) < 0)
				return (int)n;
			got += (size_t)n;
		} else if (redisBufferWrite(c, &sent)) {
			/* The server may have said why before it stopped to listen. */
			sent = 1;
			broken = -ECONNRESET;
			while (got <= most && (n = feed(c)) > 0)
				got += (size_t)n;
			continue;
		} else if (sent || sdslen(c->obuf) < left) {
			n = 1;
			left = sent ? 0 : sdslen(c->obuf);
		}
		if (n)
			by = kvc_min(until_ns, kvc_mono_ns() + quiet_ns);
	}
}

int kvct_redis_command(redisContext *c, const struct kvct_redis_command *cmd, uint64_t until_ns,
		       uint64_t quiet_ns, redisReply **out)
{
	struct bounds b = { cmd, c->reader->fn, 0, false };
	redisReplyObjectFunctions within = *b.usual;
	int err;

	kvct_redis_tls_clear();
	if (redisAppendCommandArgv(c, cmd->argc, (const char **)(uintptr_t)cmd->argv, cmd->len))
		return -ENOMEM;
	within.createString = string_within;
	within.createArray = array_within;
	c->reader->fn = &within;
	c->reader->privdata = &b;
	c->reader->maxelements = (long long)cmd->most_elements + 1;
	err = exchange(c, &b, until_ns, quiet_ns, out);
	if (err && c->reader->reply) { /* while its functions are there */
		within.freeObject(c->reader->reply);
		c->reader->reply = NULL;
	}
	c->reader->fn = b.usual;
	c->reader->privdata = NULL;
	/* Its buffer stays as large as the largest answer, also while the connection is idle. */
	if (!err && cmd->most > 4 * KVCT_REDIS_TEXT && kvct_redis_in_step(c)) {
		redisReader *small = redisReaderCreate();

		if (small) {
			redisReaderFree(c->reader);
			c->reader = small;
		}
	}
	return err;
}

bool kvct_redis_in_step(const redisContext *c)
{
	return c->reader->pos == c->reader->len && c->reader->ridx == -1;
}

/*
 * The errors that servers and the proxies before them answer with: how it begins (behind "ERR " or
 * not), the command it answers (NULL: any), and what it means. The first row that fits counts.
 */
static const struct {
	const char *begins, *command;
	int err;
	enum kvct_redis_next next;
	const char *hint;
} meanings[] = {
	/* Of this key or value alone. */
	{ "WRONGTYPE", NULL, -EIO, KVCT_REDIS_FINAL,
	  "another program uses the prefix; choose another prefix" },
	{ "max request size exceeded", NULL, -EFBIG, KVCT_REDIS_FINAL,
	  "the server accepts smaller values only" },
	{ "string exceeds maximum", NULL, -EFBIG, KVCT_REDIS_FINAL, "raise proto-max-bulk-len" },
	{ "Protocol error: invalid bulk length", NULL, -EFBIG, KVCT_REDIS_FINAL,
	  "raise proto-max-bulk-len" },
	{ "value is too large", NULL, -EFBIG, KVCT_REDIS_FINAL, NULL },
	{ "value too large", NULL, -EFBIG, KVCT_REDIS_FINAL, NULL },
	{ "request too large", NULL, -EFBIG, KVCT_REDIS_FINAL, NULL },
	{ "NOPERM No permissions to access a key", NULL, -EIO, KVCT_REDIS_FINAL,
	  "see the least permissions in kvcachefs-tiers(7)" },
	{ "NOPERM this user has no permissions to access one of the keys", NULL, -EIO,
	  KVCT_REDIS_FINAL, "see the least permissions in kvcachefs-tiers(7)" },
	/* Writes are refused; another server may take them. */
	{ "READONLY", NULL, -EROFS, KVCT_REDIS_RECONNECT, "the server is a replica" },
	{ "MISCONF", NULL, -EROFS, KVCT_REDIS_FINAL, "see the server's log" },
	{ "NOREPLICAS", NULL, -EROFS, KVCT_REDIS_FINAL, "see min-replicas-to-write" },
	{ "OOM", NULL, -ENOSPC, KVCT_REDIS_FINAL, "set a maxmemory-policy that evicts" },
	{ "syntax error", "SET", -EROFS, KVCT_REDIS_FINAL,
	  "SET with GET needs Redis 6.2 or later, or Valkey" },
	{ "wrong number of arguments", "SET", -EROFS, KVCT_REDIS_FINAL,
	  "SET with GET needs Redis 6.2 or later, or Valkey" },
	{ "unknown command", "UNLINK", -EROFS, KVCT_REDIS_FINAL,
	  "Redis 6.2 or later, or Valkey, is needed" },
	{ "unknown command", NULL, -EACCES, KVCT_REDIS_FINAL,
	  "Redis 6.2 or later, or Valkey, is needed" },
	/* Quotas of services. */
	{ "max daily request limit", NULL, -EDQUOT, KVCT_REDIS_FINAL, NULL },
	{ "max requests limit", NULL, -EDQUOT, KVCT_REDIS_FINAL, NULL },
	{ "quota", NULL, -EDQUOT, KVCT_REDIS_FINAL, NULL },
	/* Not now. */
	{ "LOADING", NULL, -EBUSY, KVCT_REDIS_WAIT, NULL },
	{ "MASTERDOWN", NULL, -EBUSY, KVCT_REDIS_WAIT, NULL },
	{ "CLUSTERDOWN", NULL, -EBUSY, KVCT_REDIS_WAIT, NULL },
	{ "TRYAGAIN", NULL, -EBUSY, KVCT_REDIS_WAIT, NULL },
	{ "BUSY", NULL, -EBUSY, KVCT_REDIS_FINAL, "a script is running on the server" },
	{ "max number of clients", NULL, -EBUSY, KVCT_REDIS_FINAL, "raise maxclients" },
	{ "max concurrent connections", NULL, -EBUSY, KVCT_REDIS_FINAL, NULL },
	{ "max requests per second", NULL, -EBUSY, KVCT_REDIS_FINAL, NULL },
	/* We may not, or not as whom we say that we are. */
	{ "NOPERM", NULL, -EACCES, KVCT_REDIS_FINAL,
	  "see the least permissions in kvcachefs-tiers(7)" },
	{ "NOAUTH", NULL, -EACCES, KVCT_REDIS_RECONNECT, "give user and password_file" },
	{ "WRONGPASS", NULL, -EACCES, KVCT_REDIS_RECONNECT, "check user and password_file" },
	{ "invalid password", NULL, -EACCES, KVCT_REDIS_RECONNECT, "check password_file" },
	{ "operation not permitted", NULL, -EACCES, KVCT_REDIS_RECONNECT, "check password_file" },
	{ "DENIED", NULL, -EACCES, KVCT_REDIS_FINAL, NULL },
	{ "DB index is out of range", NULL, -EACCES, KVCT_REDIS_FINAL, "check db=" },
	{ "invalid DB index", NULL, -EACCES, KVCT_REDIS_FINAL, "check db=" },
	{ "SELECT is not allowed", NULL, -EACCES, KVCT_REDIS_FINAL,
	  "a cluster does not support db=" },
	/* A node of a cluster that is spoken to as a server of its own. */
	{ "MOVED", NULL, -EIO, KVCT_REDIS_FINAL, "it is a cluster: mount with redis+cluster://" },
	{ "ASK", NULL, -EIO, KVCT_REDIS_FINAL, "it is a cluster: mount with redis+cluster://" },
	/* Of proxies: nobody is behind them. */
	{ "no upstream host", NULL, -EHOSTUNREACH, KVCT_REDIS_RECONNECT, NULL },
};

int kvct_redis_meaning(const char *command, const char *text, enum kvct_redis_next *next,
		       const char **hint)
{
	const char *said = starts(text, "ERR ") ? text + 4 : text;

	for (size_t i = 0; i < sizeof meanings / sizeof meanings[0]; i++)
		if (!strncasecmp(said, meanings[i].begins, strlen(meanings[i].begins)) &&
		    (!meanings[i].command || !strcmp(meanings[i].command, command))) {
			*next = meanings[i].next;
			*hint = meanings[i].hint;
			return meanings[i].err;
		}
	*next = KVCT_REDIS_FINAL;
	*hint = NULL;
	return -EIO;
}
