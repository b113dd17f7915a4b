/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The redis tier's connections: to one server, or to the nodes of a cluster (redis_cluster.c). Each
 * node has a stack of idle connections; one call at a time uses a connection. r->lock guards the
 * stacks, nodes, slot map and the password; nothing is sent under it. Every call ends at its time,
 * however slowly the other side answers.
 *
 * Any idle connection may be dead without having been closed (a firewall forgot it), lead to a
 * server that is not the primary any more, or have been made with a password that is no longer
 * valid. So a call that fails on a reused connection is tried again on a new one, within its time,
 * which is safe since each command may be repeated; and connections as old as that one are closed.
 */
#ifndef KVCT_REDIS_CONN_H
#define KVCT_REDIS_CONN_H

#include "redis_reply.h"
#include "redis_tls.h"
#include "tier.h"

#include <pthread.h>

#define KVCT_REDIS_NODES 64
#define KVCT_REDIS_SLOTS 16384
#define KVCT_REDIS_IDLE 16
#define KVCT_REDIS_SAID 8

struct kvct_redis_conn {
	redisContext *c;
	char host[256];
	int port;
	uint64_t used_ns; /* when the last answer arrived */
	unsigned epoch;   /* r->epoch when it was made */
	bool fresh;       /* not used before */
};

struct kvct_redis_node {
	char host[256]; /* a path for a Unix socket; "": the place is free */
	int port;
	bool seed; /* given in the URL: never forgotten */
	struct kvct_redis_conn *idle[KVCT_REDIS_IDLE];
	unsigned nidle;
	uint64_t dead_ns; /* connections last used at this time or before are dead */
};

/* What tells whether a file was replaced. */
struct kvct_stamp {
	dev_t dev;
	ino_t ino;
	off_t size;
	struct timespec mtime, ctime;
};

enum { KVCT_REDIS_PASSWORD, KVCT_REDIS_CA, KVCT_REDIS_CERT, KVCT_REDIS_KEY, KVCT_REDIS_FILES };

struct kvct_redis {
	struct kvc_tier tier;
	pthread_mutex_t lock;
	struct kvct_redis_node nodes[KVCT_REDIS_NODES];
	_Atomic unsigned nnodes;        /* places that were ever used */
	uint8_t slot[KVCT_REDIS_SLOTS]; /* the node of each; in a cluster */
	bool cluster;
	struct kvct_redis_tls *tls; /* NULL: without */
	char user[128], password[256], prefix[256];
	struct {
		char path[KVCT_REDIS_FILES][512]; /* "": not given */
		struct kvct_stamp stamp[KVCT_REDIS_FILES];
		_Atomic uint64_t checked_ns;
		_Atomic bool busy;
	} files; /* redis_files.c */
	int db;
	uint64_t deadline_ms;
	_Atomic unsigned epoch; /* connections of earlier ones are closed */
	struct {
		uint64_t hash, when_ns;
	} said[KVCT_REDIS_SAID]; /* recent lines in the log */
};

/* The slot of a key's hash tag. */
unsigned kvct_redis_slot(const char *hex);
/*
 * The number of a node, with a new entry if it is not known; -1: no entry is free, or the address
 * is not one. An entry without slots is reused for it; a call that still has its number is
 * redirected by the other node (MOVED). Needs r->lock, except before there are threads.
 */
int kvct_redis_node_locked(struct kvct_redis *r, const char *host, int port);
/* Asks the cluster for its map of slots, and forgets nodes without slots. 0 or -EIO. */
int kvct_redis_learn(struct kvct_redis *r, uint64_t until_ns);
/*
 * Notes where "MOVED 3999 host:port" or "ASK ..." from node `from` leads to: its number, or -1.
 */
int kvct_redis_redirected(struct kvct_redis *r, const char *text, unsigned from, bool moved);

/*
 * A connection to a node, an idle one if `reuse`. 0; -EACCES: the server does not let us in; or
 * another negative errno of tier.h. r->lock is not held.
 */
int kvct_redis_take(struct kvct_redis *r, unsigned node, uint64_t until_ns, bool reuse,
		    struct kvct_redis_conn **out);
/* Back to the idle ones, if it can be used again. */
void kvct_redis_give(struct kvct_redis *r, unsigned node, struct kvct_redis_conn *c);
void kvct_redis_conn_free(struct kvct_redis_conn *c);
/*
 * After a command failed with err on c, which is freed: true if it is worth another try on a new
 * connection. Closes the idle connections of the node that are as old.
 */
bool kvct_redis_failed(struct kvct_redis *r, unsigned node, struct kvct_redis_conn *c, int err);
/* How long a command on c may stay without a byte in either direction. */
uint64_t kvct_redis_quiet_ns(const struct kvct_redis *r, const struct kvct_redis_conn *c);
/*
 * Sends a command to the node that has the slot, and again where that helps. 0 with a reply that
 * is not an error, which the caller frees; or a negative errno of tier.h, logged.
 */
int kvct_redis_ask(struct kvct_redis *r, unsigned slot, const struct kvct_redis_command *cmd,
		   uint64_t until_ns, redisReply **out);
/* The same for one node, with *next as kvct_redis_meaning() has it. Neither MOVED nor ASK. */
int kvct_redis_ask_node(struct kvct_redis *r, unsigned node, const struct kvct_redis_command *cmd,
			uint64_t until_ns, redisReply **out);
/* Logs a line, unless the same was logged within some minutes. Text of a server is made printable.
 */
void kvct_redis_say(struct kvct_redis *r, const char *what, const char *why, const char *hint);

/*
 * redis_files.c: the password and the certificates. load: reads them all, at open; 0, or a negative
 * errno with one line in error[512]. changed: reads again those that were replaced, at most once
 * a second unless `now`; true if any was, and then all connections are made again. A file that
 * cannot be read leaves what was read before.
 */
int kvct_redis_files_load(struct kvct_redis *r, bool tls, char *error);
bool kvct_redis_files_changed(struct kvct_redis *r, bool now);

/* redis_list.c: tier.h's list. */
int kvct_redis_list(struct kvc_tier *t,
		    int (*fn)(void *arg, const struct kvc_where *w, const struct kvc_frame *f),
		    void *arg_);
/* redis_open.c: frees the tier. */
void kvct_redis_close(struct kvc_tier *t);
extern const struct kvc_tier_ops kvct_redis_ops; /* redis.c */
uint64_t kvct_redis_until(const struct kvct_redis *r, uint64_t bytes);
int kvct_redis_get(struct kvc_tier *t, const struct kvc_where *w, uint64_t off,
		   const struct iovec *iov, int n);

#endif
