/* SPDX-License-Identifier: Apache-2.0 */
/* What the HTTP endpoint consists of (http.c), for those that fill its pages. */
#ifndef KVFS_HTTP_H
#define KVFS_HTTP_H

#include "history.h"

#include <stddef.h>

#define KVFS_TOKEN_MIN 16u
#define KVFS_TOKEN_MAX 255u

struct MHD_Daemon;

struct kvfs_http {
	struct MHD_Daemon *daemon;
	struct kvfs_history history;
	uint64_t begun_ns;
	char token[KVFS_TOKEN_MAX + 1]; /* zeros behind it; empty: none is asked for */
	char csp[256];                  /* Content-Security-Policy of the page */
};

/* page.c: page.html as it was built in, and what it may do: its own script and style. */
extern const char kvfs_page[], kvfs_page_end[];
void kvfs_page_policy(char *policy, size_t room);
/* token.c: reads the first line of a file. 0, or a negative errno after a line in the log. */
int kvfs_token_read(const char *path, char token[KVFS_TOKEN_MAX + 1]);
/* Does an Authorization header (NULL: none) carry it? In a time that does not tell how far. */
int kvfs_token_is(const char token[KVFS_TOKEN_MAX + 1], const char *header);

#endif
