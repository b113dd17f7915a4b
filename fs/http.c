/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The HTTP endpoint of metrics=ADDR:PORT: metrics for Prometheus, health probes, and a status page.
 * It is served by one thread of libmicrohttpd, which only reads the engine's state. `routes` is the
 * table of paths. Each answer is generated for its request, and libmicrohttpd frees it.
 *
 * A silent connection is closed after IDLE_S. http_peers.h limits the connections of each peer and
 * the time of each request. A request's line and headers are limited to CONNECTION_BYTES; a body is
 * not read.
 *
 * With metrics_token=, every path that shows state requires the token. The page itself contains no
 * state; it asks its reader for the token. Without metrics_token=, the paths that show state answer
 * only if the Host header is one that another web site cannot have (http_host.h).
 */
#include "fs.h"

#include "http_address.h"
#include "http_host.h"
#include "http_peers.h"
#include "log.h"

#include <microhttpd.h>
#include <netdb.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* more than the rows in http_peers.c, because connections that are being closed still count */
#define CONNECTIONS 1024u
#define CONNECTION_BYTES ((size_t)8192)
#define IDLE_S 3u

static const struct kvfs_peers_limits limits = {
	.most = 512, .each = 64, .exempts_operators = true, .request_s = 10
};

#if MHD_VERSION < 0x00097002
typedef int mhd_result;
#else
typedef enum MHD_Result mhd_result;
#endif

/* ---- routes ---- */

static unsigned get_metrics(struct kvfs *f, FILE *out)
{
	kvfs_print_metrics(f, out);
	return MHD_HTTP_OK;
}

static unsigned get_status(struct kvfs *f, FILE *out)
{
	kvfs_print_status(f, out);
	return MHD_HTTP_OK;
}

static unsigned get_alive(struct kvfs *f, FILE *out)
{
	(void)f;
	fputs("alive\n", out);
	return MHD_HTTP_OK;
}

static unsigned get_ready(struct kvfs *f, FILE *out)
{
	const char *why = kvfs_unready(f);

	fprintf(out, "%s\n", why ?: "ready");
	return why ? MHD_HTTP_SERVICE_UNAVAILABLE : MHD_HTTP_OK;
}

static unsigned get_page(struct kvfs *f, FILE *out)
{
	(void)f;
	fwrite(kvfs_page, 1, (size_t)(kvfs_page_end - kvfs_page), out);
	return MHD_HTTP_OK;
}

static unsigned reply_not_found(struct kvfs *f, FILE *out)
{
	(void)f;
	fputs("not found: the pages are /, /metrics, /status.json, /healthz and /readyz\n", out);
	return MHD_HTTP_NOT_FOUND;
}

static unsigned reply_bad_method(struct kvfs *f, FILE *out)
{
	(void)f;
	fputs("method not allowed: use GET or HEAD\n", out);
	return MHD_HTTP_METHOD_NOT_ALLOWED;
}

static unsigned reply_no_token(struct kvfs *f, FILE *out)
{
	(void)f;
	fputs("the token is missing or wrong: send the token of metrics_token= as Authorization: "
	      "Bearer TOKEN\n",
	      out);
	return MHD_HTTP_UNAUTHORIZED;
}

static unsigned reply_bad_host(struct kvfs *f, FILE *out)
{
	(void)f;
	fputs("the host name is refused, because another web site could use it to read this page: "
	      "use an IP address, localhost or this machine's own name, or mount with "
	      "metrics_token=\n",
	      out);
	return MHD_HTTP_FORBIDDEN;
}

#define TEXT "text/plain; charset=utf-8"

static const struct route {
	const char *path, *type;
	unsigned (*print)(struct kvfs *f, FILE *out); /* returns the HTTP status */
	bool needs_token;                             /* the path shows state */
} routes[] = {
	{ "/", "text/html; charset=utf-8", get_page, false },
	{ "/metrics", "text/plain; version=0.0.4; charset=utf-8", get_metrics, true },
	{ "/status.json", "application/json", get_status, true },
	{ "/healthz", TEXT, get_alive, false },
	{ "/readyz", TEXT, get_ready, false },
};
static const struct route not_found = { NULL, TEXT, reply_not_found, false };
static const struct route not_allowed = { NULL, TEXT, reply_bad_method, false };
static const struct route not_authorized = { NULL, TEXT, reply_no_token, false };
static const struct route bad_host = { NULL, TEXT, reply_bad_host, false };

/*
 * Returns the path of the request's URL. If a proxy's request contains an absolute URL (RFC 9112,
 * 3.2.2), the URL's host is copied to host[capacity] and replaces the Host header; otherwise *host
 * is empty.
 */
static const char *path_of(const char *url, char *host, size_t capacity)
{
	const char *at = strstr(url, "://"), *slash;

	*host = 0;
	if (*url == '/' || !at)
		return url;
	at += 3;
	slash = strchr(at, '/');
	snprintf(host, capacity, "%.*s", slash ? (int)(slash - at) : (int)strlen(at), at);
	return slash ?: "/";
}

static const struct route *route_of(const struct kvfs *f, struct MHD_Connection *c, const char *url,
				    const char *method)
{
	const struct route *r = &not_found;
	char host[NI_MAXHOST], token[KVFS_TOKEN_MAX + 1];

	if (strcmp(method, "GET") != 0 && strcmp(method, "HEAD") != 0)
		return &not_allowed;
	url = path_of(url, host, sizeof host);
	for (size_t i = 0; i < sizeof routes / sizeof routes[0]; i++)
		if (!strcmp(url, routes[i].path))
			r = &routes[i];
	if (!r->needs_token)
		return r;
	if (!kvfs_token_now(f->http, token))
		return kvfs_host_is_private(*host ? host
						  : MHD_lookup_connection_value(c, MHD_HEADER_KIND,
										"Host"))
			       ? r
			       : &bad_host;
	if (!kvfs_token_is(token, MHD_lookup_connection_value(c, MHD_HEADER_KIND, "Authorization")))
		r = &not_authorized;
	explicit_bzero(token, sizeof token);
	return r;
}

static mhd_result answer(void *arg, struct MHD_Connection *c, const char *url, const char *method,
			 const char *version, const char *upload, size_t *upload_size, void **state)
{
	struct kvfs *f = arg;
	const struct route *route = route_of(f, c, url, method);
	struct MHD_Response *r;
	char *text = NULL;
	size_t len = 0;
	FILE *out = open_memstream(&text, &len);
	unsigned code;
	mhd_result result;

	(void)version;
	(void)upload;
	(void)upload_size;
	(void)state;
	if (!out)
		return MHD_NO;
	code = route->print(f, out);
	if (fclose(out)) {
		free(text);
		return MHD_NO;
	}
	r = MHD_create_response_from_buffer(len, text, MHD_RESPMEM_MUST_FREE);
	if (!r) {
		free(text);
		return MHD_NO;
	}
	MHD_add_response_header(r, "Content-Type", route->type);
	MHD_add_response_header(r, "Cache-Control", "no-store");
	MHD_add_response_header(r, "X-Content-Type-Options", "nosniff");
	MHD_add_response_header(r, "Referrer-Policy", "no-referrer");
	MHD_add_response_header(r, "Content-Security-Policy",
				route->print == get_page ? f->http->csp : "default-src 'none'");
	if (route == &not_allowed)
		MHD_add_response_header(r, "Allow", "GET, HEAD");
	if (route == &not_authorized)
		MHD_add_response_header(r, "WWW-Authenticate", "Bearer");
	result = MHD_queue_response(c, code, r);
	MHD_destroy_response(r);
	return result;
}

/* ---- connections ---- */

static void on_connection(void *arg, struct MHD_Connection *connection, void **context,
			  enum MHD_ConnectionNotificationCode what)
{
	const union MHD_ConnectionInfo *info;

	if (what == MHD_CONNECTION_NOTIFY_STARTED) {
		info = MHD_get_connection_info(connection, MHD_CONNECTION_INFO_CONNECTION_FD);
		*context = info ? kvfs_peers_arrive(arg, info->connect_fd) : NULL;
		if (!*context && info)
			shutdown(info->connect_fd, SHUT_RDWR);
	} else if (*context) {
		kvfs_peers_leave(*context);
	}
}

static void on_answered(void *arg, struct MHD_Connection *connection, void **request,
			enum MHD_RequestTerminationCode how)
{
	const union MHD_ConnectionInfo *info =
		MHD_get_connection_info(connection, MHD_CONNECTION_INFO_SOCKET_CONTEXT);

	(void)arg;
	(void)request;
	(void)how;
	if (info && info->socket_context)
		kvfs_peers_answered(info->socket_context);
}

/* True for an address that only this machine can reach. */
static bool is_loopback(const struct sockaddr *a)
{
	const struct in6_addr *v6 = &((const struct sockaddr_in6 *)a)->sin6_addr;

	if (a->sa_family == AF_INET)
		return ntohl(((const struct sockaddr_in *)a)->sin_addr.s_addr) >> 24 == 127;
	return IN6_IS_ADDR_LOOPBACK(v6) || (IN6_IS_ADDR_V4MAPPED(v6) && v6->s6_addr[12] == 127);
}

static int start_server(struct kvfs *f, const char *where)
{
	struct addrinfo *a = NULL;
	int err = kvfs_address_parse("metrics", where, &a);
	bool open_to_all;

	if (err)
		return err;
	open_to_all = !is_loopback(a->ai_addr) && !*f->http->token.text;
	f->http->daemon = MHD_start_daemon(
		MHD_USE_AUTO_INTERNAL_THREAD | (a->ai_family == AF_INET6 ? MHD_USE_IPv6 : 0), 0,
		NULL, NULL, answer, f, MHD_OPTION_SOCK_ADDR, a->ai_addr,
		MHD_OPTION_CONNECTION_LIMIT, CONNECTIONS, MHD_OPTION_CONNECTION_MEMORY_LIMIT,
		CONNECTION_BYTES, MHD_OPTION_CONNECTION_TIMEOUT, IDLE_S,
		MHD_OPTION_NOTIFY_CONNECTION, on_connection, f->http->peers,
		MHD_OPTION_NOTIFY_COMPLETED, on_answered, NULL, MHD_OPTION_END);
	freeaddrinfo(a);
	if (!f->http->daemon) {
		kvc_error("option metrics: cannot listen on %s: %s; give an address of this "
			  "machine and a free port",
			  where, strerror(errno));
		return -EADDRINUSE;
	}
	if (open_to_all)
		kvc_warn("metrics=%s is reachable from other machines without a token: set "
			 "metrics_token=, or use the address 127.0.0.1",
			 where);
	return 0;
}

int kvfs_http_start(struct kvfs *f, const struct kvc_options *o)
{
	int err;

	if (!*o->metrics) {
		if (*o->metrics_token)
			kvc_warn("option metrics_token needs metrics=: add metrics=ADDR:PORT, or "
				 "remove metrics_token=");
		return 0;
	}
	f->http = calloc(1, sizeof *f->http);
	if (!f->http)
		return -ENOMEM;
	f->http->begun_ns = kvc_mono_ns();
	kvfs_page_policy(f->http->csp, sizeof f->http->csp);
	kvfs_history_init(&f->http->history);
	err = *o->metrics_token ? kvfs_token_open(f->http, o->metrics_token) : 0;
	if (!err) {
		err = kvfs_history_start(&f->http->history, f->k)
			      ?: kvfs_peers_start(&f->http->peers, &limits);
		if (err)
			kvc_error("option metrics: cannot start a thread: %s", strerror(-err));
	}
	err = err ?: start_server(f, o->metrics);
	if (err)
		kvfs_http_stop(f);
	return err;
}

void kvfs_http_stop(struct kvfs *f)
{
	if (!f->http)
		return;
	if (f->http->daemon)
		MHD_stop_daemon(f->http->daemon);
	kvfs_peers_stop(f->http->peers);
	kvfs_history_stop(&f->http->history);
	explicit_bzero(&f->http->token, sizeof f->http->token);
	free(f->http);
	f->http = NULL;
}

struct kvc_library kvfs_library_microhttpd(void)
{
	return (struct kvc_library){ "libmicrohttpd", MHD_get_version(),
				     (const void *)MHD_get_version };
}
