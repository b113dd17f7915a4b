/* SPDX-License-Identifier: Apache-2.0 */
/*
 * TLS for the redis tier: one context for all connections. On each connection the host name in the
 * certificate is checked; hiredis' own contexts check the chain only.
 */
#ifndef KVCT_REDIS_TLS_H
#define KVCT_REDIS_TLS_H

#include <hiredis.h>
#include <stdbool.h>
#include <stdint.h>

struct kvct_redis_tls;

/*
 * Creates a context. ca: a file, or "" for the system's certificates; cert and key: files, or both
 * "". Returns 0 and sets *out, or -EINVAL with one line in error[512].
 */
int kvct_redis_tls_open(struct kvct_redis_tls **out, const char *ca, const char *cert,
			const char *key, char *error);
/* Takes a reference to t, which kvct_redis_tls_close() releases. */
struct kvct_redis_tls *kvct_redis_tls_get(struct kvct_redis_tls *t);
void kvct_redis_tls_close(struct kvct_redis_tls *t); /* NULL is allowed */
/*
 * Does the handshake on the connected, non-blocking connection c until until_ns. host is the name
 * or the address that c was connected to. Returns 0, or with a reason in *why (a constant): -EACCES
 * (one side does not accept the other), -ECONNRESET or -ETIMEDOUT.
 */
int kvct_redis_tls_start(struct kvct_redis_tls *t, redisContext *c, const char *host,
			 uint64_t until_ns, const char **why);
/* Did the last read fail because the server refused us, for example our certificate? */
bool kvct_redis_tls_refused(void);
/*
 * Clears this thread's errors of earlier connections. Otherwise, OpenSSL reports a call that must
 * wait as failed.
 */
void kvct_redis_tls_clear(void);

#endif
