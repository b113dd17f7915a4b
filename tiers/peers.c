/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The peers tier: reads what other nodes have in their pool or on their disk.
 *
 *   peers://?nodes=HOST:PORT+HOST:PORT&secret=FILE
 *
 * It is read-only, and its frames do not count as copies (KVC_TIER_LENT). The nodes are asked one
 * after another: first the node that gave the frame of this name before, then by the latency of
 * their answers. A miss moves on to the next node. A node that fails, refuses, or sends damaged
 * bytes is left alone for a time that doubles, and then one request tries it again. The time of a
 * request is shared among the nodes that may still be asked, so that a node that hangs does not use
 * all of it.
 *
 * With a directory (peers_directory.h), only the nodes that may have an object are asked for it,
 * and for an object that is known here then all others.
 *
 * For many names, each node is asked for all names that no node before it had, with one request. An
 * offer is a request to one node, which is asked even if it is left alone otherwise.
 *
 * The object is missing (-ENOENT) only if all nodes have said so. If one of them could not be
 * asked, nothing is known about the object: -ENODEV, which is not a failure of the tier. If no node
 * answered, the result is the last error.
 *
 * The tier's workers enter.
 */
#include "peers.h"

#include "log.h"
#include "peers_directory.h"
#include "registry.h"
#include "secret.h"

#include <stdio.h>
#include <string.h>

#define HEAD_NS 1000000000ull /* the longest wait for the answer of one node about a header */
#define BACKOFF_MIN_NS 1000000000ull
#define BACKOFF_MAX_NS 30000000000ull
#define OFFER_NS 2000000000ull
#define FIRST_NS 1000000000ull /* how long a mount waits for the first answers */

static struct kvct_peers *peers_of(struct kvc_tier *t)
{
	return kvc_of(t, struct kvct_peers, tier);
}

/* ---- the nodes' state; the caller holds p->lock if a name ends in _locked ---- */

static unsigned *from_locked(struct kvct_peers *p, const struct kvc_where *w, bool claim)
{
	unsigned slot = (unsigned)(w->hi % KVCT_PEERS_NAMES);

	if (claim && (p->from[slot].at != w->at || p->from[slot].hi != w->hi)) {
		p->from[slot].at = w->at;
		p->from[slot].hi = w->hi;
		p->from[slot].node = 0;
	}
	return p->from[slot].at == w->at && p->from[slot].hi == w->hi ? &p->from[slot].node : NULL;
}

/* The node has failed: it is left alone. Logs the reason if it is a new one. */
static void node_failed(struct kvct_peers *p, unsigned i, int err, const char *text)
{
	struct kvct_peer *node = &p->node[i];
	bool changed;

	pthread_mutex_lock(&p->lock);
	changed = node->why != err;
	node->backoff_ns = node->backoff_ns ? kvc_min(node->backoff_ns * 2, BACKOFF_MAX_NS)
					    : BACKOFF_MIN_NS;
	if (err == -EACCES || err == -EBADMSG)
		node->backoff_ns = BACKOFF_MAX_NS;
	node->until_ns = kvc_mono_ns() + node->backoff_ns;
	node->why = err;
	pthread_mutex_unlock(&p->lock);
	if (!changed)
		return;
	if (err == -EACCES)
		kvc_warn("tier peers: %s refuses this node: %s", node->name,
			 *text ? text
			       : "no reason given; give all nodes the same secret, and "
				 "synchronize their clocks");
	else if (err == -EBADMSG)
		kvc_warn("tier peers: %s sent damaged bytes, and is left alone for %llu seconds",
			 node->name, (unsigned long long)(BACKOFF_MAX_NS / 1000000000));
	else
		kvc_warn("tier peers: %s does not answer and is left alone for a while: %s",
			 node->name, *text ? text : strerror(-err));
}

/* The node has answered. latency_ns: the time of its answer, or 0 if it was a large one. */
static void node_answered(struct kvct_peers *p, unsigned i, uint64_t latency_ns)
{
	struct kvct_peer *node = &p->node[i];
	bool was;

	pthread_mutex_lock(&p->lock);
	was = node->why;
	node->why = 0;
	node->until_ns = node->backoff_ns = 0;
	if (latency_ns)
		node->latency_ns = node->latency_ns ? (node->latency_ns * 7 + latency_ns) / 8
						    : latency_ns;
	pthread_mutex_unlock(&p->lock);
	if (was)
		kvc_info("tier peers: %s answers again", node->name);
}

/*
 * Chooses the next of the nodes `may` for the frame w (NULL: for many), and notes it in `asked`;
 * both have a bit for each node. A node that was left alone is tried by one request. Returns false
 * if no node is left. *more: nodes that may be asked after it.
 */
static bool node_next(struct kvct_peers *p, const struct kvc_where *w, uint64_t may,
		      uint64_t *asked, unsigned *i, unsigned *more)
{
	uint64_t now = kvc_mono_ns(), best = UINT64_MAX;
	const unsigned *from;
	bool found = false;

	*more = 0;
	pthread_mutex_lock(&p->lock);
	from = w ? from_locked(p, w, false) : NULL;
	for (unsigned j = 0; j < p->n; j++) {
		const struct kvct_peer *node = &p->node[j];
		uint64_t cost = from && *from == j + 1 ? 0 : node->latency_ns + 1;

		if ((*asked | ~may) & 1ull << j || now < node->until_ns)
			continue;
		*more += 1;
		if (cost < best) {
			best = cost;
			*i = j;
			found = true;
		}
	}
	if (found) {
		*asked |= 1ull << *i;
		*more -= 1;
		/* until it has answered, other requests still leave it alone */
		if (p->node[*i].why)
			p->node[*i].until_ns = now + p->node[*i].backoff_ns;
	}
	pthread_mutex_unlock(&p->lock);
	return found;
}

/* ---- the driver ---- */

static uint64_t length_of(const struct iovec *iov, int n)
{
	uint64_t all = 0;

	for (int i = 0; i < n; i++)
		all += iov[i].iov_len;
	return all;
}

/* Records that the frame came from this node. */
static void remember(struct kvct_peers *p, const struct kvc_where *w, unsigned i)
{
	pthread_mutex_lock(&p->lock);
	*from_locked(p, w, true) = i + 1;
	pthread_mutex_unlock(&p->lock);
}

/* Asks one node. Returns the result of kvct_peers_ask. */
static int ask_node(struct kvct_peers *p, unsigned i, struct kvct_peers_request *q, bool head)
{
	int err = kvct_peers_ask(p, i, q);

	if (!err || err == -ENOENT || err == -EBADMSG || err == -EOPNOTSUPP || err == -ENOSPC)
		node_answered(p, i, head ? q->first_ns : 0);
	else if (err != -ENOMEM && err != -EBUSY)
		node_failed(p, i, err, q->text);
	return err;
}

/* The nodes that are asked for one frame. */
struct places {
	const struct kvc_where *w;
	const char *path;
	enum { REMEMBERED, DIRECTORY, REST, END } next;
	uint64_t may; /* a bit for each node */
};

/*
 * Finds the nodes to ask next: the node that is remembered, those that the directory names, and, if
 * the object is known here or the directory does not answer, all. Returns false at the end.
 */
static bool places_next(struct kvct_peers *p, struct places *s)
{
	const unsigned *from;

	s->may = 0;
	if (s->next == REMEMBERED && p->directory) {
		pthread_mutex_lock(&p->lock);
		from = from_locked(p, s->w, false);
		if (from && *from)
			s->may = 1ull << (*from - 1);
		pthread_mutex_unlock(&p->lock);
		s->next = DIRECTORY;
		if (s->may)
			return true;
	}
	if (s->next == DIRECTORY && kvct_directory_find(p->directory, &s->path, 1, &s->may)) {
		s->next = s->w->len ? REST : END;
		return true;
	}
	if (s->next == END)
		return false;
	s->may = UINT64_MAX;
	s->next = END;
	return true;
}

static int peers_get_path(struct kvc_tier *t, const struct kvc_where *w, const char *path,
			  uint64_t off, const struct iovec *iov, int n)
{
	struct kvct_peers *p = peers_of(t);
	uint64_t asked = 0, now, until = kvc_mono_ns() + p->deadline_ms * 1000000, share;
	uint64_t all = length_of(iov, n), missing = 0, may = 0;
	struct kvct_peers_request q = { .path = path, .off = off, .iov = iov, .n = n };
	struct places s = { .w = w, .path = path };
	unsigned i = 0, more;
	int err, last = -EHOSTUNREACH;

	if (!all || (!off && iov[0].iov_len < KVC_FRAME_HEADER))
		return -EINVAL;
	while (kvc_mono_ns() < until && places_next(p, &s)) {
		may = s.may;
		while ((now = kvc_mono_ns()) < until && node_next(p, w, may, &asked, &i, &more)) {
			share = (until - now) / (more + 1);
			q.until_ns = now +
				     (all <= KVC_FRAME_HEADER ? kvc_min(share, HEAD_NS) : share);
			err = ask_node(p, i, &q, all <= KVC_FRAME_HEADER);
			if (!err)
				remember(p, w, i);
			if (!err || err == -EBADMSG || err == -ENOMEM)
				return err;
			if (err == -ENOENT)
				missing |= 1ull << i;
			else
				last = err;
		}
	}
	/* the nodes that the directory does not name do not have the object */
	if (s.next == END)
		missing |= ~may;
	if (!(~missing & (UINT64_MAX >> (64 - p->n))))
		return -ENOENT;
	return missing || last == -EBUSY ? -ENODEV : last;
}

/* ---- many names ---- */

/* The names that a call of peers_have asks for. */
struct names {
	const struct kvc_where *w;
	const char *const *path;
	size_t n;
	bool *has;
	const uint64_t *may;       /* the nodes that may have each of them; NULL: all */
	char *body;                /* KVC_PEER_NAMES_BYTES */
	size_t of[KVC_PEER_NAMES]; /* the names of the body, by their numbers */
};

/*
 * Writes a body with the missing names from number *at on that node i may have, as many as a
 * request may have. Returns its length, and sets *at to the first name that it does not have, and
 * *n to their number.
 */
static size_t names_body(struct names *s, unsigned i, size_t *at, size_t *n)
{
	size_t used = 0;

	for (*n = 0; *at < s->n && *n < KVC_PEER_NAMES; *at += 1) {
		size_t len = strlen(s->path[*at]) + 1;

		if (s->has[*at] || (s->may && !(s->may[*at] & 1ull << i)))
			continue;
		if (len > KVC_PEER_NAMES_BYTES - used)
			break;
		memcpy(s->body + used, s->path[*at], len);
		used += len;
		s->of[(*n)++] = *at;
	}
	return used;
}

/* Asks one node for the names that no node before it had. */
static int have_of_node(struct kvct_peers *p, unsigned i, struct names *s, uint64_t until_ns)
{
	uint8_t bits[KVC_PEER_BITS];
	size_t at = 0, n, len;

	while ((len = names_body(s, i, &at, &n))) {
		struct iovec iov = { bits, (n + 7) / 8 };
		struct kvct_peers_request q = {
			.kind = KVC_PEER_HAVE,
			.names = s->body,
			.names_len = len,
			.iov = &iov,
			.n = 1,
			.until_ns = until_ns,
		};
		int err = ask_node(p, i, &q, true);

		if (err)
			return err;
		for (size_t k = 0; k < n; k++)
			if (bits[k / 8] & 1u << k % 8) {
				s->has[s->of[k]] = true;
				remember(p, &s->w[s->of[k]], i);
			}
		if (kvc_mono_ns() >= until_ns)
			return at < s->n ? -ETIMEDOUT : 0;
	}
	return 0;
}

static bool has_all(const struct names *s)
{
	size_t n = 0;

	while (n < s->n && s->has[n])
		n++;
	return n == s->n;
}

/*
 * Asks the directory for the nodes that may have the names. Returns the nodes that may have any of
 * them.
 */
static uint64_t names_places(struct kvct_peers *p, struct names *s, uint64_t *may)
{
	uint64_t any = 0;

	if (!p->directory || !may || !kvct_directory_find(p->directory, s->path, s->n, may))
		return UINT64_MAX;
	s->may = may;
	for (size_t i = 0; i < s->n; i++)
		any |= may[i];
	return any;
}

static int peers_have(struct kvc_tier *t, const struct kvc_where *w, const char *const *path,
		      size_t n, bool *has)
{
	struct kvct_peers *p = peers_of(t);
	uint64_t asked = 0, now, until = kvc_mono_ns() + p->deadline_ms * 1000000, any;
	KVC_MEM char *body = malloc(KVC_PEER_NAMES_BYTES);
	KVC_MEM uint64_t *may = p->directory ? calloc(n, sizeof *may) : NULL;
	struct names s = { .w = w, .path = path, .n = n, .has = has, .body = body };
	unsigned i = 0, more, answered = 0;
	int err, last = -EHOSTUNREACH;

	memset(has, 0, n * sizeof *has);
	if (!body)
		return -ENOMEM;
	any = names_places(p, &s, may);
	while (!has_all(&s) && (now = kvc_mono_ns()) < until &&
	       node_next(p, NULL, any, &asked, &i, &more)) {
		err = have_of_node(p, i, &s, now + kvc_min((until - now) / (more + 1), HEAD_NS));
		if (err == -ENOMEM)
			return err;
		if (!err)
			answered++;
		else
			last = err;
	}
	/* a directory that answers is enough for the tier to work */
	return answered || !n || s.may ? 0 : last == -EBUSY ? -ENODEV : last;
}

/* ---- offers ---- */

/* Finds the end of the names that one request may have. *n: their number, at least 1. */
static size_t offer_part(const char *names, size_t len, size_t *n)
{
	size_t used = 0;

	for (*n = 0; used < len && *n < KVC_PEER_NAMES; ++*n) {
		size_t more = strlen(names + used) + 1;

		if (used + more > KVC_PEER_NAMES_BYTES)
			break;
		used += more;
	}
	return used;
}

static int peers_offer(struct kvc_tier *t, const char *node, const char *names, size_t len,
		       size_t n, bool *taken)
{
	struct kvct_peers *p = peers_of(t);
	uint8_t bits[KVC_PEER_BITS];
	unsigned i = 0;
	int err = 0;

	while (i < p->n && strcmp(p->node[i].name, node) != 0)
		i++;
	if (i == p->n)
		return -ENXIO;
	memset(taken, 0, n * sizeof *taken);
	for (size_t part, at = 0; len && !err; at += n) {
		part = offer_part(names, len, &n);
		struct iovec iov = { bits, (n + 7) / 8 };
		struct kvct_peers_request q = {
			.kind = KVC_PEER_OFFER,
			.names = names,
			.names_len = part,
			.iov = &iov,
			.n = 1,
			/* the node may look the names up for OFFER_NS before it answers */
			.until_ns = kvc_mono_ns() + p->deadline_ms * 1000000 + OFFER_NS,
		};

		err = ask_node(p, i, &q, false);
		for (size_t k = 0; !err && k < n; k++)
			taken[at + k] = bits[k / 8] & 1u << k % 8;
		names += part;
		len -= part;
	}
	return err;
}

/* Finds nothing: a request to a node needs the frame's path, which only peers_get_path has. */
static int peers_get(struct kvc_tier *t, const struct kvc_where *w, uint64_t off,
		     const struct iovec *iov, int n)
{
	(void)t;
	(void)w;
	(void)off;
	(void)iov;
	(void)n;
	return -ENOENT;
}

static bool peers_distrust(struct kvc_tier *t, const struct kvc_where *w)
{
	struct kvct_peers *p = peers_of(t);
	uint64_t now = kvc_mono_ns();
	unsigned *from, node = 0;
	bool others = false;

	pthread_mutex_lock(&p->lock);
	from = from_locked(p, w, false);
	if (from) {
		node = *from;
		*from = 0;
	}
	for (unsigned i = 0; i < p->n; i++)
		others |= i + 1 != node && now >= p->node[i].until_ns;
	pthread_mutex_unlock(&p->lock);
	if (node)
		node_failed(p, node - 1, -EBADMSG, "");
	return node && others;
}

static int peers_announce(struct kvc_tier *t, const struct kvc_announcement *a)
{
	struct kvct_peers *p = peers_of(t);

	return kvct_directory_announce(p->directory, a);
}

static int peers_put(struct kvc_tier *t, const struct kvc_put *put, struct kvc_where *out)
{
	(void)t;
	(void)put;
	(void)out;
	return -EROFS;
}

static int peers_remove(struct kvc_tier *t, const struct kvc_where *w)
{
	(void)t;
	(void)w;
	return -EROFS;
}

static void peers_usage(struct kvc_tier *t, struct kvc_tier_usage *u)
{
	(void)t;
	*u = (struct kvc_tier_usage){ 0 };
}

static void peers_close(struct kvc_tier *t)
{
	struct kvct_peers *p = peers_of(t);

	kvct_peers_close_idle(p);
	kvct_directory_close(p->directory);
	pthread_mutex_destroy(&p->lock);
	kvc_keys_wipe(&p->secret, sizeof p->secret);
	free(p);
}

static const struct kvc_tier_ops peers_ops = {
	.name = "peers",
	.caps = KVC_TIER_SHARED | KVC_TIER_LENT,
	.close = peers_close,
	.put = peers_put,
	.get = peers_get,
	.get_path = peers_get_path,
	.distrust = peers_distrust,
	.have = peers_have,
	.offer = peers_offer,
	.ask = kvct_peers_ask_all,
	.announce = peers_announce,
	.remove = peers_remove,
	.usage = peers_usage,
};

static int peers_nodes(struct kvct_peers *p, const struct kvct_url *u, char *error)
{
	char nodes[sizeof u->query], *save = NULL;

	kvct_url_get(u, "nodes", nodes, sizeof nodes);
	for (char *n = strtok_r(nodes, "+", &save); n; n = strtok_r(NULL, "+", &save)) {
		if (!kvc_peer_name_valid(n)) {
			snprintf(error, 512,
				 "option remote: peers:// node '%.100s' is not HOST:PORT", n);
			return -EINVAL;
		}
		if (p->n == KVCT_PEERS_MAX) {
			snprintf(error, 512, "option remote: peers:// has more than %u nodes",
				 KVCT_PEERS_MAX);
			return -EINVAL;
		}
		snprintf(p->node[p->n].epoch, sizeof p->node[0].epoch, "%032d", 0);
		snprintf(p->node[p->n++].name, sizeof p->node[0].name, "%s", n);
	}
	if (p->n)
		return 0;
	snprintf(error, 512, "option remote: give peers://?nodes=HOST:PORT+HOST:PORT&secret=FILE");
	return -EINVAL;
}

static int peers_secret(struct kvct_peers *p, const struct kvct_url *u, char *error)
{
	char path[sizeof u->query], why[KVC_SECRET_WHY];
	int err;

	kvct_url_get(u, "secret", path, sizeof path);
	if (!*path) {
		snprintf(error, 512,
			 "option remote: peers:// needs secret=FILE, the file of "
			 "peer_secret= on the nodes");
		return -EINVAL;
	}
	err = kvc_peer_secret_read(path, &p->secret, why);
	if (err)
		snprintf(error, 512, "option remote: %.200s %s", path, why);
	return err;
}

static int peers_directory(struct kvct_peers *p, const struct kvct_url *u, char *error)
{
	const char *names[KVCT_PEERS_MAX];

	for (unsigned i = 0; i < p->n; i++)
		names[i] = p->node[i].name;
	return kvct_directory_open(u, p->deadline_ms, &p->secret, names, p->n, &p->directory,
				   error);
}

/* Asks each node once, so that a wrong secret or address is in the log from the start. */
static void greet(struct kvct_peers *p)
{
	uint8_t page[KVC_FRAME_HEADER];
	struct iovec iov = { page, sizeof page };
	uint64_t until = kvc_mono_ns() + kvc_min(p->deadline_ms * 1000000, FIRST_NS);

	for (unsigned i = 0; i < p->n; i++) {
		struct kvct_peers_request q = { .path = ".", .iov = &iov, .n = 1 };
		uint64_t now = kvc_mono_ns();

		if (now >= until)
			return;
		q.until_ns = now + (until - now) / (p->n - i);
		ask_node(p, i, &q, true);
	}
}

int kvct_peers_open(const struct kvct_url *u, uint64_t deadline_ms, struct kvc_tier **out,
		    char *error)
{
	static const char *const names[] = {
		"nodes", "secret", "directory", "password_file", "db", "ca", "cert", "key", NULL,
	};
	struct kvct_peers *p;
	int err;

	if (*u->host || *u->user || *u->path) {
		snprintf(error, 512,
			 "option remote: give peers://?nodes=HOST:PORT+HOST:PORT&secret=FILE");
		return -EINVAL;
	}
	if ((err = kvct_url_check(u, names, error)))
		return err;
	p = calloc(1, sizeof *p);
	if (!p)
		return -ENOMEM;
	pthread_mutex_init(&p->lock, NULL);
	p->deadline_ms = deadline_ms;
	p->tier.ops = &peers_ops;
	kvct_set_id(&p->tier, "peers:"); /* the list of nodes may change */
	err = peers_nodes(p, u, error) ?: peers_secret(p, u, error);
	err = err ?: peers_directory(p, u, error);
	if (err) {
		peers_close(&p->tier);
		return err;
	}
	p->tier.bytes = (uint64_t)p->n * KVCT_PEERS_HANDLES * KVCT_PEERS_HANDLE_BYTES +
			(p->directory ? kvct_directory_bytes() : 0);
	p->tier.announces = p->directory && kvct_directory_announces(p->directory);
	greet(p);
	*out = &p->tier;
	return 0;
}
