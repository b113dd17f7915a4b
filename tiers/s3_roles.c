/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Credentials from services: AssumeRoleWithWebIdentity of STS, the metadata service of a container
 * (ECS, EKS Pod Identity), and the metadata service of an EC2 instance (IMDSv2). Their addresses
 * and tokens are in the environment variables that Amazon's tools read. See s3_credentials.h.
 */
#include "s3_credentials.h"

#include "keys.h"
#include "s3_http.h"

#include <ctype.h>
#include <curl/curl.h>
#include <fcntl.h>
#include <string.h>

#define WHY 256
#define ANSWER_MAX (64u << 10)
/* token of a web identity or a container; STS accepts 20,000 characters */
#define TOKEN_MAX (24u << 10)
#define ASK_NS 5000000000ull
#define INSTANCE_NS 2000000000ull /* the metadata service of an instance is on the same host */

struct answer {
	char text[ANSWER_MAX + 1];
	size_t len;
	long status;
};

struct question {
	const char *method, *url, *body;
	const char *header[2]; /* NULL: none */
	const char *ca;
	bool direct; /* without a proxy */
	uint64_t until_ns;
};

static size_t on_answer(char *p, size_t one, size_t len, void *arg)
{
	struct answer *a = arg;

	(void)one;
	if (a->len + len > ANSWER_MAX)
		return 0;
	memcpy(a->text + a->len, p, len);
	a->len += len;
	a->text[a->len] = 0;
	return len;
}

static void free_answer(struct answer *a)
{
	if (a)
		kvc_keys_wipe(a, sizeof *a);
	free(a);
}

static void roles_free_headers(struct curl_slist *h)
{
	for (struct curl_slist *e = h; e; e = e->next)
		kvc_keys_wipe(e->data, strlen(e->data));
	curl_slist_free_all(h);
}

/* Sends a request. Returns 0 with any status, or -EACCES with a reason. */
static int ask_service(const struct question *q, struct answer *a, char *why)
{
	uint64_t now = kvc_mono_ns(), left = q->until_ns > now ? q->until_ns - now : 0;
	CURL *c = curl_easy_init();
	struct curl_slist *headers = NULL;
	bool good = c != NULL;
	CURLcode rc = CURLE_OUT_OF_MEMORY;

	for (int i = 0; i < 2 && good && q->header[i]; i++) {
		struct curl_slist *more = curl_slist_append(headers, q->header[i]);

		good = more != NULL;
		headers = good ? more : headers;
	}
	a->len = 0;
	*a->text = 0;
	a->status = 0;
	if (good) {
		curl_easy_setopt(c, CURLOPT_URL, q->url);
		kvct_s3_set_bounded(c);
		curl_easy_setopt(c, CURLOPT_PROTOCOLS_STR, "http,https");
		curl_easy_setopt(c, CURLOPT_TIMEOUT_MS, (long)(left / 1000000 + 1));
		curl_easy_setopt(c, CURLOPT_WRITEFUNCTION, on_answer);
		curl_easy_setopt(c, CURLOPT_WRITEDATA, a);
		curl_easy_setopt(c, CURLOPT_HTTPHEADER, headers);
		if (q->direct)
			curl_easy_setopt(c, CURLOPT_NOPROXY, "*");
		if (q->ca && *q->ca)
			curl_easy_setopt(c, CURLOPT_CAINFO, q->ca);
		if (q->body)
			curl_easy_setopt(c, CURLOPT_POSTFIELDS, q->body);
		curl_easy_setopt(c, CURLOPT_CUSTOMREQUEST, q->method);
		rc = curl_easy_perform(c);
		curl_easy_getinfo(c, CURLINFO_RESPONSE_CODE, &a->status);
	}
	if (c)
		curl_easy_cleanup(c);
	roles_free_headers(headers);
	if (rc == CURLE_OK)
		return 0;
	snprintf(why, WHY, "%.100s: %.100s", q->url, curl_easy_strerror(rc));
	return -EACCES;
}

/*
 * Copies the JSON string of "name": to `to`, with simple escapes decoded. Returns 0, -ENOENT or
 * -E2BIG.
 */
static int json_field(const char *text, const char *name, char *to, size_t capacity)
{
	char key[64];
	const char *p = text;
	size_t n = 0;

	*to = 0;
	snprintf(key, sizeof key, "\"%s\"", name);
	while ((p = strstr(p, key))) {
		p += strlen(key);
		p += strspn(p, " \t\r\n");
		if (*p++ == ':')
			break;
	}
	if (!p)
		return -ENOENT;
	p += strspn(p, " \t\r\n");
	if (*p++ != '"')
		return -ENOENT;
	for (; *p && *p != '"'; p++) {
		if (*p == '\\' && (!*++p || *p == 'u'))
			return -ENOENT; /* keys and tokens have no such characters */
		if (n + 1 >= capacity)
			return -E2BIG;
		to[n++] = *p;
	}
	to[n] = 0;
	return *p == '"' ? 0 : -ENOENT;
}

/* Copies the text between <name> and </name>. Returns 0, -ENOENT or -E2BIG. */
static int xml_field(const char *text, const char *name, char *to, size_t capacity)
{
	char tag[64];
	const char *a, *b;

	*to = 0;
	snprintf(tag, sizeof tag, "<%s>", name);
	a = strstr(text, tag);
	if (!a)
		return -ENOENT;
	a += strlen(tag);
	snprintf(tag, sizeof tag, "</%s>", name);
	b = strstr(a, tag);
	return b ? kvct_s3_field(to, capacity, a, (size_t)(b - a)) : -ENOENT;
}

uint64_t kvct_s3_time(const char *text)
{
	struct tm tm = { 0 };
	const char *end = strptime(text, "%Y-%m-%dT%H:%M:%S", &tm);
	time_t t = end ? timegm(&tm) : 0;

	return t > 0 ? (uint64_t)t * 1000000000 : 0;
}

static int take_login(const char *text, const char *token_name,
		      int (*field)(const char *, const char *, char *, size_t),
		      struct kvct_s3_login *login, char *why)
{
	char until[64];

	if (field(text, "AccessKeyId", login->id, sizeof login->id) ||
	    field(text, "SecretAccessKey", login->secret, sizeof login->secret) ||
	    field(text, token_name, login->token, sizeof login->token) == -E2BIG || !*login->id ||
	    !*login->secret) {
		snprintf(why, WHY, "sent no access key, or a key that is too long");
		return -EACCES;
	}
	field(text, "Expiration", until, sizeof until);
	login->until_ns = kvct_s3_time(until);
	return 0;
}

/*
 * Reads the token, which is the first line of the file. The mode is not checked, since projected
 * tokens have 0644.
 */
static char *read_token(const char *path, char *why)
{
	KVC_FD int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
	char *text = fd < 0 ? NULL : calloc(1, TOKEN_MAX + 1);
	ssize_t n = text ? read(fd, text, TOKEN_MAX + 1) : -1;

	if (n <= 0 || n > (ssize_t)TOKEN_MAX) {
		snprintf(why, WHY, "%.150s: %s", path,
			 n > 0    ? "the token is too long"
			 : n == 0 ? "the file is empty"
				  : strerror(errno));
		free(text);
		return NULL;
	}
	text[strcspn(text, "\r\n")] = 0;
	return text;
}

static void free_token(char *text)
{
	if (text)
		kvc_keys_wipe(text, strlen(text));
	free(text);
}

static uint64_t deadline_of(uint64_t until_ns, uint64_t most_ns)
{
	return kvc_min(until_ns, kvc_mono_ns() + most_ns);
}

static char *sts_form(const char *token)
{
	const char *name = getenv("AWS_ROLE_SESSION_NAME"), *arn = getenv("AWS_ROLE_ARN");
	char *text = NULL, *t = kvct_s3_escape(token), *a = kvct_s3_escape(arn ? arn : ""),
	     *n = kvct_s3_escape(name && *name ? name : "kvcachefs");

	if (!t || !a || !n ||
	    asprintf(&text,
		     "Action=AssumeRoleWithWebIdentity&Version=2011-06-15&RoleArn=%s"
		     "&RoleSessionName=%s&WebIdentityToken=%s",
		     a, n, t) < 0)
		text = NULL;
	free_token(t);
	free(a);
	free(n);
	return text;
}

/* Writes the service's reason to `why`, without anything that may be a secret. */
static int service_refused(const struct answer *a, const char *name, char *why)
{
	char code[64], message[120];

	xml_field(a->text, "Code", code, sizeof code);
	xml_field(a->text, "Message", message, sizeof message);
	if (!*code)
		json_field(a->text, "code", code, sizeof code);
	if (!*message)
		json_field(a->text, "message", message, sizeof message);
	snprintf(why, WHY, "%s said %ld%s%s%s%s", name, a->status, *code ? " " : "", code,
		 *message ? ": " : "", message);
	return -EACCES;
}

int kvct_s3_from_web_identity(const struct kvct_s3_source *s, uint64_t until_ns,
			      struct kvct_s3_login *login, char *why)
{
	const char *path = getenv("AWS_WEB_IDENTITY_TOKEN_FILE"),
		   *endpoint = getenv("AWS_ENDPOINT_URL_STS");
	struct answer *a = calloc(1, sizeof *a);
	char url[512], *token = path ? read_token(path, why) : NULL,
		       *body = token ? sts_form(token) : NULL;
	struct question q = {
		.method = "POST",
		.url = url,
		.body = body,
		.ca = s->ca,
		.until_ns = deadline_of(until_ns, ASK_NS),
		.header = { "Content-Type: application/x-www-form-urlencoded" },
	};
	int err = a && body ? 0 : -EACCES;

	if (!path)
		snprintf(why, WHY, "needs AWS_WEB_IDENTITY_TOKEN_FILE and AWS_ROLE_ARN");
	if (!endpoint || !*endpoint)
		endpoint = getenv("AWS_ENDPOINT_URL");
	if (endpoint && *endpoint)
		snprintf(url, sizeof url, "%.500s", endpoint);
	else
		snprintf(url, sizeof url, "https://sts.%s.amazonaws.com/", s->region);
	err = err ?: ask_service(&q, a, why);
	if (!err && a->status != 200)
		err = service_refused(a, "STS", why);
	err = err ?: take_login(a->text, "SessionToken", xml_field, login, why);
	free_answer(a);
	free_token(token);
	free_token(body);
	return err;
}

bool kvct_s3_has_container(void)
{
	return getenv("AWS_CONTAINER_CREDENTIALS_RELATIVE_URI") ||
	       getenv("AWS_CONTAINER_CREDENTIALS_FULL_URI");
}

/* Is the URL https, or an address of this node? Tokens are not sent by http to other nodes. */
static bool is_near(const char *url)
{
	static const char *const hosts[] = {
		"127.", "localhost", "[::1]", "169.254.170.2", "169.254.170.23", "[fd00:ec2::23]",
	};
	const char *host = url + 7;
	size_t len = strcspn(host, "/?");

	if (!strncmp(url, "https://", 8))
		return true;
	if (strncmp(url, "http://", 7) || memchr(host, '@', len))
		return false;
	if (*host == '[')
		len = strcspn(host, "]") + (strchr(host, ']') != NULL);
	else
		len = strcspn(host, ":/?");
	for (size_t i = 0; i < sizeof hosts / sizeof *hosts; i++)
		if (!i ? !strncmp(host, "127.", 4) && strspn(host, "0123456789.") == len
		       : strlen(hosts[i]) == len && !strncmp(host, hosts[i], len))
			return true;
	return false;
}

int kvct_s3_from_container(const struct kvct_s3_source *s, uint64_t until_ns,
			   struct kvct_s3_login *login, char *why)
{
	const char *full = getenv("AWS_CONTAINER_CREDENTIALS_FULL_URI"),
		   *relative = getenv("AWS_CONTAINER_CREDENTIALS_RELATIVE_URI"),
		   *path = getenv("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE"),
		   *given = getenv("AWS_CONTAINER_AUTHORIZATION_TOKEN");
	struct answer *a = calloc(1, sizeof *a);
	char url[512], *token = NULL, *header = NULL;
	int err = a ? 0 : -EACCES;

	if (relative)
		snprintf(url, sizeof url, "http://169.254.170.2%.400s", relative);
	else
		snprintf(url, sizeof url, "%.500s", full ? full : "");
	if (!err && !is_near(url)) {
		snprintf(why, WHY,
			 "needs AWS_CONTAINER_CREDENTIALS_FULL_URI with https, or an address of "
			 "this node");
		err = -EACCES;
	}
	if (!err && path && !(token = read_token(path, why)))
		err = -EACCES;
	if (!err && (token || given) &&
	    asprintf(&header, "Authorization: %s", token ? token : given) < 0)
		err = -EACCES;
	struct question q = { .method = "GET",
			      .url = url,
			      .ca = s->ca,
			      .direct = strncmp(url, "https:", 6) != 0,
			      .until_ns = deadline_of(until_ns, ASK_NS),
			      .header = { header } };
	err = err ?: ask_service(&q, a, why);
	if (!err && a->status != 200)
		err = service_refused(a, "the container's metadata service", why);
	err = err ?: take_login(a->text, "Token", json_field, login, why);
	free_answer(a);
	free_token(token);
	free_token(header);
	return err;
}

static void instance_url(char url[512])
{
	const char *endpoint = getenv("AWS_EC2_METADATA_SERVICE_ENDPOINT");
	size_t len;

	snprintf(url, 512, "%.250s", endpoint && *endpoint ? endpoint : "http://169.254.169.254");
	len = strlen(url);
	if (url[len - 1] == '/')
		url[len - 1] = 0;
}

int kvct_s3_from_instance(const struct kvct_s3_source *s, uint64_t until_ns,
			  struct kvct_s3_login *login, char *why)
{
	static const char path[] = "/latest/meta-data/iam/security-credentials/";
	struct answer *a = calloc(1, sizeof *a);
	char base[512], url[900], header[1100], role[128];
	struct question q = { .method = "PUT",
			      .url = url,
			      .direct = true,
			      .until_ns = deadline_of(until_ns, INSTANCE_NS),
			      .header = { "X-aws-ec2-metadata-token-ttl-seconds: 300" } };
	int err = a ? 0 : -EACCES;

	(void)s;
	instance_url(base);
	snprintf(url, sizeof url, "%s/latest/api/token", base);
	err = err ?: ask_service(&q, a, why);
	if (!err && (a->status != 200 || !a->len || a->len > 1000))
		err = service_refused(a, "the instance's metadata service", why);
	if (!err) {
		a->text[strcspn(a->text, "\r\n")] = 0;
		snprintf(header, sizeof header, "X-aws-ec2-metadata-token: %.1000s", a->text);
		q.header[0] = header;
		q.method = "GET";
		snprintf(url, sizeof url, "%s%s", base, path);
		err = ask_service(&q, a, why);
	}
	if (!err && (a->status != 200 || !a->len)) {
		snprintf(why, WHY, "the instance has no role (%ld)", a->status);
		err = -EACCES;
	}
	if (!err) {
		size_t len = strcspn(a->text, "\r\n");

		err = kvct_s3_field(role, sizeof role, a->text, len) ? -EACCES : 0;
		for (const char *p = role; *p && !err; p++)
			if (!isalnum((unsigned char)*p) && !strchr("+=,.@-_", *p))
				err = -EACCES;
		if (err)
			snprintf(why, WHY, "the instance's role has an invalid name");
	}
	if (!err) {
		snprintf(url, sizeof url, "%s%s%s", base, path, role);
		err = ask_service(&q, a, why);
	}
	if (!err && a->status != 200)
		err = service_refused(a, "the instance's metadata service", why);
	err = err ?: take_login(a->text, "Token", json_field, login, why);
	kvc_keys_wipe(header, sizeof header);
	free_answer(a);
	return err;
}
