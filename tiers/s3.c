/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The s3 tier: any S3 service through libcurl and its request signing (AWS Signature 4,
 * x-amz-content-sha256: UNSIGNED-PAYLOAD; the frame has checksums of its own).
 *
 *   s3://BUCKET/[PREFIX]?endpoint=URL&region=NAME   [&credentials=FILE] [&ca=FILE]
 *
 * Keys: PREFIX/HH/HEX. Access is path-style. Credentials come from AWS_ACCESS_KEY_ID,
 * AWS_SECRET_ACCESS_KEY and AWS_SESSION_TOKEN, or from a file of mode 0600 with the lines
 * "aws_access_key_id = ..." and so on. A frame up to SINGLE goes in one PUT; a larger one in parts,
 * of which the first, with the header, is sent last.
 *
 * Handles are kept in a stack, one call each at a time, so connections are used again; the lock
 * guards the stack. 5xx, 429 and broken connections are tried again with jitter until the deadline.
 */
#include "registry.h"

#include "log.h"

#include <ctype.h>
#include <curl/curl.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#define PART (16u << 20)
#define SINGLE (PART + KVC_FRAME_HEADER)
#define HANDLES 16
/* bytes a second that a transfer is given time for, beside the deadline */
#define SLOWEST (4ull << 20)
#define ANSWER_MAX (4u << 20)

struct s3 {
	struct kvc_tier tier;
	pthread_mutex_t lock;
	CURL *idle[HANDLES];
	unsigned nidle;
	char base[1024];  /* endpoint/bucket */
	char prefix[300]; /* "" or ends with / */
	char sign[160], login[400], token[2048], ca[512];
	uint64_t deadline_ms;
	_Atomic bool logged; /* once, until it works again */
};

static struct s3 *of(struct kvc_tier *t)
{
	return kvc_of(t, struct s3, tier);
}

static CURL *take(struct s3 *s)
{
	CURL *c = NULL;

	pthread_mutex_lock(&s->lock);
	if (s->nidle)
		c = s->idle[--s->nidle];
	pthread_mutex_unlock(&s->lock);
	if (c)
		curl_easy_reset(c); /* keeps its connections */
	return c ? c : curl_easy_init();
}

static void give(struct s3 *s, CURL *c)
{
	pthread_mutex_lock(&s->lock);
	bool keep = s->nidle < HANDLES;

	if (keep)
		s->idle[s->nidle++] = c;
	pthread_mutex_unlock(&s->lock);
	if (!keep)
		curl_easy_cleanup(c);
}

/* One request. */
struct request {
	const char *method;
	char url[2048];
	uint64_t from, to;   /* Range, when to > 0: both included */
	const uint8_t *body; /* sent */
	size_t body_len, body_at;
	struct iovec *iov; /* where the answer's body goes, or NULL: into text */
	int n;
	uint64_t got;
	char *text;
	size_t text_len;
	char etag[128];
	long status;
	bool overflow;
};

static size_t on_data(char *p, size_t one, size_t len, void *arg)
{
	struct request *q = arg;
	size_t left = len;

	(void)one;
	if (q->iov && q->status >= 0) {
		while (left && q->n) {
			size_t n = kvc_min(left, q->iov->iov_len);

			memcpy(q->iov->iov_base, p, n);
			q->iov->iov_base = (char *)q->iov->iov_base + n;
			q->iov->iov_len -= n;
			if (!q->iov->iov_len) {
				q->iov++;
				q->n--;
			}
			p += n;
			left -= n;
			q->got += n;
		}
		if (left) {
			q->overflow = true;
			return 0; /* more than was asked for */
		}
		return len;
	}
	if (q->text_len + len > ANSWER_MAX)
		return 0;
	char *more = realloc(q->text, q->text_len + len + 1);

	if (!more)
		return 0;
	q->text = more;
	memcpy(q->text + q->text_len, p, len);
	q->text_len += len;
	q->text[q->text_len] = 0;
	return len;
}

static size_t on_send(char *p, size_t one, size_t room, void *arg)
{
	struct request *q = arg;
	size_t n = kvc_min(one * room, q->body_len - q->body_at);

	if (n)
		memcpy(p, q->body + q->body_at, n);
	q->body_at += n;
	return n;
}

static int on_seek(void *arg, curl_off_t off, int whence)
{
	struct request *q = arg;

	if (whence != SEEK_SET || off < 0 || (size_t)off > q->body_len)
		return CURL_SEEKFUNC_FAIL;
	q->body_at = (size_t)off;
	return CURL_SEEKFUNC_OK;
}

static size_t on_header(char *p, size_t one, size_t len, void *arg)
{
	struct request *q = arg;

	(void)one;
	if (len > 6 && !strncasecmp(p, "etag:", 5)) {
		size_t at = 5, n = 0;

		while (at < len && isspace((unsigned char)p[at]))
			at++;
		while (at < len && !isspace((unsigned char)p[at]) && n + 1 < sizeof q->etag)
			q->etag[n++] = p[at++];
		q->etag[n] = 0;
	}
	/* An error's body is text, not the object. */
	if (len > 12 && !strncmp(p, "HTTP/", 5)) {
		const char *space = memchr(p, ' ', len);
		long code = space ? strtol(space + 1, NULL, 10) : 0;

		q->status = code >= 200 && code < 300 ? 0 : -1;
	}
	return len;
}

static int attempt(struct s3 *s, struct request *q, uint64_t left_ns)
{
	CURL *c = take(s);
	struct curl_slist *h = NULL;
	char range[64], header[2100];
	long code = 0;
	CURLcode rc;
	uint64_t bytes = q->body_len + (q->to ? q->to - q->from : 0);

	if (!c)
		return -ENOMEM;
	q->body_at = 0;
	q->got = 0;
	q->text_len = 0;
	q->status = 0;
	*q->etag = 0;
	h = curl_slist_append(h, "x-amz-content-sha256: UNSIGNED-PAYLOAD");
	if (!strcmp(q->method, "POST"))
		h = curl_slist_append(h, "Content-Type: application/xml");
	if (*s->token) {
		snprintf(header, sizeof header, "x-amz-security-token: %s", s->token);
		h = curl_slist_append(h, header);
	}
	curl_easy_setopt(c, CURLOPT_URL, q->url);
	curl_easy_setopt(c, CURLOPT_HTTPHEADER, h);
	curl_easy_setopt(c, CURLOPT_AWS_SIGV4, s->sign);
	curl_easy_setopt(c, CURLOPT_USERPWD, s->login);
	curl_easy_setopt(c, CURLOPT_NOSIGNAL, 1L);
	/* an empty Expect: header would be signed wrongly */
	curl_easy_setopt(c, CURLOPT_EXPECT_100_TIMEOUT_MS, 300L);
	curl_easy_setopt(c, CURLOPT_PROTOCOLS_STR, "http,https");
	curl_easy_setopt(c, CURLOPT_CONNECTTIMEOUT_MS, (long)kvc_min(left_ns / 1000000 + 1, 5000));
	curl_easy_setopt(c, CURLOPT_TIMEOUT_MS,
			 (long)(left_ns / 1000000 + 1 + bytes * 1000 / SLOWEST));
	curl_easy_setopt(c, CURLOPT_WRITEFUNCTION, on_data);
	curl_easy_setopt(c, CURLOPT_WRITEDATA, q);
	curl_easy_setopt(c, CURLOPT_HEADERFUNCTION, on_header);
	curl_easy_setopt(c, CURLOPT_HEADERDATA, q);
	curl_easy_setopt(c, CURLOPT_BUFFERSIZE, 512L << 10);
	curl_easy_setopt(c, CURLOPT_UPLOAD_BUFFERSIZE, 512L << 10);
	if (*s->ca)
		curl_easy_setopt(c, CURLOPT_CAINFO, s->ca);
	if (q->to) {
		snprintf(range, sizeof range, "%llu-%llu", (unsigned long long)q->from,
			 (unsigned long long)q->to);
		curl_easy_setopt(c, CURLOPT_RANGE, range);
	}
	if (!strcmp(q->method, "PUT")) {
		curl_easy_setopt(c, CURLOPT_UPLOAD, 1L);
		curl_easy_setopt(c, CURLOPT_INFILESIZE_LARGE, (curl_off_t)q->body_len);
		curl_easy_setopt(c, CURLOPT_READFUNCTION, on_send);
		curl_easy_setopt(c, CURLOPT_READDATA, q);
		curl_easy_setopt(c, CURLOPT_SEEKFUNCTION, on_seek);
		curl_easy_setopt(c, CURLOPT_SEEKDATA, q);
	} else if (!strcmp(q->method, "POST")) {
		curl_easy_setopt(c, CURLOPT_POST, 1L);
		curl_easy_setopt(c, CURLOPT_POSTFIELDSIZE_LARGE, (curl_off_t)q->body_len);
		curl_easy_setopt(c, CURLOPT_POSTFIELDS, q->body ? (const char *)q->body : "");
	} else {
		curl_easy_setopt(c, CURLOPT_CUSTOMREQUEST, q->method);
	}
	rc = curl_easy_perform(c);
	curl_easy_getinfo(c, CURLINFO_RESPONSE_CODE, &code);
	curl_slist_free_all(h);
	q->status = code;
	if (rc == CURLE_OK)
		give(s, c);
	else
		curl_easy_cleanup(c);
	if (q->overflow)
		return -EBADMSG;
	if (rc == CURLE_OPERATION_TIMEDOUT)
		return -ETIMEDOUT;
	if (rc != CURLE_OK)
		return rc == CURLE_PARTIAL_FILE || rc == CURLE_RECV_ERROR ||
				       rc == CURLE_SEND_ERROR || rc == CURLE_GOT_NOTHING
			       ? -EAGAIN
		       : rc == CURLE_PEER_FAILED_VERIFICATION || rc == CURLE_SSL_CACERT_BADFILE
			       ? -EACCES
			       : -ECONNREFUSED;
	if (code >= 200 && code < 300)
		return 0;
	if (code == 404)
		return -ENOENT;
	if (code == 416)
		return -EBADMSG; /* shorter than it should be */
	if (code == 401 || code == 403)
		return -EACCES;
	return code >= 500 || code == 429 ? -EAGAIN : -EIO;
}

static int ask(struct s3 *s, struct request *q)
{
	uint64_t until = kvc_mono_ns() + s->deadline_ms * 1000000, nap_ms = 50;
	struct iovec keep[8];
	struct iovec *iov = q->iov;
	int n = q->n, err;

	if (n > 8)
		return -EINVAL;
	for (;;) {
		if (iov) {
			memcpy(keep, iov, (size_t)n * sizeof *iov);
			q->iov = keep;
			q->n = n;
		}
		uint64_t now = kvc_mono_ns();

		err = now < until ? attempt(s, q, until - now) : -ETIMEDOUT;
		if (!err)
			s->logged = false;
		if (err != -EAGAIN)
			break;
		nap_ms = nap_ms < 1600 ? nap_ms * 2 : 1600;
		/* jitter: half to one and a half */
		uint64_t nap = (nap_ms / 2 + kvc_now_ns() / 1000 % nap_ms) * 1000000;

		if (kvc_mono_ns() + nap >= until) {
			err = -EIO;
			break;
		}
		usleep((useconds_t)(nap / 1000));
	}
	if (err == -EACCES && !s->logged) {
		kvc_warn("tier s3: refused (%ld): check credentials, region and certificate",
			 q->status);
		s->logged = true;
	}
	return err;
}

static void url_of(const struct s3 *s, const struct kvc_where *w, const char *query, char *url,
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

static int put_single(struct s3 *s, const struct kvc_put *p)
{
	size_t len = KVC_FRAME_HEADER + p->stored_len;
	KVC_MEM uint8_t *buf = malloc(len);
	struct request q = { .method = "PUT", .body = buf, .body_len = len };
	int err = buf ? 0 : -ENOMEM;

	if (!err && p->stored_len)
		err = p->read(p->arg, buf + KVC_FRAME_HEADER, p->stored_len, 0);
	err = err ?: p->head(p->arg, buf);
	url_of(s, &p->name, "", q.url, sizeof q.url);
	err = err ?: ask(s, &q);
	free(q.text);
	return err;
}

static int send_part(struct s3 *s, const struct kvc_put *p, const char *upload, unsigned number,
		     const uint8_t *data, size_t len, char *etag)
{
	struct request q = { .method = "PUT", .body = data, .body_len = len };
	char query[1200];
	int err;

	snprintf(query, sizeof query, "partNumber=%u&uploadId=%s", number, upload);
	url_of(s, &p->name, query, q.url, sizeof q.url);
	err = ask(s, &q);
	free(q.text);
	if (!err && !*q.etag)
		err = -EIO;
	memcpy(etag, q.etag, sizeof q.etag);
	return err;
}

static int complete(struct s3 *s, const struct kvc_put *p, const char *upload, char (*etags)[128],
		    unsigned parts)
{
	struct request q = { .method = "POST" };
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
	err = ask(s, &q);
	if (!err && q.text && strstr(q.text, "<Error>")) /* a 200 may still be a failure */
		err = -EIO;
	free(q.text);
	free(xml);
	return err;
}

static int put_parts(struct s3 *s, const struct kvc_put *p)
{
	unsigned parts = (unsigned)((p->stored_len + PART - 1) / PART);
	KVC_MEM uint8_t *first = malloc(KVC_FRAME_HEADER + PART);
	KVC_MEM uint8_t *buf = malloc(PART);
	char(*etags)[128] = calloc(parts, sizeof *etags);
	struct request q = { .method = "POST" };
	char upload[1000] = "", query[1200];
	const char *at;
	int err = first && buf && etags ? 0 : -ENOMEM;

	url_of(s, &p->name, "uploads=", q.url, sizeof q.url);
	err = err ?: ask(s, &q);
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
		struct request abort_ = { .method = "DELETE" };

		snprintf(query, sizeof query, "uploadId=%s", upload);
		url_of(s, &p->name, query, abort_.url, sizeof abort_.url);
		ask(s, &abort_);
		free(abort_.text);
	}
	free(etags);
	return err;
}

static int s3_put(struct kvc_tier *t, const struct kvc_put *p, struct kvc_where *out)
{
	struct s3 *s = of(t);
	int err = p->stored_len + KVC_FRAME_HEADER <= SINGLE ? put_single(s, p) : put_parts(s, p);

	if (err)
		return err == -ENOENT ? -EIO : err; /* no such bucket */
	*out = p->name;
	out->len = KVC_FRAME_HEADER + kvc_round_up(p->stored_len, KVC_PAGE);
	return 0;
}

static int s3_get(struct kvc_tier *t, const struct kvc_where *w, uint64_t off,
		  const struct iovec *iov, int n)
{
	struct s3 *s = of(t);
	struct iovec left[8];
	struct request q = { .method = "GET", .from = off, .iov = left, .n = n };
	uint64_t len = 0, at = 0;
	int err;

	if (n > 8)
		return -EINVAL;
	for (int i = 0; i < n; i++)
		len += iov[i].iov_len;
	memcpy(left, iov, (size_t)n * sizeof *iov);
	q.to = off + len - 1;
	url_of(s, w, "", q.url, sizeof q.url);
	err = len ? ask(s, &q) : 0;
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
	struct request q = { .method = "DELETE" };
	int err;

	url_of(of(t), w, "", q.url, sizeof q.url);
	err = ask(of(t), &q);
	free(q.text);
	return err == -ENOENT ? 0 : err;
}

static int list_key(struct kvc_tier *t, const char *key, uint8_t *page, struct kvc_frame *f,
		    int (*fn)(void *arg, const struct kvc_where *w, const struct kvc_frame *f),
		    void *arg)
{
	const char *hex = strrchr(key, '/');
	struct kvc_where w = { 0 };
	struct iovec iov = { page, KVC_FRAME_HEADER };
	unsigned long long a, b;
	int end = 0;

	if (!hex || sscanf(hex + 1, "%16llx%16llx%n", &a, &b, &end) != 2 || end != 32 || hex[33])
		return 0;
	w.at = a;
	w.hi = b;
	return s3_get(t, &w, 0, &iov, 1) || kvc_frame_decode(page, f) ? 0 : fn(arg, &w, f);
}

static int s3_list(struct kvc_tier *t,
		   int (*fn)(void *arg, const struct kvc_where *w, const struct kvc_frame *f),
		   void *arg)
{
	struct s3 *s = of(t);
	KVC_MEM uint8_t *page = malloc(KVC_FRAME_HEADER);
	KVC_MEM struct kvc_frame *f = malloc(sizeof *f);
	char token[1024] = "", key[1100];
	int err = page && f ? 0 : -ENOMEM;
	bool more = true;

	while (!err && more) {
		struct request q = { .method = "GET" };
		char *escaped = *token ? curl_easy_escape(NULL, token, 0) : NULL,
		     *prefix = curl_easy_escape(NULL, s->prefix, 0);
		const char *at;

		/* The parameters in the order in which they are signed. */
		snprintf(q.url, sizeof q.url, "%s?%s%s%slist-type=2&prefix=%s", s->base,
			 escaped ? "continuation-token=" : "", escaped ? escaped : "",
			 escaped ? "&" : "", prefix ? prefix : "");
		curl_free(escaped);
		curl_free(prefix);
		err = ask(s, &q);
		for (at = q.text; !err && element(&at, "Key", key, sizeof key);)
			err = list_key(t, key, page, f, fn, arg);
		at = q.text;
		more = !err && element(&at, "NextContinuationToken", token, sizeof token);
		free(q.text);
	}
	return err;
}

static void s3_usage(struct kvc_tier *t, struct kvc_tier_usage *u)
{
	(void)t;
	*u = (struct kvc_tier_usage){ 0 };
}

static void s3_close(struct kvc_tier *t)
{
	struct s3 *s = of(t);

	while (s->nidle)
		curl_easy_cleanup(s->idle[--s->nidle]);
	kvc_wipe(s->login, sizeof s->login);
	kvc_wipe(s->token, sizeof s->token);
	pthread_mutex_destroy(&s->lock);
	free(s);
}

static const struct kvc_tier_ops s3_ops = {
	.name = "s3",
	.caps = KVC_TIER_SHARED | KVC_TIER_DURABLE,
	.close = s3_close,
	.put = s3_put,
	.get = s3_get,
	.remove = s3_remove,
	.list = s3_list,
	.usage = s3_usage,
};

/* "name = value" lines, as AWS tools have them. */
static int credentials(struct s3 *s, const char *path, char *error)
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

static int set_up(struct s3 *s, const struct kvct_url *u, char *error)
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
	struct s3 *s;
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
