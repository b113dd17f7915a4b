/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reading ahead: rows that a long piece of work needs next are read before it takes the locks
 * (read_ahead.c). A struct kvc_read_ahead belongs to one thread.
 */
#ifndef KVC_READ_AHEAD_H
#define KVC_READ_AHEAD_H

#include "folder.h"
#include "node.h"

#define KVC_READ_AHEAD_MAX 32  /* inodes that are read at once */
#define KVC_READ_AHEAD_ABOVE 8 /* and folders above them */

struct kvc_read_ahead;

/* NULL: out of memory. All functions take NULL and then read under the locks. */
struct kvc_read_ahead *kvc_read_ahead_new(void);
void kvc_read_ahead_free(struct kvc_read_ahead *a);
/*
 * Reads these inodes (KVC_READ_AHEAD_MAX at most) that are not in memory, and the folders above the
 * first one. What was read before is forgotten. Needs no lock. An inode that cannot be read is read
 * again under the locks.
 */
void kvc_read_ahead_nodes(struct kvc *k, struct kvc_read_ahead *a, const uint64_t *ino, size_t n);
/* The same under both locks, which are given back if anything is read: returns true then. */
bool kvc_read_ahead_nodes_both(struct kvc *k, struct kvc_read_ahead *a, const uint64_t *ino,
			       size_t n);
/*
 * Reads the names of these inodes (KVC_READ_AHEAD_MAX at most), of the first one those after *at,
 * and the folders they are in. Called with both locks, gives them back, and returns with both.
 */
void kvc_read_ahead_names_both(struct kvc *k, struct kvc_read_ahead *a, const uint64_t *ino,
			       size_t n, const struct kvc_name_at *at);
/*
 * As kvc_node_get_both and kvc_folder_entries_of_both; what was read is used where it is current.
 */
int kvc_read_ahead_node_both(struct kvc *k, struct kvc_read_ahead *a, uint64_t ino,
			     struct kvc_node **n);
int kvc_read_ahead_entries_of_both(struct kvc *k, struct kvc_read_ahead *a, uint64_t ino,
				   struct kvc_entries *e);

#endif
