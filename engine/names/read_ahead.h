/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reading ahead: the rows that a long operation needs next are read before it takes the locks
 * (read_ahead.c). A struct kvc_read_ahead is used by one thread.
 */
#ifndef KVC_READ_AHEAD_H
#define KVC_READ_AHEAD_H

#include "folder.h"
#include "node.h"

#define KVC_READ_AHEAD_MAX 32  /* most inodes that are read at once */
#define KVC_READ_AHEAD_ABOVE 8 /* most folders above them that are read */

struct kvc_read_ahead;

/* Returns NULL if out of memory. All functions accept NULL and then read under the locks. */
struct kvc_read_ahead *kvc_read_ahead_new(void);
void kvc_read_ahead_free(struct kvc_read_ahead *a);
/*
 * Reads these inodes (at most KVC_READ_AHEAD_MAX) if they are not in memory, and the folders above
 * the first. Discards earlier results. Needs no lock. An inode that cannot be read here is read
 * again under the locks.
 */
void kvc_read_ahead_nodes(struct kvc *k, struct kvc_read_ahead *a, const uint64_t *ino, size_t n);
/*
 * The same under both locks. Returns true if something was read; the locks were then released in
 * between.
 */
bool kvc_read_ahead_nodes_both(struct kvc *k, struct kvc_read_ahead *a, const uint64_t *ino,
			       size_t n);
/*
 * Reads the names of these inodes (at most KVC_READ_AHEAD_MAX; the names of the first after *at)
 * and the folders that contain them. Releases both locks in between.
 */
void kvc_read_ahead_names_both(struct kvc *k, struct kvc_read_ahead *a, const uint64_t *ino,
			       size_t n, const struct kvc_name_at *at);
/*
 * Same as kvc_node_get_both and kvc_folder_entries_of_both, but use results that are still current.
 */
int kvc_read_ahead_node_both(struct kvc *k, struct kvc_read_ahead *a, uint64_t ino,
			     struct kvc_node **n);
int kvc_read_ahead_entries_of_both(struct kvc *k, struct kvc_read_ahead *a, uint64_t ino,
				   struct kvc_entries *e);

#endif
