/* SPDX-License-Identifier: Apache-2.0 */
/* What the HTTP endpoint consists of (http.c), for those that fill its pages. */
#ifndef KVFS_HTTP_H
#define KVFS_HTTP_H

#include "history.h"
#include "library.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <time.h>

#define KVFS_TOKEN_MIN 16u
#define KVFS_TOKEN_MAX 255u

struct MHD_Daemon;

/* The token of metrics_token=, as it was last read. Of the server's thread, once it runs. */
struct kvfs_token {
	const char *path;                /* NULL: no token is required */
	char text[KVFS_TOKEN_MAX + 1];   /* zeros follow it */
	struct timespec changed, failed; /* the file's times at the last good and bad reading */
	uint64_t ino;
};

struct kvfs_http {
	struct MHD_Daemon *daemon;
	struct kvfs_history history;
	uint64_t begun_ns;
	bool watched; /* kvfs_peers_start has succeeded */
	struct kvfs_token token;
	char csp[256]; /* Content-Security-Policy of the page */
};

struct kvc_library kvfs_library_microhttpd(void); /* http.c */
/* page.c: page.html as it was built in, and what it may do: its own script and style. */
extern const char kvfs_page[], kvfs_page_end[];
void kvfs_page_policy(char *policy, size_t capacity);
/*
 * token.c. Reads the first line of the file at path, which the caller keeps. 0, or a negative errno
 * after a line in the log.
 */
int kvfs_token_open(struct kvfs_http *h, const char *path);
/*
 * The token that is required now: false, none is. A file that was replaced or rewritten is read
 * again; if it cannot be, the token before stays, and the log says why.
 */
bool kvfs_token_now(struct kvfs_http *h, char token[KVFS_TOKEN_MAX + 1]);
/* Does an Authorization header (NULL: none) carry it? In a time that does not tell how far. */
int kvfs_token_is(const char token[KVFS_TOKEN_MAX + 1], const char *header);

#endif
