/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Requests of the peers tier to one node (peers_http.c), and the state of the tier (peers.c). The
 * lock guards everything that a comment does not exempt.
 */
#ifndef KVCT_PEERS_H
#define KVCT_PEERS_H

#include "peer_sign.h"
#include "tier.h"

#include <curl/curl.h>
#include <pthread.h>

#define KVCT_PEERS_MAX KVC_NODES
#define KVCT_PEERS_HANDLES 4 /* idle connections to each */
#define KVCT_PEERS_HANDLE_BYTES (64u << 10)
#define KVCT_PEERS_NAMES 4096u

struct kvct_peer {
	char name[KVC_PEER_NAME]; /* HOST:PORT; constant */
	uint64_t latency_ns;      /* of answers without a payload, averaged; 0: not known */
	/* the node is left alone until then (kvc_mono_ns), since it failed for this reason */
	uint64_t until_ns, backoff_ns;
	int why;
	kvc_peer_text epoch; /* of the node (peer_sign.h), as far as it is known */
	CURL *idle[KVCT_PEERS_HANDLES];
	unsigned nidle;
};

struct kvct_directory;

struct kvct_peers {
	struct kvc_tier tier;
	struct kvct_directory *directory; /* NULL: none. Constant */
	struct kvc_peer_secret secret;    /* constant */
	uint64_t deadline_ms;             /* constant */
	pthread_mutex_t lock;
	/* which node sent a frame, by a hash of the frame's name; node: 1 + its index, or 0 */
	struct {
		uint64_t at, hi;
		unsigned node;
	} from[KVCT_PEERS_NAMES];
	unsigned n; /* constant */
	struct kvct_peer node[KVCT_PEERS_MAX];
};

/* A request to one node. */
struct kvct_peers_request {
	const char *path;
	uint64_t off;
	/* for the bytes; the first part has the whole header if off is 0, or all bits */
	const struct iovec *iov;
	int n;
	/* not for _GET: the body instead of the path, and the iov is for the bits or the text */
	enum kvc_peer_kind kind;
	const char *names;
	size_t names_len;
	uint64_t until_ns; /* deadline of a small answer; a large one gets more time */
	/* the answer */
	uint64_t first_ns; /* from the request to the first byte of its answer */
	uint64_t got;      /* bytes of the frame, or of the text */
	char text[200];    /* the node's reason for a refusal, printable */
};
/*
 * Sends a request to node i. Returns 0: all bytes were received, with zeros after the end of the
 * frame; -ENOENT: the node does not have the object; -EBADMSG: `off` is past its end; -EBUSY: the
 * node cannot serve it now, or is busy with other offers; -EACCES: the node refuses this node, or
 * does not have the name in nodes=; -EOPNOTSUPP or -ENOSPC: the node takes no offers because it
 * reads from no remote, or is full; -EPERM: it allows no changes; or -EIO, -ETIMEDOUT,
 * -ECONNREFUSED, -EHOSTUNREACH, -ENOMEM. Every answer but -EACCES was signed with the secret. The
 * iov itself is not changed. Blocks, without the lock.
 */
int kvct_peers_ask(struct kvct_peers *p, unsigned i, struct kvct_peers_request *q);
/* The member `ask` of the driver (peers_ask.c). */
int kvct_peers_ask_all(struct kvc_tier *t, enum kvc_peer_kind kind, const char *names, size_t len,
		       uint64_t ns, struct kvc_node_answer *a, size_t *n);
/* Closes the idle connections. */
void kvct_peers_close_idle(struct kvct_peers *p);

#endif
