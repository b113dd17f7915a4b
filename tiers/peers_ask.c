/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One request to all nodes of the peers tier at the same time, for an operator. Each node is asked
 * by a thread of its own, so a node that does not answer delays no other one. Nodes that are left
 * alone are asked too, and an answer or its absence does not change how the nodes are asked for
 * frames. The memory is bounded by KVC_PEER_TEXT and a small stack for each node.
 */
#include "peers.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>

#define STACK (512u << 10)

struct asked {
	struct kvct_peers *p;
	unsigned i;
	struct kvct_peers_request q;
	struct kvc_node_answer *a;
	pthread_t thread;
	bool has_thread;
};

static void *ask_one(void *arg)
{
	struct asked *d = arg;
	char *text = malloc(KVC_PEER_TEXT + 1), *less;
	struct iovec iov = { text, KVC_PEER_TEXT };

	if (!text) {
		d->a->err = -ENOMEM;
		return NULL;
	}
	d->q.iov = &iov;
	d->q.n = 1;
	d->a->err = kvct_peers_ask(d->p, d->i, &d->q);
	if (d->a->err) {
		snprintf(d->a->why, sizeof d->a->why, "%s", d->q.text);
		free(text);
		return NULL;
	}
	d->a->len = d->q.got;
	text[d->a->len] = 0;
	less = realloc(text, d->a->len + 1);
	d->a->text = less ?: text;
	return NULL;
}

/* Starts a thread for the node. If that fails, the caller asks it. */
static void start_asking(struct asked *d, const pthread_attr_t *attr)
{
	sigset_t all, old;

	sigfillset(&all);
	pthread_sigmask(SIG_BLOCK, &all, &old);
	d->has_thread = !pthread_create(&d->thread, attr, ask_one, d);
	pthread_sigmask(SIG_SETMASK, &old, NULL);
}

int kvct_peers_ask_all(struct kvc_tier *t, enum kvc_peer_kind kind, const char *names, size_t len,
		       uint64_t ns, struct kvc_node_answer *a, size_t *n)
{
	struct kvct_peers *p = kvc_of(t, struct kvct_peers, tier);
	uint64_t until = kvc_mono_ns() + ns;
	struct asked *all = a ? calloc(p->n, sizeof *all) : NULL;
	pthread_attr_t attr;

	*n = p->n;
	if (!a)
		return 0;
	if (!all)
		return -ENOMEM;
	pthread_attr_init(&attr);
	pthread_attr_setstacksize(&attr, STACK);
	for (unsigned i = 0; i < p->n; i++) {
		all[i] = (struct asked){ .p = p, .i = i, .a = &a[i] };
		all[i].q = (struct kvct_peers_request){
			.kind = kind,
			.names = names,
			.names_len = len,
			.until_ns = until,
		};
		a[i] = (struct kvc_node_answer){ 0 };
		memcpy(a[i].node, p->node[i].name, sizeof a[i].node);
		start_asking(&all[i], &attr);
	}
	pthread_attr_destroy(&attr);
	for (unsigned i = 0; i < p->n; i++)
		if (!all[i].has_thread)
			ask_one(&all[i]);
	for (unsigned i = 0; i < p->n; i++)
		if (all[i].has_thread)
			pthread_join(all[i].thread, NULL);
	free(all);
	return 0;
}
