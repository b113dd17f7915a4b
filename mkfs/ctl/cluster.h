/* SPDX-License-Identifier: Apache-2.0 */
/* Requests to all nodes through .kvcachefs/cluster (cluster_ask.c), for kvcachectl cluster. */
#ifndef KVM_CLUSTER_H
#define KVM_CLUSTER_H

#include "ctl.h"

#include "peer_name.h"

#define KVM_NODES 65u               /* this one, and those of a peers:// remote */
#define KVM_NODES_NAMES 256u        /* paths of a request */
#define KVM_NODES_BYTES (48u << 10) /* their length */

struct kvm_node {
	char name[KVC_PEER_NAME]; /* of this node "-", if it has none */
	bool here;
	char *why;  /* the reason if it has not answered; otherwise NULL */
	char *text; /* its answer; NULL: none. It may have any bytes */
};

struct kvm_nodes {
	struct kvm_node v[KVM_NODES]; /* this node is the first */
	size_t n;
};

/*
 * Sends a request through the daemon of the mount, and fills *all, which the caller frees with
 * kvm_nodes_free, also after a failure. Returns 0, or 1 after a message.
 */
int kvm_nodes_ask(const char *mnt, const char *request, size_t len, struct kvm_nodes *all);
void kvm_nodes_free(struct kvm_nodes *all);
/* The node has not answered, or has sent nonsense: `why` replaces its text. */
void kvm_nodes_failed(struct kvm_node *node, const char *why);
/* Returns the node's name, or "this node". */
const char *kvm_nodes_name(const struct kvm_node *node);
/*
 * Finds the mount of a path by its name, without a lookup in the mount: the path need not exist
 * here. rel: the path relative to the mount; "." is the mount. Returns 0, or 1 after a message.
 */
int kvm_nodes_path(const char *path, char mnt[KVM_PATH], char rel[KVM_PATH]);
/* Checks that all paths are in one mount. Returns 0, or 1 after a message. */
int kvm_nodes_paths(int n, char **paths);
/*
 * Makes a request of head[head_len] and as many of the n paths as it may have; they are in one
 * mount. Returns their number, and *request, which the caller frees; or 0 after a message.
 */
int kvm_nodes_request(const char *head, size_t head_len, int n, char **paths, char mnt[KVM_PATH],
		      char **request, size_t *len);
/*
 * Takes the next line of a node's answer to "where", and moves *at behind it: two words of few
 * characters. Returns false if it is not one.
 */
bool kvm_nodes_line(char **at, char tiers[64], char state[64]);

/* A change of all chunks at and below some paths, on all nodes. */
struct kvm_cluster_change {
	const char *name; /* of the command */
	const char *attr, *value;
	const char *done; /* "pinned" and so on */
};
/* Makes the change, and prints a line for each node. Returns the exit status. */
int kvm_cluster_change(const struct kvm_cluster_change *what, int n, char **paths, bool json);
/* Begins the object of a node, with the members node, here and failed. */
void kvm_nodes_json(struct kvm_json *j, const struct kvm_node *node);

/* The reason for the failure of a node whose answer is not what was asked for. */
#define KVM_NODES_NONSENSE "damaged: its answer is not understood; does it have another version?"

#endif
