/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Chunks that the policy of the disk tier has given up, and chunks that it keeps but that are not
 * copied yet (disk_victims.c). All under k->lock. access/disk_retention.c asks the policy;
 * evict/trimmer.c frees the space of the chunks that are given up.
 */
#ifndef KVC_DISK_VICTIMS_H
#define KVC_DISK_VICTIMS_H

#include "chunk.h"

struct kvc_disk_victims {
	struct kvc_table table; /* by the id of the chunk */
	/*
	 * in the order of removal: the refused ones ([1]), which are removed first, and the others;
	 * visited: those that the trimmer's walk has tried to remove
	 */
	struct kvc_list waiting[2], visited[2];
	uint64_t bytes; /* their bytes on the disk, estimated */
	/* bytes of chunks that the policy keeps, whose copies are awaited */
	uint64_t awaited;
	uint64_t nawaited; /* number of these chunks */
	bool ready;        /* the replacers of the disk tier are filled (evict/trim.c) */
	struct kvc_replacer_turns turns;
};

/* A chunk that was given up. */
struct kvc_disk_victim {
	uint64_t id, facts; /* facts: its state in the policy */
	unsigned class;
};

/*
 * Adds a chunk that is on the disk and in no replacer of the disk tier. bytes: its estimated size
 * there. first: it is removed before the others. Returns 0 or -ENOMEM.
 */
int kvc_disk_victims_add_locked(struct kvc *k, const struct kvc_disk_victim *v, uint64_t bytes,
				bool first);
/* Removes the chunk, if it was given up: the policy keeps it now, or it does not exist any more. */
void kvc_disk_victims_remove_locked(struct kvc *k, uint64_t id);
bool kvc_disk_victims_has_locked(const struct kvc *k, uint64_t id);
/*
 * Sets *v to the next chunk that this walk of the trimmer has not visited. It stays given up until
 * it is dropped or kvc_disk_victims_remove_locked is called. Returns false if none is left.
 */
bool kvc_disk_victims_visit_locked(struct kvc *k, struct kvc_disk_victim *v);
/* A walk begins: all chunks can be visited again, in the same order. */
void kvc_disk_victims_walk_locked(struct kvc *k);
/*
 * The policy keeps the chunk, which is in memory. bytes: the size of its copy if that is awaited,
 * or 0.
 */
void kvc_disk_victims_kept_locked(struct kvc *k, struct kvc_chunk *c, uint64_t bytes);
/* The policy does not keep the chunk, which is in memory. No copy of it is made any more. */
void kvc_disk_victims_refused_locked(struct kvc *k, struct kvc_chunk *c);
/* The chunk's copy is made, or is not awaited any more. */
void kvc_disk_victims_arrived_locked(struct kvc *k, struct kvc_chunk *c);
/* At unmount. */
void kvc_disk_victims_free(struct kvc *k);

#endif
