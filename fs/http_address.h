/* SPDX-License-Identifier: Apache-2.0 */
/* Addresses of the HTTP servers, as options give them (http_address.c). */
#ifndef KVFS_HTTP_ADDRESS_H
#define KVFS_HTTP_ADDRESS_H

#include <netdb.h>
#include <sys/socket.h>

/*
 * Parses ADDR:PORT, the value of this option. Returns 0 with *a, which the caller frees with
 * freeaddrinfo, or -EINVAL after a line in the log.
 */
int kvfs_address_parse(const char *option, const char *where, struct addrinfo **a);

#endif
