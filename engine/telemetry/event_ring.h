/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What happens to files, for who reads it (report/events.c): a ring of the newest events, there
 * only while somebody reads. Each reader has a place of his own in it; who is slow loses the
 * oldest. All under k->lock.
 *
 * An event names its file by number, and its path is looked for when it is read. What takes a name
 * away keeps it (gone): by those, chained by number, the events before it find theirs.
 */
#ifndef KVC_EVENT_RING_H
#define KVC_EVENT_RING_H

#include "kvc.h"

#define KVC_EVENT_RING_MAX 16384u /* events in the ring, about 1 MiB */

/* clang-format off: a table */
#define KVC_EVENT_RING(X)                                          \
	X(stored, "its bytes are in this tier now")                \
	X(loaded, "it came into the pool from this tier")          \
	X(evicted, "it left this tier")                            \
	X(renamed, "it has this path now, and had another before") \
	X(dropped, "this path is no more")
/* clang-format on */

enum kvc_event_kind {
#define X(name, what) KVC_EVENT_RING_##name,
	KVC_EVENT_RING(X)
#undef X
		KVC_EVENT_RING_N
};

#define KVC_EVENT_RING_POOL (-1) /* in the place of a tier's number */
#define KVC_EVENT_RING_NONE (-2)
#define KVC_EVENT_RING_IN_POOL (1u << KVC_TIERS)

struct kvc_event_ring_item {
	uint64_t at_ns; /* wall time */
	uint64_t ino, bytes;
	uint64_t before; /* number + 1 of the last one before with a `gone` and this one's hash */
	char *gone;      /* the path that it had; NULL: it has it still. The ring's own */
	int8_t tier;
	/* where: bits of the tiers, and KVC_EVENT_RING_IN_POOL; not of folders */
	uint8_t what, where;
	bool folder, alone; /* it is a folder; a file that is a chunk by itself */
};

struct kvc_event_ring;
struct kvc_node;

/* A reader comes: *at is his place. 0 or -ENOMEM. */
int kvc_event_ring_open_locked(struct kvc *k, uint64_t *at);
/* He goes; with the last one the ring does. */
void kvc_event_ring_close_locked(struct kvc *k);
/* Nothing, where nobody reads. */
void kvc_event_ring_put_locked(struct kvc *k, enum kvc_event_kind what, int tier,
			       const struct kvc_node *n);
/* The same; takes over `gone`, from malloc. */
void kvc_event_ring_gone_locked(struct kvc *k, enum kvc_event_kind what, const struct kvc_node *n,
				char *gone);
/*
 * The one at his place, which moves; *number is its own, *lost: those before it that he came too
 * late for. The copy's `gone` is the ring's, for as long as the lock is held. False: there is none.
 */
bool kvc_event_ring_take_locked(struct kvc *k, uint64_t *at, struct kvc_event_ring_item *v,
				uint64_t *number, uint64_t *lost);
/* The path that the file had at that event, if it has lost it since; or NULL. The ring's. */
const char *kvc_event_ring_path_locked(struct kvc *k, uint64_t ino, uint64_t number);

#endif
