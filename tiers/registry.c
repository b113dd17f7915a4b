/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The table of remotes, their URLs, and the order in which tiers are opened. Only the main thread
 * enters.
 */
#include "registry.h"

#include "secret.h"

#include <ctype.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

static const struct {
	const char *scheme;
	int (*open)(const struct kvct_url *u, uint64_t deadline_ms, struct kvc_tier **out,
		    char *error);
} remotes[] = {
	{ "dir", kvct_dir_open },
	{ "redis", kvct_redis_open },
	{ "rediss", kvct_redis_open },
	{ "redis+cluster", kvct_redis_open },
	{ "rediss+cluster", kvct_redis_open },
	{ "s3", kvct_s3_open },
	{ "ext", kvct_ext_open },
	{ "peers", kvct_peers_open },
};

void kvct_set_id(struct kvc_tier *t, const char *id)
{
	struct kvc_where sum = kvc_frame_where_of(id);

	if (strlen(id) < sizeof t->id)
		memcpy(t->id, id, strlen(id) + 1);
	else
		snprintf(t->id, sizeof t->id, "%.200s...%016llx%016llx", id,
			 (unsigned long long)sum.at, (unsigned long long)sum.hi);
}

void kvct_close_all(struct kvc_tier **tiers, unsigned n)
{
	for (unsigned t = 0; t < n; t++)
		tiers[t]->ops->close(tiers[t]);
}

static int copy_part(char *to, size_t capacity, const char *from, size_t len)
{
	if (len >= capacity)
		return -EINVAL;
	memcpy(to, from, len);
	to[len] = 0;
	return 0;
}

int kvct_url_parse(const char *text, struct kvct_url *u, char *error)
{
	const char *rest = strstr(text, "://"), *end, *host, *colon, *shown = strrchr(text, '@');
	char *number_end;
	int err;

	memset(u, 0, sizeof *u);
	/* the part before an @ may be a password, so it is never shown */
	if (*text == '/' && !shown)
		snprintf(error, 512, "option remote: '%.200s' is not a URL; give dir://%.200s",
			 text, text);
	else
		snprintf(error, 512,
			 "option remote: '%s%.200s' is not a URL such as redis://host:6379/prefix "
			 "or dir:///PATH",
			 shown ? "..." : "", shown ? shown : text);
	if (!rest || copy_part(u->scheme, sizeof u->scheme, text, (size_t)(rest - text)))
		return -EINVAL;
	host = rest + 3;
	end = host + strcspn(host, "/?");
	const char *at = memchr(host, '@', (size_t)(end - host));

	if (at) {
		if (copy_part(u->user, sizeof u->user, host, (size_t)(at - host)))
			return -EINVAL;
		if (strchr(u->user, ':')) {
			snprintf(error, 512,
				 "option remote: a URL must not contain a password; put it into a "
				 "file and give password_file=");
			return -EINVAL;
		}
		host = at + 1;
	}
	if (*host == '[' && memchr(host, ']', (size_t)(end - host))) { /* an IPv6 address */
		const char *close = memchr(host, ']', (size_t)(end - host));

		err = copy_part(u->host, sizeof u->host, host + 1, (size_t)(close - host - 1));
		colon = close + 1 < end ? close + 1 : NULL;
	} else {
		colon = memchr(host, ':', (size_t)(end - host));
		err = copy_part(u->host, sizeof u->host, host,
				(size_t)((colon ? colon : end) - host));
	}
	if (err || strpbrk(u->host, "@[]") || (colon && *colon != ':'))
		return -EINVAL;
	if (colon) {
		unsigned long port = strtoul(colon + 1, &number_end, 10);

		if (!isdigit((unsigned char)colon[1]) || number_end != end || !port || port > 65535)
			return -EINVAL;
		u->port = (unsigned)port;
	}
	const char *q = end + strcspn(end, "?");

	if (copy_part(u->path, sizeof u->path, end + (*end == '/'),
		      (size_t)(q - end) - (*end == '/')))
		return -EINVAL;
	if (*q && copy_part(u->query, sizeof u->query, q + 1, strlen(q + 1)))
		return -EINVAL;
	*error = 0;
	return 0;
}

/*
 * Returns the text after "name=", which ends at the next & or at the end; NULL: the parameter is
 * not given.
 */
static const char *url_value(const struct kvct_url *u, const char *name)
{
	size_t len = strlen(name);
	const char *value = NULL;

	for (const char *p = u->query; *p; p += strcspn(p, "&"), p += *p == '&')
		if (!strncmp(p, name, len) && p[len] == '=')
			value = p + len + 1;
	return value;
}

bool kvct_url_has(const struct kvct_url *u, const char *name)
{
	return url_value(u, name);
}

const char *kvct_url_get(const struct kvct_url *u, const char *name, char *buf, size_t capacity)
{
	const char *value = url_value(u, name);

	*buf = 0;
	if (value)
		copy_part(buf, capacity, value, strcspn(value, "&"));
	return buf;
}

int kvct_url_check(const struct kvct_url *u, const char *const *names, char *error)
{
	for (const char *p = u->query; *p; p += strcspn(p, "&"), p += *p == '&') {
		size_t len = strcspn(p, "=&");
		bool known = len == 8 && !strncmp(p, "compress", 8);

		for (const char *const *n = names; *n; n++)
			known |= strlen(*n) == len && !strncmp(p, *n, len);
		if (!known || p[len] != '=') {
			snprintf(
				error, 512,
				"option remote: %s:// has no parameter '%.*s' (kvcachefs-tiers(7))",
				u->scheme, (int)len, p);
			return -EINVAL;
		}
	}
	return 0;
}

int kvct_secret(const char *path, char *buf, size_t capacity, char *error)
{
	char why[KVC_SECRET_WHY];
	struct stat st;
	KVC_FD int fd = kvc_secret_open(path, &st, why);
	ssize_t n;

	if (fd < 0) {
		snprintf(error, 512, "option remote: %s %s", path, why);
		return fd == -EACCES ? -EACCES : -EINVAL;
	}
	n = read(fd, buf, capacity - 1);
	if (n < 0 || (size_t)n == capacity - 1) {
		snprintf(error, 512, "option remote: %s does not contain a password", path);
		return -EINVAL;
	}
	buf[n] = 0;
	buf[strcspn(buf, "\r\n")] = 0;
	return 0;
}

static int open_remote(const char *url, const struct kvc_store *s, const struct kvc_options *o,
		       struct kvc_tier **out, char *error)
{
	struct kvct_url u;
	char codec[sizeof u.query];
	int err = kvct_url_parse(url, &u, error);

	if (err)
		return err;
	u.store = s ? s->dir : NULL;
	u.store_id = s ? s->uuid_text : NULL;
	u.sealed = *o->keyfile;
	u.options = o;
	for (size_t i = 0; i < sizeof remotes / sizeof remotes[0]; i++) {
		uint64_t c = KVC_CODEC_CHOICES;

		if (strcmp(remotes[i].scheme, u.scheme))
			continue;
		kvct_url_get(&u, "compress", codec, sizeof codec);
		for (char *p = codec; *p; p++)
			if (*p == ' ')
				*p = '+';
		if (*codec)
			for (c = 0; c < KVC_CODEC_CHOICES && strcmp(codec, kvc_codec_names[c]);)
				c++;
		if (*codec && c == KVC_CODEC_CHOICES) {
			snprintf(error, 512,
				 "option remote: compress=%.60s is not one of none, zstd, "
				 "bf16+zstd, "
				 "kvq-high, kvq-mid, kvq-low, fp8",
				 codec);
			return -EINVAL;
		}
		err = remotes[i].open(&u, o->deadline_ms, out, error);
		if (!err)
			(*out)->codec = c;
		return err;
	}
	snprintf(error, 512,
		 "option remote: unknown kind '%s'; give dir, redis, rediss, redis+cluster, "
		 "rediss+cluster, s3, ext or peers",
		 u.scheme);
	return -EINVAL;
}

/* "only:NAME" in the spec limits the shim to that tier. */
static bool shimmed(const char *spec, const struct kvc_tier *t)
{
	const char *only = strstr(spec, "only:");
	size_t len = only ? strcspn(only + 5, "+") : 0;

	return *spec &&
	       (!only || (strlen(t->ops->name) == len && !strncmp(only + 5, t->ops->name, len)));
}

static int count_words(const char *text)
{
	int n = 0;

	while (text && *(text += strspn(text, " "))) {
		text += strcspn(text, " ");
		n++;
	}
	return n;
}

int kvct_open_all(const struct kvc_store *s, const struct kvc_options *o,
		  struct kvc_tier *tiers[KVCT_MAX], unsigned *n, char *error)
{
	KVC_MEM char *urls = strdup(o->remote);
	char *save = NULL;
	int err = urls ? 0 : -ENOMEM;

	*n = 0;
	*error = 0;
	if (o->disk && !err) {
		if ((err = kvct_devices_open(s, &tiers[*n], error)))
			return err;
		tiers[*n]->codec = KVC_CODEC_CHOICES;
		++*n;
	}
	if (!err && count_words(urls) > KVCT_MAX - 1) { /* before any remote is asked */
		snprintf(error, 512, "option remote: too many remotes; give at most %d",
			 KVCT_MAX - 1);
		err = -EINVAL;
	}
	for (char *url = urls ? strtok_r(urls, " ", &save) : NULL; url && !err;
	     url = strtok_r(NULL, " ", &save)) {
		if (!(err = open_remote(url, s, o, &tiers[*n], error))) {
			for (unsigned t = 0; t < *n; t++)
				if (!strcmp(tiers[t]->id, tiers[*n]->id)) {
					snprintf(error, 512, "option remote: %s is given twice",
						 tiers[t]->id);
					err = -EINVAL;
				}
			++*n;
		}
	}
	for (unsigned t = 0; t < *n && !err; t++)
		if (shimmed(o->shim, tiers[t]))
			err = kvct_shim_open(tiers[t], o->shim, &tiers[t], error);
	if (err) {
		kvct_close_all(tiers, *n);
		*n = 0;
		if (!*error)
			snprintf(error, 512, "out of memory");
	}
	return err;
}

void kvct_put_version(FILE *out, const char *program, const struct kvc_library *own, unsigned n)
{
	struct kvc_library all[16] = {
		kvc_keys_library(),     kvc_codec_library(), kvc_util_library(),
		kvct_library_hiredis(), kvct_library_curl(),
	};
	unsigned count = 5;

	fprintf(out, "%s %s\n", program, KVC_VERSION);
	for (unsigned i = 0; i < n && count < sizeof all / sizeof all[0]; i++)
		all[count++] = own[i];
	kvc_library_put_all(out, all, count);
}
