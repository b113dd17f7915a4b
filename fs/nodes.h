/* SPDX-License-Identifier: Apache-2.0 */
/* The server of objects for other nodes (nodes.c). */
#ifndef KVFS_NODES_H
#define KVFS_NODES_H

#include <stdint.h>

struct kvfs;
struct kvc_options;

/* Memory of the server, a part of memory= if peer_listen= is set. */
#define KVFS_NODES_BYTES (40ull << 20)

/*
 * Starts the server if peer_listen= is set. The engine has started. Returns 0, or a negative errno
 * after a line in the log.
 */
int kvfs_nodes_start(struct kvfs *f, const struct kvc_options *o);
/* Copies the first name of this node to name[KVC_PEER_NAME], or "-" if it serves no nodes. */
void kvfs_nodes_name(const struct kvfs *f, char *name);
/*
 * From now on a request that has to wait keeps its thread, because libmicrohttpd ends the process
 * if a connection is suspended when the server stops. Call it before kvc_cache_detach, which soon
 * ends the waits.
 */
void kvfs_nodes_end(struct kvfs *f);
/*
 * Ends the server. Call it after kvc_cache_detach, which ends the waits of its requests, and before
 * kvc_cache_stop.
 */
void kvfs_nodes_stop(struct kvfs *f);

#endif
