/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The s3 tier: any S3 service.
 *
 *   s3://BUCKET/[PREFIX]?endpoint=URL&region=NAME&...   (all parameters: kvcachefs-tiers(7))
 *
 * Keys are PREFIX/HH/HEX. A frame of up to KVCT_S3_PART bytes is stored by one PUT, a larger one in
 * parts (s3_uploads.c). Listing is in s3_list.c, requests in s3_http.c, the meaning of answers in
 * s3_answer.c, credentials in s3_credentials.c and s3_roles.c.
 *
 * Credentials that may not list the bucket get 403 instead of 404 for a missing object. So after a
 * 403 for an object, a key that never exists is read. If the answer is 404, access to the object
 * itself was refused: -EIO of this object. If the answer is 403, these credentials cannot tell.
 * Then an object that was never stored counts as missing. A stored object counts as missing if
 * another object, which was read or stored earlier, can still be read.
 *
 * The tier's workers enter, and the sweeper of s3_uploads.c.
 */
#include "registry.h"

#include "budget.h"
#include "log.h"
#include "s3_http.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>

#define BLIND_NS 60000000000ull /* how long a result of sees_absence is used */
#define FIRST_MS 1000           /* how long a mount waits for the first answer */
#define ABSENT "ff/kvcachefs-absent"

static struct kvct_s3 *s3_of(struct kvc_tier *t)
{
	return kvc_of(t, struct kvct_s3, tier);
}

void kvct_s3_key(const struct kvct_s3 *s, const struct kvc_where *w, char key[1100])
{
	char hex[33];

	kvc_frame_where_text(w, hex);
	snprintf(key, 1100, "%s%.2s/%s", s->prefix, hex, hex);
}

static void remember_good(struct kvct_s3 *s, const struct kvc_where *w)
{
	pthread_mutex_lock(&s->lock);
	s->good = *w;
	s->has_good = true;
	pthread_mutex_unlock(&s->lock);
}

static int put_single(struct kvct_s3 *s, const struct kvc_put *p)
{
	size_t len = KVC_FRAME_HEADER + p->stored_len;
	KVC_BUFFER b = { 0 };
	struct kvct_s3_request q = {
		.kind = KVCT_S3_WRITE,
		.method = "PUT",
		.creates = true,
		.body_len = len,
	};
	int err = kvc_budget_buffer_wait(&b, KVC_BUDGET_COPY, len);

	q.body = b.p;
	if (!err && p->stored_len)
		err = p->read(p->arg, b.p + KVC_FRAME_HEADER, p->stored_len, 0);
	err = err ?: p->head(p->arg, b.p);
	kvct_s3_key(s, &p->name, q.key);
	err = err ?: kvct_s3_ask(s, &q);
	free(q.text);
	return err;
}

static int s3_put(struct kvc_tier *t, const struct kvc_put *p, struct kvc_where *out)
{
	struct kvct_s3 *s = s3_of(t);
	int err = p->stored_len + KVC_FRAME_HEADER <= KVCT_S3_PART ? put_single(s, p)
								   : kvct_s3_put_parts(s, p);

	if (err)
		/* the bucket does not exist; some services do not say so */
		return err == -ENOENT ? -EIO : err;
	*out = p->name;
	out->len = KVC_FRAME_HEADER + kvc_round_up(p->stored_len, KVC_PAGE);
	remember_good(s, out);
	return 0;
}

/* Reads the first byte of a key. Returns like kvct_s3_ask. */
static int read_first_byte(struct kvct_s3 *s, const char *key)
{
	char byte[2];
	struct iovec iov = { byte, sizeof byte };
	struct kvct_s3_request q = {
		.kind = KVCT_S3_READ,
		.method = "GET",
		.wanted = true,
		.to = 1,
		.iov = &iov,
		.n = 1,
	};
	int err;

	snprintf(q.key, sizeof q.key, "%s", key);
	err = kvct_s3_ask(s, &q);
	free(q.text);
	return err;
}

/* Do these credentials get 404 for a missing object? Returns 0 for no, 1 for yes, or an error. */
static int sees_absence(struct kvct_s3 *s)
{
	uint64_t now = kvc_mono_ns(), blind, seeing;
	char key[1100];
	int err;

	pthread_mutex_lock(&s->lock);
	blind = s->blind_ns;
	seeing = s->seeing_ns;
	pthread_mutex_unlock(&s->lock);
	if (now < blind || now < seeing)
		return now < seeing;
	snprintf(key, sizeof key, "%s%s", s->prefix, ABSENT);
	err = read_first_byte(s, key);
	if (err != -ENOENT && err != -EACCES && err)
		return err;
	pthread_mutex_lock(&s->lock);
	*(err == -EACCES ? &s->blind_ns : &s->seeing_ns) = kvc_mono_ns() + BLIND_NS;
	pthread_mutex_unlock(&s->lock);
	return err != -EACCES;
}

/* Returns the meaning of a 403 for an object; see the top of this file. */
static int judge_forbidden(struct kvct_s3 *s, const struct kvc_where *w, bool listed)
{
	struct kvc_where good;
	char key[1100];
	bool has_good;
	int sees = sees_absence(s);

	if (sees)
		return sees < 0 ? sees : -EIO;
	if (listed)
		return -EACCES;
	if (!w->len)
		return -ENOENT;
	pthread_mutex_lock(&s->lock);
	good = s->good;
	has_good = s->has_good && !kvc_tier_same_name(&good, w);
	pthread_mutex_unlock(&s->lock);
	kvct_s3_key(s, &good, key);
	return has_good && !read_first_byte(s, key) ? -ENOENT : -EIO;
}

/*
 * Fills the buffers after the object's end with zeros; the end lies within the frame's last page.
 */
static void clear_rest(const struct iovec *iov, int n, uint64_t got)
{
	uint64_t at = 0;

	for (int i = 0; i < n; i++) {
		if (at + iov[i].iov_len > got) {
			uint64_t have = got > at ? got - at : 0;

			memset((char *)iov[i].iov_base + have, 0, iov[i].iov_len - have);
		}
		at += iov[i].iov_len;
	}
}

int kvct_s3_read(struct kvct_s3 *s, const struct kvc_where *w, uint64_t off,
		 const struct iovec *iov, int n, bool listed)
{
	struct iovec left[8];
	struct kvct_s3_request q = {
		.kind = KVCT_S3_READ,
		.method = "GET",
		.wanted = true,
		.iov = left,
		.n = n,
	};
	uint64_t len = 0;
	int err;

	if (n > 8)
		return -EINVAL;
	for (int i = 0; i < n; i++)
		len += iov[i].iov_len;
	if (!len)
		return 0;
	memcpy(left, iov, (size_t)n * sizeof *iov);
	q.from = off;
	q.to = off + len - 1;
	kvct_s3_key(s, w, q.key);
	err = kvct_s3_ask(s, &q);
	if (err == -EACCES && q.status == 403 && (!*q.code || !strcmp(q.code, "AccessDenied")))
		err = judge_forbidden(s, w, listed);
	if (err && err != -ENOENT && (q.status == 403 || err == -EACCES))
		kvct_s3_log(s, &q, err);
	free(q.text);
	if (err)
		return err;
	if (q.got + KVC_PAGE <= len || (!off && q.got < KVC_FRAME_HEADER))
		return -EBADMSG;
	clear_rest(iov, n, q.got);
	if (!off)
		remember_good(s, w);
	return 0;
}

static int s3_get(struct kvc_tier *t, const struct kvc_where *w, uint64_t off,
		  const struct iovec *iov, int n)
{
	return kvct_s3_read(s3_of(t), w, off, iov, n, false);
}

static int s3_remove(struct kvc_tier *t, const struct kvc_where *w)
{
	struct kvct_s3_request q = { .kind = KVCT_S3_REMOVE, .method = "DELETE" };
	int err;

	kvct_s3_key(s3_of(t), w, q.key);
	err = kvct_s3_ask(s3_of(t), &q);
	free(q.text);
	return err == -ENOENT ? 0 : err;
}

static void s3_usage(struct kvc_tier *t, struct kvc_tier_usage *u)
{
	(void)t;
	*u = (struct kvc_tier_usage){ 0 };
}

static int s3_start(struct kvc_tier *t)
{
	return kvct_s3_uploads_start(s3_of(t));
}

static void s3_stop(struct kvc_tier *t)
{
	kvct_s3_uploads_stop(s3_of(t));
}

static void s3_close(struct kvc_tier *t)
{
	struct kvct_s3 *s = s3_of(t);

	kvct_s3_uploads_close(s);
	kvct_s3_close_idle(s);
	kvct_s3_credentials_close(s->credentials);
	pthread_mutex_destroy(&s->lock);
	free(s);
}

static const struct kvc_tier_ops s3_ops = {
	.name = "s3",
	.caps = KVC_TIER_SHARED | KVC_TIER_DURABLE | KVC_TIER_MEDIA,
	.start = s3_start,
	.stop = s3_stop,
	.close = s3_close,
	.put = s3_put,
	.get = s3_get,
	.remove = s3_remove,
	.list = kvct_s3_list,
	.usage = s3_usage,
};

/* --- the URL --- */

static int url_error(char *error, const char *text)
{
	snprintf(error, 512, "option remote: %s", text);
	return -EINVAL;
}

/* Does the text contain only letters, digits and the characters of `also`? */
static bool is_plain(const char *text, const char *also)
{
	for (; *text; text++)
		if (!isalnum((unsigned char)*text) && !strchr(also, *text))
			return false;
	return true;
}

static int s3_set_prefix(struct kvct_s3 *s, const struct kvct_url *u, char *error)
{
	size_t len = strlen(u->path);
	char padded[sizeof u->path + 3];

	if (!is_plain(u->path, "-_./"))
		return url_error(error,
				 "the prefix of s3:// may have letters, digits and -_./ only");
	snprintf(padded, sizeof padded, "/%s%s", u->path,
		 len && u->path[len - 1] != '/' ? "/" : "");
	if (strstr(padded, "//") || strstr(padded, "/./") || strstr(padded, "/../"))
		return url_error(error, "the prefix of s3:// may not have empty parts, . or ..");
	snprintf(s->prefix, sizeof s->prefix, "%s", padded + 1);
	if (strlen(s->prefix) + 35 > 1024)
		return url_error(error,
				 "the prefix of s3:// is too long: keys have at most 1024 bytes");
	return 0;
}

/* Splits the endpoint into scheme://host[:port] and a path, and adds the bucket to one of them. */
static int set_one_place(struct kvct_s3_place *at, const struct kvct_url *u, const char *endpoint,
			 bool by_name, char *error)
{
	const char *host = strstr(endpoint, "://") + 3;
	bool tls = !strncmp(endpoint, "https", 5);
	size_t len = strcspn(host, "/");
	const char *path = host + len, *port = tls ? ":443" : ":80";
	int n;

	if (!len || memchr(host, '@', len) || !is_plain(path, "-_.~/") || strpbrk(host, "?#"))
		return url_error(error, "endpoint= of s3:// must be http(s)://HOST[:PORT][/PATH]");
	n = snprintf(at->host, sizeof at->host, "%s%s%.*s", by_name ? u->host : "",
		     by_name ? "." : "", (int)len, host);
	if (n >= (int)sizeof at->host)
		return url_error(error, "endpoint= of s3:// is too long");
	snprintf(at->server, sizeof at->server, "http%s://%s", tls ? "s" : "", at->host);
	/* a Host header does not contain the default port */
	if (strlen(at->host) > strlen(port) &&
	    !strcmp(at->host + strlen(at->host) - strlen(port), port))
		at->host[strlen(at->host) - strlen(port)] = 0;
	len = strlen(path);
	while (len && path[len - 1] == '/')
		len--;
	n = snprintf(at->root, sizeof at->root, "%.*s%s%s", (int)len, path, by_name ? "" : "/",
		     by_name ? "" : u->host);
	return n >= (int)sizeof at->root ? url_error(error, "endpoint= of s3:// is too long") : 0;
}

/* Can the bucket's name be part of a host name? */
static bool is_label(const char *bucket)
{
	return strspn(bucket, "abcdefghijklmnopqrstuvwxyz0123456789-.") == strlen(bucket);
}

static int set_server(struct kvct_s3 *s, const struct kvct_url *u, const char *endpoint,
		      const char *addressing, char *error)
{
	const char *host = strstr(endpoint, "://") + 3;
	size_t len = strcspn(host, ":/");
	int err = set_one_place(&s->place[0], u, endpoint, false, error)
			  ?: set_one_place(&s->place[1], u, endpoint, true, error);

	if (err)
		return err;
	/* a name below a numeric address cannot be resolved */
	if (strspn(host, "0123456789.") == len)
		snprintf(s->connect_to, sizeof s->connect_to, "%s.%.*s::%.*s:", u->host, (int)len,
			 host, (int)len, host);
	s->by_name = !strcmp(addressing, "virtual");
	s->may_switch = !*addressing && is_label(u->host) && *host != '[';
	if (s->by_name && !is_label(u->host))
		return url_error(error, "addressing=virtual of s3:// needs a bucket of lower-case "
					"letters, digits and -");
	return 0;
}

/* Copies a parameter, or else the first of the two environment variables that is set, or "". */
static void value_of(const struct kvct_url *u, const char *name, const char *env, const char *also,
		     char *to, size_t capacity)
{
	const char *v = env ? getenv(env) : NULL;

	kvct_url_get(u, name, to, capacity);
	if (*to)
		return;
	if ((!v || !*v) && also)
		v = getenv(also);
	snprintf(to, capacity, "%s", v ? v : "");
}

static int set_place(struct kvct_s3 *s, const struct kvct_url *u, bool *amazon, char *error)
{
	char endpoint[512], addressing[32];

	value_of(u, "region", "AWS_REGION", "AWS_DEFAULT_REGION", s->region, sizeof s->region);
	value_of(u, "endpoint", "AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", endpoint,
		 sizeof endpoint);
	kvct_url_get(u, "addressing", addressing, sizeof addressing);
	value_of(u, "ca", "AWS_CA_BUNDLE", NULL, s->ca, sizeof s->ca);
	if (!*s->region)
		snprintf(s->region, sizeof s->region, "us-east-1");
	if (!is_plain(s->region, "-_."))
		return url_error(error, "region= of s3:// may have letters, digits and -_. only");
	*amazon = !*endpoint;
	if (!*endpoint)
		snprintf(endpoint, sizeof endpoint, "https://s3.%s.amazonaws.com", s->region);
	if (strncmp(endpoint, "http://", 7) && strncmp(endpoint, "https://", 8))
		return url_error(error, "endpoint= of s3:// must begin with http:// or https://");
	if (*addressing && strcmp(addressing, "path") && strcmp(addressing, "virtual"))
		return url_error(error, "addressing= of s3:// must be path or virtual");
	if (!is_plain(u->host, "-_.") || !strcmp(u->host, ".") || !strcmp(u->host, ".."))
		return url_error(error,
				 "the bucket of s3:// may have letters, digits and -_. only");
	return s3_set_prefix(s, u, error) ?: set_server(s, u, endpoint, addressing, error);
}

static int set_safety(struct kvct_s3 *s, const struct kvct_url *u, char *error)
{
	char checksum[32];

	kvct_url_get(u, "sse", s->sse, sizeof s->sse);
	kvct_url_get(u, "sse_key", s->sse_key, sizeof s->sse_key);
	kvct_url_get(u, "checksum", checksum, sizeof checksum);
	s->md5 = !strcmp(checksum, "md5");
	s->sha256 = !strcmp(checksum, "sha256");
	if (*s->sse && strcmp(s->sse, "AES256") && strcmp(s->sse, "aws:kms") &&
	    strcmp(s->sse, "aws:kms:dsse"))
		return url_error(error, "sse= of s3:// must be AES256, aws:kms or aws:kms:dsse");
	if (*s->sse_key && strncmp(s->sse, "aws:kms", 7))
		return url_error(error, "sse_key= of s3:// needs sse=aws:kms");
	if (!is_plain(s->sse_key, "-_./:"))
		return url_error(error,
				 "sse_key= of s3:// must be the id, alias or ARN of a KMS key");
	if (*checksum && strcmp(checksum, "none") && !s->md5 && !s->sha256)
		return url_error(error, "checksum= of s3:// must be none, md5 or sha256");
	return 0;
}

/* Sets the tier's id in the store. URLs that differ have different ids. */
static void s3_set_id(struct kvct_s3 *s, const struct kvct_url *u)
{
	KVC_MEM char *whole = NULL;
	char hex[33];
	struct kvc_sum sum;
	const struct kvct_s3_place *at = &s->place[0];
	const char *scheme = strncmp(at->server, "https", 5) ? "http" : "https";

	if (asprintf(&whole, "s3:%s/%s@%s://%s%s", u->host, s->prefix, scheme, at->host, at->root) <
	    0) {
		whole = NULL;
		return;
	}
	if (strlen(whole) < sizeof s->tier.id) {
		snprintf(s->tier.id, sizeof s->tier.id, "%s", whole);
		return;
	}
	sum = kvc_sum_of(whole, strlen(whole));
	snprintf(s->tier.id, sizeof s->tier.id, "%.200s#%s", whole, kvc_sum_text(&sum, hex));
}

static int set_credentials(struct kvct_s3 *s, const struct kvct_url *u, bool amazon, char *error)
{
	struct kvct_s3_source *source = calloc(1, sizeof *source);
	int err;

	if (!source) {
		snprintf(error, 512, "out of memory");
		return -ENOMEM;
	}
	kvct_url_get(u, "auth", source->auth, sizeof source->auth);
	kvct_url_get(u, "credentials", source->file, sizeof source->file);
	kvct_url_get(u, "profile", source->profile, sizeof source->profile);
	memcpy(source->region, s->region, sizeof source->region);
	memcpy(source->ca, s->ca, sizeof source->ca);
	source->amazon = amazon;
	err = kvct_s3_credentials_open(&s->credentials, source, error);
	free(source);
	return err;
}

/* Refuses values that do not fit, since kvct_url_get would return "". */
static int check_lengths(const struct kvct_url *u, char *error)
{
	static const struct {
		const char *name;
		size_t capacity;
	} most[] = { { "endpoint", 300 }, { "region", 64 },   { "credentials", 512 },
		     { "ca", 512 },       { "profile", 128 }, { "auth", 32 },
		     { "sse", 32 },       { "sse_key", 256 }, { "checksum", 32 },
		     { "addressing", 32 } };
	char value[sizeof u->query];

	for (size_t i = 0; i < sizeof most / sizeof *most; i++)
		if (strlen(kvct_url_get(u, most[i].name, value, sizeof value)) >=
		    most[i].capacity) {
			snprintf(error, 512, "option remote: the value of %s= is too long",
				 most[i].name);
			return -EINVAL;
		}
	return 0;
}

/*
 * Asks the service once at mount, without credentials, which may have to be fetched. Any answer
 * will do, also a refusal: the first copy reports those that matter. The tier has no other threads
 * yet.
 */
static void ask_at_mount(struct kvct_s3 *s)
{
	struct kvct_s3_request q = {
		.kind = KVCT_S3_READ, .method = "HEAD", .quiet = true, .anonymous = true
	};
	uint64_t deadline_ms = s->deadline_ms;
	int err;

	s->deadline_ms = kvc_min(deadline_ms, FIRST_MS);
	err = kvct_s3_ask(s, &q);
	s->deadline_ms = deadline_ms;
	free(q.text);
	if (err && !q.status)
		kvc_warn("tier s3: %s does not answer (%s); the next access tries again",
			 s->place[s->by_name].server, strerror(-err));
}

int kvct_s3_open(const struct kvct_url *u, uint64_t deadline_ms, struct kvc_tier **out, char *error)
{
	static const char *const params[] = {
		"endpoint",   "region", "credentials", "ca",       "profile", "auth",
		"addressing", "sse",    "sse_key",     "checksum", NULL,
	};
	struct kvct_s3 *s;
	bool amazon = false;
	int err;

	if ((err = kvct_url_check(u, params, error)) || (err = check_lengths(u, error)))
		return err;
	if (!*u->host)
		return url_error(error, "s3:// needs a bucket: s3://BUCKET/PREFIX?endpoint=URL");
	curl_global_init(CURL_GLOBAL_DEFAULT);
	s = calloc(1, sizeof *s);
	if (!s) {
		snprintf(error, 512, "out of memory");
		return -ENOMEM;
	}
	pthread_mutex_init(&s->lock, NULL);
	s->deadline_ms = deadline_ms;
	s->tier.ops = &s3_ops;
	err = set_place(s, u, &amazon, error) ?: set_safety(s, u, error);
	err = err ?: set_credentials(s, u, amazon, error);
	if (!err) {
		s3_set_id(s, u);
		if ((err = kvct_s3_uploads_open(s, u->store)))
			snprintf(error, 512, "out of memory");
	}
	if (err) {
		s3_close(&s->tier);
		return err;
	}
	ask_at_mount(s);
	*out = &s->tier;
	return 0;
}
