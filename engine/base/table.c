/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A hash table by linear hashing (table.h). The table has `level` (a power of two) buckets, and one
 * more for each bucket that was split: buckets [0, n) were split, and buckets [level, level + n)
 * have the structs that were moved from them. Buckets are in parts of a fixed size, so that growing
 * copies no buckets.
 */
#include "table.h"

#include "util.h"

#include <errno.h>
#include <stdlib.h>

#define PART 4096u /* buckets */

static size_t key_bucket(const struct kvc_table *t, uint64_t key)
{
	uint64_t h = key * 0x9e3779b97f4a7c15ull;
	size_t b;

	h ^= h >> 32;
	b = h & (2 * t->level - 1);
	return b < t->buckets ? b : b & (t->level - 1);
}

static struct kvc_slot **bucket_head(const struct kvc_table *t, size_t bucket)
{
	return &t->part[bucket / PART][bucket % PART];
}

static int add_part(struct kvc_table *t)
{
	struct kvc_slot **p;

	if (kvc_grow(&t->part, t->parts, &t->part_capacity, sizeof *t->part))
		return -ENOMEM;
	p = calloc(PART, sizeof *p);
	if (!p)
		return -ENOMEM;
	t->part[t->parts++] = p;
	return 0;
}

int kvc_table_init(struct kvc_table *t)
{
	*t = (struct kvc_table){ .level = PART, .buckets = PART };
	return add_part(t);
}

void kvc_table_fini(struct kvc_table *t)
{
	for (size_t i = 0; i < t->parts; i++)
		free(t->part[i]);
	free(t->part);
	*t = (struct kvc_table){ 0 };
}

/* Adds a bucket, and moves the structs that belong there from the bucket that is split. */
static void split_bucket(struct kvc_table *t)
{
	struct kvc_slot **from, *s, *stay = NULL;
	size_t to = t->buckets;

	if (to / PART == t->parts && add_part(t))
		return; /* chains grow longer */
	from = bucket_head(t, to - t->level);
	s = *from;
	t->buckets++;
	while (s) {
		struct kvc_slot *next = s->next,
				**list = key_bucket(t, s->key) == to ? bucket_head(t, to) : &stay;

		s->next = *list;
		*list = s;
		s = next;
	}
	*from = stay;
	if (t->buckets == 2 * t->level)
		t->level *= 2;
}

struct kvc_slot *kvc_table_find(const struct kvc_table *t, uint64_t key)
{
	struct kvc_slot *s = *bucket_head(t, key_bucket(t, key));

	while (s && s->key != key)
		s = s->next;
	return s;
}

void kvc_table_add(struct kvc_table *t, struct kvc_slot *s)
{
	struct kvc_slot **list;

	if (++t->n > t->buckets)
		split_bucket(t);
	list = bucket_head(t, key_bucket(t, s->key));
	s->next = *list;
	*list = s;
}

void kvc_table_del(struct kvc_table *t, struct kvc_slot *s)
{
	struct kvc_slot **p = bucket_head(t, key_bucket(t, s->key));

	while (*p != s)
		p = &(*p)->next;
	*p = s->next;
	t->n--;
}

struct kvc_slot *kvc_table_bucket(const struct kvc_table *t, size_t bucket)
{
	return *bucket_head(t, bucket);
}
