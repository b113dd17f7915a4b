/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The s3 tier (tiers/s3_http.c) and a server that sends an answer in pieces. Nagle's algorithm
 * holds the last piece back until the previous ones are acknowledged. The tier requests the
 * acknowledgement after the headers and after each part of the body, so that no piece takes 40 ms.
 */
#include "s3_http.h"

#include <arpa/inet.h>
#include <netinet/tcp.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cmocka.h>

#define BODY 4000
#define ASKS 20

static _Atomic unsigned asked;

/* The linker reserves these names (--wrap). */
/* NOLINTBEGIN(bugprone-reserved-identifier) */
int __real_setsockopt(int fd, int level, int name, const void *value, socklen_t len);
int __wrap_setsockopt(int fd, int level, int name, const void *value, socklen_t len);
int __wrap_setsockopt(int fd, int level, int name, const void *value, socklen_t len)
{
	struct sockaddr_in to;
	socklen_t capacity = sizeof to;
	int err = __real_setsockopt(fd, level, name, value, len);

	if (level == IPPROTO_TCP && name == TCP_QUICKACK && *(const int *)value && !err &&
	    !getpeername(fd, (struct sockaddr *)&to, &capacity))
		asked++;
	return err;
}
/* NOLINTEND(bugprone-reserved-identifier) */

static void say(int fd, const char *text, size_t len)
{
	assert_int_equal(send(fd, text, len, MSG_NOSIGNAL), (ssize_t)len);
}

/* Serves one connection: any number of requests, and two pieces for each. */
static void *serve(void *arg)
{
	static const char *const status[] = { "206 Partial Content", "404 Not Found" };
	int fd = accept(*(int *)arg, NULL, NULL);
	char request[4096], head[200], body[BODY];
	size_t have = 0;
	ssize_t n;

	for (unsigned i = 0; (n = recv(fd, request + have, sizeof request - 1 - have, 0)) > 0;) {
		have += (size_t)n;
		request[have] = 0;
		if (!strstr(request, "\r\n\r\n"))
			continue;
		have = 0;
		n = snprintf(body, sizeof body, "<Code>NoSuchKey</Code>");
		memset(body + n, 'x', sizeof body - (size_t)n);
		snprintf(head, sizeof head, "HTTP/1.1 %s\r\nContent-Length: %d\r\n\r\n",
			 status[i++ % 2], BODY);
		say(fd, head, strlen(head));
		say(fd, body, sizeof body / 2);
		say(fd, body + sizeof body / 2, sizeof body / 2);
	}
	close(fd);
	return NULL;
}

static void at_once(void **state)
{
	const struct kvct_s3_source unsigned_ = { .auth = "none" };
	char error[512];
	struct kvct_s3 s = {
		.lock = PTHREAD_MUTEX_INITIALIZER,
		.region = "here",
		.place = { { .root = "/b" } },
		.deadline_ms = 60000,
	};
	struct sockaddr_in at = {
		.sin_family = AF_INET,
		.sin_addr.s_addr = htonl(INADDR_LOOPBACK),
	};
	socklen_t len = sizeof at;
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	uint64_t began;
	pthread_t server;

	(void)state;
	assert_int_equal(bind(fd, (struct sockaddr *)&at, len), 0);
	assert_int_equal(listen(fd, 1), 0);
	assert_int_equal(getsockname(fd, (struct sockaddr *)&at, &len), 0);
	assert_int_equal(pthread_create(&server, NULL, serve, &fd), 0);
	assert_int_equal(kvct_s3_credentials_open(&s.credentials, &unsigned_, error), 0);
	snprintf(s.place[0].host, sizeof s.place[0].host, "127.0.0.1:%u", ntohs(at.sin_port));
	snprintf(s.place[0].server, sizeof s.place[0].server, "http://%s", s.place[0].host);
	began = kvc_mono_ns();
	for (unsigned i = 0; i < ASKS; i++) {
		char body[BODY];
		struct iovec v = { body, sizeof body };
		struct kvct_s3_request q = { .method = "GET", .to = BODY - 1, .iov = &v, .n = 1 };
		unsigned before = asked;

		snprintf(q.key, sizeof q.key, "k");
		assert_int_equal(kvct_s3_ask(&s, &q), i % 2 ? -ENOENT : 0);
		assert_true(q.got == (i % 2 ? 0 : BODY));
		assert_true(asked >= before + 2); /* the headers, and at least one part */
		free(q.text);
	}
	print_message("%llu us each\n", (unsigned long long)(kvc_mono_ns() - began) / 1000 / ASKS);
	assert_int_equal(s.nidle, 1); /* all on one connection */
	kvct_s3_close_idle(&s);
	kvct_s3_credentials_close(s.credentials);
	pthread_join(server, NULL);
	close(fd);
}

int main(void)
{
	const struct CMUnitTest tests[] = { cmocka_unit_test(at_once) };

	return cmocka_run_group_tests(tests, NULL, NULL);
}
