/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which names a browser may know this machine by. A web page elsewhere can have its own name
 * resolve to this machine's address (DNS rebinding), and could then read what is served here
 * without a token. Such a request carries the page's name as its host, so names that the public DNS
 * can give to anybody are refused.
 */
#ifndef KVFS_HTTP_HOST_H
#define KVFS_HTTP_HOST_H

#include <stdbool.h>

/*
 * Is host (HOST, HOST:PORT or [ADDRESS]:PORT; NULL: the request has none) an address, localhost,
 * this machine's own name, a name without a dot, or a name in a domain that is never public
 * (.local, .internal, .svc and so on)?
 */
bool kvfs_host_is_private(const char *host);

#endif
