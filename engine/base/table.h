/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A hash table of structs that have a number, by linear hashing. It grows by one bucket at a time,
 * so no call moves more than one bucket's chain. The structs contain their links. It has no lock.
 *
 * A bucket is a number below `buckets`. A caller that walks all buckets in the order of
 * their numbers, with pauses between them, meets each struct that stays in the table at least once,
 * because growing moves structs only to the end.
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
	size_t parts, part_capacity, level, buckets, n;
};

/* Returns 0 or -ENOMEM. kvc_table_fini frees the table, but not the structs in it. */
int kvc_table_init(struct kvc_table *t);
void kvc_table_fini(struct kvc_table *t);
struct kvc_slot *kvc_table_find(const struct kvc_table *t, uint64_t key);
/*
 * s->key must be set, and not be in the table. Cannot fail: if memory is short, chains get longer.
 */
void kvc_table_add(struct kvc_table *t, struct kvc_slot *s);
void kvc_table_del(struct kvc_table *t, struct kvc_slot *s);
struct kvc_slot *kvc_table_bucket(const struct kvc_table *t, size_t bucket);

/* Walks all structs. The current one may be removed; none may be added during the walk. */
#define kvc_table_each(t, pos)                                             \
	for (size_t pos##_at = 0; pos##_at < (t)->buckets; pos##_at++)     \
		for (struct kvc_slot *pos = kvc_table_bucket(t, pos##_at), \
				     *pos##_next = pos ? pos->next : NULL; \
		     pos; pos = pos##_next, pos##_next = pos ? pos->next : NULL)

#endif
