/* SPDX-License-Identifier: Apache-2.0 */
/* See http_address.h. */
#include "http_address.h"

#include "log.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

int kvfs_address_parse(const char *option, const char *where, struct addrinfo **a)
{
	char host[64];
	const char *colon = strrchr(where, ':');
	struct addrinfo hints = {
		.ai_socktype = SOCK_STREAM,
		.ai_flags = AI_PASSIVE | AI_NUMERICHOST,
	};

	snprintf(host, sizeof host, "%.*s", colon ? (int)(colon - where) : 0, where);
	if (*host == '[' && host[strlen(host) - 1] == ']') {
		memmove(host, host + 1, strlen(host));
		host[strlen(host) - 1] = 0;
	}
	if (!colon || getaddrinfo(*host ? host : NULL, colon + 1, &hints, a) || !*a) {
		kvc_error("option %s: '%s' is not ADDR:PORT such as 127.0.0.1:9464", option, where);
		return -EINVAL;
	}
	return 0;
}
