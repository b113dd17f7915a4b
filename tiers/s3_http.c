/* SPDX-License-Identifier: Apache-2.0 */
/*
 * See s3_http.h. Bodies are signed only with checksum=sha256, since frames have their own
 * checksums.
 */
#include "s3_http.h"

#include "registry.h"
#include "keys.h"
#include "log.h"

#include <ctype.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

/* bytes per second; lengthens the deadline of a transfer */
#define SLOWEST (4ull << 20)
#define TEXT_MAX (64u << 10)
#define IDLE_MAX_NS 25000000000ull /* load balancers drop connections that are idle longer */
#define IDLE_NS 1000000000ull      /* a connection idle for longer may have been dropped */
#define WRITES 3u                  /* attempts of a write that the service asks to slow down */

void kvct_s3_close_idle(struct kvct_s3 *s)
{
	struct kvct_s3_handle old[KVCT_S3_HANDLES];
	unsigned n;

	pthread_mutex_lock(&s->lock);
	n = s->nidle;
	memcpy(old, s->idle, n * sizeof *old);
	s->nidle = 0;
	pthread_mutex_unlock(&s->lock);
	while (n)
		curl_easy_cleanup(old[--n].curl);
}

static struct kvct_s3_handle handle_get(struct kvct_s3 *s)
{
	struct kvct_s3_handle h = { NULL, CURL_SOCKET_BAD, 0 };

	pthread_mutex_lock(&s->lock);
	if (s->nidle)
		h = s->idle[--s->nidle];
	pthread_mutex_unlock(&s->lock);
	if (h.curl && kvc_mono_ns() - h.idle_ns > IDLE_MAX_NS) {
		curl_easy_cleanup(h.curl);
		h = (struct kvct_s3_handle){ NULL, CURL_SOCKET_BAD, 0 };
	}
	if (h.curl)
		curl_easy_reset(h.curl); /* keeps the connection */
	else
		h.curl = curl_easy_init();
	return h;
}

static void handle_put(struct kvct_s3 *s, CURL *c, curl_socket_t fd)
{
	pthread_mutex_lock(&s->lock);
	bool keep = s->nidle < KVCT_S3_HANDLES;

	if (keep)
		s->idle[s->nidle++] = (struct kvct_s3_handle){ c, fd, kvc_mono_ns() };
	pthread_mutex_unlock(&s->lock);
	if (!keep)
		curl_easy_cleanup(c);
}

static int on_socket(void *arg, curl_socket_t fd, curlsocktype use)
{
	struct kvct_s3_request *q = arg;

	(void)use;
	q->fd = fd;
	q->idle = false; /* a new connection */
	return CURL_SOCKOPT_OK;
}

/*
 * Makes the kernel acknowledge at once. A server with Nagle's algorithm (the default of Ceph's
 * gateway) sends the end of an answer only when everything before it is acknowledged, and the
 * kernel delays that by 40 ms.
 */
static void acknowledge(const struct kvct_s3_request *q)
{
	int now = 1;

	if (q->fd != CURL_SOCKET_BAD)
		setsockopt(q->fd, IPPROTO_TCP, TCP_QUICKACK, &now, sizeof now);
}

/* Copies bytes of an object into iov. */
static size_t take_bytes(struct kvct_s3_request *q, const char *p, size_t len)
{
	size_t left = len, n = (size_t)kvc_min(q->skip, len);

	q->skip -= n;
	p += n;
	left -= n;
	while (left && q->n) {
		n = kvc_min(left, q->iov->iov_len);
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
	if (!left)
		return len;
	/* more bytes than requested, or a service that sends the whole object */
	q->enough = q->status == 200;
	q->overflow = !q->enough;
	return 0;
}

static size_t on_data(char *p, size_t one, size_t len, void *arg)
{
	struct kvct_s3_request *q = arg;
	size_t most = q->text_max ? q->text_max : TEXT_MAX, n = len;

	(void)one;
	acknowledge(q);
	if (q->iov && !q->failing)
		return take_bytes(q, p, len);
	if (q->text_len + len > most) {
		if (!q->failing)
			return 0;
		n = most - q->text_len; /* the beginning of an error's text suffices */
	}
	char *more = realloc(q->text, q->text_len + n + 1);

	if (!more)
		return 0;
	q->text = more;
	memcpy(q->text + q->text_len, p, n);
	q->text_len += n;
	q->text[q->text_len] = 0;
	return len;
}

static size_t on_send(char *p, size_t one, size_t capacity, void *arg)
{
	struct kvct_s3_request *q = arg;
	size_t n = kvc_min(one * capacity, q->body_len - q->body_at);

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

/*
 * Copies the value of header `name` to `to` as one line, cut to `capacity`. Returns false if the
 * line is another header.
 */
static bool header_is(const char *line, size_t len, const char *name, char *to, size_t capacity)
{
	size_t at = strlen(name), n = 0;

	if (len <= at || strncasecmp(line, name, at))
		return false;
	while (at < len && isspace((unsigned char)line[at]))
		at++;
	while (at < len && line[at] != '\r' && line[at] != '\n' && n + 1 < capacity)
		to[n++] = line[at++];
	while (n && isspace((unsigned char)to[n - 1]))
		n--;
	to[n] = 0;
	kvc_quote_one_line(to);
	return true;
}

static void take_status(struct kvct_s3_request *q, const char *p, size_t len)
{
	const char *space = memchr(p, ' ', len - 3);

	q->failing = !space || space[1] != '2' || !isdigit((unsigned char)space[2]) ||
		     !isdigit((unsigned char)space[3]);
	/* the whole object, although a range was requested */
	q->status = !q->failing && space[2] == '0' && space[3] == '0' ? 200 : 0;
	q->skip = q->status == 200 ? q->from : 0;
	q->html = q->service = false;
	q->retry_ms = 0;
}

static size_t on_header(char *p, size_t one, size_t len, void *arg)
{
	struct kvct_s3_request *q = arg;
	char value[64];

	(void)one;
	q->answered = true;
	if (len == 2) /* the empty line: the body may arrive separately */
		acknowledge(q);
	if (len > 6 && (!strncasecmp(p, "x-amz-", 6) || !strncasecmp(p, "x-goog", 6)))
		q->service = true;
	if (header_is(p, len, "etag:", q->etag, sizeof q->etag) ||
	    header_is(p, len, "x-amz-bucket-region:", q->region, sizeof q->region))
		return len;
	if (header_is(p, len, "content-type:", value, sizeof value))
		q->html = !strncasecmp(value, "text/html", 9);
	else if (header_is(p, len, "date:", value, sizeof value))
		q->date_ns = (uint64_t)kvc_max(0, curl_getdate(value, NULL) > 0
							  ? (uint64_t)curl_getdate(value, NULL)
							  : 0) *
			     1000000000;
	else if (header_is(p, len, "retry-after:", value, sizeof value))
		q->retry_ms = strtoul(value, NULL, 10) * 1000;
	else if (len > 12 && !strncmp(p, "HTTP/", 5))
		take_status(q, p, len);
	return len;
}

/* Ends the transfer if a reused connection is dead, or if the tier stops. */
static int on_progress(void *arg, curl_off_t down_all, curl_off_t down, curl_off_t up_all,
		       curl_off_t up)
{
	struct kvct_s3_request *q = arg;
	uint64_t now = kvc_mono_ns(), most = q->s3->deadline_ms * 1000000 / 4;

	(void)down_all;
	(void)up_all;
	if (q->quiet && q->s3->stopping)
		return 1;
	if ((uint64_t)up != q->sent) {
		q->sent = (uint64_t)up;
		q->moved_ns = now;
	}
	q->stalled = q->idle && !q->slow && !q->answered && !down && now - q->moved_ns > most;
	return q->stalled;
}

/* --- the request --- */

struct lines {
	struct kvct_s3_canonical c;
	char date[20], payload[65], md5[25];
};

static void header_add(struct kvct_s3_canonical *c, const char *name, const char *value)
{
	if (value && *value) {
		c->header[c->headers].name = name;
		c->header[c->headers++].value = value;
	}
}

/* Fills in the headers to sign, sorted by name. */
static int headers_of(const struct kvct_s3 *s, const struct kvct_s3_request *q,
		      const struct kvct_s3_login *login, const char *path, struct lines *l)
{
	uint64_t now = kvc_now_ns();
	time_t t = (time_t)(now / 1000000000);
	struct tm tm;
	int err = 0;

	gmtime_r(&t, &tm);
	(void)strftime(l->date, sizeof l->date, "%Y%m%dT%H%M%SZ", &tm);
	snprintf(l->payload, sizeof l->payload, "%s", KVCT_S3_UNSIGNED);
	if (s->sha256)
		err = kvct_s3_sha256(q->body ? (const void *)q->body : "", q->body_len, l->payload);
	if (s->md5 && q->body_len)
		err = err ?: kvct_s3_md5(q->body, q->body_len, l->md5);
	l->c = (struct kvct_s3_canonical){
		.method = q->method,
		.path = path,
		.query = q->query ? q->query : "",
		.region = s->region,
		.date = l->date,
		.payload = l->payload,
	};
	header_add(&l->c, "content-md5", l->md5);
	header_add(&l->c, "content-type", strcmp(q->method, "POST") ? "" : "application/xml");
	header_add(&l->c, "host", q->place->host);
	if (!kvct_s3_credentials_none(s->credentials)) {
		header_add(&l->c, "x-amz-content-sha256", l->payload);
		header_add(&l->c, "x-amz-date", l->date);
		header_add(&l->c, "x-amz-security-token", login->token);
	}
	if (q->creates) {
		header_add(&l->c, "x-amz-server-side-encryption", s->sse);
		header_add(&l->c, "x-amz-server-side-encryption-aws-kms-key-id", s->sse_key);
	}
	return err;
}

static void free_headers(struct curl_slist *h)
{
	for (struct curl_slist *e = h; e; e = e->next)
		kvc_keys_wipe(e->data, strlen(e->data));
	curl_slist_free_all(h);
}

static int append(struct curl_slist **h, const char *name, const char *value)
{
	size_t capacity = strlen(name) + strlen(value) + 3;
	char *line = malloc(capacity);
	struct curl_slist *more;

	if (!line)
		return -ENOMEM;
	snprintf(line, capacity, "%s: %s", name, value);
	more = curl_slist_append(*h, line);
	kvc_keys_wipe(line, capacity);
	free(line);
	if (more)
		*h = more;
	return more ? 0 : -ENOMEM;
}

/* Makes all headers of a request, signed. */
static int headers_make(const struct kvct_s3 *s, const struct kvct_s3_request *q,
			const struct kvct_s3_login *login, const char *path,
			struct curl_slist **out)
{
	struct lines l = { 0 };
	char signature[1024];
	int err = headers_of(s, q, login, path, &l);

	*out = NULL;
	for (unsigned i = 0; i < l.c.headers && !err; i++)
		err = append(out, l.c.header[i].name, l.c.header[i].value);
	if (!err && !q->anonymous && !kvct_s3_credentials_none(s->credentials)) {
		err = kvct_s3_sign(&l.c, login, signature, sizeof signature);
		err = err ?: append(out, "Authorization", signature);
	}
	if (err)
		free_headers(*out);
	return err;
}

/*
 * libcurl resolves names in separate threads. By default, it joins such a thread at the end of the
 * request and so may wait far beyond the deadline for a name server that does not answer. With this
 * option it leaves the thread, which frees its memory itself.
 */
void kvct_s3_set_bounded(CURL *c)
{
	curl_easy_setopt(c, CURLOPT_NOSIGNAL, 1L);
#if LIBCURL_VERSION_NUM >= 0x075700
	curl_easy_setopt(c, CURLOPT_QUICK_EXIT, 1L);
#endif
}

static void set_transfer(CURL *c, const struct kvct_s3 *s, struct kvct_s3_request *q,
			 uint64_t left_ns)
{
	uint64_t bytes = q->body_len + (q->to ? q->to - q->from : 0);

	curl_easy_setopt(c, CURLOPT_PATH_AS_IS, 1L);
	curl_easy_setopt(c, CURLOPT_HTTP_VERSION, (long)CURL_HTTP_VERSION_1_1);
	kvct_s3_set_bounded(c);
	curl_easy_setopt(c, CURLOPT_TCP_KEEPALIVE, 1L);
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
	curl_easy_setopt(c, CURLOPT_NOPROGRESS, 0L);
	curl_easy_setopt(c, CURLOPT_XFERINFOFUNCTION, on_progress);
	curl_easy_setopt(c, CURLOPT_XFERINFODATA, q);
	curl_easy_setopt(c, CURLOPT_BUFFERSIZE, 512L << 10);
	curl_easy_setopt(c, CURLOPT_UPLOAD_BUFFERSIZE, 512L << 10);
	if (*s->ca)
		curl_easy_setopt(c, CURLOPT_CAINFO, s->ca);
}

/* Sets the requested range, or the body to send. */
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

/* Clears the answer of the previous attempt. */
static void request_reset(struct kvct_s3_request *q, const struct kvct_s3_handle *by)
{
	q->body_at = q->text_len = 0;
	q->got = q->skip = q->sent = q->retry_ms = q->date_ns = 0;
	if (q->text)
		*q->text = 0;
	q->status = 0;
	q->overflow = q->enough = q->failing = q->html = q->service = false;
	q->answered = q->stalled = q->begun = false;
	*q->etag = *q->code = *q->message = *q->region = *q->endpoint = 0;
	q->fd = by->fd;
	q->moved_ns = kvc_mono_ns();
	q->idle = by->idle_ns && q->moved_ns - by->idle_ns > IDLE_NS;
}

static int send_once(struct kvct_s3 *s, struct kvct_s3_request *q,
		     const struct kvct_s3_login *login, uint64_t left_ns)
{
	const struct kvct_s3_place *at = &s->place[s->by_name];
	char path[sizeof at->root + sizeof q->key + 2];
	size_t capacity = sizeof at->server + sizeof path + (q->query ? strlen(q->query) : 0) + 2;
	KVC_MEM char *url = malloc(capacity);
	struct kvct_s3_handle by = { NULL, CURL_SOCKET_BAD, 0 };
	struct curl_slist *h = NULL, *to = NULL;
	curl_off_t first_us = 0;
	CURLcode rc;
	int err;

	q->place = at;
	snprintf(path, sizeof path, "%s%s%s", at->root, *q->key || !*at->root ? "/" : "", q->key);
	err = url ? headers_make(s, q, login, path, &h) : -ENOMEM;
	if (err)
		return err;
	snprintf(url, capacity, "%s%s%s%s", at->server, path, q->query ? "?" : "",
		 q->query ? q->query : "");
	by = handle_get(s);
	if (!by.curl) {
		free_headers(h);
		return -ENOMEM;
	}
	request_reset(q, &by);
	curl_easy_setopt(by.curl, CURLOPT_URL, url);
	if (at == &s->place[1] && *s->connect_to)
		to = curl_slist_append(NULL, s->connect_to);
	curl_easy_setopt(by.curl, CURLOPT_CONNECT_TO, to);
	set_transfer(by.curl, s, q, left_ns);
	curl_easy_setopt(by.curl, CURLOPT_HTTPHEADER, h);
	set_body(by.curl, q);
	rc = curl_easy_perform(by.curl);
	curl_easy_getinfo(by.curl, CURLINFO_RESPONSE_CODE, &q->status);
	curl_easy_getinfo(by.curl, CURLINFO_STARTTRANSFER_TIME_T, &first_us);
	q->begun = first_us > 0;
	free_headers(h);
	if (to)
		curl_easy_setopt(by.curl, CURLOPT_CONNECT_TO, NULL);
	curl_slist_free_all(to);
	if (rc == CURLE_OK)
		handle_put(s, by.curl, q->fd);
	else
		curl_easy_cleanup(by.curl);
	err = kvct_s3_judge(q, rc);
	if (q->stalled || rc == CURLE_PEER_FAILED_VERIFICATION)
		/* idle connections are as old as this one, or may have the same outdated CA file */
		kvct_s3_close_idle(s);
	return err;
}

static int s3_attempt(struct kvct_s3 *s, struct kvct_s3_request *q, uint64_t until,
		      uint64_t *number)
{
	uint64_t now = kvc_mono_ns();
	struct kvct_s3_login *login = now < until ? calloc(1, sizeof *login) : NULL;
	int err = now >= until ? -ETIMEDOUT : login ? 0 : -ENOMEM;

	q->again = q->stale = false;
	if (!err && !q->anonymous)
		err = kvct_s3_credentials_get(s->credentials, until, login, number);
	if (err)
		q->status = 0;
	err = err ?: send_once(s, q, login, until - now);
	if (login)
		kvc_keys_wipe(login, sizeof *login);
	free(login);
	return err;
}

/*
 * Switches to the bucket in the host name if the service asks for it. Returns true to send the
 * request again.
 */
static bool switch_place(struct kvct_s3 *s, const struct kvct_s3_request *q)
{
	if (!s->may_switch || q->place == &s->place[1] || !kvct_s3_wants_name(q))
		return false;
	if (!s->by_name)
		kvc_info("tier s3: %ld %s: now using the bucket in the host name "
			 "(addressing=virtual)",
			 q->status, q->code);
	s->by_name = true;
	return true;
}

int kvct_s3_ask(struct kvct_s3 *s, struct kvct_s3_request *q)
{
	uint64_t until = kvc_mono_ns() + s->deadline_ms * 1000000, nap_ms = 50, number = 0;
	unsigned tries = 0, renewed = 0;
	struct iovec keep[8], *iov = q->iov;
	int n = q->n, err;

	if (n > 8)
		return -EINVAL;
	q->s3 = s;
	for (;;) {
		if (iov) {
			memcpy(keep, iov, (size_t)n * sizeof *iov);
			q->iov = keep;
			q->n = n;
		}
		err = s3_attempt(s, q, until, &number);
		tries++;
		if (err && switch_place(s, q))
			continue;
		if (q->stale && !q->anonymous && renewed++ < 2 &&
		    kvct_s3_credentials_renew(s->credentials, number, q->sure, until))
			continue;
		if (!q->again || (err == -EBUSY && q->kind == KVCT_S3_WRITE && tries == WRITES) ||
		    (q->quiet && s->stopping))
			break;
		nap_ms = nap_ms < 1600 ? nap_ms * 2 : 1600;
		/* jitter: .5 to 1.5 times */
		uint64_t nap = (kvc_max(nap_ms, q->retry_ms) / 2 + kvc_now_ns() / 1000 % nap_ms) *
			       1000000;

		if (q->stalled)
			continue;
		if (kvc_mono_ns() + nap >= until)
			break;
		usleep((useconds_t)(nap / 1000));
	}
	q->iov = iov;
	q->n = n;
	if (q->status == 200 && q->to && !err && !s->whole) {
		s->whole = true;
		kvc_warn("tier s3: the service ignores the Range header: every read transfers a "
			 "whole object");
	}
	if (!q->wanted || (err != -EACCES && err != -ENOENT))
		kvct_s3_log(s, q, err == -ENOENT || err == -EBADMSG ? 0 : err);
	return err;
}

struct kvc_library kvct_library_curl(void)
{
	return (struct kvc_library){ "curl", curl_version_info(CURLVERSION_NOW)->version,
				     (const void *)curl_version_info };
}
