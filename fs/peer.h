/* SPDX-License-Identifier: Apache-2.0 */
/* Who is at the other end of a TCP connection (peer.c). Any thread. */
#ifndef KVFS_PEER_H
#define KVFS_PEER_H

#include <netinet/in.h>
#include <stdbool.h>
#include <stdint.h>

struct kvfs_peer {
	bool local; /* a process of this machine, of this user; else that address */
	uint32_t uid;
	struct in6_addr address; /* an IPv4 one as ::ffff:a.b.c.d */
};

/* 0, or a negative errno where the socket is not connected any more. */
int kvfs_peer_of(int fd, struct kvfs_peer *p);
/* The same user, the same IPv4 address, or IPv6 addresses of the same /64. */
bool kvfs_peer_same(const struct kvfs_peer *a, const struct kvfs_peer *b);

#endif
