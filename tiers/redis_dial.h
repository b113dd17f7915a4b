/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Connecting to a server by name or address, within a time. getaddrinfo() has no deadline, so each
 * name is resolved by a thread of its own, one per name at a time, and callers wait for it only as
 * long as they have time. While the name server does not answer, the last known addresses of a
 * name are used.
 */
#ifndef KVCT_REDIS_DIAL_H
#define KVCT_REDIS_DIAL_H

#include <stdint.h>
#include <sys/socket.h>

#define KVCT_ADDRESSES 8 /* of one name that are tried */

struct kvct_addresses {
	unsigned n;
	struct kvct_address {
		socklen_t len;
		struct sockaddr_storage at;
	} v[KVCT_ADDRESSES];
};

/*
 * The addresses of host, a name or a numeric address, with port filled in. Blocks until until_ns
 * (kvc_mono_ns) at most. 0, or -EHOSTUNREACH (no such name, or no answer in time and none known
 * from before) with the reason in *why (a constant), or -ENOMEM. No lock needed.
 */
int kvct_resolve(const char *host, int port, uint64_t until_ns, struct kvct_addresses *out,
		 const char **why);
/*
 * A connected, non-blocking TCP socket to host, or to the Unix socket at host if that begins with
 * a slash. Each address gets its part of the time. The socket has keepalive, and gives up on
 * unacknowledged data after give_up_ms. 0 with *fd, which the caller closes; or a negative errno
 * with the reason in *why (not to be freed): -EHOSTUNREACH, -EHOSTDOWN (no answer in time),
 * -ECONNREFUSED, ...
 */
int kvct_redis_dial(const char *host, int port, uint64_t until_ns, unsigned give_up_ms, int *fd,
		    const char **why);

#endif
