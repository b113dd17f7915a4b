/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Who holds the connections of the HTTP endpoint, and for how long. At most KVFS_PEERS_CONNECTIONS
 * are open, KVFS_PEER_MOST of one peer (peer.h). A new peer never waits for the others: when all
 * places are taken, the oldest connection of the peer that has most of them is closed for it. Root
 * of this machine and the daemon's own user have no such bound and lose no connection. Each request
 * has KVFS_REQUEST_S seconds from its first byte to the last byte of its answer, however slowly the
 * client sends or reads.
 */
#ifndef KVFS_HTTP_PEERS_H
#define KVFS_HTTP_PEERS_H

#include <stdbool.h>

#define KVFS_PEERS_CONNECTIONS 512u
#define KVFS_PEER_MOST 64u
#define KVFS_REQUEST_S 10u

struct kvfs_connection;

/* Starts and stops the thread that closes late connections. 0 or a negative errno. */
int kvfs_peers_start(void);
/* After the server has stopped: no connection is open. */
void kvfs_peers_stop(void);
/*
 * The socket fd has connected. NULL: it has no place, and the caller closes it. Otherwise the
 * connection ends with kvfs_peers_leave, before fd is closed.
 */
struct kvfs_connection *kvfs_peers_arrive(int fd);
/* A request of it was answered: the time of the next one begins. */
void kvfs_peers_answered(struct kvfs_connection *c);
void kvfs_peers_leave(struct kvfs_connection *c);

#endif
