/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The credentials of an s3 tier, which may change while it is mounted. They come from one source,
 * chosen at the mount: a credentials file (read again when it changes), the environment, a web
 * identity (STS), a container's or an instance's metadata service (asked again before they expire).
 * After a refusal the source is asked at once.
 *
 * Threads: any. One thread asks the source at a time; others go on with the present credentials, or
 * wait for it if there are none. The lock is a leaf and not held over files or requests.
 */
#ifndef KVCT_S3_CREDENTIALS_H
#define KVCT_S3_CREDENTIALS_H

#include "s3_sign.h"

struct kvct_s3_credentials; /* secrets are left out of core dumps */

/* The parameters of the URL that choose the source; "" where one is not given. */
struct kvct_s3_source {
	char auth[32];     /* auto, file, env, web-identity, container, instance, none */
	char file[512];    /* credentials= */
	char profile[128]; /* profile= */
	char region[64], ca[512];
	bool amazon; /* no endpoint is given: an instance's role is the last choice */
};

/*
 * Chooses the source and reads it if it is a file or the environment. 0, or a line in error[512]
 * and -EINVAL, -EACCES or -ENOMEM.
 */
int kvct_s3_credentials_open(struct kvct_s3_credentials **out, const struct kvct_s3_source *source,
			     char *error);
void kvct_s3_credentials_close(struct kvct_s3_credentials *c); /* NULL is allowed */
/*
 * Copies the present credentials to *login, which the caller wipes, and their number to *number.
 * Asks the source first when they are about to expire or none are there, at most until until_ns
 * (kvc_mono_ns). 0, or -EACCES (the source gives none; the log says why) or -ETIMEDOUT.
 */
int kvct_s3_credentials_get(struct kvct_s3_credentials *c, uint64_t until_ns,
			    struct kvct_s3_login *login, uint64_t *number);
/*
 * The service has refused the credentials of that number: asks the source for others. sure: it said
 * so; if not, the refusal may have another cause, and services are not asked more than once a
 * minute. True: there are others now.
 */
bool kvct_s3_credentials_renew(struct kvct_s3_credentials *c, uint64_t number, bool sure,
			       uint64_t until_ns);
/* Requests are not signed: auth=none. */
bool kvct_s3_credentials_none(const struct kvct_s3_credentials *c);
/* The source for people: "file /etc/aws [default]". */
const char *kvct_s3_credentials_source(const struct kvct_s3_credentials *c);

/*
 * Sources behind HTTP (s3_roles.c). Each asks until until_ns at most and fills in *login, with the
 * time of expiry. 0, or -EACCES with a reason in why[256], which holds no secret.
 */
int kvct_s3_from_web_identity(const struct kvct_s3_source *s, uint64_t until_ns,
			      struct kvct_s3_login *login, char *why);
int kvct_s3_from_container(const struct kvct_s3_source *s, uint64_t until_ns,
			   struct kvct_s3_login *login, char *why);
int kvct_s3_from_instance(const struct kvct_s3_source *s, uint64_t until_ns,
			  struct kvct_s3_login *login, char *why);
/* Does the environment name a container's metadata service? */
bool kvct_s3_has_container(void);
/* A time such as 2026-11-27T05:03:04Z in ns since 1970; 0 if it is none. */
uint64_t kvct_s3_time(const char *text);
/* Copies value to to[room]: 0, or -E2BIG if it does not fit, and to is "". */
int kvct_s3_field(char *to, size_t capacity, const char *value, size_t len);

#endif
