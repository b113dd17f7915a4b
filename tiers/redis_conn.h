/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The connections of the redis tier: to one server, or to the nodes of a cluster (redis_cluster.c).
 * Each node has a stack of idle connections; one call at a time uses a connection. r->lock guards
 * the stacks, nodes, slot map and password; nothing is sent while it is held. Every call ends at
 * its deadline, however slowly the server answers.
 *
 * An idle connection may be dead without having been closed (a firewall dropped it). It may lead to
 * a server that is no longer the primary, or may have been made with a password that is no longer
 * valid. So a call that fails on a reused connection is tried again on a new one, before its
 * deadline. This is safe since every command may be repeated. Idle connections as old as the failed
 * one are closed.
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
#define KVCT_REDIS_LOGGED 8
#define KVCT_REDIS_NAME 320 /* length of a head's key */

struct kvct_redis_conn {
	redisContext *c;
	char host[256];
	int port;
	uint64_t used_ns; /* when the last answer arrived */
	unsigned epoch;   /* r->epoch when the connection was made */
	bool fresh;       /* not used yet */
};

struct kvct_redis_node {
	char host[256]; /* a path for a Unix socket; "": the entry is free */
	int port;
	bool seed; /* given in the URL: never removed */
	struct kvct_redis_conn *idle[KVCT_REDIS_IDLE];
	unsigned nidle;
	uint64_t dead_ns; /* connections last used at this time or earlier are dead */
};

/* Identifies one version of a file. */
struct kvct_stamp {
	dev_t dev;
	ino_t ino;
	off_t size;
	struct timespec mtime, ctime;
};

enum { KVCT_REDIS_PASSWORD, KVCT_REDIS_CA, KVCT_REDIS_CERT, KVCT_REDIS_KEY, KVCT_REDIS_FILES };

struct kvct_redis {
	struct kvc_tier tier;
	const char *label; /* for log lines */
	pthread_mutex_t lock;
	struct kvct_redis_node nodes[KVCT_REDIS_NODES];
	_Atomic unsigned nnodes;        /* entries ever used */
	uint8_t slot[KVCT_REDIS_SLOTS]; /* the node of each slot, in a cluster */
	bool cluster;
	struct kvct_redis_tls *tls; /* NULL: no TLS */
	char user[128], password[256], prefix[256];
	struct {
		char path[KVCT_REDIS_FILES][512]; /* "": not given */
		struct kvct_stamp stamp[KVCT_REDIS_FILES];
		_Atomic uint64_t checked_ns;
		_Atomic bool busy;
	} files; /* redis_files.c */
	int db;
	uint64_t deadline_ms;
	_Atomic unsigned epoch; /* connections of earlier epochs are closed */
	struct {
		uint64_t hash, when_ns;
	} logged[KVCT_REDIS_LOGGED]; /* recent log lines */
};

/* Returns the slot of a key whose hash tag is `hex`. */
unsigned kvct_redis_slot(const char *hex);
/*
 * Returns the number of a node, with a new entry if it is unknown; -1 if no entry is free or the
 * address is invalid. An entry without slots may be reused; a call that still has its number is
 * redirected by the other node (MOVED). The caller holds r->lock, except before there are threads.
 */
int kvct_redis_node_locked(struct kvct_redis *r, const char *host, int port);
/* Asks the cluster for its slot map, and removes nodes without slots. Returns 0 or -EIO. */
int kvct_redis_learn(struct kvct_redis *r, uint64_t until_ns);
/*
 * Handles "MOVED 3999 host:port" or "ASK ..." from node `from`: returns the number of the node that
 * it names, or -1. For MOVED, updates the slot map.
 */
int kvct_redis_redirected(struct kvct_redis *r, const char *text, unsigned from, bool moved);

/*
 * Gets a connection to a node; an idle one if `reuse` is set and there is one. Returns 0 and sets
 * *out; -EACCES if the server refuses the login; or another negative errno of tier.h. The caller
 * does not hold r->lock.
 */
int kvct_redis_conn_get(struct kvct_redis *r, unsigned node, uint64_t until_ns, bool reuse,
			struct kvct_redis_conn **out);
/* Puts the connection back on the idle stack, or closes it if it cannot be used again. */
void kvct_redis_conn_put(struct kvct_redis *r, unsigned node, struct kvct_redis_conn *c);
void kvct_redis_conn_free(struct kvct_redis_conn *c);
/*
 * Handles a command that failed with err on c, and frees c. Returns true if a new connection may
 * help. Closes the idle connections of the node that are as old as c.
 */
bool kvct_redis_conn_failed(struct kvct_redis *r, unsigned node, struct kvct_redis_conn *c,
			    int err);
/*
 * Handles the error reply `text` to a command on a connection that was fresh or not. Returns its
 * error, which was logged if it is final, and sets *next.
 */
int kvct_redis_error(struct kvct_redis *r, const char *command, const char *text, bool fresh,
		     enum kvct_redis_next *next);
/* How long a command on c may go without a byte in either direction. */
uint64_t kvct_redis_silence_ns(const struct kvct_redis *r, const struct kvct_redis_conn *c);
/*
 * Sends a command to the node of the slot, and tries again if that may help. Returns 0 and sets
 * *out to a reply that is not an error, which the caller frees; or returns a negative errno of
 * tier.h, which was logged.
 */
int kvct_redis_ask(struct kvct_redis *r, unsigned slot, const struct kvct_redis_command *cmd,
		   uint64_t until_ns, redisReply **out);
/* Sends a command to one node, which must answer itself: MOVED and ASK are errors. */
int kvct_redis_ask_node(struct kvct_redis *r, unsigned node, const struct kvct_redis_command *cmd,
			uint64_t until_ns, redisReply **out);

/*
 * Several commands to one node in one round trip (redis_pipe.c). The caller sets the first part.
 */
struct kvct_redis_pipe {
	struct kvct_redis *r;
	unsigned node;
	uint64_t until_ns;
	size_t n; /* commands */
	/* Fills in command i, which is 0 before; its words are valid until the next call. */
	void (*command)(void *arg, size_t i, struct kvct_redis_command *cmd);
	/*
	 * Gets the answer to command i, which may be an error, and may get it again. Returns 0, an
	 * error of tier.h, or KVCT_REDIS_UNKNOWN: this is an error reply with its usual meaning.
	 */
	int (*answer)(void *arg, size_t i, const redisReply *reply);
	void *arg;
	size_t elements; /* the largest answer, as in struct kvct_redis_command */

	struct kvct_redis_conn *c;
	int err;
};
#define KVCT_REDIS_UNKNOWN 1
/*
 * send sends the commands, or as many as the socket takes, on an idle connection if `reuse` is set
 * and there is one. finish reads the answers, and sends all commands again on a new connection if
 * that may help. It returns 0, or the first error; other commands may have been executed. finish
 * must follow send.
 */
void kvct_redis_pipe_send(struct kvct_redis_pipe *p, bool reuse);
int kvct_redis_pipe_finish(struct kvct_redis_pipe *p);
/*
 * Logs a line, unless it was logged in the last few minutes. Unprintable bytes of a server's text
 * are replaced.
 */
void kvct_redis_log(struct kvct_redis *r, const char *what, const char *why, const char *hint);

/*
 * redis_files.c: the password and the certificates. files_load reads all of them when the tier is
 * opened; it returns 0, or a negative errno with one line in error[512]. files_changed reads those
 * again that were replaced, at most once a second unless `now` is set. It returns true if any was
 * read, and then all connections are made again. If a file cannot be read, the earlier version
 * stays in use.
 */
int kvct_redis_files_load(struct kvct_redis *r, bool tls, char *error);
bool kvct_redis_files_changed(struct kvct_redis *r, bool now);

/* redis_list.c: implements kvc_tier_ops.list. */
int kvct_redis_list(struct kvc_tier *t,
		    int (*fn)(void *arg, const struct kvc_where *w, const struct kvc_frame *f),
		    void *arg);
/* redis_have.c: implements kvc_tier_ops.have. */
int kvct_redis_have(struct kvc_tier *t, const struct kvc_where *w, const char *const *path,
		    size_t n, bool *has);
/* redis_open.c: frees the tier. */
void kvct_redis_close(struct kvc_tier *t);
extern const struct kvc_tier_ops kvct_redis_ops; /* redis.c */
uint64_t kvct_redis_until(const struct kvct_redis *r, uint64_t bytes);
/* Writes the key of a frame's head, and returns its slot. */
unsigned kvct_redis_head_key(const struct kvct_redis *r, const struct kvc_where *w,
			     char key[KVCT_REDIS_NAME]);
int kvct_redis_get(struct kvc_tier *t, const struct kvc_where *w, uint64_t off,
		   const struct iovec *iov, int n);

#endif
