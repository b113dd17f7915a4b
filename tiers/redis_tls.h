/* SPDX-License-Identifier: Apache-2.0 */
/*
 * TLS for the redis tier: one context for all connections, and on each of them the check that the
 * certificate is of the host that was meant. hiredis' own contexts check the chain only.
 */
#ifndef KVCT_REDIS_TLS_H
#define KVCT_REDIS_TLS_H

#include <hiredis.h>
#include <stdbool.h>
#include <stdint.h>

struct kvct_redis_tls;

/*
 * ca: a file, or "" for the system's certificates; cert and key: files, or both "". 0, or -EINVAL
 * with one line in error[512].
 */
int kvct_redis_tls_open(struct kvct_redis_tls **out, const char *ca, const char *cert,
			const char *key, char *error);
/* One more reference to t, which kvct_redis_tls_close() ends. */
struct kvct_redis_tls *kvct_redis_tls_get(struct kvct_redis_tls *t);
void kvct_redis_tls_close(struct kvct_redis_tls *t); /* NULL is allowed */
/*
 * Does the handshake on a connected, non-blocking c, until until_ns; host is the name or the
 * address that it was connected by. 0, or with *why (not to be freed): -EACCES (one side does not
 * accept the other), -ECONNRESET or -ETIMEDOUT.
 */
int kvct_redis_tls_start(struct kvct_redis_tls *t, redisContext *c, const char *host,
			 uint64_t until_ns, const char **why);
/* Was the error of the read just before a refusal by the other side, such as of our certificate? */
bool kvct_redis_tls_refused(void);
/*
 * Forgets this thread's errors of connections before: a call that would have to wait is else taken
 * for one that failed.
 */
void kvct_redis_tls_clear(void);

#endif
