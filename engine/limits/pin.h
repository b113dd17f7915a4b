/* SPDX-License-Identifier: Apache-2.0 */
/* The account of pins (pin.c). All under k->lock. */
#ifndef KVC_PIN_H
#define KVC_PIN_H

#include "chunk.h"
#include "node.h"
#include "user.h"

/* One for each chunk that is pinned. */
struct kvc_pin {
	struct kvc_slot slot;    /* in k->pins->table, by the chunk's id */
	struct kvc_user *user;   /* who set it */
	struct kvc_chunk *chunk; /* NULL: not in memory */
	uint64_t until_ns;       /* INT64_MAX: for ever */
	uint64_t serial;         /* nodes that are counted in `disk` say so with it */
	uint64_t disk;           /* what its files take, see kvc_pin_weight */
	size_t heap_at;          /* index + 1; 0: it has no end */
	/*
	 * Its files are being counted, in the order of their numbers (pin_set.c): those up to `at`
	 * are, and those from `below` on, which are younger, count themselves. `again`: an older
	 * file has joined the chunk since.
	 */
	bool counting, again;
	uint64_t at, below;
};

struct kvc_pins {
	struct kvc_table table;
	struct kvc_pin **heap; /* those that end, the first to end first */
	size_t nheap, heap_room;
	uint64_t pool, disk; /* bytes: the sums of all users' */
	uint64_t disk_size;  /* of the disk tier; 0: there is none */
	uint64_t serial;
	size_t users; /* who have any */
	/*
	 * users with chunks out of the pool's order; chunks that are to return to it; chunks out of
	 * it that may still protect their parents
	 */
	struct kvc_list out_users, back, chained;
};

struct kvc_pin *kvc_pin_find_locked(struct kvc *k, uint64_t id);
/* It counts to this user, with no file yet. NULL: out of memory. c: where it is in memory. */
struct kvc_pin *kvc_pin_new_locked(struct kvc *k, uint64_t id, uint32_t uid, uint64_t until_ns,
				   struct kvc_chunk *c);
void kvc_pin_free_locked(struct kvc *k, struct kvc_pin *p);
/* It ends at another time. 0 or -ENOMEM. */
int kvc_pin_end_locked(struct kvc *k, struct kvc_pin *p, uint64_t until_ns);
/* It is another user's now. 0 or -ENOMEM. */
int kvc_pin_give_locked(struct kvc *k, struct kvc_pin *p, uint32_t uid);
/* Is it, or all, beyond what may be pinned? 0, -EDQUOT (its user's share) or -ENOSPC (all). */
int kvc_pin_excess_locked(struct kvc *k, const struct kvc_pin *p);
/* The first that has ended; NULL: none has. */
struct kvc_pin *kvc_pin_ended_locked(struct kvc *k);
/* The chunk takes so much more (or less) of the pool. */
void kvc_pin_pool_locked(struct kvc *k, struct kvc_pin *p, int64_t by);
/* What a file counts by its row, and by its node. */
uint64_t kvc_pin_weight(uint64_t blocks);
uint64_t kvc_pin_weight_of(const struct kvc_node *n);
/* The pin counts so much more: files of its chunk that are not in memory. */
void kvc_pin_disk_locked(struct kvc *k, struct kvc_pin *p, int64_t by);
/* Brings what a node counts up to date, with row.chunk what it is. Cheap where nothing is pinned.
 */
void kvc_pin_count_locked(struct kvc *k, struct kvc_node *n);
/* The node leaves its chunk. */
void kvc_pin_leave_locked(struct kvc *k, struct kvc_node *n);
/* The node has joined its chunk, which it was not made in. */
void kvc_pin_joined_locked(struct kvc *k, struct kvc_node *n);
/* The node leaves memory, and its file stays. */
void kvc_pin_unknown_locked(struct kvc *k, struct kvc_node *n);
/* The node is in memory now, and was counted by its row. */
void kvc_pin_known_locked(struct kvc *k, struct kvc_node *n);
/* Chunk and pin are there together from now on. */
void kvc_pin_meet_locked(struct kvc *k, struct kvc_chunk *c);

/* What somebody wants to take from a chunk that may be pinned. */
enum kvc_pin_against {
	KVC_PIN_POOL, /* its memory, for others */
	KVC_PIN_DISK, /* its space on the disk, for others */
	KVC_PIN_ALL,  /* all of it: ttl, quota */
};
/* Does the pin hold against that? One beyond the bound holds no memory or space from others. */
bool kvc_pin_holds_locked(struct kvc *k, uint64_t id, uint64_t until_ns, enum kvc_pin_against what);
/*
 * Pinned chunks stay out of the pool's eviction order, so that no pass of the evictor steps over
 * them. kvc_pin_out_locked: if a pin holds this chunk in the pool, records that it is out and
 * returns true; the caller has set it aside in the order. kvc_pin_back_locked: the next chunk whose
 * pin holds no more, which the caller pushes into the order (kvc_chunk_push_locked); NULL: none is
 * known now. kvc_pin_chained_locked: the next chunk out of the order whose parent is to be
 * protected no longer; each is given once. All look at a bounded number of users and chunks.
 */
bool kvc_pin_out_locked(struct kvc *k, struct kvc_chunk *c);
struct kvc_chunk *kvc_pin_back_locked(struct kvc *k);
struct kvc_chunk *kvc_pin_chained_locked(struct kvc *k);
/* The chunk has gone, or is not to be pinned any more. Both locks. */
void kvc_pin_forget_both(struct kvc *k, uint64_t id);
#define KVC_PIN_KEY "pin:"
/* At the end. */
void kvc_pins_free(struct kvc *k);

#endif
