/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The redis tier with a server that answers as the input says: every call ends, and stores no more
 * of the answer than it requested. Connections are in memory, and waiting takes no time.
 *
 * Input: a byte (bit 0: a cluster; then the call, and whether its payload is more than inline),
 * then answers: a byte of kind, two bytes of length if it has one, and the bytes.
 * Longest input: 16384
 * Covers: tiers/redis.c, tiers/pieces.c, tiers/redis_conn.c, tiers/redis_cluster.c,
 * tiers/redis_have.c, tiers/redis_list.c, tiers/redis_pipe.c, tiers/redis_reply.c
 */
#include "fuzz.h"
#include "redis_conn.h"
#include "registry.h"

#include <sys/socket.h>

int __wrap_kvct_redis_dial(const char *host, int port, uint64_t until_ns, unsigned give_up_ms,
			   int *fd, const char **why);
redisContext *__wrap_kvct_redis_context(int fd);
uint64_t __wrap_kvc_mono_ns(void);
int __wrap_usleep(unsigned us);

static struct fuzz_in answers;
static char *stream; /* one answer, as it is sent */
static size_t stream_len, stream_at;
static uint64_t now_ns;
static unsigned reads; /* that returned bytes */

uint64_t __wrap_kvc_mono_ns(void)
{
	return now_ns += 1000000;
}

int __wrap_usleep(unsigned us)
{
	now_ns += us * 1000ull;
	return 0;
}

/* Reads the next answer from the input. Returns false at the end, and the connection closes. */
static bool next_answer(void)
{
	static const char *const words[] = {
		"-MOVED 1 other:7000\r\n",
		"-ASK 2 :7001\r\n",
		"-TRYAGAIN\r\n",
		"-OOM command not allowed\r\n",
		"+OK\r\n",
		"$-1\r\n",
		"*-1\r\n",
		"_\r\n",
	};
	unsigned kind;
	uint8_t *bytes;
	size_t len;
	FILE *f;

	if (!answers.n)
		return false;
	free(stream);
	f = open_memstream(&stream, &stream_len);
	fuzz_must(f);
	kind = (unsigned)fuzz_number(&answers, 1);
	stream_at = 0;
	if (kind % 8 == 0) {
		fputs(words[kind / 8 % 8], f);
	} else if (kind % 8 == 1) {
		fprintf(f, ":%lld\r\n", (long long)(int32_t)fuzz_number(&answers, 4));
	} else if (kind % 8 == 2) {
		fprintf(f, "*%u\r\n", kind / 8);
	} else {
		len = fuzz_number(&answers, 2);
		len = len < answers.n ? len : answers.n;
		bytes = fuzz_bytes(&answers, len);
		if (kind % 8 < 6) /* a string of that length; other kinds are sent unchanged */
			fprintf(f, "$%zu\r\n", len);
		else if (kind % 8 == 6)
			fputc('-', f);
		fwrite(bytes, 1, len, f);
		if (kind % 8 < 7)
			fputs("\r\n", f);
		free(bytes);
	}
	fuzz_must(!fclose(f));
	return true;
}

static ssize_t on_read(redisContext *c, char *buf, size_t len)
{
	if (stream_at == stream_len && !next_answer()) {
		c->err = REDIS_ERR_EOF;
		snprintf(c->errstr, sizeof c->errstr, "the input has ended");
		return -1;
	}
	if (len > stream_len - stream_at)
		len = stream_len - stream_at;
	memcpy(buf, stream + stream_at, len);
	stream_at += len;
	reads++;
	return (ssize_t)len;
}

/* Everything is written at once. */
static ssize_t on_write(redisContext *c)
{
	return (ssize_t)sdslen(c->obuf);
}

int __wrap_kvct_redis_dial(const char *host, int port, uint64_t until_ns, unsigned give_up_ms,
			   int *fd, const char **why)
{
	(void)host;
	(void)port;
	(void)until_ns;
	(void)give_up_ms;
	*why = "the input has ended";
	if (!answers.n && stream_at == stream_len)
		return -ECONNREFUSED;
	*fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
	fuzz_must(*fd >= 0);
	return 0;
}

redisContext *__wrap_kvct_redis_context(int fd)
{
	static redisContextFuncs funcs;
	redisContext *c = redisConnectFd(fd);

	fuzz_must(c);
	c->flags &= ~REDIS_BLOCK;
	funcs = *c->funcs;
	funcs.read = on_read;
	funcs.write = on_write;
	c->funcs = &funcs;
	return c;
}

static struct kvc_tier *open_tier(const char *text)
{
	struct kvct_url u;
	struct kvc_tier *t;
	char error[512];

	fuzz_must(!kvct_url_parse(text, &u, error) && !kvct_redis_open(&u, 100, &t, error));
	return t;
}

static int body(void *arg, void *buf, size_t len, uint64_t off)
{
	(void)arg;
	memset(buf, (int)off, len);
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
	fuzz_must(!w || memchr(f->path, 0, sizeof f->path));
	return ++*(unsigned *)arg > 100;
}

/* Reads bytes with answers of that length for the requested pieces. */
static void get(struct kvc_tier *t, const struct kvc_where *w, uint64_t off, size_t len)
{
	uint8_t *page = malloc(KVC_PAGE), *bytes = malloc(len ? len : 1);
	struct iovec iov[2] = { { page, KVC_PAGE }, { bytes, len } };

	fuzz_must(page && bytes);
	t->ops->get(t, w, off, off ? iov + 1 : iov, off ? 1 : len ? 2 : 1);
	free(page);
	free(bytes);
}

/* More names than are asked for at once. */
static void have(struct kvc_tier *t)
{
	static struct kvc_where w[600];
	static const char *path[600];
	static bool has[600];

	for (size_t i = 0; i < 600; i++)
		w[i] = (struct kvc_where){ .at = i * 0x9e3779b97f4a7c15, .hi = i };
	t->ops->have(t, w, path, 600, has);
	for (size_t i = 0; i < 600; i++)
		fuzz_must(has[i] == !!has[i]);
}

static void call(struct kvc_tier *t, unsigned which)
{
	const struct kvc_where w = { .at = 0x0123456789abcdef, .hi = 0xfedcba9876543210 };
	struct kvc_put p = { .stored_len = which & 8 ? 70000 : 100, .read = body, .head = head };
	struct kvc_where out;
	unsigned n = 0;

	p.name = w;
	reads = 0;
	switch (which & 7) {
	case 0: get(t, &w, 0, 0); break;
	case 1: get(t, &w, 0, which & 8 ? 69632 : KVC_PAGE); break;
	case 2: get(t, &w, KVC_PAGE, KVC_PAGE); break;
	case 3: t->ops->put(t, &p, &out); break;
	case 4: t->ops->remove(t, &w); break;
	case 5: /* a server without answers has no listing; the listing is not empty */
		fuzz_must(t->ops->list(t, listed, &n) || reads);
		break;
	case 6: kvct_redis_learn(kvc_of(t, struct kvct_redis, tier), now_ns + 100000000); break;
	case 7: have(t); break;
	}
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	unsigned which;

	answers = (struct fuzz_in){ data, size };
	stream_at = stream_len = 0;
	which = (unsigned)fuzz_number(&answers, 1);

	/* a new tier each time, since it remembers nodes */
	struct fuzz_in keep = answers;

	answers.n = 0;
	struct kvc_tier *t = open_tier(which & 1 ? "redis+cluster://h:1/p?also=i:2"
						 : "redis://h/p");

	answers = keep;
	now_ns = 0;
	call(t, which >> 1);
	call(t, which >> 5); /* with connections that were used before */
	t->ops->close(t);
	free(stream);
	stream = NULL;
	stream_at = stream_len = 0;
	return 0;
}
