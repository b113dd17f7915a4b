/* SPDX-License-Identifier: Apache-2.0 */
/* The slot map of a cluster. See redis_conn.h. */
#include "log.h"
#include "redis_conn.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

/*
 * Bounds of the answer to CLUSTER SLOTS. A range takes about 40 elements with its replicas and
 * their names. A larger map is refused; the nodes are then learned from MOVED errors.
 */
#define MAP_MOST (4u << 20)
#define MAP_ELEMENTS (128u << 10)

/* CRC-16/XMODEM, as in the cluster specification. */
unsigned kvct_redis_slot(const char *hex)
{
	unsigned crc = 0;

	for (; *hex; hex++) {
		crc ^= (unsigned)(unsigned char)*hex << 8;
		for (int i = 0; i < 8; i++)
			crc = crc & 0x8000 ? (crc << 1) ^ 0x1021 : crc << 1;
	}
	return (crc & 0xffff) % KVCT_REDIS_SLOTS;
}

static void node_forget_locked(struct kvct_redis_node *n)
{
	while (n->nidle)
		kvct_redis_conn_free(n->idle[--n->nidle]);
	memset(n, 0, sizeof *n);
}

/* Removes the nodes without slots. Returns the first free entry, or -1. */
static int forget_gone_locked(struct kvct_redis *r)
{
	bool has[KVCT_REDIS_NODES] = { false };
	int free_at = -1;

	for (unsigned s = 0; s < KVCT_REDIS_SLOTS; s++)
		has[r->slot[s]] = true;
	for (unsigned i = r->nnodes; i-- > 0;) {
		struct kvct_redis_node *n = &r->nodes[i];

		if (*n->host && !n->seed && !has[i])
			node_forget_locked(n);
		if (!*n->host)
			free_at = (int)i;
	}
	return free_at;
}

int kvct_redis_node_locked(struct kvct_redis *r, const char *host, int port)
{
	int at = -1;

	if (!*host || strlen(host) >= sizeof r->nodes[0].host)
		return -1;
	if (*host == '/' ? port : port < 1 || port > 65535)
		return -1;
	for (unsigned i = 0; i < r->nnodes; i++) {
		if (r->nodes[i].port == port && !strcmp(r->nodes[i].host, host))
			return (int)i;
		if (!*r->nodes[i].host)
			at = (int)i;
	}
	if (at < 0)
		at = r->nnodes < KVCT_REDIS_NODES ? (int)r->nnodes++ : forget_gone_locked(r);
	if (at < 0)
		return -1;
	memset(&r->nodes[at], 0, sizeof r->nodes[at]);
	memcpy(r->nodes[at].host, host, strlen(host) + 1);
	r->nodes[at].port = port;
	return at;
}

/* A node that does not know its own name reports NULL, "" or "?". */
static bool is_name(const char *host)
{
	return host && *host && *host != '/' && strcmp(host, "?");
}

static const char *text_of(const redisReply *x)
{
	return x->type == REDIS_REPLY_STRING || x->type == REDIS_REPLY_STATUS ? x->str : NULL;
}

/*
 * Returns the host of a node in CLUSTER SLOTS, [name, port, id, [further names]]: its name, else
 * its address among the further names, else the host that sent the map.
 */
static const char *host_of(const redisReply *m, const char *asked)
{
	const char *host = text_of(m->element[0]), *key;

	if (is_name(host))
		return host;
	for (size_t i = 3; i < m->elements; i++) {
		const redisReply *more = m->element[i];

		for (size_t k = 0; more->type == REDIS_REPLY_ARRAY && k + 1 < more->elements;
		     k += 2) {
			key = text_of(more->element[k]);
			host = text_of(more->element[k + 1]);
			if (key && !strcmp(key, "ip") && is_name(host))
				return host;
		}
	}
	return asked;
}

static void range_locked(struct kvct_redis *r, const redisReply *x, const char *asked)
{
	const redisReply *m;
	long long first, last, port;
	int n;

	if (x->type != REDIS_REPLY_ARRAY || x->elements < 3)
		return;
	m = x->element[2];
	if (m->type != REDIS_REPLY_ARRAY || m->elements < 2 ||
	    x->element[0]->type != REDIS_REPLY_INTEGER ||
	    x->element[1]->type != REDIS_REPLY_INTEGER ||
	    m->element[1]->type != REDIS_REPLY_INTEGER)
		return;
	first = x->element[0]->integer;
	last = x->element[1]->integer;
	port = m->element[1]->integer;
	if (first < 0 || last >= KVCT_REDIS_SLOTS || port < 1 || port > 65535)
		return;
	n = kvct_redis_node_locked(r, host_of(m, asked), (int)port);
	for (long long s = first; n >= 0 && s <= last; s++)
		r->slot[s] = (uint8_t)n;
}

/* Reads the slot map from one node. Returns 0 or a negative errno. */
static int learn_from(struct kvct_redis *r, unsigned node, uint64_t until_ns)
{
	struct kvct_redis_command ask = { .most = MAP_MOST, .most_elements = MAP_ELEMENTS };
	char host[sizeof r->nodes[0].host];
	redisReply *reply;
	int err;

	pthread_mutex_lock(&r->lock);
	memcpy(host, r->nodes[node].host, sizeof host);
	pthread_mutex_unlock(&r->lock);
	if (!*host)
		return -ENOENT;
	command_word(&ask, "CLUSTER");
	command_word(&ask, "SLOTS");
	if ((err = kvct_redis_ask_node(r, node, &ask, until_ns, &reply)))
		return err;
	if (reply->type == REDIS_REPLY_ARRAY && reply->elements) {
		pthread_mutex_lock(&r->lock);
		/*
		 * Requests for slots that the map leaves out go to the first node, which redirects
		 * them.
		 */
		memset(r->slot, 0, sizeof r->slot);
		for (size_t e = 0; e < reply->elements; e++)
			range_locked(r, reply->element[e], host);
		forget_gone_locked(r);
		pthread_mutex_unlock(&r->lock);
	} else {
		err = -EIO;
	}
	freeReplyObject(reply);
	return err;
}

int kvct_redis_learn(struct kvct_redis *r, uint64_t until_ns)
{
	for (unsigned i = 0; i < r->nnodes && kvc_mono_ns() < until_ns; i++)
		if (!learn_from(r, i, kvc_min(until_ns, kvc_mono_ns() + 1000000000)))
			return 0;
	return -EIO;
}

int kvct_redis_redirected(struct kvct_redis *r, const char *text, unsigned from, bool moved)
{
	char host[256] = "";
	const char *where = strchr(text, ' '), *colon;
	char *end;
	unsigned long slot;
	long port;
	int n;

	if (!where)
		return -1;
	slot = strtoul(where + 1, &end, 10);
	if (end == where + 1 || *end != ' ' || slot >= KVCT_REDIS_SLOTS ||
	    !(colon = strrchr(where = end + 1, ':')) || (size_t)(colon - where) >= sizeof host)
		return -1;
	memcpy(host, where, (size_t)(colon - where));
	port = strtol(colon + 1, NULL, 10);
	if (port < 1 || port > 65535)
		return -1;
	pthread_mutex_lock(&r->lock);
	n = kvct_redis_node_locked(r, is_name(host) ? host : r->nodes[from].host, (int)port);
	if (n >= 0 && moved)
		r->slot[slot] = (uint8_t)n;
	pthread_mutex_unlock(&r->lock);
	return n;
}
