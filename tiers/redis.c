/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The redis tier: frames in Redis or Valkey. redis_open.c handles the URL, redis_list.c the
 * listing, redis_have.c lists of names, redis_conn.h the connections, and redis_reply.c the
 * meanings of errors.
 *
 * A frame is stored as a head and pieces (pieces.h), since a value should not be large:
 *   PREFIX:{HEX}          the head
 *   PREFIX:{HEX}:TAG:I    piece I of the payload
 *
 * The head is written with SET ... GET (Redis 6.2), which returns the head that it replaced. The
 * braces keep all keys of a frame in one slot of a cluster.
 *
 * Every command may be repeated: a SET writes the same bytes under the same tag. The size of an
 * answer is bounded, whatever is stored: a head is read with GETRANGE, and the old head in the
 * answer of SET ... GET is not read if it is longer than a head of ours can be.
 */
#include "pieces.h"
#include "redis_conn.h"

#include <stdio.h>
#include <string.h>

static struct kvct_redis *redis_of(struct kvc_tier *t)
{
	return kvc_of(t, struct kvct_redis, tier);
}

/* One call of the engine for one frame. */
struct call {
	struct kvct_redis *r;
	char head[KVCT_REDIS_NAME]; /* the key of the head */
	unsigned slot;
	uint64_t until_ns; /* all commands of the call share one deadline */
};

uint64_t kvct_redis_until(const struct kvct_redis *r, uint64_t bytes)
{
	return kvc_mono_ns() + r->deadline_ms * 1000000 + bytes * 1000 / KVCT_SLOWEST * 1000000;
}

unsigned kvct_redis_head_key(const struct kvct_redis *r, const struct kvc_where *w,
			     char key[KVCT_REDIS_NAME])
{
	char hex[33];

	kvc_frame_where_text(w, hex);
	snprintf(key, KVCT_REDIS_NAME, "%s:{%s}", r->prefix, hex);
	return kvct_redis_slot(hex);
}

static struct call call_of(struct kvc_tier *t, const struct kvc_where *w)
{
	struct call c = { .r = redis_of(t) };

	c.slot = kvct_redis_head_key(c.r, w, c.head);
	return c;
}

static void begin_call(void *arg, uint64_t bytes)
{
	struct call *c = arg;

	c->until_ns = kvct_redis_until(c->r, bytes);
}

static const char *key_of(const struct call *c, const struct kvct_value *v, char buf[400])
{
	if (v->head)
		return c->head;
	snprintf(buf, 400, "%s:%016llx:%llu", c->head, (unsigned long long)v->tag,
		 (unsigned long long)v->nr);
	return buf;
}

/* Reads bytes of a key's value into buf. */
static long get_range(void *arg, const struct kvct_value *v, uint64_t from, uint64_t len, void *buf)
{
	struct call *c = arg;
	struct kvct_redis_command cmd = {
		.most = len + KVCT_REDIS_TEXT,
		.into = buf,
		.into_len = len,
	};
	char a[24], b[24], key[400];
	redisReply *reply;
	long n = -EIO;
	int err;

	snprintf(a, sizeof a, "%llu", (unsigned long long)from);
	snprintf(b, sizeof b, "%llu", (unsigned long long)(from + len - 1));
	command_word(&cmd, "GETRANGE");
	command_word(&cmd, key_of(c, v, key));
	command_word(&cmd, a);
	command_word(&cmd, b);
	if ((err = kvct_redis_ask(c->r, c->slot, &cmd, c->until_ns, &reply)))
		return err;
	if (reply->type == REDIS_REPLY_STRING)
		n = (long)reply->len;
	freeReplyObject(reply);
	return n;
}

/* Sets a key. If the answer was too long to read (-EIO), the old value was another program's. */
static int set_key(void *arg, const struct kvct_value *v, const void *data, size_t len,
		   uint64_t ttl_ms, struct kvct_trailer *before)
{
	struct call *c = arg;
	struct kvct_redis_command cmd = { .most = before ? KVCT_HEAD_MAX + KVCT_REDIS_TEXT : 0 };
	redisReply *reply;
	char ms[24], key[400];
	int err;

	command_word(&cmd, "SET");
	command_word(&cmd, key_of(c, v, key));
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
	     kvct_trailer_read((const uint8_t *)reply->str + KVC_FRAME_HEADER, before)))
		before->piece = 0;
	freeReplyObject(reply);
	return 0;
}

static int unlink_key(void *arg, const struct kvct_value *v, bool *existed)
{
	struct call *c = arg;
	struct kvct_redis_command cmd = { 0 };
	redisReply *reply;
	char key[400];
	int err;

	command_word(&cmd, "UNLINK");
	command_word(&cmd, key_of(c, v, key));
	if ((err = kvct_redis_ask(c->r, c->slot, &cmd, c->until_ns, &reply)))
		return err;
	*existed = reply->type == REDIS_REPLY_INTEGER && reply->integer > 0;
	freeReplyObject(reply);
	return 0;
}

/* hiredis' buffers: one piece when it is sent; they grow by one MiB at a time */
static const struct kvct_pieces_ops redis_pieces = {
	.begin = begin_call,
	.get = get_range,
	.set = set_key,
	.unlink = unlink_key,
	.set_bytes = KVCT_PIECE + (1u << 20),
	.get_bytes = 1u << 20,
};

static int redis_put(struct kvc_tier *t, const struct kvc_put *p, struct kvc_where *out)
{
	struct call c = call_of(t, &p->name);

	return kvct_pieces_put(&redis_pieces, &c, p, out);
}

int kvct_redis_get(struct kvc_tier *t, const struct kvc_where *w, uint64_t off,
		   const struct iovec *iov, int n)
{
	struct call c = call_of(t, w);

	return kvct_pieces_get(&redis_pieces, &c, off, iov, n);
}

static int redis_remove(struct kvc_tier *t, const struct kvc_where *w)
{
	struct call c = call_of(t, w);

	return kvct_pieces_remove(&redis_pieces, &c);
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
	.have = kvct_redis_have,
	.remove = redis_remove,
	.list = kvct_redis_list,
	.usage = redis_usage,
};
