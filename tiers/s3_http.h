/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The s3 tier's requests, signed and sent through libcurl. Handles are kept in a stack, one call
 * each at a time, so connections are used again; the lock guards the stack. 5xx, 429 and broken
 * connections are tried again with jitter until the deadline.
 */
#ifndef KVCT_S3_HTTP_H
#define KVCT_S3_HTTP_H

#include "tier.h"

#include <curl/curl.h>
#include <pthread.h>

#define KVCT_S3_HANDLES 16

struct kvct_s3_handle {
	CURL *curl;
	curl_socket_t fd; /* of its connection, to look at */
};

struct kvct_s3 {
	struct kvc_tier tier;
	pthread_mutex_t lock;
	struct kvct_s3_handle idle[KVCT_S3_HANDLES];
	unsigned nidle;
	char base[1024];  /* endpoint/bucket */
	char prefix[300]; /* "" or ends with / */
	char sign[160], login[400], token[2048], ca[512];
	uint64_t deadline_ms;
	_Atomic bool logged; /* once, until it works again */
};

/* One request. */
struct kvct_s3_request {
	const char *method;
	char url[2048];
	uint64_t from, to;   /* Range, when to > 0: both included */
	const uint8_t *body; /* sent */
	size_t body_len, body_at;
	struct iovec *iov; /* where the answer's body goes, or NULL: into text */
	int n;
	uint64_t got;
	char *text;
	size_t text_len;
	char etag[128];
	long status;
	bool overflow;
	bool service;     /* the answer has a header of S3's own (x-amz-) */
	curl_socket_t fd; /* by which it goes */
};

/*
 * Sends it and takes the answer, until the deadline, which grows with the bytes. 0 for any 2xx;
 * -ENOENT (404 of this key), -EACCES (401, certificate), -EBADMSG (416, or more bytes than asked
 * for), -ETIMEDOUT, -ECONNREFUSED, -EIO (403, a 500 that lasts, any other 404), -ENOMEM. q->text is
 * the caller's to free in every case.
 */
int kvct_s3_ask(struct kvct_s3 *s, struct kvct_s3_request *q);

#endif
