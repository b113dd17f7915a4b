/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Commands and answers of the redis tier, over one connection. An answer has a largest size, in
 * bytes and in elements, whatever the server sends: the reader holds no more than that, and a
 * longer answer ends the connection. Nothing here knows which server it talks to.
 */
#ifndef KVCT_REDIS_REPLY_H
#define KVCT_REDIS_REPLY_H

#include "util.h"

#include <hiredis.h>
#include <string.h>

#define KVCT_REDIS_TEXT (16u << 10) /* bytes of the largest answer that is not data */
#define KVCT_REDIS_DEPTH 6          /* arrays in arrays */

struct kvct_redis_command {
	int argc;
	const char *argv[8];
	size_t len[8];
	/*
	 * The answer: bytes (0: none but KVCT_REDIS_TEXT) and elements of all its arrays at most.
	 * With `into`, a string is put there instead of into reply->str, which stays NULL.
	 */
	size_t most, most_elements;
	void *into;
	size_t into_len;
};

static inline void arg(struct kvct_redis_command *c, const void *p, size_t len)
{
	c->argv[c->argc] = p;
	c->len[c->argc++] = len;
}

static inline void word(struct kvct_redis_command *c, const char *s)
{
	arg(c, s, strlen(s));
}

static inline bool starts(const char *s, const char *with)
{
	return !strncmp(s, with, strlen(with));
}

/* A non-blocking connection over fd, which belongs to it afterwards; NULL: no memory, fd is closed.
 */
redisContext *kvct_redis_context(int fd);
/* Waits until fd is ready for `events` of poll(2): 0, -ETIMEDOUT, or another negative errno. */
int kvct_redis_ready(int fd, short events, uint64_t until_ns);
/*
 * Sends a command and waits for its answer, which the caller frees with freeReplyObject(); it may
 * be an error's. Blocks until until_ns at most, and no longer than quiet_ns without a byte in
 * either direction. After an error the connection is unusable: -ETIMEDOUT, -ECONNRESET, -EACCES
 * (the other side refused TLS), -EIO (the answer is too large or malformed), -ENOMEM.
 */
int kvct_redis_command(redisContext *c, const struct kvct_redis_command *cmd, uint64_t until_ns,
		       uint64_t quiet_ns, redisReply **out);

/* Has everything that arrived been read? Else answers would go to the wrong commands. */
bool kvct_redis_in_step(const redisContext *c);

/* What to do about an error that a server answered with. */
enum kvct_redis_next {
	KVCT_REDIS_FINAL,     /* fail with err */
	KVCT_REDIS_RECONNECT, /* another connection may lead to a server that can; else fail */
	KVCT_REDIS_WAIT,      /* in a cluster the answer changes by itself; else as RECONNECT */
};
/*
 * The negative errno (tier.h) for an error's text in answer to `command`, and in *hint what the
 * administrator can do, a constant or NULL.
 */
int kvct_redis_meaning(const char *command, const char *text, enum kvct_redis_next *next,
		       const char **hint);

#endif
