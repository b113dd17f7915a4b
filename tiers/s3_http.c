/* SPDX-License-Identifier: Apache-2.0 */
/*
 * See s3_http.h. Requests are signed by libcurl (AWS Signature 4, x-amz-content-sha256:
 * UNSIGNED-PAYLOAD; the frame has checksums of its own).
 */
#include "s3_http.h"

#include "log.h"

#include <ctype.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

/* bytes a second that a transfer is given time for, beside the deadline */
#define SLOWEST (4ull << 20)
#define ANSWER_MAX (4u << 20)

static struct kvct_s3_handle take(struct kvct_s3 *s)
{
	struct kvct_s3_handle h = { NULL, CURL_SOCKET_BAD };

	pthread_mutex_lock(&s->lock);
	if (s->nidle)
		h = s->idle[--s->nidle];
	pthread_mutex_unlock(&s->lock);
	if (h.curl)
		curl_easy_reset(h.curl); /* keeps its connection */
	else
		h.curl = curl_easy_init();
	return h;
}

static void give(struct kvct_s3 *s, struct kvct_s3_handle h)
{
	pthread_mutex_lock(&s->lock);
	bool keep = s->nidle < KVCT_S3_HANDLES;

	if (keep)
		s->idle[s->nidle++] = h;
	pthread_mutex_unlock(&s->lock);
	if (!keep)
		curl_easy_cleanup(h.curl);
}

static int on_socket(void *arg, curl_socket_t fd, curlsocktype use)
{
	struct kvct_s3_request *q = arg;

	(void)use;
	q->fd = fd;
	return CURL_SOCKOPT_OK;
}

/*
 * A server that leaves Nagle's algorithm on, as Ceph's gateway does by default, keeps the end of an
 * answer until all before it is acknowledged, which the kernel does 40 ms later unless it is asked.
 */
static void acknowledge(const struct kvct_s3_request *q)
{
	int now = 1;

	if (q->fd != CURL_SOCKET_BAD)
		setsockopt(q->fd, IPPROTO_TCP, TCP_QUICKACK, &now, sizeof now);
}

static size_t on_data(char *p, size_t one, size_t len, void *arg)
{
	struct kvct_s3_request *q = arg;
	size_t left = len;

	(void)one;
	acknowledge(q);
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
	struct kvct_s3_request *q = arg;
	size_t n = kvc_min(one * room, q->body_len - q->body_at);

	if (n)
		memcpy(p, q->body + q->body_at, n);
	q->body_at += n;
	return n;
}

static int on_seek(void *arg, curl_off_t off, int whence)
{
	struct kvct_s3_request *q = arg;

	if (whence != SEEK_SET || off < 0 || (size_t)off > q->body_len)
		return CURL_SEEKFUNC_FAIL;
	q->body_at = (size_t)off;
	return CURL_SEEKFUNC_OK;
}

static size_t on_header(char *p, size_t one, size_t len, void *arg)
{
	struct kvct_s3_request *q = arg;

	(void)one;
	if (len == 2) /* the empty line: the body may come on its own */
		acknowledge(q);
	if (len > 6 && !strncasecmp(p, "x-amz-", 6))
		q->service = true;
	if (len > 6 && !strncasecmp(p, "etag:", 5)) {
		size_t at = 5, n = 0;

		while (at < len && isspace((unsigned char)p[at]))
			at++;
		while (at < len && !isspace((unsigned char)p[at]) && n + 1 < sizeof q->etag)
			q->etag[n++] = p[at++];
		q->etag[n] = 0;
	}
	/* An error's body is text, not the object. A header has no NUL at its end. */
	if (len > 12 && !strncmp(p, "HTTP/", 5)) {
		const char *space = memchr(p, ' ', len - 3);

		q->status = space && space[1] == '2' && isdigit((unsigned char)space[2]) &&
					    isdigit((unsigned char)space[3])
				    ? 0
				    : -1;
	}
	return len;
}

/* What every request says; NULL: out of memory. */
static struct curl_slist *headers(const struct kvct_s3 *s, const struct kvct_s3_request *q)
{
	char token[2100];
	const char *lines[] = {
		"x-amz-content-sha256: UNSIGNED-PAYLOAD",
		strcmp(q->method, "POST") ? NULL : "Content-Type: application/xml",
		*s->token ? token : NULL,
	};
	struct curl_slist *h = NULL;

	snprintf(token, sizeof token, "x-amz-security-token: %s", s->token);
	for (size_t i = 0; i < sizeof lines / sizeof lines[0]; i++) {
		struct curl_slist *more = lines[i] ? curl_slist_append(h, lines[i]) : h;

		if (!more) {
			curl_slist_free_all(h);
			return NULL;
		}
		h = more;
	}
	return h;
}

static void set_way(CURL *c, const struct kvct_s3 *s, struct kvct_s3_request *q, uint64_t left_ns)
{
	uint64_t bytes = q->body_len + (q->to ? q->to - q->from : 0);

	curl_easy_setopt(c, CURLOPT_URL, q->url);
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
	curl_easy_setopt(c, CURLOPT_SOCKOPTFUNCTION, on_socket);
	curl_easy_setopt(c, CURLOPT_SOCKOPTDATA, q);
	curl_easy_setopt(c, CURLOPT_BUFFERSIZE, 512L << 10);
	curl_easy_setopt(c, CURLOPT_UPLOAD_BUFFERSIZE, 512L << 10);
	if (*s->ca)
		curl_easy_setopt(c, CURLOPT_CAINFO, s->ca);
}

/* The range that it asks for, or the body that it has. */
static void set_body(CURL *c, struct kvct_s3_request *q)
{
	char range[64];

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
}

/*
 * What a 404 says. What -ENOENT is said of is forgotten, so it takes the service's own word for
 * this key: a bucket that is not there, or an ingress that knows no way to the service, has lost
 * nothing. Where a gateway keeps the body to itself, the service's headers are enough.
 */
static int not_found(const struct kvct_s3_request *q)
{
	bool known = q->text_len ? strstr(q->text, "<Code>NoSuchKey</Code>") != NULL : q->service;

	return known ? -ENOENT : -EIO;
}

/*
 * A 403 or a 500 that lasts may be of one object, for its policy, its key or where it lies: they
 * are -EIO, which is the service's when several objects have it (KVC_TIER_MEDIA).
 */
static int outcome(const struct kvct_s3_request *q, CURLcode rc, long code)
{
	switch (rc) {
	case CURLE_OK: break;
	case CURLE_OPERATION_TIMEDOUT: return -ETIMEDOUT;
	case CURLE_PARTIAL_FILE:
	case CURLE_RECV_ERROR:
	case CURLE_SEND_ERROR:
	case CURLE_GOT_NOTHING: return -EAGAIN;
	case CURLE_PEER_FAILED_VERIFICATION:
	case CURLE_SSL_CACERT_BADFILE: return -EACCES;
	default: return -ECONNREFUSED;
	}
	if (code >= 200 && code < 300)
		return 0;
	if (code == 404)
		return not_found(q);
	if (code == 416)
		return -EBADMSG; /* shorter than it should be */
	if (code == 401)
		return -EACCES;
	return code >= 500 || code == 429 ? -EAGAIN : -EIO;
}

static int attempt(struct kvct_s3 *s, struct kvct_s3_request *q, uint64_t left_ns)
{
	struct curl_slist *h = headers(s, q);
	struct kvct_s3_handle by = { NULL, CURL_SOCKET_BAD };
	CURL *c;
	long code = 0;
	CURLcode rc;

	if (h)
		by = take(s);
	c = by.curl;
	if (!c) {
		curl_slist_free_all(h);
		return -ENOMEM;
	}
	q->body_at = 0;
	q->got = 0;
	q->text_len = 0;
	if (q->text) /* of an attempt before */
		*q->text = 0;
	q->status = 0;
	q->service = false;
	*q->etag = 0;
	q->fd = by.fd;
	set_way(c, s, q, left_ns);
	curl_easy_setopt(c, CURLOPT_HTTPHEADER, h);
	set_body(c, q);
	rc = curl_easy_perform(c);
	curl_easy_getinfo(c, CURLINFO_RESPONSE_CODE, &code);
	curl_slist_free_all(h);
	q->status = code;
	if (rc == CURLE_OK)
		give(s, (struct kvct_s3_handle){ c, q->fd });
	else
		curl_easy_cleanup(c);
	return q->overflow ? -EBADMSG : outcome(q, rc, code);
}

int kvct_s3_ask(struct kvct_s3 *s, struct kvct_s3_request *q)
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
			err = -ETIMEDOUT;
			break;
		}
		usleep((useconds_t)(nap / 1000));
	}
	if (err == -ETIMEDOUT && q->status == 500)
		err = -EIO;
	if ((err == -EACCES || q->status == 403) && !s->logged) {
		kvc_warn("tier s3: refused (%ld): check credentials, region and certificate",
			 q->status);
		s->logged = true;
	}
	if (err == -EIO && q->status == 404 && !s->logged) {
		kvc_warn("tier s3: 404, and not of the key: check bucket and endpoint");
		s->logged = true;
	}
	return err;
}
