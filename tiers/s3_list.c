/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Lists an s3 tier: reads pages of keys, and the header of each key. A page that is cut, repeats
 * keys, or says that more follows but has no token is an error, not the end of the list.
 */
#include "budget.h"
#include "registry.h"
#include "s3_http.h"

#include <stdio.h>
#include <string.h>

#define EMPTY_MAX 100 /* consecutive pages without a key that say that more follows */

struct listing {
	struct kvct_s3 *s;
	uint8_t *page;
	struct kvc_frame *f;
	int (*fn)(void *arg, const struct kvc_where *w, const struct kvc_frame *f);
	void *arg;
	char last[1100]; /* the last key of the pages before */
	unsigned empty;
	int unread; /* the last error of a frame that could not be read */
};

bool kvct_s3_is_key(const struct kvct_s3 *s, struct kvct_s3_text key, struct kvc_where *w)
{
	size_t len = strlen(s->prefix);
	char hex[33], want[1100];
	unsigned long long at, hi;
	int end = 0;

	if (key.len != len + 3 + 32 || memcmp(key.p, s->prefix, len))
		return false;
	memcpy(hex, key.p + len + 3, 32);
	hex[32] = 0;
	if (strspn(hex, "0123456789abcdef") != 32 ||
	    sscanf(hex, "%16llx%16llx%n", &at, &hi, &end) != 2 || end != 32)
		return false;
	*w = (struct kvc_where){ .at = at, .hi = hi };
	kvct_s3_key(s, w, want);
	return !memcmp(want, key.p, key.len);
}

static int s3_list_key(struct listing *l, struct kvct_s3_text key)
{
	struct iovec iov = { l->page, KVC_FRAME_HEADER };
	struct kvc_where w;
	int err;

	if (!kvct_s3_is_key(l->s, key, &w))
		return 0;
	err = kvct_s3_read(l->s, &w, 0, &iov, 1, true);
	if (err && !kvct_is_frame_error(err))
		l->unread = err;
	return err || kvc_frame_decode(l->page, l->f) ? 0 : l->fn(l->arg, &w, l->f);
}

/* Checks that keys grow from page to page; otherwise the list might never end. */
static int follows(struct listing *l, struct kvct_s3_text first, struct kvct_s3_text last)
{
	size_t len = strlen(l->last);
	int order = memcmp(first.p, l->last, kvc_min(first.len, len));

	if (order < 0 || (!order && first.len <= len && len))
		return -EIO;
	if (last.len >= sizeof l->last)
		return -EIO; /* longer than any key */
	memcpy(l->last, last.p, last.len);
	l->last[last.len] = 0;
	return 0;
}

/* Handles one page. Sets *token to the token of the next page, or to NULL at the end. */
static int list_page(struct listing *l, struct kvct_s3_text page, char **token)
{
	struct kvct_s3_text in = page, key, first = { 0 }, last = { 0 };
	char *more;
	int err = 0;

	*token = NULL;
	while (kvct_s3_element(&in, "Key", &key)) {
		if (!first.p)
			first = key;
		last = key;
	}
	if (first.p && (err = follows(l, first, last)))
		return err;
	for (in = page; !err && kvct_s3_element(&in, "Key", &key);)
		err = s3_list_key(l, key);
	if (err)
		return err;
	l->empty = first.p ? 0 : l->empty + 1;
	more = kvct_s3_element_text(page, "IsTruncated");
	*token = kvct_s3_element_text(page, "NextContinuationToken");
	bool goes_on = (more && !strcmp(more, "true")) || (!more && *token);

	free(more);
	if (!goes_on) {
		free(*token);
		*token = NULL;
	}
	return goes_on && (!*token || !**token || l->empty > EMPTY_MAX) ? -EIO : 0;
}

/* Is the answer a complete listing? */
static bool is_whole(const struct kvct_s3_request *q)
{
	return q->text && memmem(q->text, q->text_len, "<ListBucketResult", 17) &&
	       memmem(q->text, q->text_len, "</ListBucketResult>", 19);
}

static int list_pages(struct listing *l)
{
	char *prefix = kvct_s3_escape(l->s->prefix), *token = NULL;
	int err = prefix ? 0 : -ENOMEM;

	do {
		struct kvct_s3_request q = {
			.kind = KVCT_S3_LIST,
			.method = "GET",
			.text_max = KVCT_S3_LIST_MAX,
		};
		char *escaped = token ? kvct_s3_escape(token) : NULL, *query = NULL, *next = NULL;

		if (err || (token && !escaped) ||
		    asprintf(&query, "%s%s%slist-type=2&prefix=%s",
			     escaped ? "continuation-token=" : "", escaped ? escaped : "",
			     escaped ? "&" : "", prefix) < 0)
			err = err ?: -ENOMEM;
		q.query = query;
		err = err ?: kvct_s3_ask(l->s, &q);
		if (!err && !is_whole(&q))
			err = -EIO;
		err = err ?: list_page(l, (struct kvct_s3_text){ q.text, q.text_len }, &next);
		if (!err && next && token && !strcmp(next, token))
			err = -EIO; /* the list would never end */
		free(q.text);
		free(escaped);
		free(query);
		free(token);
		token = next;
	} while (!err && token);
	free(token);
	free(prefix);
	return err == -ENOENT ? -EIO : err;
}

int kvct_s3_list(struct kvc_tier *t,
		 int (*fn)(void *arg, const struct kvc_where *w, const struct kvc_frame *f),
		 void *arg)
{
	KVC_MEM struct listing *l = calloc(1, sizeof *l);
	int err = l ? kvc_budget_wait(KVC_BUDGET_COPY, KVCT_S3_LIST_MAX) : -ENOMEM;

	if (err)
		return err;
	l->s = kvc_of(t, struct kvct_s3, tier);
	l->fn = fn;
	l->arg = arg;
	l->page = malloc(KVC_FRAME_HEADER);
	l->f = malloc(sizeof *l->f);
	err = l->page && l->f ? list_pages(l) : -ENOMEM;
	kvc_budget_release(KVC_BUDGET_COPY, KVCT_S3_LIST_MAX);
	free(l->page);
	free(l->f);
	return err ?: l->unread;
}
