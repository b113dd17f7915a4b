/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Host names under which a browser may read the HTTP endpoint without a token. A hostile web page
 * can make its own host name resolve to this machine's address (DNS rebinding) and then read the
 * endpoint through the visitor's browser. Such a request has the page's name in its Host header. So
 * the endpoint refuses all names that anybody can register in the public DNS.
 */
#ifndef KVFS_HTTP_HOST_H
#define KVFS_HTTP_HOST_H

#include <stdbool.h>

/*
 * Returns true if host is an address, localhost, this machine's own name, a name without a dot, or
 * a name in a domain that is never public (.local, .internal, .svc and so on). host is HOST,
 * HOST:PORT or [ADDRESS]:PORT; NULL (the request has no Host header) also returns true.
 */
bool kvfs_host_is_private(const char *host);

#endif
