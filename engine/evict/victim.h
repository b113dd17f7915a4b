/* SPDX-License-Identifier: Apache-2.0 */
/* Verdicts about chunks as victims, and walks over their nodes (victim.c). Callers hold k->lock. */
#ifndef KVC_VICTIM_H
#define KVC_VICTIM_H

#include "admission.h"

#include <stdbool.h>
#include <stdint.h>

struct kvc;
struct kvc_chunk;
struct kvc_node;

/* Returns the model of a chunk in the pool; 0 if it has no node there. */
uint64_t kvc_victim_model(const struct kvc_chunk *c);
/*
 * Moves the first node of the chunk to the end of its list and returns it. So a walk over the nodes
 * can release k->lock although others change the list.
 */
struct kvc_node *kvc_victim_rotate_locked(struct kvc_chunk *c);
/*
 * Calls fn for each node of the chunk that has a segment, until fn returns true. Returns true if it
 * did; the next walk then begins with that node. Releases and takes k->lock after every few nodes;
 * the caller holds a reference to the chunk.
 */
typedef bool kvc_victim_node_fn(struct kvc *k, struct kvc_node *n, void *arg);
bool kvc_victim_walk_locked(struct kvc *k, struct kvc_chunk *c, kvc_victim_node_fn *fn, void *arg);
/*
 * Does a tier have the bytes of the node? A copy that counts as lost since a sync failed or left it
 * out, or whose device is gone (KVC_TIER_LOST), is not counted. Neither is a copy of an unknown
 * time (KVC_TIER_UNKNOWN) if an earlier daemon left the segment. If the segment was loaded in this
 * mount, such a copy counts: it was read without an error, and otherwise each file that is loaded
 * after a failed sync would be written to the disk tier again.
 */
bool kvc_victim_copied(const struct kvc *k, const struct kvc_node *n);
/*
 * May the node leave the pool? It has a committed copy and is not in use: nobody opened its segment
 * since kvc_victim_mapped closed it. The caller holds k->lock.
 */
bool kvc_victim_may_leave(const struct kvc *k, const struct kvc_node *n);
/*
 * Does a client have a file of the chunk open, leased or mapped? Closes our own descriptors of its
 * segments. Releases and takes k->lock; the caller holds a reference to the chunk.
 */
bool kvc_victim_mapped(struct kvc *k, struct kvc_chunk *c);

/*
 * KVC_VICTIM_EVICT: every file has a committed copy. KVC_VICTIM_COMES: it has copies, and a copy is
 * queued or running: the disk tier's, or a new copy to replace those that may have been lost by a
 * failed sync. KVC_VICTIM_COPY: files must be copied first, or the transaction of their copies must
 * be committed. KVC_VICTIM_DROP: no tier takes it. KVC_VICTIM_YOUNG: the same, but it was used a
 * moment ago, or may be reported as a parent soon. KVC_VICTIM_LATER: no tier takes it, and one of
 * its files is about to be renamed to its final name; if it were dropped, its writer would not find
 * it. KVC_VICTIM_KEEP: it is pinned, in use or being dropped. KVC_VICTIM_HINTED: a client wants to
 * keep it.
 */
enum kvc_verdict {
	KVC_VICTIM_EVICT,
	KVC_VICTIM_COMES,
	KVC_VICTIM_COPY,
	KVC_VICTIM_DROP,
	KVC_VICTIM_YOUNG,
	KVC_VICTIM_LATER,
	KVC_VICTIM_KEEP,
	KVC_VICTIM_HINTED
};

/* Why admission refuses a chunk for the disk tier, and how many bytes of it. */
struct kvc_refused {
	enum kvc_refusal why;
	uint64_t bytes;
};

/*
 * Judges a chunk. Releases and takes k->lock in between, so a caller that acts on the verdict
 * checks each node again. *r tells why admission refuses the disk's copy, if it does.
 */
enum kvc_verdict kvc_victim_judge_locked(struct kvc *k, struct kvc_chunk *c, struct kvc_refused *r);
/* Is the disk tier's copy of the node queued or running, without an error so far? */
bool kvc_victim_disk_comes_locked(struct kvc *k, const struct kvc_node *n);
/* Does the chunk have a file that was closed a moment ago and still has a temporary name? */
bool kvc_victim_unfinished_locked(struct kvc *k, struct kvc_chunk *c);

#endif
