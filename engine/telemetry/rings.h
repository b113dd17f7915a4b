/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Rings of the newest events about files and of the newest accesses to chunks, for the readers of
 * .kvcachefs/events and .kvcachefs/trace (report/). A ring exists only while a reader is open. Each
 * reader has its own position; a slow reader loses the oldest items. All under k->lock.
 *
 * An event has the file's inode number; its path is looked up when the event is read. An event that
 * removes a name keeps the path in `gone`. Such events are chained by inode number, so that earlier
 * events of the file find the path that they had.
 */
#ifndef KVC_RINGS_H
#define KVC_RINGS_H

#include "kvc.h"
#include "chunk.h"

#define KVC_EVENT_RING_MAX 16384u /* events in the ring, about 1 MiB */

/* clang-format off: a table */
#define KVC_EVENT_RING(X)                                          \
	X(stored, "its bytes are in this tier now")                \
	X(loaded, "it came into the pool from this tier")          \
	X(evicted, "it left this tier")                            \
	X(renamed, "it has this path now, and had another before") \
	X(dropped, "this path does not exist any more")
/* clang-format on */

enum kvc_event_kind {
#define X(name, what) KVC_EVENT_RING_##name,
	KVC_EVENT_RING(X)
#undef X
		KVC_EVENT_RING_N
};

#define KVC_EVENT_RING_POOL (-1) /* instead of a tier's number */
#define KVC_EVENT_RING_NONE (-2)
#define KVC_EVENT_RING_IN_POOL (1u << KVC_TIERS)

struct kvc_event_ring_item {
	uint64_t at_ns; /* wall clock */
	uint64_t ino, bytes;
	/*
	 * number + 1 of the previous event with a `gone` path and the same hash of the inode number
	 */
	uint64_t before;
	char *gone; /* the path that the file had; NULL: it still has it. Owned by the ring */
	int8_t tier;
	/* where: a bit for each tier, and KVC_EVENT_RING_IN_POOL; not set for folders */
	uint8_t what, where;
	/* folder: it is a folder. alone: it is a file that is a chunk by itself */
	bool folder, alone;
};

struct kvc_event_ring;
struct kvc_node;

/* Opens a reader: *at is its position. Returns 0 or -ENOMEM. */
int kvc_event_ring_open_locked(struct kvc *k, uint64_t *at);
/* Closes a reader; the last one frees the ring. */
void kvc_event_ring_close_locked(struct kvc *k);
/* Adds an event. Does nothing if no reader is open. */
void kvc_event_ring_put_locked(struct kvc *k, enum kvc_event_kind what, int tier,
			       const struct kvc_node *n);
/* The same with the path that the file had. Takes ownership of `gone`, which is from malloc. */
void kvc_event_ring_gone_locked(struct kvc *k, enum kvc_event_kind what, const struct kvc_node *n,
				char *gone);
/*
 * Reads the event at the reader's position and advances it. *number is the event's number; *lost is
 * the number of older events that the reader missed. v->gone belongs to the ring and is valid while
 * the lock is held. Returns false if there are no more events.
 */
bool kvc_event_ring_take_locked(struct kvc *k, uint64_t *at, struct kvc_event_ring_item *v,
				uint64_t *number, uint64_t *lost);
/*
 * Returns the path that the file had at that event if the file has lost this path since, or NULL.
 * The path belongs to the ring.
 */
const char *kvc_event_ring_path_locked(struct kvc *k, uint64_t ino, uint64_t number);

/* ---- the ring of accesses ---- */

#define KVC_ACCESS_RING_ITEMS 24576u /* accesses in the ring, a little more than 1 MiB */

enum {
	KVC_ACCESS_CREATED = 1,  /* the client created the chunk */
	KVC_ACCESS_LEASED = 2,   /* the client is a lease */
	KVC_ACCESS_INFERRED = 4, /* parents are inferred for the chunk's policy */
	KVC_ACCESS_END = 8,      /* not an access: the client, a lease, has named all its paths */
	/* not an access: chunk `id` was renamed; id 0: a rename that may concern any chunk */
	KVC_ACCESS_RENAMED = 16,
};

struct kvc_access_item {
	uint64_t ns; /* kvc_mono_ns */
	uint64_t id; /* of the chunk */
	uint64_t file;
	uint64_t bytes;  /* in the pool; 0: not known yet */
	uint64_t parent; /* the chunk's parent before this access, with KVC_TOLD; or 0 */
	uint32_t client, what;
};

struct kvc_access_ring {
	unsigned readers;
	uint64_t n; /* accesses put so far; the ring has the last KVC_ACCESS_RING_ITEMS of them */
	struct kvc_access_item v[KVC_ACCESS_RING_ITEMS];
};

/* Opens a reader: *at is its position. Returns 0 or -ENOMEM. */
int kvc_access_ring_open_locked(struct kvc *k, uint64_t *at);
/* Closes a reader; the last one frees the ring. */
void kvc_access_ring_close_locked(struct kvc *k);
/* Adds an access. The caller has checked that a reader is open (k->access_ring). */
void kvc_access_ring_put_locked(struct kvc *k, const struct kvc_access_item *u);
/*
 * Copies up to `most` accesses from the reader's position and advances it. *lost: the number of
 * older accesses that the reader missed.
 */
size_t kvc_access_ring_take_locked(struct kvc *k, uint64_t *at, struct kvc_access_item *v,
				   size_t most, uint64_t *lost);

#endif
