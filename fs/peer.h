/* SPDX-License-Identifier: Apache-2.0 */
/* The peer of a TCP connection: a local user or a remote address. Any thread may call these. */
#ifndef KVFS_PEER_H
#define KVFS_PEER_H

#include <netinet/in.h>
#include <stdbool.h>
#include <stdint.h>

struct kvfs_peer {
	bool local; /* true: a process of user `uid` on this machine; false: see address */
	uint32_t uid;
	struct in6_addr address; /* IPv4 as ::ffff:a.b.c.d */
};

/*
 * Finds the peer of the connected socket fd. Returns 0, or a negative errno if the socket is no
 * longer connected. Asks the kernel; does not wait for the peer.
 */
int kvfs_peer_of(int fd, struct kvfs_peer *p);
/*
 * Returns true for the same local user, the same IPv4 address, or IPv6 addresses in the same /64.
 */
bool kvfs_peer_same(const struct kvfs_peer *a, const struct kvfs_peer *b);

#endif
