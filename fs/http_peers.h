/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Limits of the connections of an HTTP server. A table has at most `most` connections, and at most
 * `each` of one peer (peer.h). A new peer never waits for the others: if the table is full, the
 * oldest connection of the peer with the most connections is closed. If the limits exempt operators
 * (root of this machine and the daemon's own user), these have no limit, and their connections are
 * not closed. Each request must be answered within `request_s` seconds after the connection was
 * made or the previous request was answered, however slowly the client sends or reads.
 */
#ifndef KVFS_HTTP_PEERS_H
#define KVFS_HTTP_PEERS_H

#include <stdbool.h>
#include <stdint.h>

struct kvfs_peers_limits {
	unsigned most, each;
	bool exempts_operators;
	unsigned request_s;
};

struct kvfs_peers;
struct kvfs_connection;

/*
 * Makes a table, and starts the thread that closes late connections. Returns 0 and *out, or a
 * negative errno.
 */
int kvfs_peers_start(struct kvfs_peers **out, const struct kvfs_peers_limits *limits);
/*
 * Stops that thread, and frees the table. Call it after the server has stopped, when no connection
 * is open. NULL is allowed.
 */
void kvfs_peers_stop(struct kvfs_peers *p);
/*
 * Registers the newly connected socket fd. Returns NULL if the limits do not allow it; the caller
 * then closes fd. Otherwise the caller calls kvfs_peers_leave before it closes fd.
 */
struct kvfs_connection *kvfs_peers_arrive(struct kvfs_peers *p, int fd);
/* A request of the connection was answered: the time of the next request starts now. */
void kvfs_peers_answered(struct kvfs_connection *c);
/* Gives the current request this much more time, because its answer is large. */
void kvfs_peers_extend(struct kvfs_connection *c, uint64_t ns);
void kvfs_peers_leave(struct kvfs_connection *c);

#endif
