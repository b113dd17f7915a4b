/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Lists the redis tier: SCAN on each node that has slots. The server decides when a SCAN ends, so a
 * SCAN without progress is ended here (struct kvct_progress).
 */
#include "pieces.h"
#include "redis_conn.h"
#include "registry.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

/* Keys requested per step. A step may return more: all keys of one bucket. */
#define COUNT "500"
#define STEP_MOST (4u << 20)
#define STEP_ELEMENTS (16u << 10)

struct listing {
	struct kvc_tier *t;
	uint8_t *page;
	struct kvc_frame *f;
	int (*fn)(void *arg, const struct kvc_where *w, const struct kvc_frame *f);
	void *arg;
	uint64_t frames;
	int unread; /* the last error of a frame that could not be read */
};

/* Handles one key of a SCAN: calls fn if it is a head of ours. */
static int redis_list_key(struct listing *l, const char *key)
{
	const struct kvct_redis *r = kvc_of(l->t, struct kvct_redis, tier);
	struct kvc_where w = { 0 };
	struct iovec iov = { l->page, KVC_FRAME_HEADER };
	size_t len = strlen(r->prefix);
	unsigned long long a, b;
	int end = 0, err;

	if (strncmp(key, r->prefix, len) ||
	    sscanf(key + len, ":{%16llx%16llx}%n", &a, &b, &end) != 2 || end != 35 || key[len + 35])
		return 0;
	w.at = a;
	w.hi = b;
	err = kvct_redis_get(l->t, &w, 0, &iov, 1);
	if (err && !kvct_is_frame_error(err))
		l->unread = err;
	if (err || kvc_frame_decode(l->page, l->f))
		return l->fn(l->arg, NULL, NULL);
	l->frames++;
	return l->fn(l->arg, &w, l->f);
}

/* Makes a MATCH pattern that matches the prefix literally. */
static void pattern_of(const char *prefix, char *out)
{
	while (*prefix) {
		if (strchr("*?[]^-\\", *prefix))
			*out++ = '\\';
		*out++ = *prefix++;
	}
	memcpy(out, ":{*}", 5);
}

/* Handles an answer to SCAN. Returns 0 and sets cursor; or fn's result, or a negative errno. */
static int scan_step(struct listing *l, const redisReply *reply, char cursor[32],
		     struct kvct_progress *p)
{
	redisReply **of = reply->element;
	uint64_t before = l->frames;
	int err = l->fn(l->arg, NULL, NULL);

	if (reply->type != REDIS_REPLY_ARRAY || reply->elements != 2 ||
	    of[0]->type != REDIS_REPLY_STRING || of[1]->type != REDIS_REPLY_ARRAY ||
	    of[0]->len >= 32 || strlen(of[0]->str) != of[0]->len || !of[0]->len)
		return -EIO;
	for (size_t i = 0; !err && i < of[1]->elements; i++)
		if (of[1]->element[i]->type == REDIS_REPLY_STRING)
			err = redis_list_key(l, of[1]->element[i]->str);
	if (err)
		return err;
	memcpy(cursor, of[0]->str, of[0]->len + 1);
	return !strcmp(cursor, "0") || kvct_progress_step(p, cursor, l->frames > before) ? 0
											 : -ELOOP;
}

static int scan_node(struct listing *l, unsigned node)
{
	struct kvct_redis *r = kvc_of(l->t, struct kvct_redis, tier);
	struct kvct_progress p = { .next = 1 };
	char cursor[32] = "0", pattern[2 * sizeof r->prefix + 8];
	int err;

	pattern_of(r->prefix, pattern);
	do {
		struct kvct_redis_command scan = {
			.most = STEP_MOST,
			.most_elements = STEP_ELEMENTS,
		};
		redisReply *reply;

		command_word(&scan, "SCAN");
		command_word(&scan, cursor);
		command_word(&scan, "MATCH");
		command_word(&scan, pattern);
		command_word(&scan, "COUNT");
		command_word(&scan, COUNT);
		err = kvct_redis_ask_node(r, node, &scan, kvct_redis_until(r, 0), &reply);
		if (err)
			return err;
		err = scan_step(l, reply, cursor, &p);
		freeReplyObject(reply);
	} while (!err && strcmp(cursor, "0"));
	if (err == -ELOOP) {
		kvct_redis_log(r, "SCAN",
			       "the server's listing does not end: the list is incomplete", NULL);
		err = -EIO;
	}
	return err;
}

int kvct_redis_list(struct kvc_tier *t,
		    int (*fn)(void *arg, const struct kvc_where *w, const struct kvc_frame *f),
		    void *arg)
{
	struct kvct_redis *r = kvc_of(t, struct kvct_redis, tier);
	KVC_MEM uint8_t *page = malloc(KVC_FRAME_HEADER);
	KVC_MEM struct kvc_frame *f = malloc(sizeof *f);
	struct listing l = { t, page, f, fn, arg, 0, 0 };
	bool has[KVCT_REDIS_NODES] = { false };
	int err = page && f ? 0 : -ENOMEM;

	/* one answer at a time, with hiredis' allocations for its elements */
	if (err || kvc_budget_wait(KVC_BUDGET_COPY, 2 * STEP_MOST))
		return -ENOMEM;
	pthread_mutex_lock(&r->lock);
	for (int s = 0; s < KVCT_REDIS_SLOTS && r->cluster; s++)
		has[r->slot[s]] = true;
	if (!r->cluster)
		has[0] = true;
	pthread_mutex_unlock(&r->lock);
	for (unsigned n = 0; n < KVCT_REDIS_NODES && !err; n++)
		if (has[n])
			err = scan_node(&l, n);
	kvc_budget_release(KVC_BUDGET_COPY, 2 * STEP_MOST);
	return err ?: l.unread;
}
