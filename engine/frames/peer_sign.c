/* SPDX-License-Identifier: Apache-2.0 */
/* See peer_sign.h. Any thread may call these functions. */
#include "peer_sign.h"

#include "keys.h"
#include "secret.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

static const struct {
	const char *url;
	const char *word; /* in the signature, so that no request can be passed on as another one */
} kinds[KVC_PEER_KINDS] = {
	[KVC_PEER_GET] = { KVC_PEER_PREFIX, "GET" }, [KVC_PEER_HAVE] = { "/have", "POST" },
	[KVC_PEER_OFFER] = { "/offer", "OFFER" },    [KVC_PEER_STATUS] = { "/status", "STATUS" },
	[KVC_PEER_WHERE] = { "/where", "WHERE" },    [KVC_PEER_CHANGE] = { "/change", "CHANGE" },
};

const char *kvc_peer_url(enum kvc_peer_kind kind)
{
	return kinds[kind].url;
}

int kvc_peer_secret_read(const char *path, struct kvc_peer_secret *s, char *why)
{
	static const char info[] = "kvcachefs peers 1";
	char line[KVC_PEER_SECRET_MAX + 2];
	struct stat st;
	KVC_FD int fd = kvc_secret_open(path, &st, why);
	ssize_t n;
	size_t len;
	int err;

	if (fd < 0)
		return fd;
	n = read(fd, line, sizeof line - 1);
	if (n < 0) {
		err = -errno;
		snprintf(why, KVC_SECRET_WHY, "cannot be read: %s", strerror(-err));
		return err;
	}
	line[n] = 0;
	len = strcspn(line, "\r\n");
	if (len < KVC_PEER_SECRET_MIN || len > KVC_PEER_SECRET_MAX) {
		snprintf(why, KVC_SECRET_WHY, "needs a first line of %u to %u characters",
			 KVC_PEER_SECRET_MIN, KVC_PEER_SECRET_MAX);
		err = -EINVAL;
	} else {
		err = kvc_keys_hkdf(line, len, "", 0, info, sizeof info - 1, s->key, sizeof s->key);
		if (err)
			snprintf(why, KVC_SECRET_WHY, "cannot be used: %s", strerror(-err));
	}
	explicit_bzero(line, sizeof line);
	return err;
}

static int sign_text(const struct kvc_peer_secret *s, const void *a, size_t a_len, const void *b,
		     size_t b_len, kvc_peer_text sign)
{
	uint8_t mac[16];
	int err = kvc_keys_mac(s->key, a, a_len, b, b_len, mac);

	for (int i = 0; i < 16 && !err; i++)
		snprintf(sign + 2 * i, 3, "%02x", mac[i]);
	return err;
}

/* Parses a number of at most 18 digits, so below 2^60, and moves *text past it. */
static bool parse_number(const char **text, uint64_t *number)
{
	size_t digits = strspn(*text, "0123456789");

	*number = 0;
	for (size_t i = 0; i < digits && i < 18; i++)
		*number = *number * 10 + (uint64_t)((*text)[i] - '0');
	*text += digits;
	return digits && digits <= 18;
}

/* Parses the headers of both kinds of requests. */
static bool parse_common(const struct kvc_peer_headers *h, struct kvc_peer_request *q)
{
	const char *time = h->time;

	if (!time || !h->nonce || strlen(h->nonce) >= sizeof q->nonce || !h->node ||
	    !kvc_peer_name_valid(h->node) || !h->epoch || strlen(h->epoch) >= sizeof q->epoch)
		return false;
	q->node = h->node;
	snprintf(q->nonce, sizeof q->nonce, "%s", h->nonce);
	snprintf(q->epoch, sizeof q->epoch, "%s", h->epoch);
	return parse_number(&time, &q->time_ms) && !*time && q->time_ms;
}

bool kvc_peer_parse(const char *url, const struct kvc_peer_headers *h, struct kvc_peer_request *q)
{
	static const char unit[] = "bytes=";
	const char *range = h->range;

	if (strncmp(url, KVC_PEER_PREFIX, strlen(KVC_PEER_PREFIX)) != 0 || !range ||
	    strncmp(range, unit, sizeof unit - 1) != 0 || !parse_common(h, q))
		return false;
	q->kind = KVC_PEER_GET;
	q->path = url + strlen(KVC_PEER_PREFIX);
	range += sizeof unit - 1;
	return parse_number(&range, &q->from) && *range++ == '-' && parse_number(&range, &q->to) &&
	       !*range && q->from <= q->to;
}

bool kvc_peer_parse_have(const char *url, const struct kvc_peer_headers *h,
			 struct kvc_peer_request *q)
{
	enum kvc_peer_kind kind = KVC_PEER_GET + 1;
	const char *length = h->length;
	uint64_t bytes;

	while (kind < KVC_PEER_KINDS && strcmp(url, kinds[kind].url) != 0)
		kind++;
	if (kind == KVC_PEER_KINDS || !length || !h->body || !kvc_peer_hex(h->body) ||
	    !parse_common(h, q))
		return false;
	if (!parse_number(&length, &bytes) || *length || !bytes || bytes > KVC_PEER_NAMES_BYTES)
		return false;
	q->kind = kind;
	q->path = h->body;
	q->from = 0;
	q->to = bytes - 1;
	return true;
}

bool kvc_peer_names_count(const char *body, size_t len, size_t *n)
{
	size_t names = 0;

	for (size_t i = 0; i < len; i++)
		names += !body[i];
	*n = names;
	return names && names <= KVC_PEER_NAMES && !body[len - 1];
}

int kvc_peer_sign_body(const struct kvc_peer_secret *s, const kvc_peer_text nonce, const char *body,
		       size_t len, kvc_peer_text sign)
{
	char head[64];
	int n = snprintf(head, sizeof head, "names\n%s\n", nonce);

	return sign_text(s, head, (size_t)n, body, len, sign);
}

int kvc_peer_sign(const struct kvc_peer_secret *s, const struct kvc_peer_request *q,
		  kvc_peer_text sign)
{
	char head[160 + KVC_PEER_NAME];
	/* only the path, which is last, may contain a newline */
	int len = snprintf(head, sizeof head, "request\n%s\n%llu-%llu\n%llu\n%s\n%s\n%s\n",
			   kinds[q->kind].word, (unsigned long long)q->from,
			   (unsigned long long)q->to, (unsigned long long)q->time_ms, q->nonce,
			   q->node, q->epoch);

	return sign_text(s, head, (size_t)len, q->path, strlen(q->path), sign);
}

int kvc_peer_sign_answer(const struct kvc_peer_secret *s, const kvc_peer_text nonce,
			 unsigned status, uint64_t length, const void *start, size_t start_len,
			 kvc_peer_text sign)
{
	char head[160];
	int len = snprintf(head, sizeof head, "answer\n%s\n%u\n%llu\n", nonce, status,
			   (unsigned long long)length);

	return sign_text(s, head, (size_t)len, start_len ? start : "", start_len, sign);
}

bool kvc_peer_hex(const char *text)
{
	return strspn(text, "0123456789abcdef") == 32 && !text[32];
}

bool kvc_peer_same(const kvc_peer_text a, const char *b)
{
	unsigned diff = 0;

	if (!b || strlen(b) != sizeof(kvc_peer_text) - 1)
		return false;
	for (size_t i = 0; i < sizeof(kvc_peer_text) - 1; i++)
		diff |= (unsigned char)a[i] ^ (unsigned char)b[i];
	return !diff;
}
