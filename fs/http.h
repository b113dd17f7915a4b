/* SPDX-License-Identifier: Apache-2.0 */
/* State of the HTTP endpoint (http.c), shared with the files that produce its answers. */
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

/* The token of metrics_token=, as last read. After the start, only the server's thread uses it. */
struct kvfs_token {
	const char *path;              /* NULL: no token is required */
	char text[KVFS_TOKEN_MAX + 1]; /* padded with zeros */
	struct timespec changed;       /* the file's mtime when it was last read */
	struct timespec failed;        /* the file's ctime if the last read failed; otherwise 0 */
	uint64_t ino;
};

struct kvfs_http {
	struct MHD_Daemon *daemon;
	struct kvfs_history history;
	uint64_t begun_ns;
	struct kvfs_peers *peers; /* the connections (http_peers.h) */
	struct kvfs_token token;
	char csp[256]; /* Content-Security-Policy of the page */
};

struct kvc_library kvfs_library_microhttpd(void); /* http.c */
/*
 * page.c: the embedded page.html, and its Content-Security-Policy, which allows only the page's own
 * script and style.
 */
extern const char kvfs_page[], kvfs_page_end[];
void kvfs_page_policy(char *policy, size_t capacity);
/*
 * token.c. Reads the token from the first line of the file. The caller keeps path alive as long as
 * h. Returns 0, or a negative errno after a line in the log.
 */
int kvfs_token_open(struct kvfs_http *h, const char *path);
/*
 * Copies the required token. Returns false if no token is required. A file that was replaced or
 * rewritten is read again. If that fails, the previous token stays in use and the log says why.
 */
bool kvfs_token_now(struct kvfs_http *h, char token[KVFS_TOKEN_MAX + 1]);
/*
 * Returns non-zero if the Authorization header (NULL: none) contains the token. The comparison
 * takes the same time wherever the first difference is.
 */
int kvfs_token_is(const char token[KVFS_TOKEN_MAX + 1], const char *header);

#endif
