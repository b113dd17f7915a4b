/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Signatures of the requests between nodes (remote=peers://, peer_listen=) and of their answers,
 * made with a secret that all nodes have. They show that a request is from a node that knows the
 * secret, and that an answer belongs to this request and is from such a node. They are the first
 * 128 bits of HMAC-SHA256. The bytes of a frame have the frame's own checksums and seal; the
 * signature of an answer covers the frame's header, if the answer has it.
 *
 * A request is GET /v1/PATH with one Range of bytes, and has these headers:
 *
 *   KVC_PEER_TIME    milliseconds since 1970
 *   KVC_PEER_NONCE   32 hexadecimal digits, different for each request
 *   KVC_PEER_NODE    the name of the asked node (peer_name.h), as the client's nodes= has it
 *   KVC_PEER_EPOCH   32 hexadecimal digits, the epoch of the server; zeros: it is not known
 *   KVC_PEER_SIGN    the signature; an answer has it, too
 *
 * POST /have asks for many names at once. Its body is the names, each with a zero byte at its end.
 * Instead of the range it has these headers:
 *
 *   Content-Length
 *   KVC_PEER_BODY    the signature of the body; it takes the place of the path in KVC_PEER_SIGN
 *
 * So a server knows from the headers alone who sends the body, before it takes memory for it. The
 * answer is 200 and a bit for each name, in the order of the names and from the lowest bit of each
 * byte: 1 if the node may have the object. All bytes of this answer are signed.
 *
 * POST /offer tells a node that this one has objects of these names. It looks like POST /have, and
 * its answer too: 1 if the node has the object now, or loads it. Its signature has the word OFFER,
 * so that no signed POST /have can be passed on as an offer. A node that takes no offers answers
 * KVC_PEER_NO_REMOTE, KVC_PEER_FULL, or 503 while it is busy with other offers.
 *
 * POST /status and POST /where look the same, each with a word of its own in the signature. Their
 * answer is 200 and a text of at most KVC_PEER_TEXT bytes, all of which are signed. /status: the
 * state of the node, as lines of a name and a number; its body is one empty name. /where: a line
 * for each name. POST /change is the third of this kind, and the only request that changes the
 * objects of a node: the first name is the change (ops/cluster_change.h), and the text has a line
 * for each other name. A node without the option peer_control answers KVC_PEER_NO_CHANGES.
 *
 * A server refuses a request whose time differs from its own by more than KVC_PEER_WINDOW_MS, and a
 * nonce that it has seen before. It answers KVC_PEER_MISDIRECTED if the request is for a name that
 * is not its own. All nodes have the same secret. Without the name, an attacker who receives a
 * request could pass it on to another node, which would answer it.
 *
 * A server forgets the nonces when it ends. So it draws a random number when it starts, its epoch,
 * and answers KVC_PEER_OTHER_EPOCH to a request of another epoch. The body of the answer is the
 * epoch. The client then signs the request again, with this epoch and another nonce, and remembers
 * the epoch for the next requests.
 */
#ifndef KVC_PEER_SIGN_H
#define KVC_PEER_SIGN_H

#include "peer_name.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define KVC_PEER_PREFIX "/v1/"
#define KVC_PEER_TIME "X-Kvcachefs-Time"
#define KVC_PEER_NONCE "X-Kvcachefs-Nonce"
#define KVC_PEER_NODE "X-Kvcachefs-Node"
#define KVC_PEER_EPOCH "X-Kvcachefs-Epoch"
#define KVC_PEER_SIGN "X-Kvcachefs-Sign"
#define KVC_PEER_BODY "X-Kvcachefs-Body"
#define KVC_PEER_NAMES 512u                /* names in the body of a request */
#define KVC_PEER_NAMES_BYTES (64u << 10)   /* length of that body */
#define KVC_PEER_BITS (KVC_PEER_NAMES / 8) /* length of its answer */
#define KVC_PEER_TEXT (64u << 10)          /* maximum length of a text that answers a request */
#define KVC_PEER_NO_CHANGES 405u           /* status of an answer */
#define KVC_PEER_MISDIRECTED 421u
#define KVC_PEER_OTHER_EPOCH 425u
#define KVC_PEER_NO_REMOTE 501u
#define KVC_PEER_FULL 507u
#define KVC_PEER_WINDOW_MS 30000u
#define KVC_PEER_SECRET_MIN 16u /* characters */
#define KVC_PEER_SECRET_MAX 255u

struct kvc_peer_secret {
	uint8_t key[32];
};
/* The text of a nonce or of a signature. */
typedef char kvc_peer_text[33];

/*
 * Reads the secret from the first line of the file. Returns 0, or a negative errno with the reason
 * in why[KVC_SECRET_WHY] (secret.h). The caller wipes *s at the end.
 */
int kvc_peer_secret_read(const char *path, struct kvc_peer_secret *s, char *why);

/* Requests; the table `kinds` in peer_sign.c has their URLs and words. All but _GET are POST. */
enum kvc_peer_kind {
	KVC_PEER_GET,
	KVC_PEER_HAVE,
	KVC_PEER_OFFER,
	KVC_PEER_STATUS,
	KVC_PEER_WHERE,
	KVC_PEER_CHANGE,
	KVC_PEER_KINDS
};
/* The URL; for _GET, its part before the path. */
const char *kvc_peer_url(enum kvc_peer_kind kind);
/* Is the answer a text, and not a frame or a bit for each name? */
static inline bool kvc_peer_has_text(enum kvc_peer_kind kind)
{
	return kind >= KVC_PEER_STATUS;
}

struct kvc_peer_request {
	enum kvc_peer_kind kind;
	/* as frames name it: relative, not escaped. POST: the signature of the body */
	const char *path;
	uint64_t from, to; /* the range, both ends included; POST: of the body */
	uint64_t time_ms;
	kvc_peer_text nonce;
	const char *node; /* the name of the node that is asked */
	kvc_peer_text epoch;
};
/* The headers of a request; NULL: the header is missing. */
struct kvc_peer_headers {
	const char *range, *time, *nonce, *node, *epoch;
	const char *length, *body; /* POST: Content-Length and KVC_PEER_BODY */
};
/*
 * Parses a request: its URL without the escapes, and its headers. Sets *q, whose path and node are
 * parts of these texts, and returns true; or returns false if something is missing or wrong. The
 * nonce and the epoch are any texts of at most 32 characters. The range is not empty, and the node
 * is a name.
 */
bool kvc_peer_parse(const char *url, const struct kvc_peer_headers *h, struct kvc_peer_request *q);
/*
 * The same for a POST. The body's length, q->to + 1, is at most KVC_PEER_NAMES_BYTES. q->path is a
 * part of the header, and has 32 characters.
 */
bool kvc_peer_parse_have(const char *url, const struct kvc_peer_headers *h,
			 struct kvc_peer_request *q);
/*
 * Counts the names in the body of POST /have. Returns false if there are none or more than
 * KVC_PEER_NAMES, or if the last one has no zero byte at its end.
 */
bool kvc_peer_names_count(const char *body, size_t len, size_t *n);
/* Signs the body of POST /have with the nonce of its request. Returns 0, -ENOMEM or -EIO. */
int kvc_peer_sign_body(const struct kvc_peer_secret *s, const kvc_peer_text nonce, const char *body,
		       size_t len, kvc_peer_text sign);
/* Signs a request. Returns 0, -ENOMEM or -EIO. */
int kvc_peer_sign(const struct kvc_peer_secret *s, const struct kvc_peer_request *q,
		  kvc_peer_text sign);
/*
 * Signs the answer to the request with this nonce. start: the frame's header, if the range begins
 * at 0, with its length; the epoch of a KVC_PEER_OTHER_EPOCH; or the bits of an answer to POST
 * /have; otherwise nothing. Returns 0, -ENOMEM or -EIO.
 */
int kvc_peer_sign_answer(const struct kvc_peer_secret *s, const kvc_peer_text nonce,
			 unsigned status, uint64_t length, const void *start, size_t start_len,
			 kvc_peer_text sign);
/* Is the text an epoch or a nonce of the right form: 32 hexadecimal digits, in lower case? */
bool kvc_peer_hex(const char *text);
/* Compares texts in a time that does not depend on them. NULL differs from everything. */
bool kvc_peer_same(const kvc_peer_text a, const char *b);

#endif
