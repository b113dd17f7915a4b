/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The requests of kvcachectl cluster: the answers of this node to POST /status and so on, and the
 * file .kvcachefs/cluster, with the answers of all nodes (cluster.c).
 */
#ifndef KVFS_CLUSTER_H
#define KVFS_CLUSTER_H

#include "peer_sign.h"

struct kvc_change;
struct kvfs;

/*
 * Returns the text with which this node answers a request of this kind, other than a change, about
 * n names, which follow each other, each with a zero byte at its end. *len: at most KVC_PEER_TEXT.
 * The caller frees it. NULL: out of memory. Does not wait for a tier.
 */
char *kvfs_cluster_text(struct kvfs *f, enum kvc_peer_kind kind, const char *names, size_t n,
			size_t *len);
/* The same for a change that has ended. */
char *kvfs_cluster_changed(const struct kvc_change *c, size_t *len);
/*
 * Sends a request to all nodes, and collects their answers and this node's in *text. request: a
 * word, a newline, and the names. A change is first made here. Returns 0; -EINVAL: the request is
 * wrong; or -ENOMEM. Blocks for a few seconds if a node does not answer, or if a change waits.
 */
int kvfs_cluster_run(struct kvfs *f, const char *request, size_t len, char **text,
		     size_t *text_len);
/* Maximum memory that kvfs_cluster_run uses. */
size_t kvfs_cluster_bytes(struct kvfs *f);

#endif
