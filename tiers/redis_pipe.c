/* SPDX-License-Identifier: Apache-2.0 */
/* See redis_conn.h. */
#include "redis_conn.h"

#include <errno.h>

void kvct_redis_pipe_send(struct kvct_redis_pipe *p, bool reuse)
{
	struct kvct_redis_conn *c = NULL;
	int err = kvct_redis_conn_get(p->r, p->node, p->until_ns, reuse, &c), done;

	for (size_t i = 0; i < p->n && !err; i++) {
		struct kvct_redis_command cmd = { 0 };

		p->command(p->arg, i, &cmd);
		err = kvct_redis_send(c->c, &cmd);
	}
	if (!err) {
		redisBufferWrite(c->c, &done); /* a failure also ends the wait for the answer */
	} else {
		kvct_redis_conn_free(c);
		c = NULL;
	}
	p->c = c;
	p->err = err;
}

/* Takes one answer. Returns 0, or an error that concerns more than this command. */
static int pipe_answered(struct kvct_redis_pipe *p, size_t i, const redisReply *reply, bool fresh,
			 bool *again)
{
	struct kvct_redis_command cmd = { 0 };
	enum kvct_redis_next next;
	int err = p->answer(p->arg, i, reply);

	if (err != KVCT_REDIS_UNKNOWN)
		return err;
	p->command(p->arg, i, &cmd);
	err = kvct_redis_error(p->r, cmd.argv[0], reply->str, fresh, &next);
	*again = *again || next == KVCT_REDIS_RECONNECT;
	return next == KVCT_REDIS_WAIT ? -EBUSY : err;
}

/* Reads the answers. Returns true if a new connection may help. */
static bool pipe_receive(struct kvct_redis_pipe *p)
{
	const struct kvct_redis_command cmd = { .most_elements = p->elements };
	struct kvct_redis_conn *c = p->c;
	bool fresh = c->fresh, again = false;
	redisReply *reply;
	int err;

	p->c = NULL;
	for (size_t i = 0; i < p->n; i++) {
		err = kvct_redis_answer(c->c, &cmd, p->until_ns, kvct_redis_silence_ns(p->r, c),
					&reply);
		if (err) {
			p->err = err;
			return kvct_redis_conn_failed(p->r, p->node, c, err);
		}
		err = pipe_answered(p, i, reply, fresh, &again);
		p->err = p->err ?: err;
		freeReplyObject(reply);
	}
	kvct_redis_conn_put(p->r, p->node, c);
	return again;
}

int kvct_redis_pipe_finish(struct kvct_redis_pipe *p)
{
	if (p->c && pipe_receive(p) && kvc_mono_ns() < p->until_ns) {
		kvct_redis_pipe_send(p, false);
		if (p->c)
			pipe_receive(p);
	}
	return p->err;
}
