/* SPDX-License-Identifier: Apache-2.0 */
/* The life of an object: its state (node.h has the table), its segment, publishing, destroying. */
#ifndef KVC_FILE_H
#define KVC_FILE_H

#include "node.h"

/*
 * Changes n->state. This is the only place that does: it checks the table, and updates counters and
 * the chunk's list.
 */
void kvc_file_become_locked(struct kvc *k, struct kvc_node *n, enum kvc_state to);
/* Returns the name of the segment that the file has in its current state. */
struct kvc_segment kvc_file_segment_of(const struct kvc_node *n);
/* Returns true if the tier has the current generation, under the file's current name. */
static inline bool kvc_file_placed_in(const struct kvc_node *n, unsigned tier)
{
	return n->in[tier].place.gen && n->in[tier].place.gen == n->object.gen &&
	       !(n->in[tier].place.codec & KVC_PLACE_LEFT);
}
/*
 * Marks the copy in a shared tier as one under an earlier name: another file's copy may be stored
 * under that name. The copy does not count until it is made again.
 */
void kvc_file_mark_left_both(struct kvc *k, struct kvc_node *n, unsigned tier);
/*
 * Returns true if a tier has the current generation. kvc_file_placed counts the mounted tiers, and
 * copies under the current name only; kvc_file_placed_anywhere counts all tiers and names.
 */
bool kvc_file_placed(const struct kvc *k, const struct kvc_node *n);
bool kvc_file_placed_anywhere(const struct kvc *k, const struct kvc_node *n);
/* Returns true if a tier that survives power loss has the current generation. */
bool kvc_file_placed_durably(const struct kvc *k, const struct kvc_node *n);
/* Creates an empty segment for a file that has none. Returns 0 or -errno. */
int kvc_file_segment_new_locked(struct kvc *k, struct kvc_node *n);
/*
 * Returns a descriptor of the segment, which n->fd keeps, or -errno. It is writable only in state
 * OPEN.
 */
int kvc_file_node_fd_locked(struct kvc *k, struct kvc_node *n);
/* The file is about to be written: RESIDENT or BOTH -> OPEN. Returns 0 or -errno. */
int kvc_file_begin_write_locked(struct kvc *k, struct kvc_node *n);
/*
 * The last writer closed the file: OPEN -> RESIDENT or BOTH. If the pool cannot rename the segment,
 * the file stays OPEN and the committer tries again.
 */
void kvc_file_publish_locked(struct kvc *k, struct kvc_node *n);
/*
 * The file was compared with its lower copies, or they were made again: they can be trusted. Sets
 * the mtime of its segment, open as fd, back to the file's own.
 */
void kvc_file_compared_locked(struct kvc_node *n, int fd);
/* Publishes the file if it is OPEN, has a name and has no writer. */
void kvc_file_publish_if_closed_locked(struct kvc *k, struct kvc_node *n);
/* Removes all placements of the file. Extents are freed after the commit. */
void kvc_file_unplace_locked(struct kvc *k, struct kvc_node *n);
/*
 * Destroys a file that is dropped, or that has neither names nor opens. Its segment and copies are
 * freed after the commit.
 */
void kvc_file_destroy_locked(struct kvc *k, struct kvc_node *n);
/*
 * Lingering. A file in the pool lost its last name and nobody has it open. A client that looked the
 * name up before may be about to open it, so the file stays usable until the kernel forgets the
 * inode, a call waits for memory, or the second commit from now. Its bytes count as leaving.
 */
/* should it linger? */
bool kvc_file_should_linger_locked(const struct kvc *k, const struct kvc_node *n);
void kvc_file_linger_locked(struct kvc *k, struct kvc_node *n);
/* it was opened, or is destroyed */
void kvc_file_linger_over_locked(struct kvc *k, struct kvc_node *n);
/* Called when a commit begins: destroys the files that linger since the commit before, or all. */
void kvc_file_linger_end_locked(struct kvc *k, bool all);
/* Closes n->fd and the backing file that is registered for passthrough. */
void kvc_file_close_segment_locked(struct kvc *k, struct kvc_node *n);

#endif
