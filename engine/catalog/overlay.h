/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The overlay: changes of the catalog that SQLite does not have yet, in memory (overlay.c). Inside
 * the catalog only.
 *
 * A change is the newest value of one row, or that the row is gone. Reads ask here first. Changes
 * are kept until their transaction is committed: kvc_overlay_seal() makes those of now a batch,
 * which is written without any lock, and then dropped (committed) or merged back below what came
 * since (failed). At most one batch is out.
 */
#ifndef KVC_OVERLAY_H
#define KVC_OVERLAY_H

#include "name_cache.h"
#include "table.h"
#include "util.h"

enum kvc_relation {               /* the key, beside the table: a, b, text */
		    KVC_T_ROW,    /* ino */
		    KVC_T_META,   /* text */
		    KVC_T_NAME,   /* parent, hash, text */
		    KVC_T_TARGET, /* ino */
		    KVC_T_OBJECT, /* ino */
		    KVC_T_PLACE,  /* ino, tier */
		    KVC_T_XATTR,  /* ino, text */
		    KVC_T_CHUNK,  /* id */
		    KVC_T_PURGE, /* (one) the time up to which T_GONE's rows are not needed any more
				  */
		    KVC_T_GONE,  /* at, hi */
		    KVC_TABLES
};

/* Orders in which changes that are not `gone` (KVC_IX_NAME: all) can be walked, and their keys. */
enum kvc_order {
	KVC_IX_NAME,   /* parent, hash, text */
	KVC_IX_OF,     /* ino, parent, hash, text */
	KVC_IX_RANK,   /* policy, rank, id */
	KVC_IX_QUOTA,  /* quota, rank, id; where there is a quota */
	KVC_IX_EXPIRE, /* when, id; where it does */
	KVC_ORDERS
};

struct kvc_spot { /* a change's place in an order: a node of a treap */
	struct kvc_spot *left, *right;
	uint64_t key[3];
	struct kvc_change *change;
	uint32_t weight;
	bool in;
};

struct kvc_change {
	struct kvc_list link; /* in active, or in the batch */
	struct kvc_list over; /* in `covered`, where a newer change or a wipe took its place */
	struct kvc_slot slot; /* in the table, by the hash of its key */
	uint64_t a, b, txn;
	size_t bytes;
	uint32_t len; /* of the value */
	uint8_t table;
	bool gone;  /* the row is deleted; there is no value */
	bool wipes; /* a T_ROW that is gone: and all rows of other tables that belong to the inode
		     */
	bool covered;
	char *text; /* "" where the key has none */
	void *value;
	struct kvc_spot *spots; /* kvc_spots of them */
};

struct kvc_name_value {
	uint64_t ino;
	uint32_t kind;
};

#define KVC_MARKS 16384u

struct kvc_overlay {
	struct kvc_table table;
	size_t n, bytes; /* changes, and the memory they take */
	size_t nactive;  /* changes that are not in a batch */
	size_t count[KVC_TABLES];
	struct kvc_list active, batch, covered;
	struct kvc_spot *root[KVC_ORDERS];
	uint64_t txn, seed;     /* the number of the transaction that changes go into now */
	bool out;               /* a batch is being written, or its end is not worked in */
	struct kvc_slot *spare; /* memory for changes that must not fail */
	size_t nspare;
	struct kvc_name_cache lately; /* what SQLite has of names that are not here */
	/*
	 * Rows that SQLite has received: the number of the last kvc_overlay_drop that removed a
	 * change of an inode, or of a name, by the hash of the inode or the name. Two of one hash
	 * share a mark.
	 */
	uint64_t drops, marks[KVC_MARKS];
};

int kvc_overlay_init(struct kvc_overlay *o); /* 0 or -ENOMEM */
void kvc_overlay_fini(struct kvc_overlay *o);
/* The next n changes of at most KVC_SPARE_BYTES have their memory. 0 or -ENOMEM. */
#define KVC_SPARE_BYTES 1024u
int kvc_overlay_spare(struct kvc_overlay *o, size_t n);

/* The newest change of a row, or NULL. text may be NULL for "". */
struct kvc_change *kvc_overlay_find(const struct kvc_overlay *o, enum kvc_relation t, uint64_t a,
				    uint64_t b, const char *text);
/* The row has this value now, or is gone (value NULL). 0, or -ENOMEM and nothing has changed. */
int kvc_overlay_put(struct kvc_overlay *o, enum kvc_relation t, uint64_t a, uint64_t b,
		    const char *text, const void *value, size_t len);
/* The inode is gone with all that belongs to it. 0, or -ENOMEM and nothing has changed. */
int kvc_overlay_wipe(struct kvc_overlay *o, uint64_t ino);
/* Walks T_XATTR of an inode, in no order: the next after `c` (NULL: the first). */
struct kvc_change *kvc_overlay_xattr(const struct kvc_overlay *o, uint64_t ino,
				     const struct kvc_change *c);
/* The first in this order above the key (text NULL: above all of the same numbers), or NULL. */
struct kvc_change *kvc_overlay_after(const struct kvc_overlay *o, enum kvc_order ix, uint64_t k0,
				     uint64_t k1, uint64_t k2, const char *text);
/*
 * Has SQLite received a row of this inode (its row, object, places, attributes), a name of it, or
 * this name, by a drop after number `since`? May be true for one of another inode or name.
 */
bool kvc_overlay_inode_since(const struct kvc_overlay *o, uint64_t ino, uint64_t since);
bool kvc_overlay_names_since(const struct kvc_overlay *o, uint64_t ino, uint64_t since);
bool kvc_overlay_name_since(const struct kvc_overlay *o, uint64_t parent, uint64_t hash,
			    uint64_t since);
/* A rank as part of a key. */
static inline uint64_t kvc_overlay_rank(int64_t rank)
{
	return (uint64_t)rank ^ 1ull << 63;
}

/* Makes what there is the batch. Returns its transaction's number. There is none out. */
uint64_t kvc_overlay_seal(struct kvc_overlay *o);
/* The batch is committed: drops up to `max` of its changes. Returns whether that was the last. */
bool kvc_overlay_drop(struct kvc_overlay *o, size_t max);
/* The batch has failed: its changes are to be written with those that came since, which win. */
void kvc_overlay_merge(struct kvc_overlay *o);

#endif
