/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The directory of a peers tier (peers_directory.c): which nodes have which objects, in Redis or
 * Valkey. All functions block only until the deadlines that they name, and may be called by any
 * thread, except that one thread at a time announces.
 */
#ifndef KVCT_PEERS_DIRECTORY_H
#define KVCT_PEERS_DIRECTORY_H

#include "peer_sign.h"
#include "tier.h"

struct kvct_url;
struct kvct_directory;

/*
 * Opens the directory that the parameter directory= of the URL names, with the parameters for its
 * password and certificates. node[i] are the names of the n nodes of the tier, and *secret is the
 * peers' secret; all must outlive the directory. Returns 0, and *out, which is NULL if the URL has
 * no directory; or a negative errno with one line in error[512].
 */
int kvct_directory_open(const struct kvct_url *u, uint64_t deadline_ms,
			const struct kvc_peer_secret *secret, const char *const *node, unsigned n,
			struct kvct_directory **out, char *error);
void kvct_directory_close(struct kvct_directory *d);
/* Returns the memory of a fixed size that it holds. */
uint64_t kvct_directory_bytes(void);
/*
 * Finds the nodes that may have each of n objects: may[i] gets a bit for each node. A node that has
 * not announced all its objects may have every object. Returns false if the directory does not
 * answer, or has not for a while: then nothing is known.
 */
bool kvct_directory_find(struct kvct_directory *d, const char *const *path, size_t n,
			 uint64_t *may);
/* Does this node announce its objects? Otherwise it serves none. */
bool kvct_directory_announces(const struct kvct_directory *d);
/* Implements kvc_tier_ops.announce. */
int kvct_directory_announce(struct kvct_directory *d, const struct kvc_announcement *a);

/* ---- for the unit test ---- */

#define KVCT_DIRECTORY_ID 17 /* characters of an object's id, with the zero at their end */
#define KVCT_DIRECTORY_VALUE 96

/* Writes the id of an object in the directory, which tells nothing about its path. */
int kvct_directory_object_id(const struct kvc_peer_secret *s, const char *path,
			     char id[KVCT_DIRECTORY_ID]);
/* The value of a node's entry. */
struct kvct_directory_node {
	uint32_t id; /* in the sets of objects */
	bool complete;
	char epoch[33]; /* of the directory, when the node announced its objects */
	uint64_t beat;  /* different each time that the entry is written */
};
void kvct_directory_write_node(const struct kvct_directory_node *n,
			       char value[KVCT_DIRECTORY_VALUE]);
/* Returns false if the value is not an entry of a node. */
bool kvct_directory_read_node(const char *value, size_t len, struct kvct_directory_node *n);

#endif
