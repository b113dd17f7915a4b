/* SPDX-License-Identifier: Apache-2.0 */
/* See redis_tls.h. */
#include "redis_tls.h"

#include "redis_reply.h"

#include <arpa/inet.h>
#include <errno.h>
#include <hiredis_ssl.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>
#include <poll.h>
#include <stdio.h>

/* struct kvct_redis_tls is an opaque name for SSL_CTX. */
static SSL_CTX *ctx_of(struct kvct_redis_tls *t)
{
	return (SSL_CTX *)t;
}

int kvct_redis_tls_open(struct kvct_redis_tls **out, const char *ca, const char *cert,
			const char *key, char *error)
{
	SSL_CTX *ctx = SSL_CTX_new(TLS_client_method());
	const char *bad = ctx && SSL_CTX_set_min_proto_version(ctx, TLS1_2_VERSION) == 1
				  ? NULL
				  : "out of memory";

	if (ctx)
		SSL_CTX_set_verify(ctx, SSL_VERIFY_PEER, NULL);
	if (!bad && (*ca ? SSL_CTX_load_verify_locations(ctx, ca, NULL)
			 : SSL_CTX_set_default_verify_paths(ctx)) != 1)
		bad = "cannot read the certificates of ca=";
	if (!bad && !*cert != !*key)
		bad = "cert= and key= must be given together";
	if (!bad && *cert && SSL_CTX_use_certificate_chain_file(ctx, cert) != 1)
		bad = "cannot read the certificate of cert=";
	if (!bad && *cert && SSL_CTX_use_PrivateKey_file(ctx, key, SSL_FILETYPE_PEM) != 1)
		bad = "cannot read the key of key=, or the key does not match cert=";
	ERR_clear_error();
	if (bad) {
		snprintf(error, 512, "option remote: TLS: %s", bad);
		SSL_CTX_free(ctx);
		return -EINVAL;
	}
	*out = (struct kvct_redis_tls *)ctx;
	return 0;
}

struct kvct_redis_tls *kvct_redis_tls_get(struct kvct_redis_tls *t)
{
	SSL_CTX_up_ref(ctx_of(t));
	return t;
}

void kvct_redis_tls_close(struct kvct_redis_tls *t)
{
	SSL_CTX_free(ctx_of(t));
}

/* Sets the address or the name that the certificate must be for. */
static int set_host(SSL *ssl, const char *host)
{
	uint8_t address[16];

	if (inet_pton(AF_INET, host, address) == 1 || inet_pton(AF_INET6, host, address) == 1)
		return X509_VERIFY_PARAM_set1_ip_asc(SSL_get0_param(ssl), host);
	SSL_set_hostflags(ssl, X509_CHECK_FLAG_NO_PARTIAL_WILDCARDS);
	return SSL_set1_host(ssl, host) == 1 && SSL_set_tlsext_host_name(ssl, host) == 1;
}

void kvct_redis_tls_clear(void)
{
	ERR_clear_error();
}

bool kvct_redis_tls_refused(void)
{
	unsigned long e = ERR_peek_error();

	return ERR_GET_LIB(e) == ERR_LIB_SSL && ERR_GET_REASON(e) >= SSL_AD_REASON_OFFSET;
}

/* Did the server close the connection during the handshake? */
static bool ended_early(void)
{
	return ERR_GET_REASON(ERR_peek_error()) == SSL_R_UNEXPECTED_EOF_WHILE_READING;
}

/* Completes the handshake. */
static int handshake(SSL *ssl, int fd, uint64_t until_ns, const char **why)
{
	int rc, err = 0;

	while (!err && (rc = SSL_do_handshake(ssl)) != 1) {
		int want = SSL_get_error(ssl, rc);

		if (want == SSL_ERROR_WANT_READ || want == SSL_ERROR_WANT_WRITE) {
			err = kvct_redis_ready(fd, want == SSL_ERROR_WANT_READ ? POLLIN : POLLOUT,
					       until_ns);
			*why = "the handshake timed out";
		} else {
			*why = ERR_reason_error_string(ERR_peek_error());
			/* a server that stops or restarts does not refuse us */
			err = *why && want == SSL_ERROR_SSL && !ended_early() ? -EACCES
									      : -ECONNRESET;
			*why = *why ?: "the server closed the connection";
		}
	}
	return err;
}

/*
 * The socket does not block: with a blocking socket, the time limit would restart with each byte of
 * a record.
 */
int kvct_redis_tls_start(struct kvct_redis_tls *t, redisContext *c, const char *host,
			 uint64_t until_ns, const char **why)
{
	SSL *ssl = SSL_new(ctx_of(t));
	int err = 0;

	*why = "out of memory";
	ERR_clear_error();
	if (!ssl || !*host || set_host(ssl, host) != 1) {
		SSL_free(ssl);
		err = -EACCES;
	} else if (redisInitiateSSL(c, ssl) != REDIS_OK) {
		*why = c->errstr;
		SSL_free(ssl); /* after success the connection owns it */
		err = -EACCES;
	} else {
		err = handshake(ssl, c->fd, until_ns, why);
	}
	ERR_clear_error();
	return err;
}
