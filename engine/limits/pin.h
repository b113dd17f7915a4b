/* SPDX-License-Identifier: Apache-2.0 */
/* Accounting of pins (pin.c). All under k->lock. */
#ifndef KVC_PIN_H
#define KVC_PIN_H

#include "chunk.h"
#include "node.h"
#include "user.h"

/* A pin of one chunk. */
struct kvc_pin {
	struct kvc_slot slot;    /* in k->pins->table, by the chunk's id */
	struct kvc_user *user;   /* the user that set it */
	struct kvc_chunk *chunk; /* NULL: not in memory */
	uint64_t until_ns;       /* INT64_MAX: no end */
	/* unique; nodes that are counted in `disk` carry it (n->pin.serial) */
	uint64_t serial;
	uint64_t disk;  /* bytes of its files, see kvc_pin_weight */
	size_t heap_at; /* index in the heap + 1; 0: the pin has no end */
	/*
	 * While `counting` is set, a walk counts the files in the order of their inode numbers
	 * (pin_set.c). Files up to `at` are counted; files from `below` on are younger than the
	 * walk and count themselves. `again`: an older file has joined the chunk since.
	 */
	bool counting, again;
	uint64_t at, below;
};

struct kvc_pins {
	struct kvc_table table;
	struct kvc_pin **heap; /* pins with an end, the earliest end first */
	size_t nheap, heap_room;
	uint64_t pool, disk; /* bytes: the sums over all users */
	uint64_t disk_size;  /* size of the disk tier; 0: no disk tier */
	uint64_t serial;
	size_t users; /* number of users that have pins */
	/*
	 * users with pinned chunks that are excluded from the pool's order; chunks that must be put
	 * back into it; excluded chunks that may still protect their parents
	 */
	struct kvc_list excluded_users, back, chained;
};

struct kvc_pin *kvc_pin_find_locked(struct kvc *k, uint64_t id);
/*
 * Creates a pin of this user, without files yet. c is the chunk if it is in memory, or NULL.
 * Returns NULL if out of memory.
 */
struct kvc_pin *kvc_pin_new_locked(struct kvc *k, uint64_t id, uint32_t uid, uint64_t until_ns,
				   struct kvc_chunk *c);
void kvc_pin_free_locked(struct kvc *k, struct kvc_pin *p);
/* Changes the end of a pin. Returns 0 or -ENOMEM. */
int kvc_pin_end_locked(struct kvc *k, struct kvc_pin *p, uint64_t until_ns);
/* Moves the pin to another user. Returns 0 or -ENOMEM. */
int kvc_pin_give_locked(struct kvc *k, struct kvc_pin *p, uint32_t uid);
/*
 * Returns 0 if the pin is within the limits, -EDQUOT if its user is over the limit of one user, or
 * -ENOSPC if all pins together are over the limit.
 */
int kvc_pin_excess_locked(struct kvc *k, const struct kvc_pin *p);
/* Returns the pin that ended first; NULL if none has ended. */
struct kvc_pin *kvc_pin_ended_locked(struct kvc *k);
/* Adds `by` bytes, which may be negative, to the chunk's bytes in the pool. */
void kvc_pin_pool_locked(struct kvc *k, struct kvc_pin *p, int64_t by);
/* The bytes that a file adds to its pin, computed from the blocks in its row or from its node. */
uint64_t kvc_pin_weight(uint64_t blocks);
uint64_t kvc_pin_weight_of(const struct kvc_node *n);
/* Adds `by` bytes of files that are not in memory to the pin. */
void kvc_pin_disk_locked(struct kvc *k, struct kvc_pin *p, int64_t by);
/* Updates the bytes that a node adds to the pin of row.chunk. Cheap if nothing is pinned. */
void kvc_pin_count_locked(struct kvc *k, struct kvc_node *n);
/* The node leaves its chunk. */
void kvc_pin_leave_locked(struct kvc *k, struct kvc_node *n);
/* The node has moved from another chunk to the chunk that it belongs to now. */
void kvc_pin_joined_locked(struct kvc *k, struct kvc_node *n);
/* The node leaves memory and its file stays. */
void kvc_pin_node_freed_locked(struct kvc *k, struct kvc_node *n);
/* The node was read into memory; so far it was counted by its row. */
void kvc_pin_node_loaded_locked(struct kvc *k, struct kvc_node *n);
/* The chunk was created in memory: links it to its pin, if it has one. */
void kvc_pin_link_chunk_locked(struct kvc *k, struct kvc_chunk *c);

/* The part of a pinned chunk that an eviction would take. */
enum kvc_pin_against {
	KVC_PIN_POOL, /* its memory in the pool, for other chunks */
	KVC_PIN_DISK, /* its space on the disk, for other chunks */
	KVC_PIN_ALL,  /* the whole chunk: ttl, quota */
};
/*
 * Returns true if the pin protects this part of the chunk (`what`). until_ns: the end of the pin by
 * the chunk's row (0: not pinned), or INT64_MAX if the caller has not read the row. A pin over the
 * limit protects neither memory nor disk space against other chunks.
 */
bool kvc_pin_protects_locked(struct kvc *k, uint64_t id, uint64_t until_ns,
			     enum kvc_pin_against what);
/*
 * Pinned chunks are excluded from the pool's eviction order, so that a pass of the evictor need not
 * step over them. All three functions look at a bounded number of users and chunks.
 *
 * kvc_pin_out_locked: if a pin protects the chunk's memory, records that the chunk is excluded and
 * returns true; the caller has already excluded it from the order.
 *
 * kvc_pin_back_locked: returns the next chunk that is not protected any more. The caller puts it
 * back into the order (kvc_chunk_push_locked). NULL: none is known now.
 *
 * kvc_pin_chained_locked: returns the next excluded chunk whose parent needs no protection any
 * more. Each chunk is returned once.
 */
bool kvc_pin_out_locked(struct kvc *k, struct kvc_chunk *c);
struct kvc_chunk *kvc_pin_back_locked(struct kvc *k);
struct kvc_chunk *kvc_pin_chained_locked(struct kvc *k);
/* Removes the pin of a chunk that was deleted or unpinned. Under both locks. */
void kvc_pin_forget_both(struct kvc *k, uint64_t id);
#define KVC_PIN_KEY "pin:"
/* At unmount. */
void kvc_pins_free(struct kvc *k);

#endif
