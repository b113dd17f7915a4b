/* SPDX-License-Identifier: Apache-2.0 */
/*
 * metrics=ADDR:PORT: what .kvcachefs/metrics says, by HTTP, for Prometheus. One thread of
 * libmicrohttpd's, and no more than GET /metrics.
 *
 * Who connects and says nothing is let go after IDLE_S. Who says a byte now and then stays, so one
 * user of this machine who is not root, or one address, has PEER_CONNECTIONS at most, and the
 * others are answered; one more is closed at once.
 */
#include "fs.h"

#include "log.h"
#include "peer.h"

#include <microhttpd.h>
#include <netdb.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CONNECTIONS 512u
#define PEER_CONNECTIONS 64u
#define CONNECTION_BYTES ((size_t)8192)
#define IDLE_S 3u

#if MHD_VERSION < 0x00097002
typedef int mhd_result;
#else
typedef enum MHD_Result mhd_result;
#endif

static mhd_result answer(void *arg, struct MHD_Connection *c, const char *url, const char *method,
			 const char *version, const char *upload, size_t *upload_size, void **state)
{
	static const char none[] = "see /metrics\n";
	struct kvfs *f = arg;
	struct MHD_Response *r;
	char *text = NULL;
	size_t len = 0;
	FILE *out;
	mhd_result result;

	(void)version;
	(void)upload;
	(void)upload_size;
	(void)state;
	if (strcmp(method, "GET") || strcmp(url, "/metrics")) {
		r = MHD_create_response_from_buffer(sizeof none - 1, (void *)(uintptr_t)none,
						    MHD_RESPMEM_PERSISTENT);
		result = MHD_queue_response(c, MHD_HTTP_NOT_FOUND, r);
	} else {
		out = open_memstream(&text, &len);
		if (!out)
			return MHD_NO;
		kvc_print_metrics(f->k, out);
		fclose(out);
		r = MHD_create_response_from_buffer(len, text, MHD_RESPMEM_MUST_FREE);
		MHD_add_response_header(r, "Content-Type", "text/plain; version=0.0.4");
		result = MHD_queue_response(c, MHD_HTTP_OK, r);
	}
	MHD_destroy_response(r);
	return result;
}

/* Those that are there, by who it is. Of libmicrohttpd's thread alone. */
static struct caller {
	struct kvfs_peer peer;
	unsigned n; /* 0: free */
} callers[CONNECTIONS];

/* Who it is now has one more. NULL: he has too many, or is not there any more. */
static struct caller *arrive(int fd)
{
	struct caller *c = NULL;
	struct kvfs_peer p;

	if (kvfs_peer_of(fd, &p))
		return NULL;
	for (size_t i = 0; i < CONNECTIONS; i++) {
		if (callers[i].n && kvfs_peer_same(&callers[i].peer, &p)) {
			c = &callers[i];
			break;
		}
		if (!callers[i].n && !c)
			c = &callers[i];
	}
	if (!c || (c->n >= PEER_CONNECTIONS && !(p.local && !p.uid)))
		return NULL;
	c->peer = p;
	c->n++;
	return c;
}

static void on_connection(void *arg, struct MHD_Connection *connection, void **context,
			  enum MHD_ConnectionNotificationCode what)
{
	const union MHD_ConnectionInfo *info;
	struct caller *c = *context;

	(void)arg;
	if (what == MHD_CONNECTION_NOTIFY_STARTED) {
		info = MHD_get_connection_info(connection, MHD_CONNECTION_INFO_CONNECTION_FD);
		*context = c = info ? arrive(info->connect_fd) : NULL;
		if (!c && info)
			shutdown(info->connect_fd, SHUT_RDWR);
	} else if (c) {
		c->n--;
	}
}

int kvfs_metrics_start(struct kvfs *f, const char *where)
{
	char host[64];
	const char *colon = strrchr(where, ':');
	struct addrinfo hints = { .ai_socktype = SOCK_STREAM,
				  .ai_flags = AI_PASSIVE | AI_NUMERICHOST },
			*a = NULL;

	if (!*where)
		return 0;
	snprintf(host, sizeof host, "%.*s", colon ? (int)(colon - where) : 0, where);
	if (*host == '[' && host[strlen(host) - 1] == ']') {
		memmove(host, host + 1, strlen(host));
		host[strlen(host) - 1] = 0;
	}
	if (!colon || getaddrinfo(*host ? host : NULL, colon + 1, &hints, &a) || !a) {
		kvc_error("option metrics: '%s' is not ADDR:PORT such as 127.0.0.1:9464", where);
		return -EINVAL;
	}
	f->metrics = MHD_start_daemon(
		MHD_USE_AUTO_INTERNAL_THREAD | (a->ai_family == AF_INET6 ? MHD_USE_IPv6 : 0), 0,
		NULL, NULL, answer, f, MHD_OPTION_SOCK_ADDR, a->ai_addr,
		MHD_OPTION_CONNECTION_LIMIT, CONNECTIONS, MHD_OPTION_CONNECTION_MEMORY_LIMIT,
		CONNECTION_BYTES, MHD_OPTION_CONNECTION_TIMEOUT, IDLE_S,
		MHD_OPTION_NOTIFY_CONNECTION, on_connection, NULL, MHD_OPTION_END);
	freeaddrinfo(a);
	if (!f->metrics) {
		kvc_error("option metrics: cannot listen on %s: %s", where, strerror(errno));
		return -EADDRINUSE;
	}
	return 0;
}

void kvfs_metrics_stop(struct kvfs *f)
{
	if (f->metrics)
		MHD_stop_daemon(f->metrics);
	f->metrics = NULL;
}
