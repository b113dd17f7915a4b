/* SPDX-License-Identifier: Apache-2.0 */
/*
 * TLS for the redis tier: one context for all connections, and on each of them the check that the
 * certificate is of the host that was meant. hiredis' own contexts check the chain only.
 */
#ifndef KVCT_REDIS_TLS_H
#define KVCT_REDIS_TLS_H

#include <hiredis.h>

struct kvct_redis_tls;

/*
 * ca: a file, or "" for the system's certificates; cert and key: files, or both "". 0, or -EINVAL
 * with one line in error[512].
 */
int kvct_redis_tls_open(struct kvct_redis_tls **out, const char *ca, const char *cert,
			const char *key, char *error);
void kvct_redis_tls_close(struct kvct_redis_tls *t); /* NULL is allowed */
/*
 * Shakes hands on a connected c, within its time limits; host is the name or the address that it
 * was connected by. 0, or -EACCES with *why (no copy) told.
 */
int kvct_redis_tls_start(struct kvct_redis_tls *t, redisContext *c, const char *host,
			 const char **why);

#endif
