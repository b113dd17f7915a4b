/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The meaning of the answers of S3 services, and their log lines. The service's error code counts
 * first, then the HTTP status: services differ more in statuses than in codes.
 */
#include "s3_http.h"

#include "log.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>

#define LOG_AGAIN_NS (600 * 1000000000ull) /* a repeated answer is logged again after this time */
#define LOG_ANY_NS 1000000000ull           /* answers that alternate: at most one line a second */

bool kvct_s3_element(struct kvct_s3_text *in, const char *tag, struct kvct_s3_text *out)
{
	size_t len = strlen(tag);
	const char *p = in->p, *end = in->p + in->len, *start = NULL;

	while (!start && (p = memchr(p, '<', (size_t)(end - p)))) {
		p++;
		if ((size_t)(end - p) <= len)
			return false;
		if (memcmp(p, tag, len) || (p[len] != '>' && !isspace((unsigned char)p[len])))
			continue;
		start = memchr(p, '>', (size_t)(end - p));
		if (!start)
			return false;
		start++;
	}
	if (!start)
		return false;
	for (p = start; (p = memchr(p, '<', (size_t)(end - p))); p++)
		if ((size_t)(end - p) > len + 2 && p[1] == '/' && !memcmp(p + 2, tag, len) &&
		    p[len + 2] == '>') {
			*out = (struct kvct_s3_text){ start, (size_t)(p - start) };
			in->len = (size_t)(end - p);
			in->p = p;
			return true;
		}
	return false;
}

/* Decodes the XML entity at p. Returns the character or -1; sets *used to its length. */
static int entity(const char *p, const char *end, size_t *used)
{
	static const struct {
		const char *text;
		char c;
	} known[] = {
		{ "&amp;", '&' },  { "&lt;", '<' },    { "&gt;", '>' },
		{ "&quot;", '"' }, { "&apos;", '\'' },
	};
	const char *stop = memchr(p, ';', (size_t)kvc_min((uint64_t)(end - p), 10));
	long c = -1;
	char digits[12], *rest;

	for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
		*used = strlen(known[i].text);
		if ((size_t)(end - p) >= *used && !memcmp(p, known[i].text, *used))
			return known[i].c;
	}
	if (!stop || p[1] != '#')
		return -1;
	*used = (size_t)(stop - p) + 1;
	snprintf(digits, sizeof digits, "%.*s", (int)(stop - p - 2), p + 2);
	if (*digits == 'x')
		c = strtol(digits + 1, &rest, 16);
	else
		c = strtol(digits, &rest, 10);
	/* other characters do not occur in a service's tokens */
	return *rest || c <= 0 || c > 127 ? -1 : (int)c;
}

char *kvct_s3_element_text(struct kvct_s3_text in, const char *tag)
{
	struct kvct_s3_text t;
	char *text, *to;

	if (!kvct_s3_element(&in, tag, &t) || !(text = malloc(t.len + 1)))
		return NULL;
	to = text;
	for (const char *p = t.p, *end = t.p + t.len; p < end;) {
		size_t used = 1;
		int c = *p == '&' ? entity(p, end, &used) : -1;

		if (c < 0)
			used = 1;
		*to++ = c < 0 ? *p : (char)c;
		p += used;
	}
	*to = 0;
	return text;
}

/* Copies the text of an element to `to` as one line, cut to `capacity`. */
static void copy_word(const struct kvct_s3_request *q, const char *tag, char *to, size_t capacity)
{
	char *text = q->text ? kvct_s3_element_text((struct kvct_s3_text){ q->text, q->text_len },
						    tag)
			     : NULL;

	snprintf(to, capacity, "%s", text ? text : "");
	free(text);
	kvc_quote_one_line(to);
}

/* --- the meaning --- */

/* Does the error code contain the word, in any case? */
static bool code_has(const struct kvct_s3_request *q, const char *word)
{
	return strcasestr(q->code, word) != NULL;
}

static bool is_code(const struct kvct_s3_request *q, const char *const *codes)
{
	for (; *codes; codes++)
		if (!strcmp(q->code, *codes))
			return true;
	return false;
}

/* new credentials may help */
static const char *const stale[] = {
	"ExpiredToken",         "ExpiredTokenException",
	"InvalidToken",         "TokenRefreshRequired",
	"InvalidAccessKeyId",   "SignatureDoesNotMatch",
	"InvalidClientTokenId", "RequestExpired",
	"InvalidSecurity",      NULL,
};
/* the configuration or the account is refused for every request */
static const char *const refused[] = {
	"RequestTimeTooSkewed",
	"AuthorizationHeaderMalformed",
	"AllAccessDisabled",
	"AccountProblem",
	"NotSignedUp",
	"UserSuspended",
	"PermanentRedirect",
	"IllegalLocationConstraintException",
	"SecondLevelDomainForbidden",
	"InvalidLocationConstraint",
	NULL,
};
static const char *const busy[] = {
	"SlowDown",
	"SlowDownRead",
	"SlowDownWrite",
	"ServiceUnavailable",
	"ThrottlingException",
	"Throttling",
	"RequestLimitExceeded",
	"TooManyRequests",
	"ServerBusy",
	"OperationAborted",
	"ConditionalRequestConflict",
	"BandwidthLimitExceeded",
	"KMS.ThrottlingException",
	"XMinioServerNotInitialized",
	"TemporaryRedirect",
	NULL,
};
static const char *const large[] = {
	"EntityTooLarge",
	"MaxMessageLengthExceeded",
	"RequestEntityTooLarge",
	NULL,
};
static const char *const again[] = {
	"InternalError",
	"RequestTimeout",
	"BadDigest",
	"XAmzContentSHA256Mismatch",
	"IncompleteBody",
	"XAmzContentChecksumMismatch",
	NULL,
};

static int try_again(struct kvct_s3_request *q, int err)
{
	q->again = true;
	return err;
}

/* Judges by the error code. Returns 1 if the code is unknown. */
static int judge_code(struct kvct_s3_request *q)
{
	if (!*q->code)
		return 1;
	if (is_code(q, stale)) {
		q->stale = q->sure = true;
		return -EACCES;
	}
	if (is_code(q, refused))
		return -EACCES;
	if (is_code(q, busy))
		return try_again(q, -EBUSY);
	if (is_code(q, large))
		return -EFBIG;
	if (is_code(q, again))
		return try_again(q, -EIO);
	if (code_has(q, "quota") || code_has(q, "StorageLimit") || code_has(q, "cap_exceeded"))
		return -EDQUOT;
	if (code_has(q, "StorageFull") || code_has(q, "InsufficientStorage") ||
	    code_has(q, "NoSpace") || code_has(q, "DiskFull"))
		return -ENOSPC;
	if (code_has(q, "ReadOnly"))
		return -EROFS;
	if (!strncmp(q->code, "KMS.", 4))
		return -EACCES;
	if (!strcmp(q->code, "KeyTooLongError"))
		return -ENAMETOOLONG;
	/* a rule of the bucket moved the object to an archive: it cannot be read any more */
	if (!strcmp(q->code, "InvalidObjectState"))
		return -ENOENT;
	return 1;
}

/*
 * The engine forgets a copy after -ENOENT, so only the service's own statement about this key
 * counts. A missing bucket, or an ingress without a route to the service, has not lost the object.
 * If a gateway removes the body, the headers of the service suffice.
 */
static int not_found(const struct kvct_s3_request *q)
{
	bool known = q->text_len ? !strcmp(q->code, "NoSuchKey") : q->service;

	return known ? -ENOENT : -EIO;
}

static int judge_status(struct kvct_s3_request *q)
{
	switch (q->status) {
	case 404: return not_found(q);
	case 416: return -EBADMSG; /* shorter than expected */
	case 413: return -EFBIG;
	case 414: return -ENAMETOOLONG;
	case 405: return q->kind == KVCT_S3_WRITE || q->kind == KVCT_S3_REMOVE ? -EROFS : -EIO;
	case 507: return -ENOSPC;
	case 401: q->stale = true; return -EACCES;
	/* no code: a gateway answered; AccessDenied: most services also mean an expired session */
	case 403: q->stale = !*q->code || !strcmp(q->code, "AccessDenied"); return -EACCES;
	case 301:
	case 402:
	case 407: return -EACCES;
	case 307:
	case 429:
	case 503: return try_again(q, -EBUSY);
	case 408:
	case 500: return try_again(q, -EIO);
	case 501:
	case 505: return -EIO;
	default: return q->status >= 500 ? try_again(q, -ETIMEDOUT) : -EIO;
	}
}

static int judge_transfer(struct kvct_s3_request *q, CURLcode rc)
{
	switch (rc) {
	case CURLE_OPERATION_TIMEDOUT: return -ETIMEDOUT;
	case CURLE_ABORTED_BY_CALLBACK: return q->stalled ? try_again(q, -ETIMEDOUT) : -ECANCELED;
	case CURLE_PARTIAL_FILE:
	case CURLE_RECV_ERROR:
	case CURLE_SEND_ERROR:
	case CURLE_SEND_FAIL_REWIND:
	case CURLE_GOT_NOTHING: return try_again(q, -ETIMEDOUT);
	case CURLE_PEER_FAILED_VERIFICATION:
	case CURLE_SSL_CACERT_BADFILE: return -EACCES;
	case CURLE_OUT_OF_MEMORY:
		return q->begun ? -EIO : -ENOMEM; /* -EIO: endless headers */
	/* the answer exceeds its limit, or memory is short */
	case CURLE_WRITE_ERROR: return -EIO;
	case CURLE_COULDNT_RESOLVE_HOST:
	case CURLE_COULDNT_RESOLVE_PROXY: return -EHOSTUNREACH;
	default: return -ECONNREFUSED;
	}
}

int kvct_s3_judge(struct kvct_s3_request *q, CURLcode rc)
{
	int err;

	q->again = q->stale = q->sure = false;
	if (q->overflow)
		return -EBADMSG;
	/* a server that refuses a body may close before all of it was sent */
	if (rc != CURLE_OK && !q->enough &&
	    !(q->status >= 400 && (rc == CURLE_SEND_ERROR || rc == CURLE_RECV_ERROR)))
		return judge_transfer(q, rc);
	if (q->status >= 200 && q->status < 300) {
		/* a page for people, from a proxy or a login */
		return q->html && q->status == 200 ? -EIO : 0;
	}
	copy_word(q, "Code", q->code, sizeof q->code);
	copy_word(q, "Message", q->message, sizeof q->message);
	if (!*q->region)
		copy_word(q, "Region", q->region, sizeof q->region);
	copy_word(q, "Endpoint", q->endpoint, sizeof q->endpoint);
	err = judge_code(q);
	return err <= 0 ? err : judge_status(q);
}

bool kvct_s3_wants_name(const struct kvct_s3_request *q)
{
	return q->status >= 400 && q->status < 404 &&
	       (code_has(q, "SecondLevelDomain") || code_has(q, "PathStyle") ||
		strcasestr(q->message, "virtual host") || strcasestr(q->message, "virtual-host"));
}

/* --- logging --- */

static const char *const verbs[] = { "reading", "writing", "deleting", "listing" };

/* Writes advice for the administrator to `to`. */
static void advise(const struct kvct_s3 *s, const struct kvct_s3_request *q, int err, char *to,
		   size_t capacity)
{
	*to = 0;
	if (!strcmp(q->code, "RequestTimeTooSkewed") && q->date_ns)
		snprintf(to, capacity,
			 "this node's clock differs from the service's by %lld s: set the clock",
			 (long long)(kvc_now_ns() / 1000000000) -
				 (long long)(q->date_ns / 1000000000));
	else if (*q->endpoint && (q->status == 301 || q->status == 307))
		snprintf(to, capacity,
			 "the bucket is at %s%s%s: set endpoint= and region=", q->endpoint,
			 *q->region ? " in region " : "", q->region);
	else if (*q->region && (q->status == 301 || q->status == 307 || q->status == 400))
		snprintf(to, capacity,
			 "the bucket is in region %s: set region= and endpoint=", q->region);
	else if (q->status == 301 || q->status == 307 || !strncmp(q->code, "Authorization", 13))
		snprintf(to, capacity, "check region= and endpoint=");
	else if (kvct_s3_wants_name(q))
		snprintf(to, capacity, "set addressing=virtual");
	else if (strcasestr(q->message, "Content-MD5") || code_has(q, "ContentMD5"))
		snprintf(to, capacity, "set checksum=md5");
	else if (strstr(q->code, "Expired") || code_has(q, "Token") || code_has(q, "AccessKeyId"))
		snprintf(to, capacity, "credentials from %s",
			 kvct_s3_credentials_source(s->credentials));
	else if (err == -EACCES && (q->status == 403 || q->status == 401))
		snprintf(to, capacity, "check the keys, their permissions and sse=");
	else if (err == -EFBIG && !*q->code)
		snprintf(to, capacity, "a proxy limits the size of requests");
	else if (q->status == 404)
		snprintf(to, capacity,
			 "the answer does not concern the key: check the bucket and endpoint=");
	else if (q->html)
		snprintf(to, capacity, "the answer is an HTML page, not S3: check endpoint=");
	else if (q->status && !*q->code)
		snprintf(to, capacity,
			 "the answer is not from S3: a proxy or ingress may have sent it");
}

/* Cuts the message before a secret. */
static void redact(struct kvct_s3 *s, char *message)
{
	struct kvct_s3_login *l = malloc(sizeof *l);
	uint64_t number;

	if (!l || kvct_s3_credentials_get(s->credentials, 0, l, &number)) {
		free(l);
		return;
	}
	const char *secrets[] = { l->secret, l->token };

	for (int i = 0; i < 2; i++) {
		char start[13];
		char *at;

		snprintf(start, sizeof start, "%.12s", secrets[i]);
		if (strlen(start) >= 4 && (at = strstr(message, start)))
			*at = 0;
	}
	explicit_bzero(l, sizeof *l);
	free(l);
}

void kvct_s3_log(struct kvct_s3 *s, const struct kvct_s3_request *q, int err)
{
	char message[sizeof q->message], advice[700];
	struct kvc_sum sum = kvc_sum_of(q->code, strlen(q->code));
	uint32_t answer;
	uint64_t now = kvc_mono_ns();
	bool log;

	if (q->quiet || (err && !q->status && err != -EACCES && err != -EHOSTUNREACH))
		return; /* no answer: the breaker logs that */
	memcpy(&answer, sum.b, sizeof answer);
	answer = err ? (answer ^ (uint32_t)q->status ^ (uint32_t)err << 16) | 1 : 0;
	pthread_mutex_lock(&s->lock);
	log = s->logged[q->kind].answer != answer
		      ? !err || !s->logged[q->kind].ns || now - s->logged[q->kind].ns > LOG_ANY_NS
		      : err && now - s->logged[q->kind].ns > LOG_AGAIN_NS;
	if (log) {
		s->logged[q->kind].answer = answer;
		s->logged[q->kind].ns = now;
	}
	pthread_mutex_unlock(&s->lock);
	if (!log)
		return;
	if (!err) {
		kvc_info("tier s3: %s works again", verbs[q->kind]);
		return;
	}
	snprintf(message, sizeof message, "%s", q->message);
	redact(s, message);
	message[kvc_min(strlen(message), 200)] = 0;
	advise(s, q, err, advice, sizeof advice);
	redact(s, advice);
	if (!q->status)
		kvc_warn("tier s3: %s failed: %s", verbs[q->kind],
			 err == -EACCES ? "the certificate is not trusted, or there are no "
					  "credentials: check ca=, auth= and credentials="
					: "the name of the endpoint cannot be resolved");
	else
		kvc_warn("tier s3: %s refused: %ld%s%s%s%s%s%s%s", verbs[q->kind], q->status,
			 *q->code ? " " : "", q->code, *message ? ": " : "", message,
			 *advice ? " (" : "", advice, *advice ? ")" : "");
}
