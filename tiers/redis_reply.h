/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Commands and answers of the redis tier on one connection. The size of an answer is limited in
 * bytes and in elements, whatever the server sends: the reader stores no more, and a longer answer
 * ends the connection. This layer does not know which server it talks to.
 */
#ifndef KVCT_REDIS_REPLY_H
#define KVCT_REDIS_REPLY_H

#include "util.h"

#include <hiredis.h>
#include <string.h>

#define KVCT_REDIS_TEXT (16u << 10) /* the largest answer that is not data, in bytes */
#define KVCT_REDIS_DEPTH 6          /* levels of nested arrays */

struct kvct_redis_command {
	int argc;
	const char *argv[8];
	size_t len[8];
	/*
	 * The largest answer in bytes (0: KVCT_REDIS_TEXT), and in elements of all its arrays. If
	 * `into` is set, a string is stored there instead of in reply->str, which stays NULL.
	 */
	size_t most, most_elements;
	void *into;
	size_t into_len;
};

static inline void command_arg(struct kvct_redis_command *c, const void *p, size_t len)
{
	c->argv[c->argc] = p;
	c->len[c->argc++] = len;
}

static inline void command_word(struct kvct_redis_command *c, const char *s)
{
	command_arg(c, s, strlen(s));
}

static inline bool has_prefix(const char *s, const char *with)
{
	return !strncmp(s, with, strlen(with));
}

/*
 * Makes a non-blocking connection from fd, and takes ownership of fd. NULL: out of memory; fd is
 * closed.
 */
redisContext *kvct_redis_context(int fd);
/*
 * Waits until fd is ready for `events` of poll(2). Returns 0, -ETIMEDOUT or another negative errno.
 */
int kvct_redis_ready(int fd, short events, uint64_t until_ns);
/*
 * Sends a command and waits for its answer, which the caller frees with freeReplyObject(); it may
 * be an error reply. Blocks until until_ns at most, and for silence_ns at most without a byte in
 * either direction. Returns 0, or an error after which the connection is unusable: -ETIMEDOUT,
 * -ECONNRESET, -EACCES (the server refused TLS), -EIO (the answer is too large or malformed),
 * -ENOMEM.
 */
int kvct_redis_command(redisContext *c, const struct kvct_redis_command *cmd, uint64_t until_ns,
		       uint64_t silence_ns, redisReply **out);
/*
 * The parts of kvct_redis_command, for several commands in one round trip: kvct_redis_send for each
 * of them, then kvct_redis_answer for each, in the same order. send adds the command to the bytes
 * to send (0 or -ENOMEM), and answer sends them first.
 */
int kvct_redis_send(redisContext *c, const struct kvct_redis_command *cmd);
int kvct_redis_answer(redisContext *c, const struct kvct_redis_command *cmd, uint64_t until_ns,
		      uint64_t silence_ns, redisReply **out);

/* Was everything that arrived read? Otherwise, later answers would belong to the wrong commands. */
bool kvct_redis_in_step(const redisContext *c);

/* Actions after an error reply. */
enum kvct_redis_next {
	KVCT_REDIS_FINAL, /* fail with err */
	/* try another connection, which may lead to a server that can answer; then fail */
	KVCT_REDIS_RECONNECT,
	/* in a cluster, wait and try again; otherwise the same as RECONNECT */
	KVCT_REDIS_WAIT,
};
/*
 * Returns the negative errno (tier.h) of an error reply `text` to `command`, and sets *next. Sets
 * *hint to advice for the administrator, a constant or NULL.
 */
int kvct_redis_meaning(const char *command, const char *text, enum kvct_redis_next *next,
		       const char **hint);

#endif
