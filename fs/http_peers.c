/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The table of connections of the HTTP endpoint. The server's thread adds and removes rows. A
 * second thread checks them once a second and shuts down late sockets; the server's thread then
 * sees the end of the connection. One lock guards both, so a socket is never shut down after the
 * server has closed it. See http_peers.h.
 */
#include "http_peers.h"

#include "peer.h"
#include "util.h"

#include <pthread.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

/* extra rows for operators, who have no limit */
#define ROWS (KVFS_PEERS_CONNECTIONS + KVFS_PEER_MOST)

struct kvfs_connection {
	struct kvfs_peer peer;
	uint64_t begun_ns; /* start of its current request; 0: the row is free */
	int fd;
	bool closing; /* shut down, but not yet removed */
};

static struct {
	pthread_mutex_t lock;
	pthread_cond_t cond;
	pthread_t thread;
	bool ends;
	struct kvfs_connection rows[ROWS];
} peers = { .lock = PTHREAD_MUTEX_INITIALIZER };

/* True for root of this machine and for the daemon's own user. */
static bool is_operator(const struct kvfs_peer *p)
{
	return p->local && (!p->uid || p->uid == geteuid());
}

static void shut_down(struct kvfs_connection *c)
{
	c->closing = true;
	shutdown(c->fd, SHUT_RDWR);
}

static void close_late(uint64_t now)
{
	for (size_t i = 0; i < ROWS; i++) {
		struct kvfs_connection *c = &peers.rows[i];

		if (c->begun_ns && !c->closing &&
		    now - c->begun_ns > KVFS_REQUEST_S * 1000000000ull)
			shut_down(c);
	}
}

static void *watch_requests(void *arg)
{
	(void)arg;
	pthread_mutex_lock(&peers.lock);
	while (!peers.ends) {
		struct timespec t = kvc_timespec(kvc_mono_ns() + 1000000000);

		pthread_cond_timedwait(&peers.cond, &peers.lock, &t);
		close_late(kvc_mono_ns());
	}
	pthread_mutex_unlock(&peers.lock);
	return NULL;
}

int kvfs_peers_start(void)
{
	pthread_condattr_t attr;
	int err;

	memset(peers.rows, 0, sizeof peers.rows);
	peers.ends = false;
	pthread_condattr_init(&attr);
	pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
	pthread_cond_init(&peers.cond, &attr);
	pthread_condattr_destroy(&attr);
	err = -pthread_create(&peers.thread, NULL, watch_requests, NULL);
	if (err)
		pthread_cond_destroy(&peers.cond);
	return err;
}

void kvfs_peers_stop(void)
{
	pthread_mutex_lock(&peers.lock);
	peers.ends = true;
	pthread_cond_signal(&peers.cond);
	pthread_mutex_unlock(&peers.lock);
	pthread_join(peers.thread, NULL);
	pthread_cond_destroy(&peers.cond);
}

static unsigned connections_of(const struct kvfs_peer *p)
{
	unsigned n = 0;

	for (size_t i = 0; i < ROWS; i++)
		n += peers.rows[i].begun_ns && !peers.rows[i].closing &&
		     kvfs_peer_same(&peers.rows[i].peer, p);
	return n;
}

/*
 * Returns the oldest connection of the peer with the most connections, or NULL. Operators are
 * skipped. The caller holds peers.lock.
 */
static struct kvfs_connection *greediest(void)
{
	struct kvfs_connection *found = NULL;
	unsigned most = 0;

	for (size_t i = 0; i < ROWS; i++) {
		struct kvfs_connection *c = &peers.rows[i];
		unsigned n;

		if (!c->begun_ns || c->closing || is_operator(&c->peer))
			continue;
		n = found && kvfs_peer_same(&c->peer, &found->peer) ? most
								    : connections_of(&c->peer);
		if (n > most || (n == most && c->begun_ns < found->begun_ns)) {
			most = n;
			found = c;
		}
	}
	return found;
}

/*
 * Returns a free row for this peer, or NULL. May shut down the connection of another peer. The
 * caller holds peers.lock.
 */
static struct kvfs_connection *row_for(const struct kvfs_peer *p)
{
	struct kvfs_connection *row = NULL, *loser;
	unsigned open = 0;

	if (!is_operator(p) && connections_of(p) >= KVFS_PEER_MOST)
		return NULL;
	for (size_t i = 0; i < ROWS; i++) {
		open += peers.rows[i].begun_ns && !peers.rows[i].closing;
		if (!peers.rows[i].begun_ns)
			row = &peers.rows[i];
	}
	if (open >= KVFS_PEERS_CONNECTIONS) {
		loser = greediest();
		if (loser)
			shut_down(loser);
		else
			row = NULL;
	}
	return row;
}

struct kvfs_connection *kvfs_peers_arrive(int fd)
{
	struct kvfs_connection *c;
	struct kvfs_peer p;

	if (kvfs_peer_of(fd, &p))
		return NULL;
	pthread_mutex_lock(&peers.lock);
	c = row_for(&p);
	if (c)
		*c = (struct kvfs_connection){ .peer = p, .begun_ns = kvc_mono_ns(), .fd = fd };
	pthread_mutex_unlock(&peers.lock);
	return c;
}

void kvfs_peers_answered(struct kvfs_connection *c)
{
	pthread_mutex_lock(&peers.lock);
	c->begun_ns = kvc_mono_ns();
	pthread_mutex_unlock(&peers.lock);
}

void kvfs_peers_leave(struct kvfs_connection *c)
{
	pthread_mutex_lock(&peers.lock);
	c->begun_ns = 0;
	pthread_mutex_unlock(&peers.lock);
}
