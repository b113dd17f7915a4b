/* SPDX-License-Identifier: Apache-2.0 */
/* See peer_name.h. */
#include "peer_name.h"

#include <stdlib.h>
#include <string.h>
#include <strings.h>

bool kvc_peer_name_valid(const char *text)
{
	static const char host[] =
		"0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-_";
	const char *colon = strrchr(text, ':');
	size_t digits = colon ? strspn(colon + 1, "0123456789") : 0;
	unsigned long port = colon ? strtoul(colon + 1, NULL, 10) : 0;

	if (!digits || colon[1 + digits] || !port || port > 65535 || colon == text ||
	    strlen(text) >= KVC_PEER_NAME)
		return false;
	if (*text == '[')
		return colon[-1] == ']' && colon - text > 2 &&
		       strspn(text + 1, "0123456789abcdefABCDEF:.") == (size_t)(colon - text) - 2;
	return strspn(text, host) == (size_t)(colon - text);
}

const char *kvc_peer_name_wrong(const char *list, size_t *len)
{
	char name[KVC_PEER_NAME];

	while (*list) {
		size_t n = strcspn(list, "+");

		*len = n;
		if (n >= sizeof name)
			return list;
		memcpy(name, list, n);
		name[n] = 0;
		if (!kvc_peer_name_valid(name))
			return list;
		list += n + (list[n] == '+');
	}
	return NULL;
}

bool kvc_peer_name_listed(const char *list, const char *name)
{
	size_t len = strlen(name);

	while (*list) {
		size_t n = strcspn(list, "+");

		if (n && n == len && !strncasecmp(list, name, n))
			return true;
		list += n + (list[n] == '+');
	}
	return false;
}
