/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Limits of the connections of the HTTP endpoint. At most KVFS_PEERS_CONNECTIONS are open, and at
 * most KVFS_PEER_MOST of one peer (peer.h). A new peer never waits for the others: if the table is
 * full, the oldest connection of the peer with the most connections is closed. Operators (root of
 * this machine and the daemon's own user) have no limit, and their connections are not closed. Each
 * request must be answered within KVFS_REQUEST_S seconds after the connection was made or the
 * previous request was answered, however slowly the client sends or reads.
 */
#ifndef KVFS_HTTP_PEERS_H
#define KVFS_HTTP_PEERS_H

#include <stdbool.h>

#define KVFS_PEERS_CONNECTIONS 512u
#define KVFS_PEER_MOST 64u
#define KVFS_REQUEST_S 10u

struct kvfs_connection;

/* Starts the thread that closes late connections. Returns 0 or a negative errno. */
int kvfs_peers_start(void);
/* Stops that thread. Call it after the server has stopped, when no connection is open. */
void kvfs_peers_stop(void);
/*
 * Registers the newly connected socket fd. Returns NULL if the limits do not allow it; the caller
 * then closes fd. Otherwise the caller calls kvfs_peers_leave before it closes fd.
 */
struct kvfs_connection *kvfs_peers_arrive(int fd);
/* A request of the connection was answered: the time of the next request starts now. */
void kvfs_peers_answered(struct kvfs_connection *c);
void kvfs_peers_leave(struct kvfs_connection *c);

#endif
