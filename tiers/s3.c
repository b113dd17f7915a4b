/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The s3 tier: any S3 service.
 *
 *   s3://BUCKET/[PREFIX]?endpoint=URL&region=NAME   [&credentials=FILE] [&ca=FILE]
 *
 * Keys: PREFIX/HH/HEX. Access is path-style. Credentials come from AWS_ACCESS_KEY_ID,
 * AWS_SECRET_ACCESS_KEY and AWS_SESSION_TOKEN, or from a file of mode 0600 with the lines
 * "aws_access_key_id = ..." and so on. A frame up to SINGLE goes in one PUT; a larger one in parts,
 * of which the first, with the header, is sent last. Requests are s3_http.c's.
 */
#include "registry.h"
#include "s3_http.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>

#define PART (16u << 20)
#define SINGLE (PART + KVC_FRAME_HEADER)

static struct kvct_s3 *of(struct kvc_tier *t)
{
	return kvc_of(t, struct kvct_s3, tier);
}

static void url_of(const struct kvct_s3 *s, const struct kvc_where *w, const char *query, char *url,
		   size_t room)
{
	char hex[33];

	kvc_where_text(w, hex);
	snprintf(url, room, "%s/%s%.2s/%s%s%s", s->base, s->prefix, hex, hex, *query ? "?" : "",
		 query);
}

/* The text between <tag> and </tag>, from *at on, which moves behind it. */
static bool element(const char **at, const char *tag, char *buf, size_t room)
{
	char open[40], close[40];
	const char *a, *b;

	snprintf(open, sizeof open, "<%s>", tag);
	snprintf(close, sizeof close, "</%s>", tag);
	a = *at ? strstr(*at, open) : NULL;
	b = a ? strstr(a, close) : NULL;
	if (!b || (size_t)(b - a) - strlen(open) >= room)
		return false;
	a += strlen(open);
	memcpy(buf, a, (size_t)(b - a));
	buf[b - a] = 0;
	*at = b;
	return true;
}

static int put_single(struct kvct_s3 *s, const struct kvc_put *p)
{
	size_t len = KVC_FRAME_HEADER + p->stored_len;
	KVC_MEM uint8_t *buf = malloc(len);
	struct kvct_s3_request q = { .method = "PUT", .body = buf, .body_len = len };
	int err = buf ? 0 : -ENOMEM;

	if (!err && p->stored_len)
		err = p->read(p->arg, buf + KVC_FRAME_HEADER, p->stored_len, 0);
	err = err ?: p->head(p->arg, buf);
	url_of(s, &p->name, "", q.url, sizeof q.url);
	err = err ?: kvct_s3_ask(s, &q);
	free(q.text);
	return err;
}

static int send_part(struct kvct_s3 *s, const struct kvc_put *p, const char *upload,
		     unsigned number, const uint8_t *data, size_t len, char *etag)
{
	struct kvct_s3_request q = { .method = "PUT", .body = data, .body_len = len };
	char query[1200];
	int err;

	snprintf(query, sizeof query, "partNumber=%u&uploadId=%s", number, upload);
	url_of(s, &p->name, query, q.url, sizeof q.url);
	err = kvct_s3_ask(s, &q);
	free(q.text);
	if (!err && !*q.etag)
		err = -EIO;
	memcpy(etag, q.etag, sizeof q.etag);
	return err;
}

static int complete(struct kvct_s3 *s, const struct kvc_put *p, const char *upload,
		    char (*etags)[128], unsigned parts)
{
	struct kvct_s3_request q = { .method = "POST" };
	char *xml = NULL, query[1200];
	size_t len;
	FILE *f = open_memstream(&xml, &len);
	int err;

	if (!f)
		return -ENOMEM;
	fprintf(f, "<CompleteMultipartUpload>");
	for (unsigned i = 0; i < parts; i++)
		fprintf(f, "<Part><PartNumber>%u</PartNumber><ETag>%s</ETag></Part>", i + 1,
			etags[i]);
	fprintf(f, "</CompleteMultipartUpload>");
	fclose(f);
	snprintf(query, sizeof query, "uploadId=%s", upload);
	url_of(s, &p->name, query, q.url, sizeof q.url);
	q.body = (const uint8_t *)xml;
	q.body_len = len;
	err = kvct_s3_ask(s, &q);
	if (!err && q.text && strstr(q.text, "<Error>")) /* a 200 may still be a failure */
		err = -EIO;
	free(q.text);
	free(xml);
	return err;
}

static int put_parts(struct kvct_s3 *s, const struct kvc_put *p)
{
	unsigned parts = (unsigned)((p->stored_len + PART - 1) / PART);
	KVC_MEM uint8_t *first = malloc(KVC_FRAME_HEADER + PART);
	KVC_MEM uint8_t *buf = malloc(PART);
	char(*etags)[128] = calloc(parts, sizeof *etags);
	struct kvct_s3_request q = { .method = "POST" };
	char upload[1000] = "", query[1200];
	const char *at;
	int err = first && buf && etags ? 0 : -ENOMEM;

	url_of(s, &p->name, "uploads=", q.url, sizeof q.url);
	err = err ?: kvct_s3_ask(s, &q);
	at = q.text;
	if (!err && !element(&at, "UploadId", upload, sizeof upload))
		err = -EIO;
	free(q.text);
	for (unsigned i = 0; i < parts && !err; i++) {
		uint64_t off = (uint64_t)i * PART;
		size_t len = kvc_min(p->stored_len - off, PART);

		err = p->read(p->arg, i ? buf : first + KVC_FRAME_HEADER, len, off);
		if (!err && i)
			err = send_part(s, p, upload, i + 1, buf, len, etags[i]);
	}
	err = err ?: p->head(p->arg, first);
	err = err ?: send_part(s, p, upload, 1, first, KVC_FRAME_HEADER + PART, etags[0]);
	err = err ?: complete(s, p, upload, etags, parts);
	if (err && *upload) {
		struct kvct_s3_request abort_ = { .method = "DELETE" };

		snprintf(query, sizeof query, "uploadId=%s", upload);
		url_of(s, &p->name, query, abort_.url, sizeof abort_.url);
		kvct_s3_ask(s, &abort_);
		free(abort_.text);
	}
	free(etags);
	return err;
}

static int s3_put(struct kvc_tier *t, const struct kvc_put *p, struct kvc_where *out)
{
	struct kvct_s3 *s = of(t);
	int err = p->stored_len + KVC_FRAME_HEADER <= SINGLE ? put_single(s, p) : put_parts(s, p);

	if (err)
		return err == -ENOENT ? -EIO : err; /* no such bucket, in fewer words */
	*out = p->name;
	out->len = KVC_FRAME_HEADER + kvc_round_up(p->stored_len, KVC_PAGE);
	return 0;
}

static int s3_get(struct kvc_tier *t, const struct kvc_where *w, uint64_t off,
		  const struct iovec *iov, int n)
{
	struct kvct_s3 *s = of(t);
	struct iovec left[8];
	struct kvct_s3_request q = { .method = "GET", .from = off, .iov = left, .n = n };
	uint64_t len = 0, at = 0;
	int err;

	if (n > 8)
		return -EINVAL;
	for (int i = 0; i < n; i++)
		len += iov[i].iov_len;
	memcpy(left, iov, (size_t)n * sizeof *iov);
	q.to = off + len - 1;
	url_of(s, w, "", q.url, sizeof q.url);
	err = len ? kvct_s3_ask(s, &q) : 0;
	free(q.text);
	if (err)
		return err;
	if (q.status != 206 && off) /* the range was ignored: this is the object's beginning */
		return -EBADMSG;
	if (q.got + KVC_PAGE <= len || (!off && q.got < KVC_FRAME_HEADER))
		return -EBADMSG;
	for (int i = 0; i < n; i++) { /* the frame ends within its last page */
		if (at + iov[i].iov_len > q.got) {
			uint64_t have = q.got > at ? q.got - at : 0;

			memset((char *)iov[i].iov_base + have, 0, iov[i].iov_len - have);
		}
		at += iov[i].iov_len;
	}
	return 0;
}

static int s3_remove(struct kvc_tier *t, const struct kvc_where *w)
{
	struct kvct_s3_request q = { .method = "DELETE" };
	int err;

	url_of(of(t), w, "", q.url, sizeof q.url);
	err = kvct_s3_ask(of(t), &q);
	free(q.text);
	return err == -ENOENT ? 0 : err;
}

static int list_key(struct kvc_tier *t, const char *key, uint8_t *page, struct kvc_frame *f,
		    int *unread,
		    int (*fn)(void *arg, const struct kvc_where *w, const struct kvc_frame *f),
		    void *arg)
{
	const char *hex = strrchr(key, '/');
	struct kvc_where w = { 0 };
	struct iovec iov = { page, KVC_FRAME_HEADER };
	unsigned long long a, b;
	int end = 0, err;

	if (!hex || sscanf(hex + 1, "%16llx%16llx%n", &a, &b, &end) != 2 || end != 32 || hex[33])
		return 0;
	w.at = a;
	w.hi = b;
	err = s3_get(t, &w, 0, &iov, 1);
	if (err && !kvct_of_one(err))
		*unread = err;
	return err || kvc_frame_decode(page, f) ? 0 : fn(arg, &w, f);
}

static int s3_list(struct kvc_tier *t,
		   int (*fn)(void *arg, const struct kvc_where *w, const struct kvc_frame *f),
		   void *arg)
{
	struct kvct_s3 *s = of(t);
	KVC_MEM uint8_t *page = malloc(KVC_FRAME_HEADER);
	KVC_MEM struct kvc_frame *f = malloc(sizeof *f);
	char token[1024] = "", before[1024], key[1100];
	int err = page && f ? 0 : -ENOMEM, unread = 0;
	bool more = true;

	while (!err && more) {
		struct kvct_s3_request q = { .method = "GET" };
		char *escaped = *token ? curl_easy_escape(NULL, token, 0) : NULL,
		     *prefix = curl_easy_escape(NULL, s->prefix, 0);
		const char *at;

		/* The parameters in the order in which they are signed. */
		snprintf(q.url, sizeof q.url, "%s?%s%s%slist-type=2&prefix=%s", s->base,
			 escaped ? "continuation-token=" : "", escaped ? escaped : "",
			 escaped ? "&" : "", prefix ? prefix : "");
		curl_free(escaped);
		curl_free(prefix);
		err = kvct_s3_ask(s, &q);
		for (at = q.text; !err && element(&at, "Key", key, sizeof key);)
			err = list_key(t, key, page, f, &unread, fn, arg);
		at = q.text;
		memcpy(before, token, sizeof before);
		more = !err && element(&at, "NextContinuationToken", token, sizeof token);
		if (more && !strcmp(token, before))
			err = -EIO; /* it would never end */
		free(q.text);
	}
	return err ?: unread;
}

static void s3_usage(struct kvc_tier *t, struct kvc_tier_usage *u)
{
	(void)t;
	*u = (struct kvc_tier_usage){ 0 };
}

static void s3_close(struct kvc_tier *t)
{
	struct kvct_s3 *s = of(t);

	while (s->nidle)
		curl_easy_cleanup(s->idle[--s->nidle].curl);
	kvc_wipe(s->login, sizeof s->login);
	kvc_wipe(s->token, sizeof s->token);
	pthread_mutex_destroy(&s->lock);
	free(s);
}

static const struct kvc_tier_ops s3_ops = {
	.name = "s3",
	.caps = KVC_TIER_SHARED | KVC_TIER_DURABLE | KVC_TIER_MEDIA,
	.close = s3_close,
	.put = s3_put,
	.get = s3_get,
	.remove = s3_remove,
	.list = s3_list,
	.usage = s3_usage,
};

/* "name = value" lines, as AWS tools have them. */
static int credentials(struct kvct_s3 *s, const char *path, char *error)
{
	char line[2300], name[64], value[2048], id[200] = "", secret[200] = "";
	FILE *f;
	int err = kvct_secret(path, line, sizeof line, error);

	if (err)
		return err;
	f = fopen(path, "re");
	while (f && fgets(line, sizeof line, f))
		if (sscanf(line, " %63[a-z_] = %2047s", name, value) == 2) {
			if (!strcmp(name, "aws_access_key_id"))
				snprintf(id, sizeof id, "%.199s", value);
			else if (!strcmp(name, "aws_secret_access_key"))
				snprintf(secret, sizeof secret, "%.199s", value);
			else if (!strcmp(name, "aws_session_token"))
				snprintf(s->token, sizeof s->token, "%.2047s", value);
		}
	if (f)
		fclose(f);
	snprintf(s->login, sizeof s->login, "%s:%s", id, secret);
	kvc_wipe(line, sizeof line);
	kvc_wipe(value, sizeof value);
	kvc_wipe(secret, sizeof secret);
	if (!*id) {
		snprintf(error, 512, "option remote: %s has no aws_access_key_id", path);
		return -EINVAL;
	}
	return 0;
}

static int set_up(struct kvct_s3 *s, const struct kvct_url *u, char *error)
{
	char endpoint[512], region[64], file[512];
	const char *id = getenv("AWS_ACCESS_KEY_ID"), *secret = getenv("AWS_SECRET_ACCESS_KEY"),
		   *token = getenv("AWS_SESSION_TOKEN");

	kvct_url_get(u, "region", region, sizeof region);
	kvct_url_get(u, "endpoint", endpoint, sizeof endpoint);
	kvct_url_get(u, "credentials", file, sizeof file);
	kvct_url_get(u, "ca", s->ca, sizeof s->ca);
	if (!*region)
		snprintf(region, sizeof region, "us-east-1");
	if (!*endpoint)
		snprintf(endpoint, sizeof endpoint, "https://s3.%.63s.amazonaws.com", region);
	if (strncmp(endpoint, "http://", 7) && strncmp(endpoint, "https://", 8)) {
		snprintf(error, 512,
			 "option remote: endpoint= of s3:// begins with http:// or https://");
		return -EINVAL;
	}
	endpoint[strlen(endpoint) - (endpoint[strlen(endpoint) - 1] == '/')] = 0;
	snprintf(s->base, sizeof s->base, "%s/%s", endpoint, u->host);
	snprintf(s->prefix, sizeof s->prefix, "%.250s%s", u->path,
		 *u->path && u->path[strlen(u->path) - 1] != '/' ? "/" : "");
	for (const char *p = s->prefix; *p; p++)
		if (!isalnum((unsigned char)*p) && !strchr("-_./", *p)) {
			snprintf(error, 512,
				 "option remote: the prefix of s3:// has letters, digits and -_./ "
				 "only");
			return -EINVAL;
		}
	snprintf(s->sign, sizeof s->sign, "aws:amz:%s:s3", region);
	snprintf(s->tier.id, sizeof s->tier.id, "s3:%.100s/%.60s@%.80s", u->host, s->prefix,
		 endpoint);
	if (*file)
		return credentials(s, file, error);
	if (!id || !secret) {
		snprintf(error, 512,
			 "option remote: s3:// needs AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, "
			 "or credentials=FILE");
		return -EINVAL;
	}
	snprintf(s->login, sizeof s->login, "%s:%s", id, secret);
	snprintf(s->token, sizeof s->token, "%s", token ? token : "");
	return 0;
}

int kvct_s3_open(const struct kvct_url *u, uint64_t deadline_ms, struct kvc_tier **out, char *error)
{
	static const char *const params[] = { "endpoint", "region", "credentials", "ca", NULL };
	struct kvct_s3 *s;
	int err;

	if ((err = kvct_url_check(u, params, error)))
		return err;
	if (!*u->host) {
		snprintf(error, 512,
			 "option remote: s3:// needs a bucket: s3://BUCKET/PREFIX?endpoint=URL");
		return -EINVAL;
	}
	curl_global_init(CURL_GLOBAL_DEFAULT);
	s = calloc(1, sizeof *s);
	if (!s) {
		snprintf(error, 512, "out of memory");
		return -ENOMEM;
	}
	pthread_mutex_init(&s->lock, NULL);
	s->deadline_ms = deadline_ms;
	s->tier.ops = &s3_ops;
	if ((err = set_up(s, u, error))) {
		s3_close(&s->tier);
		return err;
	}
	*out = &s->tier;
	return 0;
}
