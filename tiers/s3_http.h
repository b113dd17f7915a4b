/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Requests of the s3 tier, signed (s3_sign.h) and sent with libcurl. Idle handles are kept on a
 * stack so that connections are reused; each handle serves one call at a time, and the lock guards
 * the stack. Errors that may pass before the deadline (5xx, 429, broken connections) are retried
 * with jitter.
 *
 * A load balancer may have dropped an idle connection without closing it. If a request on a reused
 * connection gets no answer for a quarter of the deadline, all idle connections are closed and the
 * request is sent again.
 */
#ifndef KVCT_S3_HTTP_H
#define KVCT_S3_HTTP_H

#include "s3_credentials.h"
#include "tier.h"

#include <curl/curl.h>
#include <pthread.h>

#define KVCT_S3_HANDLES 16
#define KVCT_S3_LIST_MAX (4u << 20) /* bytes of one page of a listing */

/* The kinds of requests. The last answer of each kind is remembered for the log. */
enum kvct_s3_kind { KVCT_S3_READ, KVCT_S3_WRITE, KVCT_S3_REMOVE, KVCT_S3_LIST, KVCT_S3_KINDS };

struct kvct_s3_handle {
	CURL *curl;
	curl_socket_t fd; /* the connection's socket, for polling */
	uint64_t idle_ns; /* idle since (kvc_mono_ns) */
};

struct kvct_s3_uploads;

/* A way to address the bucket: in the path, or in the host name. */
struct kvct_s3_place {
	char server[512]; /* scheme://host:port */
	char host[330];   /* the Host header */
	char root[512];   /* the bucket's path without its last slash */
};

struct kvct_s3 {
	struct kvc_tier tier;
	pthread_mutex_t lock;
	struct kvct_s3_handle idle[KVCT_S3_HANDLES];
	unsigned nidle;
	struct kvct_s3_place place[2]; /* path style, host-name style */
	_Atomic bool by_name;          /* the second is used */
	bool may_switch;               /* switch to the second if the service asks for it */
	/* for a host name below a numeric address: "NAME:PORT:ADDRESS:PORT" */
	char connect_to[700];
	char prefix[1024]; /* "" or ends with / */
	char region[64], ca[512];
	char sse[32], sse_key[256]; /* server-side encryption of stored objects; "": none */
	bool md5, sha256;           /* checksum= */
	struct kvct_s3_credentials *credentials;
	uint64_t deadline_ms;
	struct {
		uint32_t answer; /* a digest of the last answer; 0: success */
		uint64_t ns;     /* its time (kvc_mono_ns) */
	} logged[KVCT_S3_KINDS]; /* guarded by lock */
	struct kvc_where good;   /* an object that was read or stored recently; guarded by lock */
	bool has_good;
	/* until then a missing object cannot be told from a forbidden one; guarded by lock */
	uint64_t blind_ns;
	uint64_t seeing_ns;              /* until then it can */
	_Atomic bool whole;              /* the log says that the service ignores Range */
	_Atomic bool stopping;           /* the sweeper's requests end */
	struct kvct_s3_uploads *uploads; /* s3_uploads.c */
};

/* A request. The caller sets members of the first part; all other members are 0 before the call. */
struct kvct_s3_request {
	/* set by the caller */
	enum kvct_s3_kind kind;
	const char *method;
	char key[1100];      /* below the bucket; "": the bucket itself */
	const char *query;   /* escaped and sorted, or NULL */
	bool creates;        /* creates an object: sends the encryption headers */
	bool quiet;          /* not for a user: logs nothing, and ends when the tier stops */
	bool slow;           /* the answer may take long; the connection is known to work */
	bool wanted;         /* the caller handles and logs a 403 */
	bool anonymous;      /* sent without credentials, and without getting them */
	uint64_t from, to;   /* Range, if to > 0; both ends are included */
	const uint8_t *body; /* the request body */
	size_t body_len;
	/* buffers for the body of the answer (at most 8), or NULL: it is stored in text */
	struct iovec *iov;
	int n;
	size_t text_max; /* 0: 64 KiB */

	/* the answer */
	uint64_t got; /* bytes stored in iov */
	char *text;   /* NUL-terminated, or NULL; the caller frees it */
	size_t text_len;
	char etag[256], region[64];
	char endpoint[200];          /* the target of a redirect, or "" */
	char code[64], message[300]; /* the service's own words, printable */
	uint64_t date_ns;            /* the service's clock; 0: not known */
	long status;

	/* private to s3_http.c */
	size_t body_at;
	uint64_t skip, moved_ns, sent, retry_ms;
	bool overflow, enough, failing, html, service, again, stale, sure, idle, answered, stalled;
	bool begun; /* a byte of the answer arrived */
	curl_socket_t fd;
	struct kvct_s3 *s3;
	const struct kvct_s3_place *place;
};

/*
 * Sends a request and receives the answer before the deadline, which grows with the number of
 * bytes. Returns 0 for any 2xx, or an error of tier.h: -ENOENT (404 of this key), -EBADMSG (416, or
 * more bytes than requested), -EFBIG, -ENAMETOOLONG; -EACCES, -EROFS, -ENOSPC, -EDQUOT, -EBUSY;
 * -EIO, -ETIMEDOUT, -ECONNREFUSED, -EHOSTUNREACH, -ENOMEM. The caller frees q->text in every case.
 */
int kvct_s3_ask(struct kvct_s3 *s, struct kvct_s3_request *q);
/* Closes the idle connections. */
void kvct_s3_close_idle(struct kvct_s3 *s);

/* --- s3_answer.c: the meaning of answers --- */

/* A piece of XML, not NUL-terminated. */
struct kvct_s3_text {
	const char *p;
	size_t len;
};
/*
 * Finds the text of <tag>...</tag> in *in, and moves *in past the element. Returns false if there
 * is none.
 */
bool kvct_s3_element(struct kvct_s3_text *in, const char *tag, struct kvct_s3_text *out);
/*
 * Returns the unescaped text of the element as a string that the caller frees; NULL: no element, or
 * out of memory.
 */
char *kvct_s3_element_text(struct kvct_s3_text in, const char *tag);
/*
 * Returns the result of a finished request, as kvct_s3_ask. Sets q->again (another attempt may
 * help), q->stale (the service may have refused the credentials; q->sure: it has), q->code and
 * q->message.
 */
int kvct_s3_judge(struct kvct_s3_request *q, CURLcode rc);
/* Does the answer say that the bucket must be in the host name? */
bool kvct_s3_wants_name(const struct kvct_s3_request *q);
/*
 * Logs an answer if it differs from the last one of its kind, or that requests of the kind work
 * again. err is the result of kvct_s3_judge.
 */
void kvct_s3_log(struct kvct_s3 *s, const struct kvct_s3_request *q, int err);

/* --- s3_list.c, s3_uploads.c: parts of the driver --- */

int kvct_s3_list(struct kvc_tier *t,
		 int (*fn)(void *arg, const struct kvc_where *w, const struct kvc_frame *f),
		 void *arg);
/* Writes the key of an object to `key`. */
void kvct_s3_key(const struct kvct_s3 *s, const struct kvc_where *w, char key[1100]);
/* Is this the key of an object of ours? If so, sets *w to its name. */
bool kvct_s3_is_key(const struct kvct_s3 *s, struct kvct_s3_text key, struct kvc_where *w);
/* Reads like kvc_tier_ops.get. listed: the service has just listed the object. */
int kvct_s3_read(struct kvct_s3 *s, const struct kvc_where *w, uint64_t off,
		 const struct iovec *iov, int n, bool listed);

/*
 * Stores a frame as a multipart upload with parts of KVCT_S3_PART bytes; the last part may be
 * shorter.
 */
int kvct_s3_put_parts(struct kvct_s3 *s, const struct kvc_put *p);
#define KVCT_S3_PART (8u << 20)
/*
 * Unfinished uploads are noted in the store's folder, so that the next daemon aborts them. Uploads
 * of any node that are a day old are found by listing. dir: the store's folder, or NULL: nothing is
 * noted. The thread runs between start and stop. open and start return 0 or a negative errno.
 */
int kvct_s3_uploads_open(struct kvct_s3 *s, const char *dir);
int kvct_s3_uploads_start(struct kvct_s3 *s);
void kvct_s3_uploads_stop(struct kvct_s3 *s);
void kvct_s3_uploads_close(struct kvct_s3 *s);

/*
 * Sets options for every request: no signals, and no wait for a name server beyond the request's
 * deadline.
 */
void kvct_s3_set_bounded(CURL *c);

#endif
