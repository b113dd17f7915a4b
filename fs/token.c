/* SPDX-License-Identifier: Apache-2.0 */
/* The token that metrics_token= has the HTTP endpoint ask for. */
#include "fs.h"

#include "log.h"

#include <fcntl.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>

int kvfs_token_read(const char *path, char token[KVFS_TOKEN_MAX + 1])
{
	KVC_FD int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
	char line[KVFS_TOKEN_MAX + 2];
	struct stat st;
	ssize_t n;
	size_t len;

	if (fd < 0 || fstat(fd, &st) || (n = read(fd, line, sizeof line - 1)) < 0) {
		kvc_error("option metrics_token: cannot read %s: %s", path, strerror(errno));
		return -EINVAL;
	}
	if (!S_ISREG(st.st_mode) || (st.st_mode & 077)) {
		kvc_error("option metrics_token: %s has to be a file that only its owner can read "
			  "(chmod 600)",
			  path);
		return -EACCES;
	}
	line[n] = 0;
	len = strcspn(line, "\r\n");
	line[len] = 0;
	for (size_t i = 0; i < len; i++)
		if (line[i] <= ' ' || line[i] > '~')
			len = 0;
	if (len < KVFS_TOKEN_MIN || len > KVFS_TOKEN_MAX) {
		kvc_error("option metrics_token: the first line of %s has to be %u to %u printable "
			  "characters without spaces",
			  path, KVFS_TOKEN_MIN, KVFS_TOKEN_MAX);
		explicit_bzero(line, sizeof line);
		return -EINVAL;
	}
	memset(token, 0, KVFS_TOKEN_MAX + 1);
	memcpy(token, line, len);
	explicit_bzero(line, sizeof line);
	return 0;
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
