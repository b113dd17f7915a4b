/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The overlay: changes of the catalog, in memory, that SQLite does not have yet (overlay.c). Used
 * only inside the catalog.
 *
 * A change is the newest value of a row, or the deletion of a row. Reads ask the overlay first. A
 * change is kept until its transaction is committed. kvc_overlay_seal() makes all active changes a
 * batch, which is written without any lock. If the write succeeds, the batch is dropped. If it
 * fails, the batch is merged back, and newer changes win. At most one batch exists. The overlay
 * also has a cache of committed names.
 */
#ifndef KVC_OVERLAY_H
#define KVC_OVERLAY_H

#include "table.h"
#include "util.h"

enum kvc_relation {               /* the tables; the comments give the key: a, b, text */
		    KVC_T_ROW,    /* ino */
		    KVC_T_META,   /* text */
		    KVC_T_NAME,   /* parent, hash, text */
		    KVC_T_TARGET, /* ino */
		    KVC_T_OBJECT, /* ino */
		    KVC_T_PLACE,  /* ino, tier */
		    KVC_T_XATTR,  /* ino, text */
		    KVC_T_CHUNK,  /* id */
		    /* single row: the time before which rows of KVC_T_GONE are obsolete */
		    KVC_T_PURGE,
		    KVC_T_GONE, /* at, hi */
		    KVC_TABLES
};

/*
 * Orders in which changes of names and chunks can be walked, with their keys. KVC_IX_NAME contains
 * deletions, too; the other orders contain none.
 */
enum kvc_order {
	KVC_IX_NAME,   /* parent, hash, text */
	KVC_IX_OF,     /* ino, parent, hash, text */
	KVC_IX_RANK,   /* policy, rank, id */
	KVC_IX_QUOTA,  /* quota, rank, id; only chunks with a quota */
	KVC_IX_EXPIRE, /* expires_ns, id; only chunks with a ttl */
	KVC_IX_TENANT, /* tenant, rank, id; only chunks of a tenant */
	KVC_ORDERS
};

struct kvc_spot { /* position of a change in an order: a node of a treap */
	struct kvc_spot *left, *right;
	uint64_t key[3];
	struct kvc_change *change;
	uint32_t weight;
	bool in;
};

struct kvc_change {
	struct kvc_list link; /* in `active`, or in the batch */
	struct kvc_list over; /* in `covered`, if a newer change or a wipe replaces this one */
	struct kvc_slot slot; /* in the hash table, by the key */
	uint64_t a, b, txn;
	size_t bytes;
	uint32_t len; /* length of the value */
	uint8_t table;
	bool gone; /* the row is deleted and has no value */
	/* a deleted KVC_T_ROW that also deletes all rows of the inode in other tables */
	bool wipes;
	bool covered;
	char *text; /* "" if the key has no text */
	void *value;
	struct kvc_spot *spots; /* its positions in the orders (kvc_spots) */
};

struct kvc_name_value {
	uint64_t ino;
	uint32_t kind;
};

/*
 * A cache of committed names: the inode of a name, or that the name does not exist. Removed names
 * are worth caching because the filter cannot exclude them, and engines ask for dropped files
 * more often than for any other missing name. Existing names are worth caching because a name that
 * is looked up is often removed or renamed soon. The overlay adds a name when it drops a committed
 * change of it, and removes it when it gets a new change of it. A lookup adds a name that SQLite
 * has returned under the catalog's lock. Unlike the filter, the cache may forget any name.
 */
struct kvc_name_cache {
	struct kvc_name_cache_item *names; /* NULL before the first name, or if memory is short */
};

struct kvc_named { /* ino 0: the name does not exist */
	uint64_t ino;
	uint32_t kind;
};

#define KVC_MARKS 16384u

struct kvc_overlay {
	struct kvc_table table;
	size_t n, bytes; /* number of changes, and their memory in bytes */
	size_t nactive;  /* number of changes that are not in the batch */
	size_t count[KVC_TABLES];
	struct kvc_list active, batch, covered;
	struct kvc_spot *root[KVC_ORDERS];
	uint64_t txn, seed;     /* number of the transaction that takes the current changes */
	bool out;               /* a batch is in flight or not yet applied */
	struct kvc_slot *spare; /* memory for changes that must not fail */
	size_t nspare;
	struct kvc_name_cache cache; /* of committed names that are not in the overlay */
	/*
	 * marks[]: number of the last kvc_overlay_drop that removed a change of an inode, a name or
	 * a deleted path, by its hash. Two of them with the same hash share a mark.
	 */
	uint64_t drops, marks[KVC_MARKS];
};

int kvc_overlay_init(struct kvc_overlay *o); /* Returns 0 or -ENOMEM. */
void kvc_overlay_fini(struct kvc_overlay *o);
/* Allocates memory for the next n changes of at most KVC_SPARE_BYTES each. Returns 0 or -ENOMEM. */
#define KVC_SPARE_BYTES 1024u
int kvc_overlay_spare(struct kvc_overlay *o, size_t n);

/* Returns the newest change of a row, or NULL. text NULL means "". */
struct kvc_change *kvc_overlay_find(const struct kvc_overlay *o, enum kvc_relation t, uint64_t a,
				    uint64_t b, const char *text);
/*
 * Records a new value of a row, or its deletion (value NULL). Returns 0, or -ENOMEM and nothing is
 * changed.
 */
int kvc_overlay_put(struct kvc_overlay *o, enum kvc_relation t, uint64_t a, uint64_t b,
		    const char *text, const void *value, size_t len);
/*
 * Records the deletion of an inode and of all its rows. Returns 0, or -ENOMEM and nothing is
 * changed.
 */
int kvc_overlay_wipe(struct kvc_overlay *o, uint64_t ino);
/*
 * Walks the changes in KVC_T_XATTR of an inode, in no order: returns the next after `c` (NULL: the
 * first).
 */
struct kvc_change *kvc_overlay_xattr(const struct kvc_overlay *o, uint64_t ino,
				     const struct kvc_change *c);
/*
 * Returns the first change in this order above the key, or NULL. text NULL: above all keys with the
 * same numbers.
 */
struct kvc_change *kvc_overlay_after(const struct kvc_overlay *o, enum kvc_order ix, uint64_t k0,
				     uint64_t k1, uint64_t k2, const char *text);
/*
 * Did a drop after number `since` move to SQLite a row of this inode (its row, object, placements,
 * attributes), a name of it, this name, or this row of KVC_T_GONE (its first two columns)? May
 * return true because of another row with the same hash.
 */
bool kvc_overlay_inode_since(const struct kvc_overlay *o, uint64_t ino, uint64_t since);
bool kvc_overlay_names_since(const struct kvc_overlay *o, uint64_t ino, uint64_t since);
bool kvc_overlay_name_since(const struct kvc_overlay *o, uint64_t parent, uint64_t hash,
			    uint64_t since);
bool kvc_overlay_gone_since(const struct kvc_overlay *o, uint64_t lo, uint64_t hi, uint64_t since);
/* Converts a rank to a part of a key, with the same order. */
static inline uint64_t kvc_overlay_rank(int64_t rank)
{
	return (uint64_t)rank ^ 1ull << 63;
}

/* Makes all active changes the batch and returns its transaction number. No batch may exist. */
uint64_t kvc_overlay_seal(struct kvc_overlay *o);
/*
 * The batch is committed: drops up to `max` of its changes. Returns true when the last change is
 * dropped.
 */
bool kvc_overlay_drop(struct kvc_overlay *o, size_t max);
/*
 * The batch has failed: merges its changes back, to be written with the newer changes, which win.
 */
void kvc_overlay_merge(struct kvc_overlay *o);

/*
 * Adds a committed name to the cache, as SQLite has it. The overlay may not have a newer change of
 * the name.
 */
void kvc_overlay_cache_add(struct kvc_overlay *o, uint64_t parent, uint64_t hash, const char *name,
			   const struct kvc_named *is);
/* Finds a committed name in the cache. Returns NULL if the name is not in the cache. */
const struct kvc_named *kvc_overlay_cache_find(const struct kvc_overlay *o, uint64_t parent,
					       uint64_t hash, const char *name);

#endif
