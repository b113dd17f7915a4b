/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The life of an object: its state (the table is in node.h), its segment, publishing, destroying.
 */
#ifndef KVC_FILE_H
#define KVC_FILE_H

#include "node.h"

/* The one place where n->state changes: checks the table, keeps counts and the chunk's list. */
void kvc_file_become_locked(struct kvc *k, struct kvc_node *n, enum kvc_state to);
struct kvc_segment kvc_file_segment_of(const struct kvc_node *n);
/* This tier has this generation, and under its name. */
static inline bool kvc_placed_in(const struct kvc_node *n, unsigned tier)
{
	return n->in[tier].place.gen && n->in[tier].place.gen == n->object.gen &&
	       !(n->in[tier].place.codec & KVC_PLACE_LEFT);
}
/* Under its name there another copy may lie, or come: it does not count until it is made anew. */
void kvc_file_leave_both(struct kvc *k, struct kvc_node *n, unsigned tier);
/* Some tier has this generation: one that is here now, under its name; or any, under whatever name.
 */
bool kvc_file_placed(const struct kvc *k, const struct kvc_node *n);
bool kvc_file_placed_anywhere(const struct kvc *k, const struct kvc_node *n);
/* A tier that survives power loss has it. */
bool kvc_file_placed_durably(const struct kvc *k, const struct kvc_node *n);
/* A new, empty segment for a file that has none. 0 or -errno. */
int kvc_file_segment_new_locked(struct kvc *k, struct kvc_node *n);
/* A descriptor for the segment, kept in n->fd; to write with while it is OPEN only. */
int kvc_file_node_fd_locked(struct kvc *k, struct kvc_node *n);
/* The file is about to be written: RESIDENT or BOTH -> OPEN. */
int kvc_file_begin_write_locked(struct kvc *k, struct kvc_node *n);
/*
 * The last writer has gone: OPEN -> RESIDENT or BOTH. Where the pool refuses that it stays OPEN,
 * and the committer tries again.
 */
void kvc_file_publish_locked(struct kvc *k, struct kvc_node *n);
/*
 * It was compared with its copies, or they were made anew: they are trusted, and its segment, open
 * as fd, gets its own time again.
 */
void kvc_file_compared_locked(struct kvc_node *n, int fd);
/* The same, if there is no writer (any more) and it has a name. */
void kvc_file_written_locked(struct kvc *k, struct kvc_node *n);
/* Forgets the lower copies; their space is freed after the commit. */
void kvc_file_unplace_locked(struct kvc *k, struct kvc_node *n);
/* The file has no name and no open left, or is dropped: everything of it goes after the commit. */
void kvc_file_destroy_locked(struct kvc *k, struct kvc_node *n);
/*
 * A file without a name that nobody has open, in the pool. Who looked its name up before it went
 * may be about to open it: it is there for him until the kernel forgets it, which is at once where
 * there is nobody, or somebody waits for room, or the second commit from now. Its room counts as
 * leaving.
 */
bool kvc_file_lingers_locked(const struct kvc *k, const struct kvc_node *n); /* Should it? */
void kvc_file_linger_locked(struct kvc *k, struct kvc_node *n);
void kvc_file_linger_over_locked(struct kvc *k, struct kvc_node *n); /* it is open again, or goes */
/* A commit begins: those of the one before go, or all. */
void kvc_file_linger_end_locked(struct kvc *k, bool all);
void kvc_file_close_segment_locked(struct kvc *k, struct kvc_node *n);

#endif
