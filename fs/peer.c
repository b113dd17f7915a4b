/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Identifies the peer of a TCP connection. For a process in the daemon's network namespace this is
 * its user: sock_diag(7) finds the peer's socket, which has the same two addresses in reverse. All
 * other peers, and those that the kernel does not report, are identified by their address. See
 * peer.h.
 */
#include "peer.h"

#include <errno.h>
#include <linux/inet_diag.h>
#include <linux/netlink.h>
#include <linux/sock_diag.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define PREFIX_BYTES 8 /* compared part of an IPv6 address: one host can use its whole /64 */

union address {
	struct sockaddr_storage any;
	struct sockaddr_in v4;
	struct sockaddr_in6 v6;
};

struct diag_request {
	struct nlmsghdr head;
	struct inet_diag_req_v2 ask;
};

static void fill_endpoint(const union address *a, __be16 *port, __be32 to[4])
{
	if (a->any.ss_family == AF_INET) {
		*port = a->v4.sin_port;
		to[0] = a->v4.sin_addr.s_addr;
	} else {
		*port = a->v6.sin6_port;
		memcpy(to, &a->v6.sin6_addr, sizeof a->v6.sin6_addr);
	}
}

/*
 * Asks the kernel for the uid of the peer's socket. Returns 0, or a negative errno if the peer is
 * on another machine or cannot be found.
 */
static int query_uid(const union address *theirs, const union address *ours, uint32_t *uid)
{
	struct diag_request q = {
		.head = { .nlmsg_len = sizeof q,
			  .nlmsg_type = SOCK_DIAG_BY_FAMILY,
			  .nlmsg_flags = NLM_F_REQUEST },
		.ask = { .sdiag_family = (uint8_t)theirs->any.ss_family,
			 .sdiag_protocol = IPPROTO_TCP,
			 .idiag_states = ~0u,
			 .id.idiag_cookie = { INET_DIAG_NOCOOKIE, INET_DIAG_NOCOOKIE } },
	};
	union {
		struct nlmsghdr head;
		char bytes[1024];
	} answer;
	const struct inet_diag_msg *m = NLMSG_DATA(&answer.head);
	int fd = socket(AF_NETLINK, SOCK_DGRAM | SOCK_CLOEXEC, NETLINK_SOCK_DIAG);
	ssize_t n = -1;

	if (fd < 0)
		return -errno;
	fill_endpoint(theirs, &q.ask.id.idiag_sport, q.ask.id.idiag_src);
	fill_endpoint(ours, &q.ask.id.idiag_dport, q.ask.id.idiag_dst);
	if (send(fd, &q, sizeof q, 0) == (ssize_t)sizeof q)
		n = recv(fd, &answer, sizeof answer, 0);
	close(fd);
	if (n < (ssize_t)NLMSG_LENGTH(sizeof *m) || answer.head.nlmsg_type != SOCK_DIAG_BY_FAMILY)
		return -ENOENT;
	/* A listening socket is not an end of this connection. */
	if (m->id.idiag_sport != q.ask.id.idiag_sport || m->id.idiag_dport != q.ask.id.idiag_dport)
		return -ENOENT;
	*uid = m->idiag_uid;
	return 0;
}

int kvfs_peer_of(int fd, struct kvfs_peer *p)
{
	union address theirs, ours;
	socklen_t a = sizeof theirs, b = sizeof ours;

	if (getpeername(fd, (struct sockaddr *)&theirs, &a) ||
	    getsockname(fd, (struct sockaddr *)&ours, &b))
		return -errno;
	*p = (struct kvfs_peer){ 0 };
	if (theirs.any.ss_family == AF_INET) {
		p->address.s6_addr[10] = p->address.s6_addr[11] = 0xff;
		memcpy(&p->address.s6_addr[12], &theirs.v4.sin_addr, sizeof theirs.v4.sin_addr);
	} else {
		p->address = theirs.v6.sin6_addr;
	}
	p->local = !query_uid(&theirs, &ours, &p->uid);
	return 0;
}

bool kvfs_peer_same(const struct kvfs_peer *a, const struct kvfs_peer *b)
{
	size_t bytes = IN6_IS_ADDR_V4MAPPED(&a->address) ? sizeof a->address : PREFIX_BYTES;

	if (a->local != b->local)
		return false;
	return a->local ? a->uid == b->uid : !memcmp(&a->address, &b->address, bytes);
}
