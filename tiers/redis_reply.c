/* SPDX-License-Identifier: Apache-2.0 */
/*
 * See redis_reply.h. hiredis' reader accepts answers of any size: its buffer grows to the longest
 * string, and arrays are as long as they claim and as deep as they are sent. So the bytes fed to it
 * are counted here, and its objects are made by functions that refuse objects above the limits.
 */
#include "redis_reply.h"

#include "redis_tls.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <unistd.h>

/* The limits of the answer being read; the reader's privdata. */
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
	/* makes an empty string with the type and length */
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

/* Feeds the reader once. Returns the number of bytes, 0 if it would block, or a negative errno. */
static long reader_feed(redisContext *c)
{
	char buf[16384];
	ssize_t n = c->funcs->read(c, buf, sizeof buf);

	if (n < 0)
		return kvct_redis_tls_refused() ? -EACCES : -ECONNRESET;
	return n && redisReaderFeed(c->reader, buf, (size_t)n) ? -EIO : (long)n;
}

/* Parses the bytes read so far. *reply is NULL if the answer is not complete. */
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
		freeReplyObject(r); /* an unsolicited push message */
		*reply = NULL;
	} while (true);
}

static int exchange(redisContext *c, struct bounds *b, uint64_t until_ns, uint64_t silence_ns,
		    redisReply **out)
{
	size_t most = b->cmd->most ?: KVCT_REDIS_TEXT, got = 0, left = sdslen(c->obuf);
	uint64_t by = kvc_min(until_ns, kvc_mono_ns() + silence_ns);
	int sent = !left, err, broken = 0;
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
			if ((n = reader_feed(c)) < 0)
				return (int)n;
			got += (size_t)n;
		} else if (redisBufferWrite(c, &sent)) {
			/* the server may have sent a reason before it closed */
			sent = 1;
			broken = -ECONNRESET;
			while (got <= most && (n = reader_feed(c)) > 0)
				got += (size_t)n;
			continue;
		} else if (sent || sdslen(c->obuf) < left) {
			n = 1;
			left = sent ? 0 : sdslen(c->obuf);
		}
		if (n)
			by = kvc_min(until_ns, kvc_mono_ns() + silence_ns);
	}
}

int kvct_redis_send(redisContext *c, const struct kvct_redis_command *cmd)
{
	return redisAppendCommandArgv(c, cmd->argc, (const char **)(uintptr_t)cmd->argv, cmd->len)
		       ? -ENOMEM
		       : 0;
}

int kvct_redis_answer(redisContext *c, const struct kvct_redis_command *cmd, uint64_t until_ns,
		      uint64_t silence_ns, redisReply **out)
{
	struct bounds b = { cmd, c->reader->fn, 0, false };
	redisReplyObjectFunctions within = *b.usual;
	int err;

	kvct_redis_tls_clear();
	within.createString = string_within;
	within.createArray = array_within;
	c->reader->fn = &within;
	c->reader->privdata = &b;
	c->reader->maxelements = (long long)cmd->most_elements + 1;
	err = exchange(c, &b, until_ns, silence_ns, out);
	if (err && c->reader->reply) { /* freed here, while `within` still exists */
		within.freeObject(c->reader->reply);
		c->reader->reply = NULL;
	}
	c->reader->fn = b.usual;
	c->reader->privdata = NULL;
	/*
	 * The reader's buffer keeps the size of its largest answer, also on an idle connection, so
	 * a large reader is replaced.
	 */
	if (!err && cmd->most > 4 * KVCT_REDIS_TEXT && kvct_redis_in_step(c)) {
		redisReader *small = redisReaderCreate();

		if (small) {
			redisReaderFree(c->reader);
			c->reader = small;
		}
	}
	return err;
}

int kvct_redis_command(redisContext *c, const struct kvct_redis_command *cmd, uint64_t until_ns,
		       uint64_t silence_ns, redisReply **out)
{
	return kvct_redis_send(c, cmd) ?: kvct_redis_answer(c, cmd, until_ns, silence_ns, out);
}

bool kvct_redis_in_step(const redisContext *c)
{
	return c->reader->pos == c->reader->len && c->reader->ridx == -1;
}

/*
 * The errors of servers and of proxies in front of them: the beginning of the text (after "ERR " or
 * not), the command (NULL: any), and the meaning. The first matching row counts.
 */
static const struct {
	const char *begins, *command;
	int err;
	enum kvct_redis_next next;
	const char *hint;
} meanings[] = {
	/* errors of one key or value */
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
	/* writes are refused; another server may accept them */
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
	/* quotas of services */
	{ "max daily request limit", NULL, -EDQUOT, KVCT_REDIS_FINAL, NULL },
	{ "max requests limit", NULL, -EDQUOT, KVCT_REDIS_FINAL, NULL },
	{ "quota", NULL, -EDQUOT, KVCT_REDIS_FINAL, NULL },
	/* temporary errors */
	{ "LOADING", NULL, -EBUSY, KVCT_REDIS_WAIT, NULL },
	{ "MASTERDOWN", NULL, -EBUSY, KVCT_REDIS_WAIT, NULL },
	{ "CLUSTERDOWN", NULL, -EBUSY, KVCT_REDIS_WAIT, NULL },
	{ "TRYAGAIN", NULL, -EBUSY, KVCT_REDIS_WAIT, NULL },
	{ "BUSY", NULL, -EBUSY, KVCT_REDIS_FINAL, "a script is running on the server" },
	{ "max number of clients", NULL, -EBUSY, KVCT_REDIS_FINAL, "raise maxclients" },
	{ "max concurrent connections", NULL, -EBUSY, KVCT_REDIS_FINAL, NULL },
	{ "max requests per second", NULL, -EBUSY, KVCT_REDIS_FINAL, NULL },
	/* missing permissions, or a refused login */
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
	/* a node of a cluster, used as a single server */
	{ "MOVED", NULL, -EIO, KVCT_REDIS_FINAL, "it is a cluster: mount with redis+cluster://" },
	{ "ASK", NULL, -EIO, KVCT_REDIS_FINAL, "it is a cluster: mount with redis+cluster://" },
	/* errors of proxies: no server is behind them */
	{ "no upstream host", NULL, -EHOSTUNREACH, KVCT_REDIS_RECONNECT, NULL },
};

int kvct_redis_meaning(const char *command, const char *text, enum kvct_redis_next *next,
		       const char **hint)
{
	const char *message = has_prefix(text, "ERR ") ? text + 4 : text;

	for (size_t i = 0; i < sizeof meanings / sizeof meanings[0]; i++)
		if (!strncasecmp(message, meanings[i].begins, strlen(meanings[i].begins)) &&
		    (!meanings[i].command || !strcmp(meanings[i].command, command))) {
			*next = meanings[i].next;
			*hint = meanings[i].hint;
			return meanings[i].err;
		}
	*next = KVCT_REDIS_FINAL;
	*hint = NULL;
	return -EIO;
}
