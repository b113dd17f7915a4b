/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The s3 tier's requests, signed (s3_sign.h) and sent through libcurl. Handles are kept in a stack,
 * one call each at a time, so connections are used again; the lock guards the stack. Answers that
 * may change within the deadline (5xx, 429, broken connections) are tried again with jitter.
 *
 * A connection that was idle may have been dropped by a load balancer without a word: if a request
 * on one gets no answer for a quarter of the deadline, all idle connections are closed and the
 * request is sent again.
 */
#ifndef KVCT_S3_HTTP_H
#define KVCT_S3_HTTP_H

#include "s3_credentials.h"
#include "tier.h"

#include <curl/curl.h>
#include <pthread.h>

#define KVCT_S3_HANDLES 16
#define KVCT_S3_LIST_MAX (4u << 20) /* bytes of a page of a listing */

/* The kinds of requests. Each has its own last answer in the log. */
enum kvct_s3_kind { KVCT_S3_READ, KVCT_S3_WRITE, KVCT_S3_REMOVE, KVCT_S3_LIST, KVCT_S3_KINDS };

struct kvct_s3_handle {
	CURL *curl;
	curl_socket_t fd; /* of its connection, to look at */
	uint64_t idle_ns; /* since when (kvc_mono_ns) */
};

struct kvct_s3_uploads;

/* How the bucket is addressed: in the path, or in the host name. */
struct kvct_s3_place {
	char server[512]; /* scheme://host:port */
	char host[330];   /* as the Host header has it */
	char root[512];   /* the path of the bucket, without its last / */
};

struct kvct_s3 {
	struct kvc_tier tier;
	pthread_mutex_t lock;
	struct kvct_s3_handle idle[KVCT_S3_HANDLES];
	unsigned nidle;
	struct kvct_s3_place place[2]; /* by path, by name */
	_Atomic bool by_name;          /* the second is used */
	bool may_switch;               /* ... when the service asks for it */
	char connect_to[700];          /* with a name below an address: "NAME:PORT:ADDRESS:PORT" */
	char prefix[1024];             /* "" or ends with / */
	char region[64], ca[512];
	char sse[32], sse_key[256]; /* server-side encryption of what is stored; "": none */
	bool md5, sha256;           /* checksum= */
	struct kvct_s3_credentials *credentials;
	uint64_t deadline_ms;
	struct {
		uint32_t answer; /* a digest of what was said last; 0: it worked */
		uint64_t ns;     /* when (kvc_mono_ns) */
	} said[KVCT_S3_KINDS];   /* under lock */
	struct kvc_where good;   /* an object that was read or stored last; under lock */
	bool has_good;
	uint64_t blind_ns;               /* until then the keys cannot tell absence; under lock */
	uint64_t seeing_ns;              /* until then they can */
	_Atomic bool whole;              /* it was logged that Range is ignored */
	_Atomic bool stopping;           /* requests of the sweeper end */
	struct kvct_s3_uploads *uploads; /* s3_uploads.c */
};

/* One request. Zero, but for what is said below. */
struct kvct_s3_request {
	/* the caller sets */
	enum kvct_s3_kind kind;
	const char *method;
	char key[1100];      /* below the bucket; "": the bucket itself */
	const char *query;   /* escaped and in order, or NULL */
	bool creates;        /* it makes an object: the encryption is named */
	bool quiet;          /* of the sweeper: nothing is logged, and it ends with the tier */
	bool slow;           /* the answer may take long, the connection is known to be good */
	bool wanted;         /* a 403 is judged by the caller, who logs it */
	uint64_t from, to;   /* Range, when to > 0: both included */
	const uint8_t *body; /* sent */
	size_t body_len;
	struct iovec *iov; /* where the answer's body goes (8 at most), or NULL: into text */
	int n;
	size_t text_max; /* 0: 64 KiB */

	/* the answer */
	uint64_t got; /* bytes in iov */
	char *text;   /* ended by a NUL, or NULL; the caller frees it */
	size_t text_len;
	char etag[256], region[64];
	char endpoint[200];          /* where a redirect leads, or "" */
	char code[64], message[300]; /* the service's own words, fit for a log */
	uint64_t date_ns;            /* the service's clock; 0: it did not say */
	long status;

	/* s3_http.c's own */
	size_t body_at;
	uint64_t skip, moved_ns, sent, retry_ms;
	bool overflow, enough, failing, html, service, again, stale, sure, idle, answered, stalled;
	bool begun; /* a byte of the answer came */
	curl_socket_t fd;
	struct kvct_s3 *s3;
	const struct kvct_s3_place *place;
};

/*
 * Sends it and takes the answer, until the deadline, which grows with the bytes. 0 for any 2xx, or
 * as tier.h says: -ENOENT (404 of this key), -EBADMSG (416, or more bytes than asked for), -EFBIG,
 * -ENAMETOOLONG; -EACCES, -EROFS, -ENOSPC, -EDQUOT, -EBUSY; -EIO, -ETIMEDOUT, -ECONNREFUSED,
 * -EHOSTUNREACH, -ENOMEM. q->text is the caller's to free in every case.
 */
int kvct_s3_ask(struct kvct_s3 *s, struct kvct_s3_request *q);
/* Closes connections that are idle. */
void kvct_s3_close_idle(struct kvct_s3 *s);

/* --- s3_answer.c: what answers mean --- */

/* A piece of XML, not ended by a NUL. */
struct kvct_s3_text {
	const char *p;
	size_t len;
};
/* The text in <tag>...</tag> in *in, which then begins behind it. False: there is none. */
bool kvct_s3_element(struct kvct_s3_text *in, const char *tag, struct kvct_s3_text *out);
/* The same, without the escapes, as a string that the caller frees; NULL: none, or no memory. */
char *kvct_s3_element_text(struct kvct_s3_text in, const char *tag);
/*
 * What a finished request says, as kvct_s3_ask. Sets q->again (another try may help), q->stale (the
 * credentials may have been refused; q->sure: they were), q->code and q->message.
 */
int kvct_s3_judge(struct kvct_s3_request *q, CURLcode rc);
/* Does the answer say that the bucket has to be in the host name? */
bool kvct_s3_wants_name(const struct kvct_s3_request *q);
/* Logs an answer once for each change, or that requests of the kind work again. err: as above. */
void kvct_s3_tell(struct kvct_s3 *s, const struct kvct_s3_request *q, int err);

/* --- s3_list.c, s3_uploads.c: parts of the driver --- */

int kvct_s3_list(struct kvc_tier *t,
		 int (*fn)(void *arg, const struct kvc_where *w, const struct kvc_frame *f),
		 void *arg);
/* The key of an object. */
void kvct_s3_key(const struct kvct_s3 *s, const struct kvc_where *w, char key[1100]);
/* Is it a key of an object of ours? Then *w is its name. */
bool kvct_s3_is_key(const struct kvct_s3 *s, struct kvct_s3_text key, struct kvc_where *w);
/* Reads as kvc_tier_ops.get; listed: the service has just said that the object is there. */
int kvct_s3_read(struct kvct_s3 *s, const struct kvc_where *w, uint64_t off,
		 const struct iovec *iov, int n, bool listed);

/* Stores a frame in parts of so many bytes, all but the last equal. */
int kvct_s3_put_parts(struct kvct_s3 *s, const struct kvc_put *p);
#define KVCT_S3_PART (8u << 20)
/*
 * Uploads that were begun and not ended are noted in the store's folder, so that the next daemon
 * ends them; those of any node that are a day old are found by listing. dir: the store's folder, or
 * NULL: nothing is noted. The thread runs between start and stop.
 */
int kvct_s3_uploads_open(struct kvct_s3 *s, const char *dir);
int kvct_s3_uploads_start(struct kvct_s3 *s);
void kvct_s3_uploads_stop(struct kvct_s3 *s);
void kvct_s3_uploads_close(struct kvct_s3 *s);

/* For each request: no signals, and no wait for a name server beyond the request's time. */
void kvct_s3_set_bounded(CURL *c);

#endif
