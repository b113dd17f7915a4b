/* SPDX-License-Identifier: Apache-2.0 */
/* Requests of an operator to all nodes, and the answers of this one. See cluster_ask.h. */
#include "cluster_ask.h"

#include "cache.h"
#include "kvc.h"
#include "serve.h"
#include "tier_queue.h"

#include <string.h>

#define ASK_MS 3000u
#define CHANGE_MS 2000u /* beyond deadline=, which bounds a change */

/* Returns the tier whose nodes can be asked, or NULL. */
static struct kvc_tier *cluster_tier(const struct kvc *k)
{
	for (unsigned i = 0; i < k->ntiers; i++)
		if (k->tier[k->order[i]].t->ops->ask)
			return k->tier[k->order[i]].t;
	return NULL;
}

size_t kvc_cluster_nodes(struct kvc *k)
{
	struct kvc_tier *t = cluster_tier(k);
	size_t n = 0;

	return t && !t->ops->ask(t, KVC_PEER_STATUS, "", 1, 0, NULL, &n) ? n : 0;
}

int kvc_cluster_ask(struct kvc *k, enum kvc_peer_kind kind, const char *names, size_t len,
		    struct kvc_node_answer *a, size_t *n)
{
	struct kvc_tier *t = cluster_tier(k);
	uint64_t ms = kind == KVC_PEER_CHANGE ? k->opt.deadline_ms + CHANGE_MS
					      : kvc_min(k->opt.deadline_ms, ASK_MS);

	*n = 0;
	return t ? t->ops->ask(t, kind, names, len, ms * 1000000, a, n) : 0;
}

/* Reads an attribute of the kind that is one word. Returns 0 or a negative errno. */
static int word_of(struct kvc *k, uint64_t ino, const char *name, char word[64])
{
	size_t len = 63;
	int err = kvc_getxattr(k, ino, name, word, &len);

	word[err ? 0 : len] = 0;
	return err;
}

void kvc_cluster_where(struct kvc *k, const char *paths, size_t n, FILE *out)
{
	for (size_t i = 0; i < n; i++, paths += strlen(paths) + 1) {
		char tiers[64], state[64];
		uint64_t ino;
		int err = kvc_serve_path(k, paths, &ino);

		if (!err && (err = word_of(k, ino, "user.kvcachefs.tiers", tiers)) == -ENODATA)
			fputs("- folder\n", out);
		else if ((err = err ?: word_of(k, ino, "user.kvcachefs.state", state)))
			fprintf(out, "- %s\n",
				err == -ENOENT || err == -ESTALE ? "absent" : "unknown");
		else
			fprintf(out, "%s %s\n", *tiers ? tiers : "-", state);
	}
}
