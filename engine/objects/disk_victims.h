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
	struct kvc_list list;   /* the one that is removed next is the first */
	uint64_t bytes;         /* their bytes on the disk, estimated */
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
/* Takes the chunk that is removed next. Returns false if none is left. */
bool kvc_disk_victims_take_locked(struct kvc *k, struct kvc_disk_victim *v);
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
