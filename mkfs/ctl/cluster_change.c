/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kvcachectl cluster pin, unpin and evict: the daemon of the mount makes the change on this node,
 * and asks the other nodes to make it (cluster_ask.c).
 */
#include "cluster.h"

#include "json.h"
#include "quote.h"
#include "set.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SHOWN 10u /* errors of a node that are shown one by one */

/* What a node has done with all paths. */
struct done {
	struct kvm_node node; /* without the text */
	uint64_t chunks, failed;
	unsigned shown;
};

struct change {
	const struct kvm_cluster_change *what;
	struct done node[KVM_NODES];
	size_t n;
};

/* Prints why a chunk at this path could not be changed. err: an errno. */
static void print_trouble(const struct change *c, const struct done *d, const char *path, int err)
{
	KVC_MEM char *where = NULL;

	if (asprintf(&where, "%s: %s", kvm_nodes_name(&d->node), path) < 0) {
		where = NULL;
		return;
	}
	if (err == ETIME)
		kvm_fail("%s: it takes longer than deadline=; try again to continue", where);
	else if (err == E2BIG)
		kvm_fail("%s: it has more than 16384 chunks; give folders in it", where);
	else if (err == EINVAL && !strcmp(c->what->attr, "demote"))
		kvm_fail("%s: the node has no tier %s", where, c->what->value);
	else
		kvm_set_trouble(where, c->what->attr, err);
}

/* Takes the next line of a node's text. Returns false if it is not one. */
static bool next_result(char **at, uint64_t *chunks, uint64_t *failed, int *err)
{
	char *end = strchr(*at, '\n');
	int n = 0;

	if (!end)
		return false;
	*end = 0;
	if ((*at)[strspn(*at, "0123456789 ")] ||
	    sscanf(*at, "%10" SCNu64 " %10" SCNu64 " %4d%n", chunks, failed, err, &n) != 3 ||
	    (*at)[n])
		return false;
	*at = end + 1;
	return true;
}

/* Adds the results of a node for some paths. has[i]: some node has path i. */
static void add_results(struct change *c, struct done *d, struct kvm_node *node, int n,
			char **paths, bool *has)
{
	char *at = node->text;
	uint64_t chunks, failed;
	int err;

	for (int i = 0; i < n && node->text; i++) {
		if (!next_result(&at, &chunks, &failed, &err)) {
			kvm_nodes_failed(node, KVM_NODES_NONSENSE);
			break;
		}
		if (err == ENOENT && !failed)
			continue;
		has[i] = true;
		d->chunks += chunks;
		d->failed += failed ?: err != 0;
		if (err && d->shown++ < SHOWN)
			print_trouble(c, d, paths[i], err);
	}
	if (node->why && !d->node.why)
		d->node.why = strdup(node->why);
}

/* Asks for as many paths as a request may have. Returns their number, or 0 after a message. */
static int change_some(struct change *c, int n, char **paths, bool *has)
{
	char mnt[KVM_PATH], head[64];
	KVC_MEM char *request = NULL;
	struct kvm_nodes all = { 0 };
	size_t len;
	int some;

	snprintf(head, sizeof head, "change\n%s=%s", c->what->attr, c->what->value);
	some = kvm_nodes_request(head, strlen(head) + 1, n, paths, mnt, &request, &len);
	if (some && kvm_nodes_ask(mnt, request, len, &all))
		some = 0;
	for (size_t i = 0; i < all.n && some; i++) {
		struct done *d = &c->node[i];

		if (i == c->n) {
			c->n++;
			d->node.here = all.v[i].here;
			memcpy(d->node.name, all.v[i].name, sizeof d->node.name);
		}
		add_results(c, d, &all.v[i], some, paths, has);
	}
	kvm_nodes_free(&all);
	return some;
}

static void print_done(const struct change *c, const struct done *d)
{
	printf("%s: ", kvm_nodes_name(&d->node));
	if (d->node.why) {
		kvc_quote_line(stdout, d->node.why);
		putchar('\n');
		return;
	}
	printf("%" PRIu64 " chunk%s %s", d->chunks, d->chunks == 1 ? "" : "s", c->what->done);
	if (d->failed)
		printf(", %" PRIu64 " failed", d->failed);
	putchar('\n');
}

static void print_all(const struct change *c, bool json)
{
	struct kvm_json j = { stdout, false };

	if (json) {
		kvm_json_begin(&j, NULL, '{');
		kvm_json_text(&j, "command", c->what->name);
		kvm_json_begin(&j, "nodes", '[');
	}
	for (size_t i = 0; i < c->n; i++) {
		const struct done *d = &c->node[i];

		if (!json) {
			print_done(c, d);
			continue;
		}
		kvm_nodes_json(&j, &d->node);
		if (!d->node.why) {
			kvm_json_number(&j, "chunks", d->chunks);
			kvm_json_number(&j, "failed_chunks", d->failed);
		}
		kvm_json_end(&j, '}');
	}
	if (json) {
		kvm_json_end(&j, ']');
		kvm_json_end(&j, '}');
		putchar('\n');
	}
}

int kvm_cluster_change(const struct kvm_cluster_change *what, int n, char **paths, bool json)
{
	struct change c = { .what = what };
	KVC_MEM bool *has = calloc((size_t)n, sizeof *has);
	int some = 1, failed = 0;

	if (!has)
		return kvm_fail("out of memory");
	if (kvm_nodes_paths(n, paths)) /* before anything is changed */
		return 1;
	for (int i = 0; i < n && some; i += some)
		some = change_some(&c, n - i, paths + i, has + i);
	if (some)
		print_all(&c, json);
	for (int i = 0; i < n && some; i++)
		if (!has[i])
			failed = kvm_fail("%s: no node that has answered has it", paths[i]);
	for (size_t i = 0; i < c.n; i++) {
		failed |= c.node[i].node.why || c.node[i].failed;
		free(c.node[i].node.why);
	}
	return !some || failed;
}
