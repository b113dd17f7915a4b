/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Signs S3 requests with AWS Signature Version 4. libcurl's signatures are not used, because its
 * versions differ in the order and escaping of query parameters, and it keeps copies of the secret
 * key.
 */
#ifndef KVCT_S3_SIGN_H
#define KVCT_S3_SIGN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Sizes of a key id, a secret key and a session token in bytes, each with its NUL. */
enum { KVCT_S3_ID = 256, KVCT_S3_SECRET = 1024, KVCT_S3_TOKEN = 16 << 10 };

struct kvct_s3_login {
	char id[KVCT_S3_ID];
	char secret[KVCT_S3_SECRET];
	char token[KVCT_S3_TOKEN]; /* "": none */
	uint64_t until_ns;         /* time of expiry (kvc_now_ns); 0: not known */
};

#define KVCT_S3_UNSIGNED "UNSIGNED-PAYLOAD"

/* A request as it is signed. Headers are sorted by name; names are in lower case. */
struct kvct_s3_canonical {
	const char *method, *path, *query; /* query: escaped and sorted; "": none */
	const char *region;
	const char *date;    /* the value of x-amz-date: YYYYMMDDTHHMMSSZ */
	const char *payload; /* the value of x-amz-content-sha256 */
	struct {
		const char *name, *value;
	} header[10];
	unsigned headers;
};

/*
 * Writes the value of the Authorization header to text, which has `capacity` bytes. Returns 0, -EIO
 * (no digest is available) or -ENAMETOOLONG. Leaves no part of the secret in memory.
 */
int kvct_s3_sign(const struct kvct_s3_canonical *c, const struct kvct_s3_login *login, char *text,
		 size_t capacity);
/* SHA-256 as lower-case hex digits, MD5 as base64. Return 0 or -EIO. */
int kvct_s3_sha256(const void *data, size_t len, char hex[65]);
int kvct_s3_md5(const void *data, size_t len, char base64[25]);
/*
 * Escapes text for a signed query: every character except letters, digits and -_.~ becomes %XX. The
 * caller frees the result; NULL: out of memory.
 */
char *kvct_s3_escape(const char *text);

#endif
