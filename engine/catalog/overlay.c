/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The changes in the overlay; see overlay.h. The catalog's lock guards everything, with one
 * exception: while a batch exists, the committer reads its changes (their keys and values, and
 * their links in `batch`) without a lock. Therefore a change in the batch is never modified or
 * freed. If a newer change replaces it, it leaves the hash table and the orders, joins `covered`,
 * and stays in the batch until the batch is dropped or merged.
 *
 * Data structures: one hash table for all tables, by (table, key), which holds only the newest
 * change of each row; and a treap for each order. The hash table grows by one bucket at a time
 * (base/table.h), because a batch of a hundred thousand changes makes it grow under the lock that
 * lookups wait for. KVC_T_XATTR hashes by the inode alone, so all attributes of an inode share one
 * hash.
 *
 * Invariants: each change in the hash table is in exactly one of `active` and `batch`. `active` has
 * changes with txn = o->txn, and older changes of failed batches. `batch` is empty unless `out`.
 *
 * The cache of committed names is a direct-mapped table by folder and hash. An entry contains the
 * whole name, so that two names with the same hash are never confused.
 */
#include "overlay.h"

#include "catalog.h"

#include <string.h>

#define CACHED 4096u
#define CACHED_LEN 79u /* maximum length of a name in the cache */

struct kvc_name_cache_item { /* parent 0: empty, because inode numbers begin at 1 */
	uint64_t parent, hash;
	struct kvc_named is;
	char name[CACHED_LEN + 1];
};

static const uint8_t kvc_spots[KVC_TABLES] = { [KVC_T_NAME] = 2, [KVC_T_CHUNK] = 4 };

int kvc_overlay_init(struct kvc_overlay *o)
{
	memset(o, 0, sizeof *o);
	kvc_list_init(&o->active);
	kvc_list_init(&o->batch);
	kvc_list_init(&o->covered);
	o->txn = 1;
	o->seed = 0x9e3779b97f4a7c15ull;
	return kvc_table_init(&o->table);
}

void kvc_overlay_fini(struct kvc_overlay *o)
{
	struct kvc_list *all[] = { &o->active, &o->batch };

	for (int i = 0; i < 2 && o->table.part; i++)
		kvc_list_each_safe(e, all[i])
			free(kvc_of(e, struct kvc_change, link));
	for (struct kvc_slot *s; (s = o->spare); free(kvc_of(s, struct kvc_change, slot)))
		o->spare = s->next;
	o->nspare = 0;
	kvc_table_fini(&o->table);
	free(o->cache.names);
	o->cache.names = NULL;
}

static struct kvc_name_cache_item *cached_slot(const struct kvc_overlay *o, uint64_t parent,
					       uint64_t hash)
{
	uint64_t h = (hash ^ parent * 0x9e3779b97f4a7c15ull) * 0xff51afd7ed558ccdull;

	return &o->cache.names[(h >> 40) % CACHED];
}

void kvc_overlay_cache_add(struct kvc_overlay *o, uint64_t parent, uint64_t hash, const char *name,
			   const struct kvc_named *is)
{
	size_t len = strlen(name);
	struct kvc_name_cache_item *n;

	if (len > CACHED_LEN)
		return;
	if (!o->cache.names && !(o->cache.names = calloc(CACHED, sizeof *o->cache.names)))
		return;
	n = cached_slot(o, parent, hash);
	n->parent = parent;
	n->hash = hash;
	n->is = *is;
	memcpy(n->name, name, len + 1);
}

static void forget_cached(struct kvc_overlay *o, uint64_t parent, uint64_t hash)
{
	struct kvc_name_cache_item *n = o->cache.names ? cached_slot(o, parent, hash) : NULL;

	if (n && n->parent == parent && n->hash == hash)
		n->parent = 0;
}

const struct kvc_named *kvc_overlay_cache_find(const struct kvc_overlay *o, uint64_t parent,
					       uint64_t hash, const char *name)
{
	const struct kvc_name_cache_item *n = o->cache.names ? cached_slot(o, parent, hash) : NULL;

	return n && parent && n->parent == parent && n->hash == hash && !strcmp(n->name, name)
		       ? &n->is
		       : NULL;
}

int kvc_overlay_spare(struct kvc_overlay *o, size_t n)
{
	struct kvc_change *c;

	while (o->nspare < n && (c = malloc(KVC_SPARE_BYTES))) {
		c->slot.next = o->spare;
		o->spare = &c->slot;
		o->nspare++;
	}
	return o->nspare < n ? -ENOMEM : 0;
}

/* ---- the orders ---- */

/* at NULL: above every text. */
static int compare(const uint64_t *a, const char *at, const uint64_t *b, const char *bt)
{
	for (int i = 0; i < 3; i++)
		if (a[i] != b[i])
			return a[i] < b[i] ? -1 : 1;
	return at ? strcmp(at, bt) : 1;
}

static void rotate_right(struct kvc_spot **at)
{
	struct kvc_spot *top = *at, *left = top->left;

	top->left = left->right;
	left->right = top;
	*at = left;
}

static void rotate_left(struct kvc_spot **at)
{
	struct kvc_spot *top = *at, *right = top->right;

	top->right = right->left;
	right->left = top;
	*at = right;
}

static void insert(struct kvc_spot **at, struct kvc_spot *s)
{
	if (!*at) {
		*at = s;
	} else if (compare(s->key, s->change->text, (*at)->key, (*at)->change->text) < 0) {
		insert(&(*at)->left, s);
		if ((*at)->left->weight > (*at)->weight)
			rotate_right(at);
	} else {
		insert(&(*at)->right, s);
		if ((*at)->right->weight > (*at)->weight)
			rotate_left(at);
	}
}

static void take_out(struct kvc_spot **at, struct kvc_spot *s)
{
	while (*at && *at != s)
		at = compare(s->key, s->change->text, (*at)->key, (*at)->change->text) < 0
			     ? &(*at)->left
			     : &(*at)->right;
	if (!*at)
		return;
	while (s->left && s->right) {
		if (s->left->weight > s->right->weight) {
			rotate_right(at);
			at = &(*at)->right;
		} else {
			rotate_left(at);
			at = &(*at)->left;
		}
	}
	*at = s->left ? s->left : s->right;
	s->left = s->right = NULL;
}

static void enter(struct kvc_overlay *o, struct kvc_change *c, int spot, enum kvc_order ix,
		  uint64_t k0, uint64_t k1, uint64_t k2)
{
	struct kvc_spot *s = &c->spots[spot];

	o->seed ^= o->seed << 13;
	o->seed ^= o->seed >> 7;
	o->seed ^= o->seed << 17;
	*s = (struct kvc_spot){
		.key = { k0, k1, k2 }, .change = c, .weight = (uint32_t)(o->seed >> 32), .in = true
	};
	insert(&o->root[ix], s);
}

static void enter_all(struct kvc_overlay *o, struct kvc_change *c)
{
	if (c->table == KVC_T_NAME) {
		const struct kvc_name_value *v = c->value;

		enter(o, c, 0, KVC_IX_NAME, c->a, c->b, 0);
		if (!c->gone)
			enter(o, c, 1, KVC_IX_OF, v->ino, c->a, c->b);
	} else if (c->table == KVC_T_CHUNK && !c->gone) {
		const struct kvc_chunk_row *r = c->value;

		enter(o, c, 0, KVC_IX_RANK, r->policy, kvc_overlay_rank(r->rank), r->id);
		if (r->quota)
			enter(o, c, 1, KVC_IX_QUOTA, r->quota, kvc_overlay_rank(r->rank), r->id);
		if (r->expires_ns)
			enter(o, c, 2, KVC_IX_EXPIRE, r->expires_ns, r->id, 0);
		if (r->tenant)
			enter(o, c, 3, KVC_IX_TENANT, r->tenant, kvc_overlay_rank(r->rank), r->id);
	}
}

static void leave_all(struct kvc_overlay *o, struct kvc_change *c)
{
	enum kvc_order first = c->table == KVC_T_NAME ? KVC_IX_NAME : KVC_IX_RANK;

	for (unsigned i = 0; i < kvc_spots[c->table]; i++)
		if (c->spots[i].in) {
			take_out(&o->root[first + i], &c->spots[i]);
			c->spots[i].in = false;
		}
}

struct kvc_change *kvc_overlay_after(const struct kvc_overlay *o, enum kvc_order ix, uint64_t k0,
				     uint64_t k1, uint64_t k2, const char *text)
{
	const uint64_t key[3] = { k0, k1, k2 };
	struct kvc_spot *s = o->root[ix], *best = NULL;

	while (s) {
		if (compare(key, text, s->key, s->change->text) < 0) {
			best = s;
			s = s->left;
		} else {
			s = s->right;
		}
	}
	return best ? best->change : NULL;
}

/* ---- the hash table ---- */

static uint64_t hash_of(enum kvc_relation t, uint64_t a, uint64_t b, const char *text)
{
	uint64_t h = (a + 0x9e3779b97f4a7c15ull) * 0xff51afd7ed558ccdull ^ (uint64_t)t << 56;

	if (t != KVC_T_XATTR) {
		h = (h ^ h >> 33 ^ b) * 0xc4ceb9fe1a85ec53ull;
		if (t == KVC_T_META)
			h ^= kvc_name_hash(text);
	}
	h ^= h >> 29;
	return h * 0x9e3779b97f4a7c15ull >> 20;
}

/* Returns the next change with this hash, from this slot on, or NULL. */
static struct kvc_change *next_of_key(struct kvc_slot *s, uint64_t key)
{
	while (s && s->key != key)
		s = s->next;
	return s ? kvc_of(s, struct kvc_change, slot) : NULL;
}

struct kvc_change *kvc_overlay_find(const struct kvc_overlay *o, enum kvc_relation t, uint64_t a,
				    uint64_t b, const char *text)
{
	struct kvc_change *c;
	uint64_t key;

	if (!o->count[t])
		return NULL;
	text = text ? text : "";
	key = hash_of(t, a, b, text);
	for (c = next_of_key(kvc_table_find(&o->table, key), key); c;
	     c = next_of_key(c->slot.next, key))
		if (c->table == t && c->a == a && c->b == b && !strcmp(c->text, text))
			return c;
	return NULL;
}

struct kvc_change *kvc_overlay_xattr(const struct kvc_overlay *o, uint64_t ino,
				     const struct kvc_change *c)
{
	uint64_t key = hash_of(KVC_T_XATTR, ino, 0, "");
	struct kvc_change *x = next_of_key(c ? c->slot.next : kvc_table_find(&o->table, key), key);

	while (x && (x->table != KVC_T_XATTR || x->a != ino))
		x = next_of_key(x->slot.next, key);
	return x;
}

static void map(struct kvc_overlay *o, struct kvc_change *c)
{
	c->slot.key = hash_of(c->table, c->a, c->b, c->text);
	kvc_table_add(&o->table, &c->slot);
	o->count[c->table]++;
	enter_all(o, c);
}

static void unmap(struct kvc_overlay *o, struct kvc_change *c)
{
	kvc_table_del(&o->table, &c->slot);
	o->count[c->table]--;
	leave_all(o, c);
}

static bool is_out(const struct kvc_overlay *o, const struct kvc_change *c)
{
	return o->out && c->txn < o->txn;
}

static void discard(struct kvc_overlay *o, struct kvc_change *c)
{
	kvc_list_del(&c->link);
	if (c->covered)
		kvc_list_del(&c->over);
	o->n--;
	o->nactive -= !is_out(o, c);
	o->bytes -= c->bytes;
	free(c);
}

/* Removes a change that is no longer the newest one of its row. */
static void cover(struct kvc_overlay *o, struct kvc_change *c)
{
	unmap(o, c);
	if (!is_out(o, c)) {
		discard(o, c);
		return;
	}
	c->covered = true;
	kvc_list_add_tail(&o->covered, &c->over);
}

static struct kvc_change *change_new(struct kvc_overlay *o, enum kvc_relation t, uint64_t a,
				     uint64_t b, const char *text, const void *value, size_t len)
{
	size_t spots = kvc_spots[t] * sizeof(struct kvc_spot), text_len = strlen(text) + 1;
	size_t bytes = sizeof(struct kvc_change) + spots + kvc_round_up(len, 8) + text_len;
	struct kvc_change *c = malloc(bytes);

	if (!c && bytes <= KVC_SPARE_BYTES && o->spare) {
		c = kvc_of(o->spare, struct kvc_change, slot);
		o->spare = o->spare->next;
		o->nspare--;
	}
	if (!c)
		return NULL;
	*c = (struct kvc_change){
		.a = a,
		.b = b,
		.txn = o->txn,
		.bytes = bytes + 16,
		.len = (uint32_t)len,
		.table = (uint8_t)t,
		.gone = !value,
	};
	c->spots = (struct kvc_spot *)(c + 1);
	memset(c->spots, 0, spots);
	c->value = (char *)c->spots + spots;
	c->text = (char *)c->value + kvc_round_up(len, 8);
	if (value && len)
		memcpy(c->value, value, len);
	memcpy(c->text, text, text_len);
	return c;
}

/* Adds a change and covers the change that it replaces. */
static void change_add(struct kvc_overlay *o, struct kvc_change *c, struct kvc_change *old)
{
	if (old)
		cover(o, old);
	if (c->table == KVC_T_NAME)
		forget_cached(o, c->a, c->b);
	o->n++;
	o->nactive++;
	o->bytes += c->bytes;
	kvc_list_add_tail(&o->active, &c->link);
	map(o, c);
}

int kvc_overlay_put(struct kvc_overlay *o, enum kvc_relation t, uint64_t a, uint64_t b,
		    const char *text, const void *value, size_t len)
{
	struct kvc_change *c, *old;

	text = text ? text : "";
	old = kvc_overlay_find(o, t, a, b, text);
	if (old && !kvc_spots[t] && !is_out(o, old) && old->gone == !value && old->len == len) {
		if (len)
			memcpy(old->value, value, len);
		old->wipes = false; /* kvc_overlay_wipe sets it again */
		return 0;
	}
	c = change_new(o, t, a, b, text, value, value ? len : 0);
	if (!c)
		return -ENOMEM;
	change_add(o, c, old);
	return 0;
}

int kvc_overlay_wipe(struct kvc_overlay *o, uint64_t ino)
{
	static const enum kvc_relation one[] = { KVC_T_TARGET, KVC_T_OBJECT };
	int err = kvc_overlay_put(o, KVC_T_ROW, ino, 0, NULL, NULL, 0);
	struct kvc_change *c;

	if (err)
		return err;
	kvc_overlay_find(o, KVC_T_ROW, ino, 0, NULL)->wipes = true;
	for (size_t i = 0; i < 2; i++)
		if ((c = kvc_overlay_find(o, one[i], ino, 0, NULL)))
			cover(o, c);
	for (unsigned t = 0; t < KVC_TIERS; t++)
		if ((c = kvc_overlay_find(o, KVC_T_PLACE, ino, t, NULL)))
			cover(o, c);
	while ((c = kvc_overlay_xattr(o, ino, NULL)))
		cover(o, c);
	return 0;
}

/* ---- batches ---- */

uint64_t kvc_overlay_seal(struct kvc_overlay *o)
{
	kvc_list_splice(&o->batch, &o->active);
	o->nactive = 0;
	o->out = true;
	return o->txn++;
}

/* ---- marks ---- */

enum mark { MARK_GONE, MARK_INODE, MARK_NAMES, MARK_NAME };

static unsigned mark_of(enum mark what, uint64_t a, uint64_t b)
{
	uint64_t h = (a * 4 + what) * 0x9e3779b97f4a7c15ull ^ b;

	h = (h ^ h >> 29) * 0xff51afd7ed558ccdull;
	return (unsigned)(h >> 32) % KVC_MARKS;
}

bool kvc_overlay_inode_since(const struct kvc_overlay *o, uint64_t ino, uint64_t since)
{
	return o->marks[mark_of(MARK_INODE, ino, 0)] > since;
}

bool kvc_overlay_names_since(const struct kvc_overlay *o, uint64_t ino, uint64_t since)
{
	return o->marks[mark_of(MARK_NAMES, ino, 0)] > since;
}

bool kvc_overlay_name_since(const struct kvc_overlay *o, uint64_t parent, uint64_t hash,
			    uint64_t since)
{
	return o->marks[mark_of(MARK_NAME, parent, hash)] > since;
}

bool kvc_overlay_gone_since(const struct kvc_overlay *o, uint64_t lo, uint64_t hi, uint64_t since)
{
	return o->marks[mark_of(MARK_GONE, lo, hi)] > since;
}

/*
 * SQLite has this change now, covered or not. A deleted name adds no name to its inode, so it marks
 * only itself.
 */
static void mark_received(struct kvc_overlay *o, const struct kvc_change *c)
{
	switch ((enum kvc_relation)c->table) {
	case KVC_T_ROW:
	case KVC_T_OBJECT:
	case KVC_T_PLACE:
	case KVC_T_XATTR: o->marks[mark_of(MARK_INODE, c->a, 0)] = o->drops; break;
	case KVC_T_NAME:
		o->marks[mark_of(MARK_NAME, c->a, c->b)] = o->drops;
		if (!c->gone)
			o->marks[mark_of(MARK_NAMES, ((const struct kvc_name_value *)c->value)->ino,
					 0)] = o->drops;
		break;
	case KVC_T_GONE: o->marks[mark_of(MARK_GONE, c->a, c->b)] = o->drops; break;
	default: break;
	}
}

/* SQLite has this name now: adds it to the cache of names. */
static void cache_name(struct kvc_overlay *o, const struct kvc_change *c)
{
	const struct kvc_name_value *v = c->value;
	struct kvc_named is = { 0 };

	if (!c->gone)
		is = (struct kvc_named){ v->ino, v->kind };
	kvc_overlay_cache_add(o, c->a, c->b, c->text, &is);
}

bool kvc_overlay_drop(struct kvc_overlay *o, size_t max)
{
	o->drops++;
	for (; max && !kvc_list_empty(&o->batch); max--) {
		struct kvc_change *c = kvc_of(o->batch.next, struct kvc_change, link);

		mark_received(o, c);
		if (!c->covered) {
			unmap(o, c);
			if (c->table == KVC_T_NAME)
				cache_name(o, c);
		}
		discard(o, c);
	}
	o->out = !kvc_list_empty(&o->batch);
	return !o->out;
}

void kvc_overlay_merge(struct kvc_overlay *o)
{
	struct kvc_list newer;

	kvc_list_each_safe(e, &o->covered)
		discard(o, kvc_of(e, struct kvc_change, over));
	kvc_list_init(&newer);
	kvc_list_splice(&newer, &o->active);
	kvc_list_splice(&o->active, &o->batch);
	kvc_list_splice(&o->active, &newer);
	o->out = false;
	o->nactive = o->n;
}
