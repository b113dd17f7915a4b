/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The redis tier's connections: to one server, or to the nodes of a cluster. A stack of idle ones
 * for each node, used by one call at a time. The lock guards stacks, nodes and the slot map;
 * nothing is sent under it. Every call ends at its time, however little the other side gives at a
 * time: connecting and each command have what is left of it, and redirections are followed until
 * then. Only the name of a host is looked for as long as the resolver takes.
 */
#ifndef KVCT_REDIS_CONN_H
#define KVCT_REDIS_CONN_H

#include "redis_tls.h"
#include "tier.h"

#include <hiredis.h>
#include <pthread.h>
#include <string.h>

#define KVCT_REDIS_NODES 64
#define KVCT_REDIS_SLOTS 16384
#define KVCT_REDIS_IDLE 16

struct kvct_redis_node {
	char host[256]; /* "": nobody, the place is free */
	int port;
	bool seed; /* given in the URL: never forgotten */
	redisContext *idle[KVCT_REDIS_IDLE];
	unsigned nidle;
};

struct kvct_redis {
	struct kvc_tier tier;
	pthread_mutex_t lock;
	struct kvct_redis_node nodes[KVCT_REDIS_NODES];
	_Atomic unsigned nnodes;        /* places that were ever used */
	uint8_t slot[KVCT_REDIS_SLOTS]; /* the node of each; in a cluster */
	bool cluster;
	struct kvct_redis_tls *tls; /* NULL: without */
	char user[128], password[256], prefix[256];
	int db;
	uint64_t deadline_ms;
	_Atomic bool logged; /* once, until it works again */
};

struct kvct_redis_command {
	int argc;
	const char *argv[8];
	size_t len[8];
};

static inline void arg(struct kvct_redis_command *c, const void *p, size_t len)
{
	c->argv[c->argc] = p;
	c->len[c->argc++] = len;
}

static inline void word(struct kvct_redis_command *c, const char *s)
{
	arg(c, s, strlen(s));
}

static inline bool starts(const char *s, const char *with)
{
	return !strncmp(s, with, strlen(with));
}

/* The slot of a key's hash tag. */
unsigned kvct_redis_slot(const char *hex);
/*
 * The number of a node, a new one where it is not known; -1: there are too many that have slots.
 * One that no slot is of any more is forgotten for it; its number can be another's then, which a
 * call that still has it is told by the other (MOVED). Needs r->lock, but before there are threads.
 */
int kvct_redis_node_locked(struct kvct_redis *r, const char *host, int port);
/*
 * A connection to a node; fresh: it was made for this. 0; -EACCES: the server does not let us in;
 * -ECONNREFUSED, -ECONNRESET, -ETIMEDOUT.
 */
int kvct_redis_take(struct kvct_redis *r, unsigned node, uint64_t until_ns, redisContext **c,
		    bool *fresh);
/* Waits until fd is ready for `events` of poll(2): 0, -ETIMEDOUT, or another negative errno. */
int kvct_redis_ready(int fd, short events, uint64_t until_ns);
/*
 * Sends a command and takes the answer, which the caller frees; it may be an error's. -ETIMEDOUT,
 * -ECONNRESET, -ENOMEM: the connection is of no use any more, and the caller frees it.
 */
int kvct_redis_command(redisContext *c, const struct kvct_redis_command *cmd, uint64_t until_ns,
		       redisReply **out);
void kvct_redis_give(struct kvct_redis *r, unsigned node, redisContext *c);
/* Asks the cluster who has which slots, and forgets nodes that have none. */
int kvct_redis_learn(struct kvct_redis *r, uint64_t until_ns);
/*
 * Sends a command to whoever has the slot. 0 with a reply that is no error, which the caller frees;
 * -ENOSPC: the server has no memory left; -EACCES; -ETIMEDOUT, -ECONNRESET; -EIO: an error of this
 * key, or another.
 */
int kvct_redis_ask(struct kvct_redis *r, unsigned slot, const struct kvct_redis_command *cmd,
		   uint64_t until_ns, redisReply **out);

#endif
