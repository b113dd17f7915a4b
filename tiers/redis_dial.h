/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Connects to a server by name or address before a deadline. getaddrinfo() has no deadline, so each
 * name is resolved by a separate thread, one per name at a time, and callers wait for the thread
 * until their deadline. While the name server does not answer, the last known addresses are used.
 */
#ifndef KVCT_REDIS_DIAL_H
#define KVCT_REDIS_DIAL_H

#include <stdint.h>
#include <sys/socket.h>

#define KVCT_ADDRESSES 8 /* addresses of one name that are tried */

struct kvct_addresses {
	unsigned n;
	struct kvct_address {
		socklen_t len;
		struct sockaddr_storage at;
	} v[KVCT_ADDRESSES];
};

/*
 * Sets *out to the addresses of host, a name or a numeric address, with the port filled in. Blocks
 * until until_ns (kvc_mono_ns) at most. Returns 0; -EHOSTUNREACH if the name does not exist, or if
 * no answer came in time and no address is known, with the reason in *why (a constant); or -ENOMEM.
 * Needs no lock.
 */
int kvct_resolve(const char *host, int port, uint64_t until_ns, struct kvct_addresses *out,
		 const char **why);
/*
 * Connects a non-blocking TCP socket to host, or to the Unix socket at host if that begins with a
 * slash. Each address gets an equal part of the remaining time. The socket has keepalive, and fails
 * if data is not acknowledged for give_up_ms. Returns 0 and sets *fd, which the caller closes; or
 * returns a negative errno with the reason in *why (a constant): -EHOSTUNREACH, -EHOSTDOWN (no
 * answer in time), -ECONNREFUSED, ...
 */
int kvct_redis_dial(const char *host, int port, uint64_t until_ns, unsigned give_up_ms, int *fd,
		    const char **why);

#endif
