/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The peers tier with two nodes that answer as the input says. libcurl is replaced by a few
 * functions that pass the input to the tier's callbacks as libcurl would. An answer counts only if
 * it is signed: it then has exactly the bytes of its body, with zeros behind them. Without a
 * signature nothing is a success, a miss, or a damaged frame. After a frame, the tier is asked for
 * many names, and then for a text.
 *
 * Input: a byte (bits 0 and 1: the offset; the others: the length in units of 100 bytes), then for
 * each request: a byte (how it ends; bit 5: the answer is signed; bit 4: in small pieces), one
 * byte for the status, one for the number of headers, the headers with their line ends, two bytes
 * for the body's length, and the body.
 * Longest input: 16384
 * Covers: tiers/peers.c, tiers/peers_ask.c, tiers/peers_http.c, engine/frames/peer_sign.c
 */
#include "fuzz.h"
#include "peers.h"
#include "registry.h"
#include "secret.h"

#include <stdarg.h>

#undef curl_easy_setopt
#undef curl_easy_getinfo

typedef size_t callback(char *p, size_t one, size_t len, void *arg);

struct CurlStandIn {
	callback *data, *header;
	void *data_arg, *header_arg;
	const struct curl_slist *headers;
};

CURL *__wrap_curl_easy_init(void);
CURLcode __wrap_curl_easy_setopt(CURL *c, CURLoption o, ...);
CURLcode __wrap_curl_easy_perform(CURL *c);
CURLcode __wrap_curl_easy_getinfo(CURL *c, CURLINFO info, ...);
void __wrap_curl_easy_reset(CURL *c);
void __wrap_curl_easy_cleanup(CURL *c);
uint64_t __wrap_kvc_mono_ns(void);

static struct fuzz_in answers;
static uint64_t now_ns, call_off;
static struct kvc_peer_secret secret;
/* the last answer: its body, and whether it was signed */
static uint8_t body[1 << 16];
static size_t body_len;
static bool was_signed, any_signed, any_bits; /* any_bits: the last call got a bit */

uint64_t __wrap_kvc_mono_ns(void)
{
	return now_ns += 1000000;
}

CURL *__wrap_curl_easy_init(void)
{
	return calloc(1, sizeof(struct CurlStandIn));
}

void __wrap_curl_easy_reset(CURL *c)
{
	memset(c, 0, sizeof(struct CurlStandIn));
}

void __wrap_curl_easy_cleanup(CURL *c)
{
	free(c);
}

CURLcode __wrap_curl_easy_setopt(CURL *curl, CURLoption o, ...)
{
	struct CurlStandIn *c = curl;
	va_list ap;

	va_start(ap, o);
	switch ((int)o) {
	case CURLOPT_WRITEFUNCTION: c->data = va_arg(ap, callback *); break;
	case CURLOPT_WRITEDATA: c->data_arg = va_arg(ap, void *); break;
	case CURLOPT_HEADERFUNCTION: c->header = va_arg(ap, callback *); break;
	case CURLOPT_HEADERDATA: c->header_arg = va_arg(ap, void *); break;
	case CURLOPT_HTTPHEADER: c->headers = va_arg(ap, const struct curl_slist *); break;
	default: break;
	}
	va_end(ap);
	return CURLE_OK;
}

CURLcode __wrap_curl_easy_getinfo(CURL *curl, CURLINFO info, ...)
{
	va_list ap;

	(void)curl;
	va_start(ap, info);
	fuzz_must(info == CURLINFO_STARTTRANSFER_TIME_T);
	*va_arg(ap, curl_off_t *) = 1000;
	va_end(ap);
	return CURLE_OK;
}

/*
 * Passes bytes to a callback, from memory of exactly that size. Returns false if it accepts no
 * more.
 */
static bool hand(callback *to, void *arg, const void *p, size_t len)
{
	char *bytes = malloc(len ? len : 1);
	bool good;

	fuzz_must(bytes);
	memcpy(bytes, p, len);
	good = to(bytes, 1, len, arg) == len;
	free(bytes);
	return good;
}

static bool hand_text(struct CurlStandIn *c, const char *text)
{
	return hand(c->header, c->header_arg, text, strlen(text));
}

/* Signs the answer, as a node does. */
static bool hand_sign(struct CurlStandIn *c, unsigned status)
{
	static const char name[] = KVC_PEER_NONCE ": ";
	const struct curl_slist *h = c->headers;
	uint8_t page[KVC_FRAME_HEADER] = { 0 };
	bool has_header = status == 206 && !call_off, whole = status == 425 || status == 200;
	kvc_peer_text nonce, sign;
	char line[100];

	while (h && strncmp(h->data, name, sizeof name - 1) != 0)
		h = h->next;
	fuzz_must(h && strlen(h->data) == sizeof name - 1 + sizeof nonce - 1);
	memcpy(nonce, h->data + sizeof name - 1, sizeof nonce);
	memcpy(page, body, body_len < sizeof page ? body_len : sizeof page);
	fuzz_must(!kvc_peer_sign_answer(&secret, nonce, status, body_len, whole ? body : page,
					has_header ? sizeof page
					: whole    ? body_len
						   : 0,
					sign));
	snprintf(line, sizeof line, "content-length:%zu\r\n", body_len);
	fuzz_must(hand_text(c, line));
	snprintf(line, sizeof line, KVC_PEER_SIGN ": %s\r\n", sign);
	return hand_text(c, line);
}

CURLcode __wrap_curl_easy_perform(CURL *curl)
{
	static const unsigned codes[] = {
		206, 206, 206, 206, 404, 403, 416, 503, 200, 0, 421, 425
	};
	static const CURLcode ends[] = {
		CURLE_OK, CURLE_OK,           CURLE_OK,         CURLE_OK,
		CURLE_OK, CURLE_PARTIAL_FILE, CURLE_RECV_ERROR, CURLE_OPERATION_TIMEDOUT,
	};
	struct CurlStandIn *c = curl;
	unsigned end, status, headers;
	char line[64];
	uint8_t *bytes;

	was_signed = false;
	if (!answers.n)
		return CURLE_COULDNT_CONNECT;
	end = (unsigned)fuzz_number(&answers, 1);
	status = codes[fuzz_number(&answers, 1) % (sizeof codes / sizeof *codes)];
	snprintf(line, sizeof line, "HTTP/1.1 %u \r\n", status);
	fuzz_must(hand_text(c, line));
	headers = (unsigned)fuzz_number(&answers, 1) % 4;
	for (unsigned i = 0; i < headers && answers.n; i++) {
		const uint8_t *stop = memchr(answers.p, '\n', answers.n);
		size_t len = stop ? (size_t)(stop - answers.p) + 1 : answers.n;

		bytes = fuzz_bytes(&answers, len);
		fuzz_must(hand(c->header, c->header_arg, bytes, len));
		free(bytes);
	}
	body_len = fuzz_number(&answers, 2);
	bytes = fuzz_bytes(&answers, body_len);
	memcpy(body, bytes, body_len);
	free(bytes);
	if (end & 32) { /* a status line of the input may have replaced the status */
		fuzz_must(hand_text(c, line) && hand_sign(c, status));
		was_signed = any_signed = true;
		any_bits = any_bits || (status == 200 && body_len == 1 && body[0]);
	}
	for (size_t at = 0; at < body_len;) {
		size_t n = end & 16 && body_len - at > 701 ? 701 : body_len - at;

		if (!hand(c->data, c->data_arg, body + at, n))
			return CURLE_WRITE_ERROR;
		at += n;
	}
	return ends[end % 8];
}

static struct kvc_tier *open_nodes(void)
{
	char text[1200], error[512], why[KVC_SECRET_WHY];
	const char *path = fuzz_file("secret", "0123456789abcdef\n", 17);
	struct kvct_url u;
	struct kvc_tier *t;

	fuzz_must(!kvc_peer_secret_read(path, &secret, why));
	snprintf(text, sizeof text, "peers://?nodes=a:1+b:2&secret=%s", path);
	fuzz_must(!kvct_url_parse(text, &u, error) && !kvct_peers_open(&u, 1000, &t, error));
	now_ns += 100000000000ull; /* the nodes did not answer, and are asked again */
	return t;
}

/* Names count as present only if a signed answer says so. */
static void ask_for_many(struct kvc_tier *t)
{
	static const char *const path[] = { "m/a b", "m/c", "d" };
	const struct kvc_where w[] = { { .at = 1, .hi = 2 }, { .at = 3 }, { .at = 4 } };
	bool has[3] = { true, true, true };
	int err;

	any_signed = any_bits = false;
	err = t->ops->have(t, w, path, 3, has);
	fuzz_must(err <= 0 && (any_signed || err));
	fuzz_must(err || any_bits || !(has[0] || has[1] || has[2]));
}

/* The nodes are asked one after another here: the input is that of one node at a time. */
int __wrap_pthread_create(pthread_t *thread, const pthread_attr_t *attr, void *(*run)(void *),
			  void *arg)
{
	(void)thread;
	(void)attr;
	(void)run;
	(void)arg;
	return EAGAIN;
}

/* A text counts only if it is signed, and is then the whole body of the answer. */
static void ask_for_text(struct kvc_tier *t)
{
	struct kvc_node_answer a[KVC_NODES];
	size_t n;

	fuzz_must(!t->ops->ask(t, KVC_PEER_WHERE, "m/c", 4, 1000000000, a, &n) && n == 2);
	for (size_t i = 0; i < n; i++) {
		fuzz_must(a[i].err ? !a[i].text && a[i].err < 0 : a[i].text != NULL);
		fuzz_must(strlen(a[i].why) < sizeof a[i].why && !strchr(a[i].why, '\n'));
		if (a[i].err)
			continue;
		fuzz_must(a[i].len <= KVC_PEER_TEXT && !a[i].text[a[i].len]);
		if (i == n - 1) /* body is that of the last answer */
			fuzz_must(was_signed && a[i].len == body_len &&
				  !memcmp(a[i].text, body, body_len));
		free(a[i].text);
	}
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct fuzz_in in = { data, size };
	unsigned first = (unsigned)fuzz_number(&in, 1);
	size_t more = (first >> 2) * 100u;
	struct kvc_where w = { .at = 1, .hi = 2 };
	struct iovec iov[2] = { { .iov_len = KVC_FRAME_HEADER }, { .iov_len = more } };
	struct kvc_tier *t;
	int err;

	answers.n = 0;
	t = open_nodes();
	answers = in;
	any_signed = false;
	call_off = (first & 3) * 5000u;
	for (int i = 0; i < 2; i++) {
		iov[i].iov_base = malloc(iov[i].iov_len ? iov[i].iov_len : 1);
		fuzz_must(iov[i].iov_base);
		memset(iov[i].iov_base, 'x', iov[i].iov_len);
	}
	err = t->ops->get_path(t, &w, "m/a b", call_off, iov, more ? 2 : 1);
	fuzz_must(any_signed || (err && err != -ENOENT && err != -EBADMSG));
	if (!err) {
		fuzz_must(was_signed && body_len <= KVC_FRAME_HEADER + more);
		memset(body + body_len, 0, sizeof body - body_len);
		fuzz_must(!memcmp(iov[0].iov_base, body, KVC_FRAME_HEADER));
		fuzz_must(!memcmp(iov[1].iov_base, body + KVC_FRAME_HEADER, more));
	}
	t->ops->distrust(t, &w);
	now_ns += 100000000000ull;
	ask_for_many(t);
	ask_for_text(t);
	free(iov[0].iov_base);
	free(iov[1].iov_base);
	t->ops->close(t);
	return 0;
}
