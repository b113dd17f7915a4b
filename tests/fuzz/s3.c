/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The s3 tier with a service that answers as the input says: headers, listings, uploads, objects.
 * libcurl is replaced by a few functions that pass the input to the tier's callbacks as libcurl
 * would, and waiting takes no time.
 *
 * Input: a byte that chooses the call, then for each request: a byte (how it ends), one byte
 * for the status, one for the number of headers, the headers with their line ends, two bytes for
 * the body's length, and the body, which is passed in pieces.
 * Longest input: 16384
 * Covers: tiers/s3.c, tiers/s3_http.c, tiers/s3_answer.c, tiers/s3_list.c
 */
#include "fuzz.h"
#include "registry.h"
#include "s3_http.h"

#include <stdarg.h>

#undef curl_easy_setopt
#undef curl_easy_getinfo

typedef size_t callback(char *p, size_t one, size_t len, void *arg);

struct CurlStandIn {
	callback *data, *header, *send;
	void *data_arg, *header_arg, *send_arg;
	long code;
};

CURL *__wrap_curl_easy_init(void);
CURLcode __wrap_curl_easy_setopt(CURL *c, CURLoption o, ...);
CURLcode __wrap_curl_easy_perform(CURL *c);
CURLcode __wrap_curl_easy_getinfo(CURL *c, CURLINFO info, ...);
void __wrap_curl_easy_reset(CURL *c);
void __wrap_curl_easy_cleanup(CURL *c);
uint64_t __wrap_kvc_mono_ns(void);
int __wrap_usleep(unsigned us);

static struct fuzz_in answers;
static uint64_t now_ns;
static unsigned requests;

uint64_t __wrap_kvc_mono_ns(void)
{
	return now_ns += 1000000;
}

int __wrap_usleep(unsigned us)
{
	now_ns += us * 1000ull;
	return 0;
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
	case CURLOPT_READFUNCTION: c->send = va_arg(ap, callback *); break;
	case CURLOPT_READDATA: c->send_arg = va_arg(ap, void *); break;
	case CURLOPT_URL: fuzz_must(strlen(va_arg(ap, const char *)) < 3 * KVCT_S3_LIST_MAX); break;
	default: break;
	}
	va_end(ap);
	return CURLE_OK;
}

CURLcode __wrap_curl_easy_getinfo(CURL *curl, CURLINFO info, ...)
{
	struct CurlStandIn *c = curl;
	va_list ap;

	va_start(ap, info);
	if (info == CURLINFO_STARTTRANSFER_TIME_T) {
		*va_arg(ap, curl_off_t *) = c->code ? 1000 : 0;
	} else {
		fuzz_must(info == CURLINFO_RESPONSE_CODE);
		*va_arg(ap, long *) = c->code;
	}
	va_end(ap);
	return CURLE_OK;
}

/*
 * Passes bytes to a callback, from memory of exactly that size. Returns false if it accepts no
 * more.
 */
static bool hand(callback *to, void *arg, struct fuzz_in *in, size_t len)
{
	char *bytes = (char *)fuzz_bytes(in, len);
	bool good = to(bytes, 1, len, arg) == len;

	free(bytes);
	return good;
}

static void sent(struct CurlStandIn *c)
{
	char buf[1000];
	size_t n = 0, got;

	while (c->send && (got = c->send(buf, 1, sizeof buf, c->send_arg)) && n < 1 << 20)
		n += got;
}

CURLcode __wrap_curl_easy_perform(CURL *curl)
{
	static const long codes[] = { 200, 206, 200, 206, 204, 404, 403, 500, 503, 416, 301, 429 };
	static const CURLcode ends[] = {
		CURLE_OK,
		CURLE_OK,
		CURLE_OK,
		CURLE_OK,
		CURLE_PARTIAL_FILE,
		CURLE_RECV_ERROR,
		CURLE_OPERATION_TIMEDOUT,
		CURLE_COULDNT_CONNECT,
	};
	struct CurlStandIn *c = curl;
	char status[64];
	unsigned end, headers;
	struct fuzz_in line;
	size_t len;

	c->code = 0;
	if (!answers.n || ++requests > 200) /* endless services are tested elsewhere */
		return CURLE_COULDNT_CONNECT;
	end = (unsigned)fuzz_number(&answers, 1);
	sent(c);
	if (end % 8 == 7)
		return ends[7];
	c->code = codes[fuzz_number(&answers, 1) % (sizeof codes / sizeof *codes)];
	line.n = (size_t)snprintf(status, sizeof status, "HTTP/1.1 %ld \r\n", c->code);
	line.p = (uint8_t *)status;
	fuzz_must(hand(c->header, c->header_arg, &line, line.n));
	headers = (unsigned)fuzz_number(&answers, 1) % 4;
	for (unsigned i = 0; i < headers && answers.n; i++) {
		const uint8_t *stop = memchr(answers.p, '\n', answers.n);

		len = stop ? (size_t)(stop - answers.p) + 1 : answers.n;
		if (!hand(c->header, c->header_arg, &answers, len))
			return CURLE_WRITE_ERROR;
	}
	len = fuzz_number(&answers, 2);
	len = len < answers.n ? len : answers.n;
	while (len) {
		size_t n = end & 16 && len > 7 ? 7 : len;

		if (!hand(c->data, c->data_arg, &answers, n))
			return CURLE_WRITE_ERROR;
		len -= n;
	}
	return ends[end % 8];
}

static int body(void *arg, void *buf, size_t len, uint64_t off)
{
	(void)arg;
	/* filling everything would take most of the time */
	memset(buf, (int)off, len < 4096 ? len : 4096);
	return 0;
}

static int head(void *arg, uint8_t page[KVC_FRAME_HEADER])
{
	(void)arg;
	memset(page, 'h', KVC_FRAME_HEADER);
	return 0;
}

static int listed(void *arg, const struct kvc_where *w, const struct kvc_frame *f)
{
	(void)w;
	fuzz_must(memchr(f->path, 0, sizeof f->path));
	return ++*(unsigned *)arg > 100;
}

static void get(struct kvc_tier *t, const struct kvc_where *w, uint64_t off, size_t len)
{
	uint8_t *page = malloc(KVC_PAGE), *bytes = malloc(len ? len : 1);
	struct iovec iov[2] = { { page, KVC_PAGE }, { bytes, len } };

	fuzz_must(page && bytes);
	t->ops->get(t, w, off, off ? iov + 1 : iov, off ? 1 : len ? 2 : 1);
	free(page);
	free(bytes);
}

int LLVMFuzzerInitialize(int *argc, char ***argv)
{
	(void)argc;
	(void)argv;
	setenv("AWS_ACCESS_KEY_ID", "id", 1);
	setenv("AWS_SECRET_ACCESS_KEY", "secret", 1);
	return 0;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	const struct kvc_where w = { .at = 0x0123456789abcdef, .hi = 0xfedcba9876543210 };
	struct kvc_put p = { .stored_len = 100, .read = body, .head = head, .name = w };
	struct kvct_url u;
	struct kvc_where out;
	struct kvc_tier *t;
	char error[512];
	unsigned which, n = 0;

	answers = (struct fuzz_in){ data, size };
	now_ns = requests = 0;
	fuzz_must(!kvct_url_parse("s3://bucket/prefix?endpoint=http://h", &u, error) &&
		  !kvct_s3_open(&u, 1000, &t, error));
	which = (unsigned)fuzz_number(&answers, 1);
	switch (which & 7) {
	case 0: get(t, &w, 0, 0); break;
	case 1: get(t, &w, 0, KVC_PAGE); break;
	case 2: get(t, &w, KVC_PAGE, KVC_PAGE); break;
	case 3: t->ops->put(t, &p, &out); break;
	case 4: t->ops->remove(t, &w); break;
	case 7: /* in parts: long, so only rarely */
		p.stored_len = which / 8 % 16 ? 100 : 33ull << 20;
		t->ops->put(t, &p, &out);
		break;
	default: t->ops->list(t, listed, &n); break;
	}
	t->ops->close(t);
	return 0;
}
