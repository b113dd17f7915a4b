/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Opens the redis tier from its URL:
 *
 *   redis://[USER@]HOST[:PORT]/[PREFIX]
 *   redis:///[PREFIX]?socket=PATH (a Unix socket)
 *   rediss:// the same with TLS
 *   redis+cluster://, rediss+cluster:// a cluster by one of its nodes
 *   ?also=HOST:PORT+HOST:PORT (other nodes to begin with)
 *   ?password_file=PATH  ?db=N  ?ca=PATH  ?cert=PATH&key=PATH
 */
#include "log.h"
#include "redis_conn.h"
#include "registry.h"

#include <ctype.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

#define PREFIX_MOST 200 /* bytes; keys and patterns contain it */
#define DB_MOST 1000000
#define FIRST_NS 1000000000ull /* how long a mount waits for the server's first answer */

void kvct_redis_close(struct kvc_tier *t)
{
	struct kvct_redis *r = kvc_of(t, struct kvct_redis, tier);

	for (unsigned i = 0; i < r->nnodes; i++)
		while (r->nodes[i].nidle)
			kvct_redis_conn_free(r->nodes[i].idle[--r->nodes[i].nidle]);
	kvct_redis_tls_close(r->tls);
	kvc_keys_wipe(r->password, sizeof r->password);
	pthread_mutex_destroy(&r->lock);
	free(r);
}

static int add_seed(struct kvct_redis *r, const char *host, int port, char *error)
{
	int n = kvct_redis_node_locked(r, host, port);

	if (n < 0) {
		snprintf(error, 512, "option remote: '%.200s' is not a host for redis", host);
		return -EINVAL;
	}
	r->nodes[n].seed = true;
	return 0;
}

static int redis_set_prefix(struct kvct_redis *r, const char *path, char *error)
{
	const char *prefix = *path ? path : "kvcachefs";

	if (strpbrk(prefix, "{}")) {
		snprintf(error, 512,
			 "option remote: a Redis prefix cannot contain { or }; choose another "
			 "prefix");
		return -EINVAL;
	}
	for (const char *p = prefix; *p; p++)
		if (iscntrl((unsigned char)*p)) {
			snprintf(error, 512,
				 "option remote: the prefix contains a control character; remove "
				 "it");
			return -EINVAL;
		}
	if (strlen(prefix) > PREFIX_MOST) {
		snprintf(error, 512,
			 "option remote: the prefix is longer than %d bytes; choose a shorter one",
			 PREFIX_MOST);
		return -EINVAL;
	}
	snprintf(r->prefix, sizeof r->prefix, "%s", prefix);
	return 0;
}

static int set_db(struct kvct_redis *r, const struct kvct_url *u, char *error)
{
	char value[512], *end;
	unsigned long db;

	if (!kvct_url_has(u, "db"))
		return 0;
	kvct_url_get(u, "db", value, sizeof value);
	db = isdigit((unsigned char)*value) ? strtoul(value, &end, 10) : DB_MOST + 1;
	if (db > DB_MOST || *end) {
		snprintf(error, 512,
			 "option remote: db=%.60s is not the number of a database (0 to 15 in most "
			 "servers)",
			 value);
		return -EINVAL;
	}
	if (db && r->cluster) {
		snprintf(error, 512, "option remote: a cluster does not support db=; leave it out");
		return -EINVAL;
	}
	r->db = (int)db;
	return 0;
}

/* Adds the servers of the URL. */
static int set_seeds(struct kvct_redis *r, const struct kvct_url *u, char *error)
{
	char value[512], path[512];
	int err;

	kvct_url_get(u, "socket", path, sizeof path);
	if (*path && (*path != '/' || *u->host || strcmp(u->scheme, "redis"))) {
		snprintf(error, 512,
			 "option remote: socket= must be an absolute path, in a redis:// URL "
			 "without a host");
		return -EINVAL;
	}
	if (!*path && !*u->host) {
		snprintf(error, 512, "option remote: %s:// needs a host after it", u->scheme);
		return -EINVAL;
	}
	err = add_seed(r, *path ? path : u->host, *path ? 0 : u->port ? (int)u->port : 6379, error);
	kvct_url_get(u, "also", value, sizeof value);
	for (char *save = NULL, *seed = strtok_r(value, "+", &save); seed && r->cluster && !err;
	     seed = strtok_r(NULL, "+", &save)) {
		char *colon = strrchr(seed, ':');

		if (colon)
			*colon = 0;
		err = add_seed(r, seed, colon ? atoi(colon + 1) : 6379, error);
	}
	return err;
}

/* Returns the number at the start of *text, and moves *text past it. */
static unsigned parse_number(const char **text)
{
	char *end;
	unsigned long n = strtoul(*text, &end, 10);

	*text = end;
	return (unsigned)kvc_min(n, 1000000);
}

/* Asks the server once at mount, to report problems before the first copy does. */
static void first_answer(struct kvct_redis *r)
{
	struct kvct_redis_command info = { .most = 64u << 10 };
	redisReply *reply;
	const char *v;
	int err;

	command_word(&info, "INFO");
	command_word(&info, "server");
	err = kvct_redis_ask_node(r, 0, &info, kvc_mono_ns() + FIRST_NS, &reply);
	if (err == -ETIMEDOUT || err == -EHOSTUNREACH || err == -EHOSTDOWN)
		kvc_warn("tier redis: %s does not answer; the next access tries again",
			 r->nodes[0].host);
	if (err)
		return;
	if (reply->type == REDIS_REPLY_STRING && (v = strstr(reply->str, "redis_version:"))) {
		v += strlen("redis_version:");
		unsigned major = parse_number(&v), minor = *v == '.' ? (v++, parse_number(&v)) : 0;

		if (major < 6 || (major == 6 && minor < 2))
			kvc_warn("tier redis: %s is Redis %u.%u; 6.2 or later, or Valkey, is "
				 "needed to store there",
				 r->nodes[0].host, major, minor);
	}
	if (reply->type == REDIS_REPLY_STRING && strstr(reply->str, "redis_mode:cluster"))
		kvc_warn("tier redis: %s is part of a cluster: mount with redis+cluster://",
			 r->nodes[0].host);
	freeReplyObject(reply);
}

static void redis_set_id(struct kvct_redis *r)
{
	char id[sizeof r->nodes[0].host + sizeof r->prefix + 64];

	snprintf(id, sizeof id, "redis:%s:%d/%d/%s", r->nodes[0].host, r->nodes[0].port, r->db,
		 r->prefix);
	kvct_set_id(&r->tier, id);
}

int kvct_redis_open(const struct kvct_url *u, uint64_t deadline_ms, struct kvc_tier **out,
		    char *error)
{
	static const char *const params[] = {
		"password_file", "db", "ca", "cert", "key", "also", "socket", NULL,
	};
	static const char *const files[] = { "password_file", "ca", "cert", "key" };
	struct kvct_redis *r;
	int err;

	if ((err = kvct_url_check(u, params, error)))
		return err;
	r = calloc(1, sizeof *r);
	if (!r) {
		snprintf(error, 512, "out of memory");
		return -ENOMEM;
	}
	pthread_mutex_init(&r->lock, NULL);
	r->label = "tier redis";
	r->deadline_ms = deadline_ms;
	r->cluster = strstr(u->scheme, "+cluster");
	memcpy(r->user, u->user, sizeof r->user);
	for (int i = 0; i < KVCT_REDIS_FILES; i++)
		kvct_url_get(u, files[i], r->files.path[i], sizeof r->files.path[i]);
	err = redis_set_prefix(r, u->path, error) ?: set_db(r, u, error) ?: set_seeds(r, u, error);
	err = err ?: kvct_redis_files_load(r, has_prefix(u->scheme, "rediss"), error);
	if (err) {
		kvct_redis_close(&r->tier);
		return err;
	}
	redis_set_id(r);
	if (!r->cluster)
		first_answer(r);
	else if (kvct_redis_learn(r, kvc_mono_ns() + FIRST_NS))
		kvc_warn("tier redis: the cluster at %s does not answer; the next access tries "
			 "again",
			 u->host);
	r->tier.ops = &kvct_redis_ops;
	*out = &r->tier;
	return 0;
}

/* hiredis does not report its version at run time. */
#define TEXT_OF(n) #n
#define VERSION_OF(a, b, c) TEXT_OF(a) "." TEXT_OF(b) "." TEXT_OF(c)

struct kvc_library kvct_library_hiredis(void)
{
	return (struct kvc_library){ "hiredis",
				     VERSION_OF(HIREDIS_MAJOR, HIREDIS_MINOR, HIREDIS_PATCH),
				     (const void *)redisConnectWithOptions };
}
