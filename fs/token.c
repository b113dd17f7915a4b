/* SPDX-License-Identifier: Apache-2.0 */
/* The token of metrics_token=, which the HTTP endpoint requires. See http.h. */
#include "fs.h"

#include "log.h"
#include "secret.h"

#include <errno.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>
#include <unistd.h>

/*
 * Reads the first line of the file into t->text. Returns 0, or a negative errno with the reason in
 * why.
 */
static int read_token(struct kvfs_token *t, char *why)
{
	char line[KVFS_TOKEN_MAX + 2];
	struct stat st;
	ssize_t n;
	size_t len;
	KVC_FD int fd = kvc_secret_open(t->path, &st, why);

	if (fd < 0)
		return fd;
	n = read(fd, line, sizeof line - 1);
	if (n < 0) {
		snprintf(why, KVC_SECRET_WHY, "cannot be read: %s", strerror(errno));
		return -errno;
	}
	line[n] = 0;
	len = strcspn(line, "\r\n");
	line[len] = 0;
	for (size_t i = 0; i < len; i++)
		if (line[i] <= ' ' || line[i] > '~')
			len = 0;
	if (len >= KVFS_TOKEN_MIN && len <= KVFS_TOKEN_MAX) {
		memset(t->text, 0, sizeof t->text);
		memcpy(t->text, line, len);
		t->changed = st.st_mtim;
		t->ino = st.st_ino;
	} else {
		snprintf(why, KVC_SECRET_WHY,
			 "needs a first line of %u to %u printable characters without spaces",
			 KVFS_TOKEN_MIN, KVFS_TOKEN_MAX);
	}
	explicit_bzero(line, sizeof line);
	return len >= KVFS_TOKEN_MIN && len <= KVFS_TOKEN_MAX ? 0 : -EINVAL;
}

int kvfs_token_open(struct kvfs_http *h, const char *path)
{
	char why[KVC_SECRET_WHY];
	int err;

	h->token.path = path;
	err = read_token(&h->token, why);
	if (err)
		kvc_error("option metrics_token: %s %s", path, why);
	return err;
}

static bool same_time(const struct timespec *a, const struct timespec *b)
{
	return a->tv_sec == b->tv_sec && a->tv_nsec == b->tv_nsec;
}

bool kvfs_token_now(struct kvfs_http *h, char token[KVFS_TOKEN_MAX + 1])
{
	struct kvfs_token *t = &h->token;
	char why[KVC_SECRET_WHY];
	struct stat st;

	if (!t->path)
		return false;
	if (!stat(t->path, &st) && (!same_time(&st.st_mtim, &t->changed) || st.st_ino != t->ino) &&
	    !same_time(&st.st_ctim, &t->failed)) {
		t->failed = (struct timespec){ 0 };
		if (!read_token(t, why)) {
			kvc_info("metrics_token: %s has changed and was read again", t->path);
		} else {
			t->failed = st.st_ctim; /* do not read it again before it changes */
			kvc_warn("metrics_token: %s %s; the previous token stays in use", t->path,
				 why);
		}
	}
	memcpy(token, t->text, sizeof t->text);
	return true;
}

int kvfs_token_is(const char token[KVFS_TOKEN_MAX + 1], const char *header)
{
	char given[KVFS_TOKEN_MAX + 1] = { 0 };
	unsigned char differs = 0;

	if (!header || strncasecmp(header, "Bearer ", 7) != 0)
		return 0;
	header += 7;
	header += strspn(header, " ");
	if (strlen(header) > KVFS_TOKEN_MAX)
		return 0;
	snprintf(given, sizeof given, "%s", header);
	for (size_t i = 0; i <= KVFS_TOKEN_MAX; i++)
		differs |= (unsigned char)(token[i] ^ given[i]);
	return !differs;
}
