/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tables of connections of HTTP servers. A server's thread adds and removes rows. A second thread
 * checks them once a second and shuts down late sockets; the server's thread then sees the end of
 * the connection. Both threads hold the table's lock meanwhile, so a socket is never shut down
 * after the server has closed it. See http_peers.h.
 */
#include "http_peers.h"

#include "peer.h"
#include "util.h"

#include <pthread.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

struct kvfs_connection {
	struct kvfs_peers *table;
	struct kvfs_peer peer;
	uint64_t begun_ns; /* start of its current request; 0: the row is free */
	uint64_t more_ns;  /* added to the time limit of its current request */
	int fd;
	bool closing; /* shut down, but not yet removed */
};

struct kvfs_peers {
	struct kvfs_peers_limits limits;
	pthread_mutex_t lock;
	pthread_cond_t cond;
	pthread_t thread;
	bool ends;
	size_t nrows; /* with extra rows for operators, if the limits exempt them */
	struct kvfs_connection rows[];
};

/* True for root of this machine and for the daemon's own user, if the limits exempt them. */
static bool is_operator(const struct kvfs_peers *t, const struct kvfs_peer *p)
{
	return t->limits.exempts_operators && p->local && (!p->uid || p->uid == geteuid());
}

static void shut_down(struct kvfs_connection *c)
{
	c->closing = true;
	shutdown(c->fd, SHUT_RDWR);
}

static void close_late(struct kvfs_peers *t, uint64_t now)
{
	uint64_t most = t->limits.request_s * 1000000000ull;

	for (size_t i = 0; i < t->nrows; i++) {
		struct kvfs_connection *c = &t->rows[i];

		if (c->begun_ns && !c->closing && now - c->begun_ns > most + c->more_ns)
			shut_down(c);
	}
}

static void *watch_requests(void *arg)
{
	struct kvfs_peers *t = arg;

	pthread_mutex_lock(&t->lock);
	while (!t->ends) {
		struct timespec until = kvc_timespec(kvc_mono_ns() + 1000000000);

		pthread_cond_timedwait(&t->cond, &t->lock, &until);
		close_late(t, kvc_mono_ns());
	}
	pthread_mutex_unlock(&t->lock);
	return NULL;
}

int kvfs_peers_start(struct kvfs_peers **out, const struct kvfs_peers_limits *limits)
{
	size_t nrows = limits->most + (limits->exempts_operators ? limits->each : 0);
	struct kvfs_peers *t = calloc(1, sizeof *t + nrows * sizeof t->rows[0]);
	pthread_condattr_t attr;
	int err;

	if (!t)
		return -ENOMEM;
	t->limits = *limits;
	t->nrows = nrows;
	pthread_mutex_init(&t->lock, NULL);
	pthread_condattr_init(&attr);
	pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
	pthread_cond_init(&t->cond, &attr);
	pthread_condattr_destroy(&attr);
	err = -pthread_create(&t->thread, NULL, watch_requests, t);
	if (err) {
		pthread_cond_destroy(&t->cond);
		free(t);
	} else {
		*out = t;
	}
	return err;
}

void kvfs_peers_stop(struct kvfs_peers *t)
{
	if (!t)
		return;
	pthread_mutex_lock(&t->lock);
	t->ends = true;
	pthread_cond_signal(&t->cond);
	pthread_mutex_unlock(&t->lock);
	pthread_join(t->thread, NULL);
	pthread_cond_destroy(&t->cond);
	pthread_mutex_destroy(&t->lock);
	free(t);
}

static unsigned connections_of(const struct kvfs_peers *t, const struct kvfs_peer *p)
{
	unsigned n = 0;

	for (size_t i = 0; i < t->nrows; i++)
		n += t->rows[i].begun_ns && !t->rows[i].closing &&
		     kvfs_peer_same(&t->rows[i].peer, p);
	return n;
}

/*
 * Returns the oldest connection of the peer with the most connections, or NULL. Operators are
 * skipped. The caller holds t->lock.
 */
static struct kvfs_connection *greediest(struct kvfs_peers *t)
{
	struct kvfs_connection *found = NULL;
	unsigned most = 0;

	for (size_t i = 0; i < t->nrows; i++) {
		struct kvfs_connection *c = &t->rows[i];
		unsigned n;

		if (!c->begun_ns || c->closing || is_operator(t, &c->peer))
			continue;
		n = found && kvfs_peer_same(&c->peer, &found->peer) ? most
								    : connections_of(t, &c->peer);
		if (n > most || (n == most && c->begun_ns < found->begun_ns)) {
			most = n;
			found = c;
		}
	}
	return found;
}

/*
 * Returns a free row for this peer, or NULL. May shut down the connection of another peer. The
 * caller holds t->lock.
 */
static struct kvfs_connection *row_for(struct kvfs_peers *t, const struct kvfs_peer *p)
{
	struct kvfs_connection *row = NULL, *loser;
	unsigned open = 0;

	if (!is_operator(t, p) && connections_of(t, p) >= t->limits.each)
		return NULL;
	for (size_t i = 0; i < t->nrows; i++) {
		open += t->rows[i].begun_ns && !t->rows[i].closing;
		if (!t->rows[i].begun_ns)
			row = &t->rows[i];
	}
	if (open >= t->limits.most) {
		loser = greediest(t);
		if (loser)
			shut_down(loser);
		else
			row = NULL;
	}
	return row;
}

struct kvfs_connection *kvfs_peers_arrive(struct kvfs_peers *t, int fd)
{
	struct kvfs_connection *c;
	struct kvfs_peer p;

	if (kvfs_peer_of(fd, &p))
		return NULL;
	pthread_mutex_lock(&t->lock);
	c = row_for(t, &p);
	if (c)
		*c = (struct kvfs_connection){
			.table = t, .peer = p, .begun_ns = kvc_mono_ns(), .fd = fd
		};
	pthread_mutex_unlock(&t->lock);
	return c;
}

void kvfs_peers_answered(struct kvfs_connection *c)
{
	pthread_mutex_lock(&c->table->lock);
	c->begun_ns = kvc_mono_ns();
	c->more_ns = 0;
	pthread_mutex_unlock(&c->table->lock);
}

void kvfs_peers_extend(struct kvfs_connection *c, uint64_t ns)
{
	pthread_mutex_lock(&c->table->lock);
	c->more_ns = ns;
	pthread_mutex_unlock(&c->table->lock);
}

void kvfs_peers_leave(struct kvfs_connection *c)
{
	struct kvfs_peers *t = c->table;

	pthread_mutex_lock(&t->lock);
	c->begun_ns = 0;
	pthread_mutex_unlock(&t->lock);
}
