/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One request to one node, with libcurl: see peers.h and frames/peer_sign.h. A handle serves one
 * call at a time, and idle handles keep their connections. The answer's bytes are copied straight
 * to their place. No redirect and no proxy is used. If the node has another epoch than the request,
 * because it has restarted, the request is signed again once.
 */
#include "peers.h"

#include "s3_http.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

#define SLOWEST (4ull << 20) /* bytes per second; lengthens the time of a transfer */

struct transfer {
	struct kvct_peers_request *q;
	struct kvc_peer_request signed_by;
	uint64_t got, all; /* bytes received and requested */
	uint64_t length;   /* Content-Length */
	int part;          /* of q->iov, where the next byte is stored */
	size_t at;
	unsigned status;
	size_t text_len;
	char sign[40];
	kvc_peer_text body; /* the signature of the request's body */
	bool overflow;
};

/* The status of an answer that has what was asked for. */
static unsigned wanted_status(const struct kvct_peers_request *q)
{
	return q->names ? 200 : 206;
}

static CURL *peer_handle_get(struct kvct_peers *p, unsigned i)
{
	CURL *c = NULL;

	pthread_mutex_lock(&p->lock);
	if (p->node[i].nidle)
		c = p->node[i].idle[--p->node[i].nidle];
	pthread_mutex_unlock(&p->lock);
	if (!c)
		return curl_easy_init();
	curl_easy_reset(c); /* keeps the connection */
	return c;
}

static void peer_handle_put(struct kvct_peers *p, unsigned i, CURL *c)
{
	struct kvct_peer *node = &p->node[i];

	pthread_mutex_lock(&p->lock);
	if (node->nidle < KVCT_PEERS_HANDLES) {
		node->idle[node->nidle++] = c;
		c = NULL;
	}
	pthread_mutex_unlock(&p->lock);
	if (c)
		curl_easy_cleanup(c);
}

void kvct_peers_close_idle(struct kvct_peers *p)
{
	for (unsigned i = 0; i < p->n; i++)
		while (p->node[i].nidle)
			curl_easy_cleanup(p->node[i].idle[--p->node[i].nidle]);
}

/* Copies bytes of the frame to their place. */
static bool peer_bytes(struct transfer *t, const char *p, size_t len)
{
	while (len && t->part < t->q->n) {
		const struct iovec *v = &t->q->iov[t->part];
		size_t n = kvc_min(len, v->iov_len - t->at);

		memcpy((char *)v->iov_base + t->at, p, n);
		p += n;
		len -= n;
		t->got += n;
		t->at += n;
		if (t->at == v->iov_len) {
			t->part++;
			t->at = 0;
		}
	}
	t->overflow = len > 0;
	return !len;
}

static size_t on_peer_data(char *p, size_t one, size_t len, void *arg)
{
	struct transfer *t = arg;
	size_t n = kvc_min(len, sizeof t->q->text - 1 - t->text_len);

	(void)one;
	if (t->status == wanted_status(t->q))
		return peer_bytes(t, p, len) ? len : 0;
	memcpy(t->q->text + t->text_len, p, n);
	t->text_len += n;
	return n == len ? len : 0;
}

/* Copies the value of the header `name` to value[capacity]; false: it is another header. */
static bool peer_header(const char *line, size_t len, const char *name, char *value,
			size_t capacity)
{
	size_t at = strlen(name), n = 0;

	if (len <= at || strncasecmp(line, name, at) != 0 || line[at] != ':')
		return false;
	for (at++; at < len && n + 1 < capacity; at++)
		if (!isspace((unsigned char)line[at]))
			value[n++] = line[at];
	value[n] = 0;
	return true;
}

static size_t on_peer_header(char *p, size_t one, size_t len, void *arg)
{
	struct transfer *t = arg;
	char number[24];
	const char *space = memchr(p, ' ', len);

	(void)one;
	if (len > 12 && !strncmp(p, "HTTP/", 5) && space) {
		t->status = (unsigned)strtoul(space, NULL, 10);
		*t->sign = 0;
	} else if (peer_header(p, len, "Content-Length", number, sizeof number)) {
		t->length = strtoull(number, NULL, 10);
	} else {
		peer_header(p, len, KVC_PEER_SIGN, t->sign, sizeof t->sign);
	}
	return len;
}

static bool peer_header_add(struct curl_slist **h, const char *name, const char *value)
{
	char line[KVC_PEER_NAME + 32];
	struct curl_slist *more;

	snprintf(line, sizeof line, "%s: %s", name, value);
	more = curl_slist_append(*h, line);
	if (more)
		*h = more;
	return more;
}

/* Returns the URL of the request, which the caller frees, or NULL. */
static char *peer_url(const char *node, const struct kvct_peers_request *q)
{
	const char *path = q->names ? "" : q->path;
	size_t capacity = strlen(node) + 3 * strlen(path) + 32;
	char *url = malloc(capacity), *p;

	if (!url)
		return NULL;
	p = url + snprintf(url, capacity, "http://%s%s", node, kvc_peer_url(q->kind));
	for (; *path; path++)
		if (isalnum((unsigned char)*path) || strchr("-_~/", *path))
			*p++ = *path;
		else
			p += snprintf(p, 4, "%%%02X", (unsigned char)*path);
	*p = 0;
	return url;
}

/* Signs the request and makes its headers, which the caller frees also after an error. */
static int peer_headers(struct kvct_peers *p, unsigned i, struct transfer *t, struct curl_slist **h)
{
	uint64_t nonce[2];
	kvc_peer_text sign;
	char time[24];
	const struct kvct_peers_request *q = t->q;
	int err = kvc_keys_random(nonce, sizeof nonce);

	t->signed_by = (struct kvc_peer_request){
		.kind = q->kind,
		.path = q->names ? t->body : q->path,
		.from = q->names ? 0 : q->off,
		.to = q->names ? q->names_len - 1 : q->off + t->all - 1,
		.time_ms = kvc_now_ns() / 1000000,
		.node = p->node[i].name,
	};
	snprintf(t->signed_by.nonce, sizeof t->signed_by.nonce, "%016llx%016llx",
		 (unsigned long long)nonce[0], (unsigned long long)nonce[1]);
	snprintf(time, sizeof time, "%llu", (unsigned long long)t->signed_by.time_ms);
	pthread_mutex_lock(&p->lock);
	memcpy(t->signed_by.epoch, p->node[i].epoch, sizeof t->signed_by.epoch);
	pthread_mutex_unlock(&p->lock);
	if (!err && q->names)
		err = kvc_peer_sign_body(&p->secret, t->signed_by.nonce, q->names, q->names_len,
					 t->body);
	err = err ?: kvc_peer_sign(&p->secret, &t->signed_by, sign);
	if (err)
		return err;
	if (q->names &&
	    !(peer_header_add(h, KVC_PEER_BODY, t->body) && peer_header_add(h, "Expect", "") &&
	      peer_header_add(h, "Content-Type", "")))
		return -ENOMEM;
	return peer_header_add(h, KVC_PEER_TIME, time) &&
			       peer_header_add(h, KVC_PEER_NONCE, t->signed_by.nonce) &&
			       peer_header_add(h, KVC_PEER_NODE, t->signed_by.node) &&
			       peer_header_add(h, KVC_PEER_EPOCH, t->signed_by.epoch) &&
			       peer_header_add(h, KVC_PEER_SIGN, sign)
		       ? 0
		       : -ENOMEM;
}

static void peer_options(CURL *c, struct transfer *t, struct curl_slist *h, const char *url)
{
	uint64_t now = kvc_mono_ns(),
		 left_ms = t->q->until_ns > now ? (t->q->until_ns - now) / 1000000 + 1 : 1;
	char range[64];

	kvct_s3_set_bounded(c);
	snprintf(range, sizeof range, "%llu-%llu", (unsigned long long)t->signed_by.from,
		 (unsigned long long)t->signed_by.to);
	curl_easy_setopt(c, CURLOPT_URL, url);
	curl_easy_setopt(c, CURLOPT_PROXY, "");
	curl_easy_setopt(c, CURLOPT_HTTP_VERSION, (long)CURL_HTTP_VERSION_1_1);
	curl_easy_setopt(c, CURLOPT_PATH_AS_IS, 1L);
	if (t->q->names) {
		curl_easy_setopt(c, CURLOPT_POSTFIELDSIZE, (long)t->q->names_len);
		curl_easy_setopt(c, CURLOPT_POSTFIELDS, t->q->names);
	} else {
		curl_easy_setopt(c, CURLOPT_RANGE, range);
	}
	curl_easy_setopt(c, CURLOPT_HTTPHEADER, h);
	curl_easy_setopt(c, CURLOPT_BUFFERSIZE, 512L << 10);
	curl_easy_setopt(c, CURLOPT_CONNECTTIMEOUT_MS, (long)left_ms);
	curl_easy_setopt(c, CURLOPT_TIMEOUT_MS, (long)(left_ms + t->all * 1000 / SLOWEST));
	curl_easy_setopt(c, CURLOPT_WRITEFUNCTION, on_peer_data);
	curl_easy_setopt(c, CURLOPT_WRITEDATA, t);
	curl_easy_setopt(c, CURLOPT_HEADERFUNCTION, on_peer_header);
	curl_easy_setopt(c, CURLOPT_HEADERDATA, t);
}

/* Is the answer whole, and signed by a node that knows the secret? */
static bool peer_signed(const struct kvct_peers *p, const struct transfer *t)
{
	const struct kvct_peers_request *q = t->q;
	bool bytes = t->status == wanted_status(q), header = bytes && !q->names && !q->off,
	     epoch = t->status == KVC_PEER_OTHER_EPOCH;
	const void *start = q->text;
	size_t len = epoch ? t->text_len : 0;
	kvc_peer_text sign;

	if ((bytes && t->got != t->length) || (header && t->got < KVC_FRAME_HEADER) ||
	    (bytes && q->names && !kvc_peer_has_text(q->kind) && t->got != t->all) ||
	    (epoch && t->text_len != t->length))
		return false;
	if (header || (bytes && q->names)) {
		start = q->iov[0].iov_base;
		len = header ? KVC_FRAME_HEADER : t->got;
	}
	return !kvc_peer_sign_answer(&p->secret, t->signed_by.nonce, t->status, t->length, start,
				     len, sign) &&
	       kvc_peer_same(sign, t->sign);
}

/* Remembers the epoch of the node, which is the text of its answer. Returns -EAGAIN or -EIO. */
static int learn_epoch(struct kvct_peers *p, unsigned i, struct transfer *t)
{
	if (!kvc_peer_hex(t->q->text))
		return -EIO;
	pthread_mutex_lock(&p->lock);
	memcpy(p->node[i].epoch, t->q->text, sizeof p->node[i].epoch);
	pthread_mutex_unlock(&p->lock);
	memset(t->q->text, 0, sizeof t->q->text);
	return -EAGAIN;
}

static int peer_judge(struct kvct_peers *p, unsigned i, struct transfer *t, CURLcode rc)
{
	switch (rc) {
	case CURLE_OK: break;
	case CURLE_OUT_OF_MEMORY: return -ENOMEM;
	case CURLE_OPERATION_TIMEDOUT: return -ETIMEDOUT;
	case CURLE_COULDNT_CONNECT: return -ECONNREFUSED;
	case CURLE_COULDNT_RESOLVE_HOST: return -EHOSTUNREACH;
	default: return -EIO;
	}
	if (t->status == 403)
		return -EACCES;
	if (!peer_signed(p, t)) {
		snprintf(t->q->text, sizeof t->q->text, "its answer is not signed with the secret");
		return -EIO;
	}
	if (t->status == KVC_PEER_MISDIRECTED) {
		snprintf(t->q->text, sizeof t->q->text,
			 "it does not have this name; if it is the right node, add the name to its "
			 "option peer_name=");
		return -EACCES;
	}
	if (t->status == KVC_PEER_OTHER_EPOCH)
		return learn_epoch(p, i, t);
	if (t->status == wanted_status(t->q))
		return 0;
	if (t->q->kind == KVC_PEER_OFFER &&
	    (t->status == KVC_PEER_NO_REMOTE || t->status == KVC_PEER_FULL))
		return t->status == KVC_PEER_FULL ? -ENOSPC : -EOPNOTSUPP;
	if (t->q->kind == KVC_PEER_CHANGE && t->status == KVC_PEER_NO_CHANGES)
		return -EPERM;
	return t->status == 404   ? -ENOENT
	       : t->status == 416 ? -EBADMSG
	       : t->status == 503 ? -EBUSY
				  : -EIO;
}

/* Fills the rest of the buffers with zeros, if another, shorter version of the frame was read. */
static void peer_fill(struct transfer *t)
{
	for (; t->part < t->q->n; t->part++, t->at = 0) {
		const struct iovec *v = &t->q->iov[t->part];

		memset((char *)v->iov_base + t->at, 0, v->iov_len - t->at);
	}
}

/* Sends the request once. Returns the result of kvct_peers_ask, or -EAGAIN: sign it again. */
static int ask_once(struct kvct_peers *p, unsigned i, struct kvct_peers_request *q, const char *url)
{
	struct transfer t = { .q = q };
	struct curl_slist *h = NULL;
	CURL *c = peer_handle_get(p, i);
	curl_off_t first_us = 0;
	CURLcode rc;
	int err;

	memset(q->text, 0, sizeof q->text);
	for (int j = 0; j < q->n; j++)
		t.all += q->iov[j].iov_len;
	err = c ? peer_headers(p, i, &t, &h) : -ENOMEM;
	if (!err) {
		peer_options(c, &t, h, url);
		rc = curl_easy_perform(c);
		curl_easy_getinfo(c, CURLINFO_STARTTRANSFER_TIME_T, &first_us);
		q->first_ns = (uint64_t)first_us * 1000;
		q->got = t.got;
		if (t.overflow)
			snprintf(q->text, sizeof q->text, "its answer is too long");
		err = peer_judge(p, i, &t, rc);
		if (rc == CURLE_OK)
			peer_handle_put(p, i, c);
		else
			curl_easy_cleanup(c);
		if (!*q->text && rc != CURLE_OK)
			snprintf(q->text, sizeof q->text, "%s", curl_easy_strerror(rc));
	} else if (c) {
		curl_easy_cleanup(c);
	}
	curl_slist_free_all(h);
	if (!err)
		peer_fill(&t);
	return err;
}

int kvct_peers_ask(struct kvct_peers *p, unsigned i, struct kvct_peers_request *q)
{
	KVC_MEM char *url = peer_url(p->node[i].name, q);
	int err = url ? ask_once(p, i, q, url) : -ENOMEM;

	if (err == -EAGAIN)
		err = ask_once(p, i, q, url);
	kvc_quote_one_line(q->text);
	return err == -EAGAIN ? -EBUSY : err; /* it has restarted twice */
}
