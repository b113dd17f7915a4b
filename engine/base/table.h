/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A hash table of things that have a number, by linear hashing: it grows by one bucket at a time,
 * so no single call moves more than a bucket's chain. The things carry their own link. It has no
 * lock.
 *
 * A bucket is a number below kvc_table_buckets. Who walks all of them with pauses in between, by
 * number, meets everything that is there all the while at least once: growing moves things only to
 * the end.
 */
#ifndef KVC_TABLE_H
#define KVC_TABLE_H

#include <stddef.h>
#include <stdint.h>

struct kvc_slot {
	struct kvc_slot *next;
	uint64_t key;
};

struct kvc_table { /* see kvc_table_init */
	struct kvc_slot ***part;
	size_t parts, part_room, level, buckets, n;
};

/* 0 or -ENOMEM. kvc_table_fini frees the table, not what is in it. */
int kvc_table_init(struct kvc_table *t);
void kvc_table_fini(struct kvc_table *t);
struct kvc_slot *kvc_table_find(const struct kvc_table *t, uint64_t key);
/* s->key is set and in the table no other time. Without memory it is added all the same. */
void kvc_table_add(struct kvc_table *t, struct kvc_slot *s);
void kvc_table_del(struct kvc_table *t, struct kvc_slot *s);
struct kvc_slot *kvc_table_bucket(const struct kvc_table *t, size_t bucket);

/* Walks all; the one it is at may be removed. Nothing may be added meanwhile. */
#define kvc_table_each(t, pos)                                             \
	for (size_t pos##_at = 0; pos##_at < (t)->buckets; pos##_at++)     \
		for (struct kvc_slot *pos = kvc_table_bucket(t, pos##_at), \
				     *pos##_next = pos ? pos->next : NULL; \
		     pos; pos = pos##_next, pos##_next = pos ? pos->next : NULL)

#endif
