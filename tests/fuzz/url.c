/* SPDX-License-Identifier: Apache-2.0 */
/*
 * URLs of remotes: a parsed URL can be assembled and parsed again as the same, and a tier opens
 * with it or is refused with one line. No connection is made.
 *
 * Input: the text.
 * Longest input: 1000
 * Covers: tiers/registry.c, tiers/dir.c, tiers/redis_open.c, tiers/s3.c
 */
#include "fuzz.h"
#include "registry.h"

int __wrap_kvct_redis_dial(const char *host, int port, uint64_t until_ns, unsigned give_up_ms,
			   int *fd, const char **why);

int __wrap_kvct_redis_dial(const char *host, int port, uint64_t until_ns, unsigned give_up_ms,
			   int *fd, const char **why)
{
	(void)host;
	(void)port;
	(void)until_ns;
	(void)give_up_ms;
	(void)fd;
	*why = "nobody is there";
	return -ECONNREFUSED;
}

int LLVMFuzzerInitialize(int *argc, char ***argv)
{
	(void)argc;
	(void)argv;
	setenv("AWS_ACCESS_KEY_ID", "id", 1);
	setenv("AWS_SECRET_ACCESS_KEY", "secret", 1);
	unsetenv("AWS_SESSION_TOKEN");
	return 0;
}

static void again(const struct kvct_url *u)
{
	static char text[2048];
	struct kvct_url b;
	bool six = strchr(u->host, ':');
	char error[512], port[16];

	snprintf(port, sizeof port, ":%u", u->port);
	snprintf(text, sizeof text, "%s://%s%s%s%s%s%s/%s%s%s", u->scheme, u->user,
		 *u->user ? "@" : "", six ? "[" : "", u->host, six ? "]" : "", u->port ? port : "",
		 u->path, *u->query ? "?" : "", u->query);
	fuzz_must(!kvct_url_parse(text, &b, error));
	fuzz_must(!memcmp(u, &b, sizeof b));
}

static void open_it(const char *text)
{
	static struct kvc_options o;
	struct kvc_tier *tiers[KVCT_MAX];
	char error[512];
	unsigned n = 0;
	int err;

	kvc_options_init(&o);
	o.disk = 0;
	snprintf(o.remote, sizeof o.remote, "%s", text);
	err = kvct_open_all(NULL, &o, tiers, &n, error);
	fuzz_must(err ? !n && *error && !strchr(error, '\n') : n > 0);
	for (unsigned i = 0; i < n; i++)
		fuzz_must(*tiers[i]->id && tiers[i]->codec <= KVC_CODEC_CHOICES);
	kvct_close_all(tiers, n);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct fuzz_in in = { data, size };
	char *text = fuzz_text(&in, '\n'), error[512] = "", value[512];
	struct kvct_url u;

	if (!kvct_url_parse(text, &u, error)) {
		fuzz_must(*u.scheme || !strncmp(text, "://", 3));
		kvct_url_get(&u, "also", value, sizeof value);
		again(&u);
		/* the files it names are on this machine, and reading certificates is slow */
		if (!strstr(text, "rediss") && !strstr(text, "_file") && !strstr(text, "creden"))
			open_it(text);
	} else {
		fuzz_must(*error);
	}
	free(text);
	return 0;
}
