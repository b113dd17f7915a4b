/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kvcachectl push --remove: chunks are offered to another node, and dropped here when the node has
 * loaded them. An offer is taken before the bytes are read, so the command asks the node
 * (cluster_ask.c) until each chunk is there.
 */
#include "cluster.h"
#include "item.h"
#include "set.h"

#include <libgen.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/xattr.h>

#define PATIENCE_NS 60000000000ull /* without any chunk that arrives */
#define AGAIN_US 100000u

struct chunks {
	char **path;
	size_t n, capacity;
};

static int collect_chunk(void *arg, const char *path, const struct kvm_item *it)
{
	struct chunks *c = arg;

	(void)it;
	if (kvc_grow(&c->path, c->n, &c->capacity, sizeof *c->path) ||
	    !(c->path[c->n] = strdup(path)))
		return kvm_fail("out of memory");
	c->n++;
	return 0;
}

static void free_chunks(struct chunks *c)
{
	for (size_t i = 0; i < c->n; i++)
		free(c->path[i]);
	free(c->path);
}

/* Are all files of the chunk in the pool of the node, or on its disk? */
static bool has_arrived(const char *tiers, const char *state)
{
	return !strncmp(state, "resident", 8) ||
	       (!strcmp(state, "lower") && strstr(tiers, "disk") && !strstr(tiers, "peers"));
}

/* Drops a chunk here. Returns 0, or 1 after a message. */
static int drop_chunk(const char *path)
{
	if (!setxattr(path, "user.kvcachefs.demote", "all", 3, 0) || errno == ENOENT ||
	    errno == ESTALE)
		return 0;
	return kvm_set_trouble(path, "demote", errno);
}

/*
 * Drops the chunks of one request that the node has, and removes them from the list. *gone: their
 * number. Returns 0, or 1 after a message.
 */
static int drop_arrived(struct chunks *c, const struct kvm_node *node, size_t n, size_t *gone)
{
	char tiers[64], state[64], *at = node->text;
	size_t left = 0;
	int failed = node->why ? kvm_fail("%s: %s", node->name, node->why) : 0;

	*gone = 0;
	for (size_t i = 0; i < n && !failed; i++) {
		if (!kvm_nodes_line(&at, tiers, state))
			failed = kvm_fail("%s: %s", node->name, KVM_NODES_NONSENSE);
		else if (!strcmp(state, "absent"))
			failed = kvm_fail("%s: the node does not have it any more; it stays here",
					  c->path[i]);
		else if (has_arrived(tiers, state) && !(failed = drop_chunk(c->path[i])))
			*c->path[i] = 0;
	}
	for (size_t i = 0; i < c->n; i++)
		if (*c->path[i]) {
			c->path[left++] = c->path[i];
		} else {
			free(c->path[i]);
			++*gone;
		}
	c->n = left;
	return failed;
}

/* Asks the node for some of the chunks, and drops those that it has. */
static int move_some(struct chunks *c, const char *name, size_t *gone)
{
	static const char head[] = "where\n";
	KVC_MEM char *request = NULL;
	struct kvm_nodes all = { 0 };
	const struct kvm_node *node = NULL;
	char mnt[KVM_PATH];
	size_t len;
	int n = kvm_nodes_request(head, sizeof head - 1, (int)kvc_min(c->n, 1000u), c->path, mnt,
				  &request, &len);
	int failed = !n || kvm_nodes_ask(mnt, request, len, &all);

	for (size_t i = 0; i < all.n && !failed; i++)
		if (!all.v[i].here && !strcmp(all.v[i].name, name))
			node = &all.v[i];
	if (!failed && !node)
		failed = kvm_fail("%s: the node is not in nodes= of a peers:// remote", name);
	failed = failed ?: drop_arrived(c, node, (size_t)n, gone);
	kvm_nodes_free(&all);
	return failed;
}

/* A file is offered alone, but dropped with its chunk. */
static bool is_part(const char *path)
{
	KVC_MEM char *folder = NULL;
	char value[KVM_VALUE];
	struct stat st;

	if (stat(path, &st) || !S_ISREG(st.st_mode) || !(folder = strdup(path)))
		return false;
	return kvm_item_attr(dirname(folder), "tiers", value, NULL) == 1;
}

int kvm_move_chunks(struct kvm_set *s, const char *path)
{
	struct chunks c = { 0 };
	uint64_t since = kvc_mono_ns();
	size_t gone;
	int failed;

	if (is_part(path))
		return kvm_fail("%s: it is a part of a chunk; give the folder of the chunk", path);
	failed = kvm_set_chunks(s, path);
	if (failed)
		return kvm_fail("%s: nothing is removed here", path);
	failed = kvm_item_each_chunk(path, collect_chunk, &c);
	while (!failed && c.n) {
		gone = 0;
		failed = move_some(&c, s->value, &gone);
		if (gone)
			since = kvc_mono_ns();
		else if (!failed && kvc_mono_ns() - since > PATIENCE_NS)
			failed = kvm_fail("%s: the node loads nothing any more; %zu chunks stay "
					  "here",
					  path, c.n);
		else if (!failed)
			usleep(AGAIN_US);
	}
	s->failed += failed != 0;
	free_chunks(&c);
	return failed;
}
