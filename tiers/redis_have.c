/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Many names at once in the redis tier (kvc_tier_ops.have): the first byte of each head is read,
 * with the command that get uses, so that a user of the server needs no other permission. All
 * commands for a node are sent on one connection before its first answer is read, and to all nodes
 * of a cluster before any answer is read.
 *
 * Only an answer that is an empty string says that a frame is missing. A name that the cluster has
 * moved, whose own command fails, or whose node fails may exist; get then tells.
 */
#include "redis_conn.h"

#include <errno.h>

#define BATCH 512u /* commands that are sent at once; they take at most 200 KiB */

/* The names of one batch. */
struct batch {
	struct kvct_redis *r;
	const struct kvc_where *w;
	bool *has;
	size_t n;
	char key[KVCT_REDIS_NAME];
	struct part {
		struct batch *b;
		struct kvct_redis_pipe pipe;
		uint16_t name[BATCH]; /* the numbers of the names */
	} part[KVCT_REDIS_NODES];
};

static void have_command(void *arg, size_t i, struct kvct_redis_command *cmd)
{
	const struct part *p = arg;

	kvct_redis_head_key(p->b->r, &p->b->w[p->name[i]], p->b->key);
	command_word(cmd, "GETRANGE");
	command_word(cmd, p->b->key);
	command_word(cmd, "0");
	command_word(cmd, "0");
}

static int have_answer(void *arg, size_t i, const redisReply *reply)
{
	const struct part *p = arg;
	struct kvct_redis *r = p->b->r;

	p->b->has[p->name[i]] = reply->type != REDIS_REPLY_STRING || reply->len;
	if (reply->type != REDIS_REPLY_ERROR)
		return 0;
	if (r->cluster && has_prefix(reply->str, "MOVED "))
		/* so that get asks the right node */
		kvct_redis_redirected(r, reply->str, p->pipe.node, true);
	else if (!r->cluster ||
		 (!has_prefix(reply->str, "ASK ") && !has_prefix(reply->str, "TRYAGAIN")))
		return KVCT_REDIS_UNKNOWN;
	return 0;
}

/* Asks all nodes. Returns 0 if any has answered, or an error. */
static int batch_run(struct batch *b)
{
	unsigned answered = 0;
	int last = 0;

	for (unsigned node = 0; node < KVCT_REDIS_NODES; node++)
		if (b->part[node].pipe.n)
			kvct_redis_pipe_send(&b->part[node].pipe, true);
	for (unsigned node = 0; node < KVCT_REDIS_NODES; node++) {
		const struct part *p = &b->part[node];
		int err = p->pipe.n ? kvct_redis_pipe_finish(&b->part[node].pipe) : 0;

		if (err == -EIO) /* of some of its names */
			err = 0;
		answered += p->pipe.n && !err;
		last = err ?: last;
		for (size_t i = 0; i < p->pipe.n && err; i++)
			b->has[p->name[i]] = true;
	}
	return answered ? 0 : last;
}

int kvct_redis_have(struct kvc_tier *t, const struct kvc_where *w, const char *const *path,
		    size_t n, bool *has)
{
	struct kvct_redis *r = kvc_of(t, struct kvct_redis, tier);
	KVC_MEM struct batch *b = malloc(sizeof *b);
	uint64_t until = kvct_redis_until(r, 0);
	int err = b ? 0 : -ENOMEM;

	(void)path;
	for (size_t at = 0; at < n && !err; at += BATCH) {
		memset(b, 0, sizeof *b);
		b->r = r;
		b->w = w + at;
		b->has = has + at;
		b->n = kvc_min(n - at, BATCH);
		pthread_mutex_lock(&r->lock);
		for (size_t i = 0; i < b->n; i++) {
			unsigned slot = kvct_redis_head_key(r, &b->w[i], b->key);
			unsigned node = r->cluster ? r->slot[slot] : 0;
			struct part *p = &b->part[node];

			b->has[i] = true; /* until an answer says otherwise */
			p->b = b;
			p->name[p->pipe.n] = (uint16_t)i;
			p->pipe = (struct kvct_redis_pipe){
				.r = r,
				.node = node,
				.until_ns = until,
				.n = p->pipe.n + 1,
				.command = have_command,
				.answer = have_answer,
				.arg = p,
			};
		}
		pthread_mutex_unlock(&r->lock);
		err = batch_run(b);
	}
	return err;
}
