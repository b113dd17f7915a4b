/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The server of peer_listen=ADDR:PORT: sends objects of this node, as frames (serve.h), to the
 * peers:// remotes of other nodes. frames/peer_sign.h describes the requests. Each request is
 * signed with the secret of peer_secret=. An unsigned, old or repeated request is answered with 403
 * and nothing else. A request for a node with another name is answered with 421, and one of another
 * epoch (replay.h) with 425 and the epoch. Only an offer causes requests to other nodes, and these
 * are no offers, so requests cannot go in circles.
 *
 * POST /offer names objects that the client has: this node looks them up in its remotes, starts to
 * load them, and then answers (offer.h). At most OFFERS are under way.
 *
 * POST /have asks for many names. Its headers are checked before the body arrives: the body of a
 * refused request is read and not stored. The requests of operators (cluster.h) look the same. Of
 * these, POST /change needs the option peer_control, and one is under way at a time.
 *
 * A few threads of libmicrohttpd answer. A request that waits for a load from the disk is suspended
 * and takes no thread: the engine wakes it. http_peers.h limits connections and the time of each
 * request. Memory is bounded by NODES connections of CONNECTION_BYTES, and BLOCK for an answer or
 * for the body of a request.
 */
#include "fs.h"

#include "cluster.h"
#include "cluster_change.h"
#include "http_address.h"
#include "http_peers.h"
#include "log.h"
#include "nodes.h"
#include "offer.h"
#include "replay.h"
#include "secret.h"
#include "announce.h"
#include "serve.h"

#include <microhttpd.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CONNECTION_BYTES ((size_t)32768) /* a path may have 3 * 3072 bytes in a URL */
#define BLOCK (256u << 10)
#define NODES 128u
#define THREADS 4u
#define IDLE_S 10u
#define SLOWEST (4ull << 20) /* bytes per second; the time limit of an answer allows this rate */
#define WARN_NS 60000000000ull
#define OFFERS 4u
#define NAMES_WARNED 8u /* names of other nodes that are logged */

_Static_assert(KVC_PEER_NAMES_BYTES <= BLOCK, "a body has the memory of an answer");
_Static_assert(NODES *(CONNECTION_BYTES + BLOCK) + OFFERS * KVC_OFFER_BYTES <= KVFS_NODES_BYTES,
	       "memory of connections and offers");
_Static_assert(KVC_CHANGE_BYTES <= KVC_OFFER_BYTES, "a change takes the place of an offer");

#if MHD_VERSION < 0x00097002
typedef int mhd_result;
#else
typedef enum MHD_Result mhd_result;
#endif

struct kvfs_nodes {
	struct kvfs *f;
	struct kvc_server *server;
	struct kvfs_peers *peers;
	struct kvfs_replay *replay;
	struct MHD_Daemon *daemon;
	struct kvc_peer_secret secret;
	char *names;          /* of this node, with + between them */
	uint64_t wait_ns;     /* how long a request may wait for a load */
	pthread_mutex_t lock; /* a leaf: the state of waiting exchanges, and the next members */
	pthread_cond_t woke;  /* an exchange that is not suspended was woken */
	uint64_t warned_ns;
	/* names in requests that are not those of this node; each one was logged */
	char misdirected[NAMES_WARNED][KVC_PEER_NAME];
	unsigned nmisdirected;
	unsigned offers; /* under way; a change counts, too */
	bool changes;    /* a change is under way */
	bool ending;     /* no more connections are suspended */
};

/* A request and its answer. */
struct exchange {
	struct kvc_wait w;
	struct kvfs_nodes *o;
	struct MHD_Connection *c;
	struct kvc_served *s;
	struct kvc_peer_request q;
	bool begun;
	/* POST: */
	char *names; /* the body; NULL: the request is refused */
	size_t received, length;
	const char *why;     /* the reason for the refusal, or NULL */
	unsigned status;     /* of the refusal */
	kvc_peer_text epoch; /* likewise */
	bool offers;         /* counted in o->offers */
	struct kvc_offer *offer;
	bool changes; /* it has set o->changes */
	struct kvc_change *change;
	bool woken, suspended; /* under o->lock */
};

/* ---- answers ---- */

/* Signs the answer, except a 403, and queues it. Takes ownership of r, which may be NULL. */
static mhd_result node_answer(struct exchange *x, unsigned status, uint64_t len, const void *start,
			      size_t start_len, struct MHD_Response *r)
{
	kvc_peer_text sign;
	mhd_result result = MHD_NO;

	if (r && (status == MHD_HTTP_FORBIDDEN ||
		  (!kvc_peer_sign_answer(&x->o->secret, x->q.nonce, status, len, start, start_len,
					 sign) &&
		   MHD_add_response_header(r, KVC_PEER_SIGN, sign))))
		result = MHD_queue_response(x->c, status, r);
	if (r)
		MHD_destroy_response(r);
	return result;
}

static mhd_result node_answer_text(struct exchange *x, unsigned status, const char *text)
{
	return node_answer(x, status, strlen(text), NULL, 0,
			   MHD_create_response_from_buffer(strlen(text), (void *)(uintptr_t)text,
							   MHD_RESPMEM_PERSISTENT));
}

static mhd_result node_answer_epoch(struct exchange *x, char *epoch)
{
	size_t len = strlen(epoch);

	return node_answer(x, KVC_PEER_OTHER_EPOCH, len, epoch, len,
			   MHD_create_response_from_buffer(len, epoch, MHD_RESPMEM_MUST_COPY));
}

/* MHD asks for the next bytes of the answer. */
static ssize_t frame_bytes(void *arg, uint64_t pos, char *buf, size_t max)
{
	struct exchange *x = arg;
	size_t len = kvc_min(max, x->q.to + 1 - x->q.from - pos);

	if (kvc_serve_read(x->s, x->q.from + pos, buf, len))
		return MHD_CONTENT_READER_END_WITH_ERROR;
	kvc_count_by(kvc_cache_stats(x->o->f->k), peer_bytes, len);
	return (ssize_t)len;
}

/*
 * Adds the time for a load, and for sending these bytes at the slowest rate, to the time limit.
 * bytes: the length of the answer, not of the range in the request, which may be any number.
 */
static void extend_time(const struct exchange *x, uint64_t bytes)
{
	const union MHD_ConnectionInfo *info =
		MHD_get_connection_info(x->c, MHD_CONNECTION_INFO_SOCKET_CONTEXT);

	if (info && info->socket_context)
		kvfs_peers_extend(info->socket_context,
				  x->o->wait_ns + bytes / SLOWEST * 1000000000ull);
}

static mhd_result node_answer_frame(struct exchange *x)
{
	uint64_t all = kvc_serve_length(x->s), len;
	struct MHD_Response *r;

	if (x->q.from >= all)
		return node_answer_text(x, MHD_HTTP_RANGE_NOT_SATISFIABLE, "");
	x->q.to = kvc_min(x->q.to, all - 1);
	len = x->q.to + 1 - x->q.from;
	extend_time(x, len);
	r = MHD_create_response_from_callback(len, kvc_min(len, BLOCK), frame_bytes, x, NULL);
	kvc_count(kvc_cache_stats(x->o->f->k), peer_answers);
	return node_answer(x, MHD_HTTP_PARTIAL_CONTENT, len,
			   x->q.from ? NULL : kvc_serve_header(x->s),
			   x->q.from ? 0 : KVC_FRAME_HEADER, r);
}

static mhd_result node_answer_error(struct exchange *x, int err)
{
	return err == -ENOENT || err == -ESTALE || err == -ENOKEY
		       ? node_answer_text(x, MHD_HTTP_NOT_FOUND, "")
		       : node_answer_text(x, MHD_HTTP_SERVICE_UNAVAILABLE, "");
}

/* ---- requests ---- */

static const char *request_header(struct exchange *x, const char *name)
{
	return MHD_lookup_connection_value(x->c, MHD_HEADER_KIND, name);
}

/*
 * Returns NULL, or the reason to refuse the request. *status: of the answer. epoch: set if it is
 * KVC_PEER_OTHER_EPOCH.
 */
static const char *refusal(struct exchange *x, const char *url, bool have, unsigned *status,
			   kvc_peer_text epoch)
{
	const struct kvc_peer_headers h = {
		.range = request_header(x, "Range"),
		.time = request_header(x, KVC_PEER_TIME),
		.nonce = request_header(x, KVC_PEER_NONCE),
		.node = request_header(x, KVC_PEER_NODE),
		.epoch = request_header(x, KVC_PEER_EPOCH),
		.length = request_header(x, MHD_HTTP_HEADER_CONTENT_LENGTH),
		.body = request_header(x, KVC_PEER_BODY),
	};
	kvc_peer_text sign;
	const char *why;

	*status = MHD_HTTP_FORBIDDEN;
	*epoch = 0;
	if (!(have ? kvc_peer_parse_have : kvc_peer_parse)(url, &h, &x->q))
		return "it is not a request of a node";
	if (kvc_peer_sign(&x->o->secret, &x->q, sign) ||
	    !kvc_peer_same(sign, request_header(x, KVC_PEER_SIGN)))
		return "the signature is wrong: the two nodes have different secrets";
	if (!kvc_peer_name_listed(x->o->names, x->q.node)) {
		*status = KVC_PEER_MISDIRECTED;
		return "it is for another node";
	}
	why = kvfs_replay_refuses(x->o->replay, kvc_now_ns() / 1000000, &x->q, epoch);
	if (why && *epoch)
		*status = KVC_PEER_OTHER_EPOCH;
	return why;
}

static void warn_of_refusal(struct kvfs_nodes *o, const char *why)
{
	uint64_t now = kvc_mono_ns();
	bool warns;

	kvc_count(kvc_cache_stats(o->f->k), peer_refusals);
	pthread_mutex_lock(&o->lock);
	warns = !o->warned_ns || now - o->warned_ns > WARN_NS;
	if (warns)
		o->warned_ns = now;
	pthread_mutex_unlock(&o->lock);
	if (warns)
		kvc_warn("peer_listen: a request was refused: %s", why);
}

/* Logs each name once, because nodes= or peer_name= is wrong if nobody passes requests on. */
static void warn_of_name(struct kvfs_nodes *o, const char *name)
{
	bool known = false;

	kvc_count(kvc_cache_stats(o->f->k), peer_refusals);
	pthread_mutex_lock(&o->lock);
	for (unsigned i = 0; i < o->nmisdirected && !known; i++)
		known = !strcmp(o->misdirected[i], name);
	known = known || o->nmisdirected == NAMES_WARNED;
	if (!known)
		snprintf(o->misdirected[o->nmisdirected++], KVC_PEER_NAME, "%s", name);
	pthread_mutex_unlock(&o->lock);
	if (!known)
		kvc_warn("peer_listen: a request for the node %s was refused, because this node is "
			 "%.200s: if this node is meant, add peer_name=%s to its options",
			 name, o->names, name);
}

static void node_woken(struct kvc_wait *w)
{
	struct exchange *x = kvc_of(w, struct exchange, w);
	struct MHD_Connection *c = x->c;
	struct kvfs_nodes *o = x->o;
	bool suspended;

	pthread_mutex_lock(&o->lock);
	suspended = x->suspended;
	x->woken = true;
	x->suspended = false;
	if (suspended)
		MHD_resume_connection(c); /* its thread may answer and free the exchange now */
	else
		pthread_cond_broadcast(&o->woke);
	pthread_mutex_unlock(&o->lock);
}

/*
 * Opens the frame, takes the offer, or makes the change. Returns true if the exchange waits, and
 * its connection is suspended.
 */
static bool open_or_suspend(struct exchange *x, int *err)
{
	bool suspended = false;

	do {
		x->woken = false; /* no wake can arrive before these calls */
		*err = x->change  ? kvc_change_run(x->change, &x->w)
		       : x->offer ? kvc_offer_run(x->offer, &x->w)
				  : kvc_serve_open(x->s, &x->w);
		if (*err != KVC_WAIT)
			return false;
		pthread_mutex_lock(&x->o->lock);
		while (!x->woken && x->o->ending)
			pthread_cond_wait(&x->o->woke, &x->o->lock);
		if (!x->woken) {
			MHD_suspend_connection(x->c);
			x->suspended = suspended = true;
		}
		pthread_mutex_unlock(&x->o->lock);
	} while (!suspended);
	return true;
}

static mhd_result node_refuse(struct exchange *x, unsigned status, const char *why, char *epoch)
{
	if (status == KVC_PEER_OTHER_EPOCH) {
		kvc_count(kvc_cache_stats(x->o->f->k), peer_stale);
		return node_answer_epoch(x, epoch);
	}
	if (status == KVC_PEER_MISDIRECTED) {
		warn_of_name(x->o, x->q.node);
		return node_answer_text(x, status, "");
	}
	warn_of_refusal(x->o, why);
	return node_answer_text(x, status, why);
}

static mhd_result node_run(struct exchange *x, const char *url)
{
	kvc_peer_text epoch;
	unsigned status;
	const char *why;
	int err = 0;

	if (!x->begun) {
		x->begun = true;
		if ((why = refusal(x, url, false, &status, epoch)))
			return node_refuse(x, status, why, epoch);
		err = kvc_serve_find(x->o->server, x->q.path, x->q.to < KVC_FRAME_HEADER, &x->s);
		if (err == -ENOENT)
			kvc_announce_missing(x->o->f->k, x->q.path, 1, NULL);
		if (!err)
			extend_time(x, 0);
	}
	if (!err && open_or_suspend(x, &err))
		return MHD_YES;
	return err ? node_answer_error(x, err) : node_answer_frame(x);
}

/* ---- POST ---- */

/* The headers have arrived. Decides whether the body is wanted. */
static void have_begin(struct exchange *x, const char *url)
{
	x->why = refusal(x, url, true, &x->status, x->epoch);
	x->length = x->q.kind ? x->q.to + 1 : KVC_PEER_NAMES_BYTES;
	if (x->why)
		return;
	x->names = malloc(x->length);
	if (!x->names) {
		x->why = "";
		x->status = MHD_HTTP_SERVICE_UNAVAILABLE;
	}
}

static mhd_result have_body(struct exchange *x, const char *part, size_t len)
{
	if (len > x->length - x->received)
		return MHD_NO;
	if (x->names)
		memcpy(x->names + x->received, part, len);
	x->received += len;
	return MHD_YES;
}

static mhd_result have_answer_bits(struct exchange *x, const void *bits, size_t n)
{
	size_t len = (n + 7) / 8;

	return node_answer(x, MHD_HTTP_OK, len, bits, len,
			   MHD_create_response_from_buffer(len, (void *)(uintptr_t)bits,
							   MHD_RESPMEM_MUST_COPY));
}

/* Takes one of the places for offers. */
static int offer_begin(struct exchange *x, size_t n)
{
	struct kvfs_nodes *o = x->o;

	pthread_mutex_lock(&o->lock);
	x->offers = o->offers < OFFERS;
	o->offers += x->offers;
	pthread_mutex_unlock(&o->lock);
	if (!x->offers) {
		kvc_count_by(kvc_cache_stats(o->f->k), peer_offers, n);
		kvc_count_by(kvc_cache_stats(o->f->k), peer_offers_refused, n);
		return -EBUSY;
	}
	extend_time(x, 0);
	return kvc_offer_begin(o->f->k, x->names, x->length, n, &x->offer);
}

static void offer_end(struct exchange *x)
{
	kvc_offer_end(x->offer);
	x->offer = NULL;
	if (!x->offers)
		return;
	pthread_mutex_lock(&x->o->lock);
	x->o->offers--;
	pthread_mutex_unlock(&x->o->lock);
	x->offers = false;
}

/* Answers an offer of n names, or waits for the lookups of the names. */
static mhd_result offer_answer(struct exchange *x, size_t n)
{
	uint8_t bits[KVC_PEER_BITS] = { 0 };
	int err = x->offer ? 0 : offer_begin(x, n);

	if (!err && open_or_suspend(x, &err))
		return MHD_YES;
	if (!err)
		kvc_offer_bits(x->offer, bits);
	offer_end(x); /* before the answer, so that the client can make the next offer */
	if (!err)
		return have_answer_bits(x, bits, n);
	return node_answer_text(x,
				err == -EOPNOTSUPP ? KVC_PEER_NO_REMOTE
				: err == -ENOSPC   ? KVC_PEER_FULL
						   : MHD_HTTP_SERVICE_UNAVAILABLE,
				"");
}

/* Answers with a text, or "not now" if it is NULL. Takes ownership of the text. */
static mhd_result text_answer(struct exchange *x, char *text, size_t len)
{
	struct MHD_Response *r =
		text ? MHD_create_response_from_buffer(len, text, MHD_RESPMEM_MUST_FREE) : NULL;

	if (text && !r)
		free(text);
	return r ? node_answer(x, MHD_HTTP_OK, len, text, len, r)
		 : node_answer_text(x, MHD_HTTP_SERVICE_UNAVAILABLE, "");
}

/* Takes the place for a change, which is also one for offers. */
static int change_begin(struct exchange *x, size_t n)
{
	struct kvfs_nodes *o = x->o;
	char first[200];
	int err;

	if (!kvc_cache_options(o->f->k)->peer_control)
		return -EPERM;
	pthread_mutex_lock(&o->lock);
	x->changes = !o->changes && o->offers < OFFERS;
	o->changes |= x->changes;
	o->offers += x->changes;
	pthread_mutex_unlock(&o->lock);
	if (!x->changes)
		return -EBUSY;
	err = kvc_change_begin(o->f->k, x->names, n, &x->change);
	if (err)
		return err;
	extend_time(x, 0);
	snprintf(first, sizeof first, "%s", x->names + strlen(x->names) + 1);
	kvc_quote_one_line(first);
	kvc_info("peer_listen: another node sets %.64s of %zu paths, the first is %s", x->names,
		 n - 1, first);
	return 0;
}

static void change_end(struct exchange *x)
{
	kvc_change_end(x->change);
	x->change = NULL;
	if (!x->changes)
		return;
	pthread_mutex_lock(&x->o->lock);
	x->o->changes = false;
	x->o->offers--;
	pthread_mutex_unlock(&x->o->lock);
	x->changes = false;
}

/* Answers a change, or waits for the chunks that are being evicted. */
static mhd_result change_answer(struct exchange *x, size_t n)
{
	struct kvc_stats *stats = kvc_cache_stats(x->o->f->k);
	int err = x->change ? 0 : change_begin(x, n);
	size_t len = 0;
	char *text;

	if (!err && open_or_suspend(x, &err))
		return MHD_YES;
	kvc_count(stats, peer_changes);
	if (err) {
		kvc_count(stats, peer_changes_refused);
		change_end(x);
		return node_answer_text(x,
					err == -EPERM    ? KVC_PEER_NO_CHANGES
					: err == -EINVAL ? MHD_HTTP_BAD_REQUEST
							 : MHD_HTTP_SERVICE_UNAVAILABLE,
					"");
	}
	text = kvfs_cluster_changed(x->change, &len);
	change_end(x);
	return text_answer(x, text, len);
}

/* Answers a request of an operator on another node. */
static mhd_result cluster_answer(struct exchange *x, size_t n)
{
	size_t len = 0;
	char *text;

	if (x->q.kind == KVC_PEER_CHANGE)
		return change_answer(x, n);
	text = kvfs_cluster_text(x->o->f, x->q.kind, x->names, n, &len);
	return text_answer(x, text, len);
}

static mhd_result have_answer(struct exchange *x)
{
	uint8_t bits[KVC_PEER_BITS];
	kvc_peer_text sign;
	size_t n;

	if (x->why && x->status == MHD_HTTP_SERVICE_UNAVAILABLE)
		return node_answer_text(x, x->status, "");
	if (x->why)
		return node_refuse(x, x->status, x->why, x->epoch);
	if (x->received != x->length ||
	    kvc_peer_sign_body(&x->o->secret, x->q.nonce, x->names, x->length, sign) ||
	    !kvc_peer_same(sign, x->q.path) || !kvc_peer_names_count(x->names, x->length, &n))
		return node_refuse(x, MHD_HTTP_FORBIDDEN, "its body is not the signed one", NULL);
	if (x->q.kind == KVC_PEER_OFFER)
		return offer_answer(x, n);
	if (kvc_peer_has_text(x->q.kind))
		return cluster_answer(x, n);
	kvc_serve_have(x->o->server, x->names, n, bits);
	kvc_announce_missing(x->o->f->k, x->names, n, bits);
	kvc_count(kvc_cache_stats(x->o->f->k), peer_haves);
	return have_answer_bits(x, bits, n);
}

static mhd_result on_node_request(void *arg, struct MHD_Connection *c, const char *url,
				  const char *method, const char *version, const char *upload,
				  size_t *upload_size, void **state)
{
	struct exchange *x = *state;
	bool have = !strcmp(method, "POST");
	size_t len = *upload_size;

	(void)version;
	if (x && have) {
		*upload_size = 0;
		return len ? have_body(x, upload, len) : have_answer(x);
	}
	if (x) {
		if (*upload_size) { /* a body is not read */
			*upload_size = 0;
			return MHD_NO;
		}
		return node_run(x, url);
	}
	if ((!have && strcmp(method, "GET") != 0) || !(x = calloc(1, sizeof *x)))
		return MHD_NO;
	x->o = arg;
	x->c = c;
	x->w.wake = node_woken;
	*state = x;
	if (have)
		have_begin(x, url);
	return MHD_YES;
}

/* ---- connections ---- */

static void on_node_connection(void *arg, struct MHD_Connection *c, void **context,
			       enum MHD_ConnectionNotificationCode what)
{
	const union MHD_ConnectionInfo *info;

	if (what == MHD_CONNECTION_NOTIFY_STARTED) {
		info = MHD_get_connection_info(c, MHD_CONNECTION_INFO_CONNECTION_FD);
		*context = info ? kvfs_peers_arrive(arg, info->connect_fd) : NULL;
		if (!*context && info)
			shutdown(info->connect_fd, SHUT_RDWR);
	} else if (*context) {
		kvfs_peers_leave(*context);
	}
}

static void on_node_answered(void *arg, struct MHD_Connection *c, void **state,
			     enum MHD_RequestTerminationCode how)
{
	const union MHD_ConnectionInfo *info =
		MHD_get_connection_info(c, MHD_CONNECTION_INFO_SOCKET_CONTEXT);
	struct exchange *x = *state;

	(void)arg;
	(void)how;
	if (info && info->socket_context)
		kvfs_peers_answered(info->socket_context);
	if (x && x->s)
		kvc_serve_close(x->s);
	if (x) {
		offer_end(x);
		change_end(x);
		free(x->names);
	}
	free(x);
	*state = NULL;
}

/* ---- start and end ---- */

static int start_nodes(struct kvfs_nodes *o, const struct sockaddr *a, const char *where)
{
	o->daemon = MHD_start_daemon(MHD_USE_AUTO_INTERNAL_THREAD | MHD_ALLOW_SUSPEND_RESUME |
					     (a->sa_family == AF_INET6 ? MHD_USE_IPv6 : 0),
				     0, NULL, NULL, on_node_request, o, MHD_OPTION_SOCK_ADDR, a,
				     MHD_OPTION_CONNECTION_LIMIT, 2 * NODES,
				     MHD_OPTION_CONNECTION_MEMORY_LIMIT, CONNECTION_BYTES,
				     MHD_OPTION_CONNECTION_TIMEOUT, IDLE_S,
				     MHD_OPTION_THREAD_POOL_SIZE, THREADS,
				     MHD_OPTION_NOTIFY_CONNECTION, on_node_connection, o->peers,
				     MHD_OPTION_NOTIFY_COMPLETED, on_node_answered, o,
				     MHD_OPTION_END);
	if (o->daemon)
		return 0;
	kvc_error("option peer_listen: cannot listen on %s: %s; give an address of this machine "
		  "and a free port",
		  where, strerror(errno));
	return -EADDRINUSE;
}

static int read_node_secret(struct kvfs_nodes *n, const char *path)
{
	char why[KVC_SECRET_WHY];
	int err = *path ? kvc_peer_secret_read(path, &n->secret, why) : -EINVAL;

	if (!*path)
		kvc_error("option peer_listen needs peer_secret=FILE, a file with the secret of "
			  "all nodes");
	else if (err)
		kvc_error("option peer_secret: %s %s", path, why);
	return err;
}

/* Is it an address of all interfaces, which no other node can ask for? */
static bool is_any(const struct sockaddr *a)
{
	return a->sa_family == AF_INET6
		       ? IN6_IS_ADDR_UNSPECIFIED(&((const struct sockaddr_in6 *)a)->sin6_addr)
		       : ((const struct sockaddr_in *)a)->sin_addr.s_addr == htonl(INADDR_ANY);
}

/* Sets the names of this node: the address of peer_listen= and the names of peer_name=. */
static int set_names(struct kvfs_nodes *n, const struct sockaddr *a, const struct kvc_options *o)
{
	if (is_any(a) && !*o->peer_name) {
		kvc_error("option peer_listen: %s is not an address that other nodes can ask for: "
			  "add peer_name=HOST:PORT, as in nodes= of these nodes",
			  o->peer_listen);
		return -EINVAL;
	}
	if (asprintf(&n->names, "%s%s%s", is_any(a) ? "" : o->peer_listen,
		     is_any(a) || !*o->peer_name ? "" : "+", o->peer_name) < 0) {
		n->names = NULL;
		return -ENOMEM;
	}
	return 0;
}

static void warn_of_options(const struct kvc_options *o)
{
	if (*o->peer_secret)
		kvc_warn("option peer_secret needs peer_listen=: add peer_listen=ADDR:PORT, or "
			 "remove peer_secret=");
	if (o->peer_control)
		kvc_warn("option peer_control needs peer_listen=: add peer_listen=ADDR:PORT, or "
			 "remove peer_control");
	if (*o->peer_name)
		kvc_warn("option peer_name needs peer_listen=: add peer_listen=ADDR:PORT, or "
			 "remove peer_name=");
}

int kvfs_nodes_start(struct kvfs *f, const struct kvc_options *o)
{
	static const struct kvfs_peers_limits limits = {
		.most = NODES,
		.each = NODES / 2,
		.request_s = IDLE_S,
	};
	struct addrinfo *a = NULL;
	struct kvfs_nodes *n;
	int err;

	if (!*o->peer_listen) {
		warn_of_options(o);
		return 0;
	}
	if ((err = kvfs_address_parse("peer_listen", o->peer_listen, &a)))
		return err;
	f->nodes = n = calloc(1, sizeof *n);
	if (!n) {
		freeaddrinfo(a);
		return -ENOMEM;
	}
	n->f = f;
	n->wait_ns = o->deadline_ms * 1000000;
	pthread_mutex_init(&n->lock, NULL);
	pthread_cond_init(&n->woke, NULL);
	n->server = kvc_server_new(f->k);
	n->replay = kvfs_replay_new();
	err = read_node_secret(n, o->peer_secret) ?: set_names(n, a->ai_addr, o);
	if (!err && (!n->server || !n->replay))
		err = -ENOMEM;
	err = err ?: kvfs_peers_start(&n->peers, &limits)
		      ?: start_nodes(n, a->ai_addr, o->peer_listen);
	freeaddrinfo(a);
	if (err)
		kvfs_nodes_stop(f);
	return err;
}

void kvfs_nodes_name(const struct kvfs *f, char *name)
{
	const char *names = f->nodes ? f->nodes->names : "-";

	snprintf(name, KVC_PEER_NAME, "%.*s", (int)strcspn(names, "+"), names);
}

void kvfs_nodes_end(struct kvfs *f)
{
	if (!f->nodes)
		return;
	pthread_mutex_lock(&f->nodes->lock);
	f->nodes->ending = true;
	pthread_mutex_unlock(&f->nodes->lock);
}

void kvfs_nodes_stop(struct kvfs *f)
{
	struct kvfs_nodes *n = f->nodes;

	if (!n)
		return;
	if (n->daemon)
		MHD_stop_daemon(n->daemon);
	/* the thread that woke the last exchange may still hold the lock */
	pthread_mutex_lock(&n->lock);
	pthread_mutex_unlock(&n->lock);
	pthread_cond_destroy(&n->woke);
	kvfs_peers_stop(n->peers);
	kvfs_replay_free(n->replay);
	kvc_server_free(n->server);
	free(n->names);
	pthread_mutex_destroy(&n->lock);
	explicit_bzero(&n->secret, sizeof n->secret);
	free(n);
	f->nodes = NULL;
}
