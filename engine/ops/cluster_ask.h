/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What an operator asks all nodes (kvcachectl cluster): the requests to the nodes of the peers://
 * remote, and this node's answer to the same request. The FUSE side calls these functions.
 */
#ifndef KVC_CLUSTER_ASK_H
#define KVC_CLUSTER_ASK_H

#include "tier.h"

#include <stdio.h>

struct kvc;

/* Returns the number of nodes of the peers:// remote; 0: the mount has none. */
size_t kvc_cluster_nodes(struct kvc *k);
/*
 * Sends the request to all of them, and waits for their answers, as long as deadline= but at most 3
 * seconds, or for changes 2 seconds longer than deadline=. a: KVC_NODES answers; the caller frees
 * their texts. Returns 0 or -ENOMEM. Blocks.
 */
int kvc_cluster_ask(struct kvc *k, enum kvc_peer_kind kind, const char *names, size_t len,
		    struct kvc_node_answer *a, size_t *n);
/*
 * POST /where: writes a line "TIERS STATE" for each of n paths, with the words of the attributes
 * tiers and state, or "- absent", or "- folder" if the path is a folder that is not a chunk. The
 * paths follow each other, each with a zero byte at its end. Loads nothing, asks no other node, and
 * is not an access.
 */
void kvc_cluster_where(struct kvc *k, const char *paths, size_t n, FILE *out);

#endif
