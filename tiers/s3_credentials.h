/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The credentials of an s3 tier, which may change while it is mounted. One source is chosen at
 * mount: a credentials file (read again when it changes), the environment, a web identity (STS), or
 * the metadata service of a container or an instance (asked again before the credentials expire).
 * After a refusal the source is asked at once.
 *
 * Any thread may call. One thread at a time asks the source; the others use the present
 * credentials, or wait if there are none. The lock is a leaf, and no file or service is read while
 * it is held.
 */
#ifndef KVCT_S3_CREDENTIALS_H
#define KVCT_S3_CREDENTIALS_H

#include "s3_sign.h"

struct kvct_s3_credentials; /* secrets are left out of core dumps */

/* The URL parameters that choose the source; "" if a parameter is not given. */
struct kvct_s3_source {
	char auth[32];     /* auto, file, env, web-identity, container, instance, none */
	char file[512];    /* credentials= */
	char profile[128]; /* profile= */
	char region[64], ca[512];
	bool amazon; /* no endpoint is given: the last choice is an instance's role */
};

/*
 * Chooses the source, and reads it if it is a file or the environment. Returns 0 and sets *out, or
 * -EINVAL, -EACCES or -ENOMEM with one line in error[512].
 */
int kvct_s3_credentials_open(struct kvct_s3_credentials **out, const struct kvct_s3_source *source,
			     char *error);
void kvct_s3_credentials_close(struct kvct_s3_credentials *c); /* NULL is allowed */
/*
 * Copies the present credentials to *login, which the caller wipes, and their number to *number. If
 * there are none or they expire soon, asks the source first, until until_ns (kvc_mono_ns) at most.
 * Returns 0, -EACCES (the source gives none; the reason was logged) or -ETIMEDOUT.
 */
int kvct_s3_credentials_get(struct kvct_s3_credentials *c, uint64_t until_ns,
			    struct kvct_s3_login *login, uint64_t *number);
/*
 * The service has refused the credentials with this number: asks the source for new ones. sure: the
 * service named the credentials as the reason; if not, the refusal may have another cause, and a
 * source behind HTTP is asked at most once a minute. Returns true if there are new credentials.
 */
bool kvct_s3_credentials_renew(struct kvct_s3_credentials *c, uint64_t number, bool sure,
			       uint64_t until_ns);
/* Are requests sent unsigned (auth=none)? */
bool kvct_s3_credentials_none(const struct kvct_s3_credentials *c);
/* Returns the source as text for messages: a file's path, "the environment", or the auth= name. */
const char *kvct_s3_credentials_source(const struct kvct_s3_credentials *c);

/*
 * Sources behind HTTP (s3_roles.c). Each asks until until_ns at most, and fills in *login with its
 * time of expiry. Returns 0, or -EACCES with a reason without secrets in why[256].
 */
int kvct_s3_from_web_identity(const struct kvct_s3_source *s, uint64_t until_ns,
			      struct kvct_s3_login *login, char *why);
int kvct_s3_from_container(const struct kvct_s3_source *s, uint64_t until_ns,
			   struct kvct_s3_login *login, char *why);
int kvct_s3_from_instance(const struct kvct_s3_source *s, uint64_t until_ns,
			  struct kvct_s3_login *login, char *why);
/* Does the environment name a container's metadata service? */
bool kvct_s3_has_container(void);
/*
 * Converts a time such as 2026-11-27T05:03:04Z to ns since 1970. Returns 0 if the text is not a
 * time.
 */
uint64_t kvct_s3_time(const char *text);
/*
 * Copies `value` to `to`, which has `capacity` bytes. Returns 0, or -E2BIG if it does not fit, and
 * `to` is "".
 */
int kvct_s3_field(char *to, size_t capacity, const char *value, size_t len);

#endif
