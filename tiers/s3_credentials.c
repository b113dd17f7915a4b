/* SPDX-License-Identifier: Apache-2.0 */
/* See s3_credentials.h. */
#include "s3_credentials.h"

#include "keys.h"
#include "log.h"
#include "secret.h"

#include <ctype.h>
#include <pthread.h>
#include <string.h>
#include <sys/mman.h>

#define FILE_MAX (1u << 20)
#define CHECK_NS 1000000000ull         /* between two checks of the file */
#define FILE_AGAIN_NS 200000000ull     /* shorter after a refusal */
#define SURE_AGAIN_NS 1000000000ull    /* between two requests to a service after a refusal */
#define EARLY_NS (300 * 1000000000ull) /* how long before expiry the source is asked */
#define RETRY_MAX_NS (60 * 1000000000ull)

enum source { FROM_FILE, FROM_ENV, FROM_WEB_IDENTITY, FROM_CONTAINER, FROM_INSTANCE, FROM_NONE };
static const char *const names[] = {
	"file", "env", "web-identity", "container", "instance", "none", NULL,
};

struct kvct_s3_credentials {
	pthread_mutex_t lock;
	pthread_cond_t done;
	enum source from;
	struct kvct_s3_source source;
	char text[700]; /* describes the source in messages */
	bool asking;
	uint64_t number; /* number of the present credentials; 0: none */
	uint64_t got_ns; /* time at which they arrived (kvc_now_ns) */
	/* when the source was asked, and when it may be asked again (kvc_mono_ns) */
	uint64_t asked_ns, next_ns;
	struct stat file;                 /* state at the last read */
	char logged_error[256];           /* the last error in the log */
	struct kvct_s3_login *now, *next; /* next: used by the thread that asks */
};

int kvct_s3_field(char *to, size_t capacity, const char *value, size_t len)
{
	*to = 0;
	if (len >= capacity)
		return -E2BIG;
	memcpy(to, value, len);
	to[len] = 0;
	return 0;
}

/* Reads the file into NUL-terminated memory, which the caller wipes and frees. */
static int read_file(const char *path, struct stat *st, char **text, char *why)
{
	KVC_FD int fd = kvc_secret_open(path, st, why);
	size_t len = 0;
	ssize_t n = 1;

	*text = NULL;
	if (fd < 0)
		return fd == -EACCES ? -EACCES : -EINVAL;
	if (st->st_size > (off_t)FILE_MAX) {
		snprintf(why, KVC_SECRET_WHY, "is longer than 1 MiB");
		return -EINVAL;
	}
	*text = malloc(FILE_MAX + 1);
	while (*text && len < FILE_MAX && (n = read(fd, *text + len, FILE_MAX - len)) > 0)
		len += (size_t)n;
	if (!*text || n < 0) {
		snprintf(why, KVC_SECRET_WHY, "cannot be read: %s", strerror(errno));
		return *text ? -EINVAL : -ENOMEM;
	}
	(*text)[len] = 0;
	return 0;
}

/* Is [NAME] or [profile NAME] the section of this profile? */
static bool is_profile(const char *line, const char *profile)
{
	size_t len = strlen(profile);

	line += 1 + strspn(line + 1, " \t");
	if (!strncmp(line, "profile", 7) && isspace((unsigned char)line[7]))
		line += 7 + strspn(line + 7, " \t");
	return !strncmp(line, profile, len) && line[len + strspn(line + len, " \t")] == ']';
}

/* Copies the value of a line "name = value" to *login. */
static int take_line(const char *line, struct kvct_s3_login *login)
{
	static const struct {
		const char *name;
		size_t at, capacity;
	} fields[] = {
		{ "aws_access_key_id", offsetof(struct kvct_s3_login, id), KVCT_S3_ID },
		{ "aws_secret_access_key", offsetof(struct kvct_s3_login, secret), KVCT_S3_SECRET },
		{ "aws_session_token", offsetof(struct kvct_s3_login, token), KVCT_S3_TOKEN },
		{ "aws_security_token", offsetof(struct kvct_s3_login, token), KVCT_S3_TOKEN },
	};
	size_t len = strcspn(line, " \t=");
	const char *value = line + len + strspn(line + len, " \t");

	if (*value++ != '=')
		return 0;
	value += strspn(value, " \t");
	for (size_t i = 0; i < sizeof fields / sizeof *fields; i++)
		if (strlen(fields[i].name) == len && !strncasecmp(line, fields[i].name, len))
			return kvct_s3_field((char *)login + fields[i].at, fields[i].capacity,
					     value, strlen(value));
	return 0;
}

/*
 * Finds the keys of a profile in text, which is modified. Lines before the first section belong to
 * the profile "default".
 */
static int parse_file(char *text, const char *profile, struct kvct_s3_login *login, char *why)
{
	bool here = !strcmp(profile, "default"), found = false;
	char *save = NULL;

	for (char *line = strtok_r(text, "\r\n", &save); line;
	     line = strtok_r(NULL, "\r\n", &save)) {
		char *end = line + strlen(line);

		while (end > line && isspace((unsigned char)end[-1]))
			*--end = 0;
		line += strspn(line, " \t");
		if (*line == '#' || *line == ';')
			continue;
		if (*line == '[') {
			here = is_profile(line, profile);
			found |= here;
		} else if (here && take_line(line, login)) {
			snprintf(why, KVC_SECRET_WHY, "has a key or token that is too long");
			return -EINVAL;
		}
	}
	if (*login->id && *login->secret)
		return 0;
	snprintf(why, KVC_SECRET_WHY, "has no %s in profile '%.60s'%s",
		 *login->id ? "aws_secret_access_key" : "aws_access_key_id", profile,
		 found || here ? "" : " (no section has that name)");
	return -EINVAL;
}

static int from_file(struct kvct_s3_credentials *c, struct stat *st, struct kvct_s3_login *login,
		     char *why)
{
	char *text;
	int err = read_file(c->source.file, st, &text, why);

	if (!err)
		err = parse_file(text, c->source.profile, login, why);
	if (text)
		kvc_keys_wipe(text, FILE_MAX + 1);
	free(text);
	return err;
}

static int from_env(struct kvct_s3_login *login, char *why)
{
	const char *id = getenv("AWS_ACCESS_KEY_ID"), *secret = getenv("AWS_SECRET_ACCESS_KEY"),
		   *token = getenv("AWS_SESSION_TOKEN");

	if (!id || !secret) {
		snprintf(why, KVC_SECRET_WHY,
			 "needs AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or credentials=FILE");
		return -EINVAL;
	}
	token = token ? token : "";
	if (kvct_s3_field(login->id, sizeof login->id, id, strlen(id)) ||
	    kvct_s3_field(login->secret, sizeof login->secret, secret, strlen(secret)) ||
	    kvct_s3_field(login->token, sizeof login->token, token, strlen(token))) {
		snprintf(why, KVC_SECRET_WHY, "has a key or token that is too long");
		return -EINVAL;
	}
	return 0;
}

static int ask_source(struct kvct_s3_credentials *c, uint64_t until_ns, struct stat *st,
		      struct kvct_s3_login *login, char *why)
{
	memset(login, 0, sizeof *login);
	switch (c->from) {
	case FROM_FILE: return from_file(c, st, login, why);
	case FROM_ENV: return from_env(login, why);
	case FROM_WEB_IDENTITY: return kvct_s3_from_web_identity(&c->source, until_ns, login, why);
	case FROM_CONTAINER: return kvct_s3_from_container(&c->source, until_ns, login, why);
	case FROM_INSTANCE: return kvct_s3_from_instance(&c->source, until_ns, login, why);
	case FROM_NONE: break;
	}
	return 0;
}

static bool same_login(const struct kvct_s3_login *a, const struct kvct_s3_login *b)
{
	return !strcmp(a->id, b->id) && !strcmp(a->secret, b->secret) &&
	       !strcmp(a->token, b->token);
}

static bool same_file(const struct stat *a, const struct stat *b)
{
	return a->st_dev == b->st_dev && a->st_ino == b->st_ino && a->st_size == b->st_size &&
	       a->st_mtim.tv_sec == b->st_mtim.tv_sec && a->st_mtim.tv_nsec == b->st_mtim.tv_nsec &&
	       a->st_ctim.tv_sec == b->st_ctim.tv_sec && a->st_ctim.tv_nsec == b->st_ctim.tv_nsec;
}

/* Plans when to ask the source again: shortly before the credentials expire. */
static void plan_locked(struct kvct_s3_credentials *c, uint64_t mono)
{
	uint64_t now = kvc_now_ns(), left = 0, until = c->now->until_ns;

	if (c->from == FROM_FILE) {
		c->next_ns = mono + CHECK_NS;
		return;
	}
	if (c->number && !until) {
		c->next_ns = UINT64_MAX;
		return;
	}
	if (c->number && until > now) {
		left = until - now;
		left -= kvc_min(EARLY_NS, until > c->got_ns ? (until - c->got_ns) / 4 : left);
		left = until - now > left ? left : 0;
	}
	/* the source may return credentials that expire soon: wait a while */
	c->next_ns = mono + kvc_max(left, CHECK_NS);
	if (c->number && until > now && left < CHECK_NS)
		c->next_ns = mono + kvc_min(RETRY_MAX_NS, kvc_max(CHECK_NS, (until - now) / 4));
}

static void log_locked(struct kvct_s3_credentials *c, int err, const char *why)
{
	if (!err) {
		if (*c->logged_error)
			kvc_info("tier s3: credentials are available again (%s)", c->text);
		*c->logged_error = 0;
	} else if (strcmp(c->logged_error, why)) {
		snprintf(c->logged_error, sizeof c->logged_error, "%s", why);
		kvc_warn("tier s3: cannot get new credentials (%s): %s", c->text, why);
	}
}

/* Asks the source. Releases the lock while it asks. */
static int ask_locked(struct kvct_s3_credentials *c, uint64_t until_ns)
{
	char why[KVC_SECRET_WHY] = "";
	struct stat st = { 0 };
	bool unchanged;
	int err;

	c->asking = true;
	pthread_mutex_unlock(&c->lock);
	unchanged = c->from == FROM_FILE && c->number && !stat(c->source.file, &st) &&
		    same_file(&st, &c->file) && !*c->logged_error;
	err = unchanged ? 0 : ask_source(c, until_ns, &st, c->next, why);
	kvc_quote_one_line(why);
	pthread_mutex_lock(&c->lock);
	c->asking = false;
	c->asked_ns = kvc_mono_ns();
	if (!unchanged)
		log_locked(c, err, why);
	if (!err && !unchanged) {
		struct kvct_s3_login *old = c->now;

		c->number += !c->number || !same_login(c->now, c->next);
		c->got_ns = kvc_now_ns();
		c->file = st;
		c->now = c->next;
		c->next = old;
	}
	if (!unchanged)
		kvc_keys_wipe(c->next, sizeof *c->next);
	plan_locked(c, c->asked_ns);
	pthread_cond_broadcast(&c->done);
	return err;
}

static int wait_locked(struct kvct_s3_credentials *c, uint64_t until_ns)
{
	struct timespec end = kvc_timespec(until_ns);

	return -pthread_cond_timedwait(&c->done, &c->lock, &end);
}

int kvct_s3_credentials_get(struct kvct_s3_credentials *c, uint64_t until_ns,
			    struct kvct_s3_login *login, uint64_t *number)
{
	int err = 0;

	pthread_mutex_lock(&c->lock);
	while (!err) {
		bool due = c->from != FROM_ENV && c->from != FROM_NONE &&
			   kvc_mono_ns() >= c->next_ns;

		if (c->asking && !c->number)
			err = wait_locked(c, until_ns);
		else if (due && !c->asking)
			err = ask_locked(c, until_ns);
		else
			break;
		if (c->number)
			err = 0; /* the present ones may still be valid */
	}
	if (!err && !c->number)
		err = -EACCES;
	if (!err) {
		*login = *c->now;
		*number = c->number;
	}
	pthread_mutex_unlock(&c->lock);
	return err == -ETIMEDOUT || !err ? err : -EACCES;
}

bool kvct_s3_credentials_renew(struct kvct_s3_credentials *c, uint64_t number, bool sure,
			       uint64_t until_ns)
{
	uint64_t rest = c->from == FROM_FILE ? FILE_AGAIN_NS : sure ? SURE_AGAIN_NS : RETRY_MAX_NS;
	bool newer;

	pthread_mutex_lock(&c->lock);
	while (c->asking && c->number == number && !wait_locked(c, until_ns))
		;
	if (c->number == number && !c->asking && c->from != FROM_ENV && c->from != FROM_NONE &&
	    kvc_mono_ns() - c->asked_ns >= rest)
		ask_locked(c, until_ns);
	newer = c->number != number;
	pthread_mutex_unlock(&c->lock);
	return newer;
}

bool kvct_s3_credentials_none(const struct kvct_s3_credentials *c)
{
	return c->from == FROM_NONE;
}

const char *kvct_s3_credentials_source(const struct kvct_s3_credentials *c)
{
	return c->text;
}

static bool env_copy(const char *name, char *to, size_t capacity)
{
	const char *value = getenv(name);

	return value && *value && !kvct_s3_field(to, capacity, value, strlen(value));
}

/*
 * auth=auto: the order of Amazon's tools. First the URL's file or profile, then the environment, a
 * web identity, a file or profile named by the environment, a container, an instance.
 */
static enum source choose(struct kvct_s3_source *s)
{
	const char *off = getenv("AWS_EC2_METADATA_DISABLED");
	char named[512];

	if (*s->file || *s->profile)
		return FROM_FILE;
	if (getenv("AWS_ACCESS_KEY_ID"))
		return FROM_ENV;
	if (getenv("AWS_WEB_IDENTITY_TOKEN_FILE") && getenv("AWS_ROLE_ARN"))
		return FROM_WEB_IDENTITY;
	if (env_copy("AWS_SHARED_CREDENTIALS_FILE", named, sizeof named) ||
	    env_copy("AWS_PROFILE", named, sizeof named))
		return FROM_FILE;
	if (kvct_s3_has_container())
		return FROM_CONTAINER;
	if ((!off || strcasecmp(off, "true")) &&
	    (s->amazon || getenv("AWS_EC2_METADATA_SERVICE_ENDPOINT")))
		return FROM_INSTANCE;
	return FROM_ENV;
}

static int name_file(struct kvct_s3_source *s, char *error)
{
	const char *home = getenv("HOME");
	int n = 0;

	if (!*s->profile && !env_copy("AWS_PROFILE", s->profile, sizeof s->profile))
		snprintf(s->profile, sizeof s->profile, "default");
	if (!*s->file && !env_copy("AWS_SHARED_CREDENTIALS_FILE", s->file, sizeof s->file)) {
		if (!home) {
			snprintf(error, 512,
				 "option remote: profile= needs credentials=FILE where HOME is not "
				 "set");
			return -EINVAL;
		}
		n = snprintf(s->file, sizeof s->file, "%s/.aws/credentials", home);
	}
	if (n >= (int)sizeof s->file) {
		snprintf(error, 512, "option remote: the path of the credentials is too long");
		return -EINVAL;
	}
	return 0;
}

/*
 * Allocates two logins in memory that is left out of core dumps, and locks it if the limits allow
 * that.
 */
static int alloc_logins(struct kvct_s3_credentials *c)
{
	size_t len = 2 * sizeof *c->now;
	void *p = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	if (p == MAP_FAILED)
		return -ENOMEM;
	if (madvise(p, len, MADV_DONTDUMP)) {
		munmap(p, len);
		return -ENOMEM;
	}
	if (mlock(p, len))
		kvc_warn("tier s3: cannot lock the credentials in memory, so they may be swapped: "
			 "%s",
			 kvc_why(errno));
	madvise(p, len, MADV_WIPEONFORK);
	c->now = p;
	c->next = c->now + 1;
	return 0;
}

static int set_up(struct kvct_s3_credentials *c, char *error)
{
	struct kvct_s3_source *s = &c->source;
	char why[KVC_SECRET_WHY] = "";
	int err = 0;

	if (!*s->auth || !strcmp(s->auth, "auto"))
		c->from = choose(s);
	else
		while (names[c->from] && strcmp(names[c->from], s->auth))
			c->from++;
	if (!names[c->from]) {
		snprintf(error, 512,
			 "option remote: auth=%s is not one of auto, file, env, web-identity, "
			 "container, instance, none",
			 s->auth);
		return -EINVAL;
	}
	if (c->from == FROM_FILE && (err = name_file(s, error)))
		return err;
	if (c->from == FROM_FILE)
		snprintf(c->text, sizeof c->text, "%s", s->file);
	else
		snprintf(c->text, sizeof c->text, "%s",
			 c->from == FROM_ENV ? "the environment" : names[c->from]);
	if (c->from != FROM_FILE && c->from != FROM_ENV && c->from != FROM_NONE)
		return 0; /* a mount does not wait for a network here */
	if ((err = ask_source(c, 0, &c->file, c->now, why))) {
		if (c->from == FROM_FILE)
			snprintf(error, 512, "option remote: %.200s %s", s->file, why);
		else
			snprintf(error, 512, "option remote: s3:// %s", why);
		return err;
	}
	c->number = 1;
	c->got_ns = kvc_now_ns();
	plan_locked(c, kvc_mono_ns());
	return 0;
}

int kvct_s3_credentials_open(struct kvct_s3_credentials **out, const struct kvct_s3_source *source,
			     char *error)
{
	struct kvct_s3_credentials *c = calloc(1, sizeof *c);
	pthread_condattr_t attr;
	int err;

	if (!c || alloc_logins(c)) {
		free(c);
		snprintf(error, 512, "out of memory");
		return -ENOMEM;
	}
	pthread_mutex_init(&c->lock, NULL);
	pthread_condattr_init(&attr);
	pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
	pthread_cond_init(&c->done, &attr);
	pthread_condattr_destroy(&attr);
	c->source = *source;
	if ((err = set_up(c, error))) {
		kvct_s3_credentials_close(c);
		return err;
	}
	*out = c;
	return 0;
}

void kvct_s3_credentials_close(struct kvct_s3_credentials *c)
{
	struct kvct_s3_login *both;

	if (!c)
		return;
	both = c->now < c->next ? c->now : c->next;
	kvc_keys_wipe(both, 2 * sizeof *both);
	munmap(both, 2 * sizeof *both);
	pthread_mutex_destroy(&c->lock);
	pthread_cond_destroy(&c->done);
	free(c);
}
