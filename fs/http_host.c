/* SPDX-License-Identifier: Apache-2.0 */
/* The check of Host headers. See http_host.h. */
#include "http_host.h"

#include <arpa/inet.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

#define NAME_BYTES 256

/*
 * Copies the host without its port, brackets and final dot to name. Returns false if it is
 * malformed or too long.
 */
static bool bare_name(const char *host, char name[NAME_BYTES])
{
	const char *end, *colon = strchr(host, ':');
	size_t len;

	if (*host == '[') {
		end = strchr(++host, ']');
		if (!end)
			return false;
	} else if (colon && !strchr(colon + 1, ':')) {
		end = colon;
	} else {
		end = host + strlen(host);
	}
	len = (size_t)(end - host);
	if (len && host[len - 1] == '.')
		len--;
	if (!len || len >= NAME_BYTES)
		return false;
	memcpy(name, host, len);
	name[len] = 0;
	return true;
}

static bool is_address(const char *name)
{
	struct in6_addr a;

	return inet_pton(AF_INET, name, &a) == 1 || inet_pton(AF_INET6, name, &a) == 1;
}

/* Top-level domains that are reserved for private use, and the one that Kubernetes uses. */
static bool in_private_domain(const char *name)
{
	static const char *const domains[] = {
		"localhost", "local", "internal", "svc",  "lan",
		"home",      "corp",  "arpa",     "test", NULL,
	};
	const char *last = strrchr(name, '.');

	for (size_t i = 0; last && domains[i]; i++)
		if (!strcasecmp(last + 1, domains[i]))
			return true;
	return false;
}

bool kvfs_host_is_private(const char *host)
{
	char name[NAME_BYTES], own[NAME_BYTES] = "";

	if (!host)
		return true; /* browsers always send a Host header */
	if (!bare_name(host, name))
		return false;
	if (is_address(name) || !strchr(name, '.') || in_private_domain(name))
		return true;
	gethostname(own, sizeof own - 1);
	return *own && !strcasecmp(own, name);
}
