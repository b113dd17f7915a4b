/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Accounting of pins (user.kvcachefs.pin); pin_set.c sets and loads them.
 *
 * Other users cannot use pinned space, so it is bounded. Pinned chunks may use pins= percent of the
 * pool, and their files in all tiers may use pins= percent of the size of the disk tier. One user
 * other than root may use half of each. A pin is charged to the user that set it, which is stored
 * under meta pin:CHUNK.
 *
 * A pin over a limit is refused when it is set. But a pinned chunk can grow later, and a chunk that
 * was only on the disk can be loaded. Therefore the sums are updated with each such change in O(1).
 * If a user is over its limit, or if all pins together are over pins= and the user has at least the
 * average, the user's pins do not hold: the evictor and the trimmer take its chunks in the order of
 * their policy until the sum is within the limit. So the pins of one user keep a bounded amount of
 * space from the others at any time. In the pool, a user's pins also do not hold if they and the
 * user's open files together would exceed share=.
 *
 * Pins with an end are in a heap and are removed within a second after it (evict/quota_keeper.c).
 * Each pin has a record in memory, so there are at most PINS of them.
 */
#include "pin.h"

#include "clock.h"

#include <inttypes.h>
#include <stdio.h>

#define PINS (1u << 20)
#define LOOKS 64 /* users that one call of kvc_pin_back_locked checks */
/* minimum charge for a pin, and for each of its files: the size of a header on the disk */
#define LEAST KVC_PAGE

struct kvc_pin *kvc_pin_find_locked(struct kvc *k, uint64_t id)
{
	struct kvc_slot *s = k->pins->table.n ? kvc_table_find(&k->pins->table, id) : NULL;

	return s ? kvc_of(s, struct kvc_pin, slot) : NULL;
}

/* ---- pins with an end ---- */

static void heap_place(struct kvc_pins *p, size_t at, struct kvc_pin *pin)
{
	p->heap[at] = pin;
	pin->heap_at = at + 1;
}

static void heap_sift(struct kvc_pins *p, size_t at)
{
	struct kvc_pin *pin = p->heap[at];

	for (; at && pin->until_ns < p->heap[(at - 1) / 2]->until_ns; at = (at - 1) / 2)
		heap_place(p, at, p->heap[(at - 1) / 2]);
	for (size_t child; (child = 2 * at + 1) < p->nheap; at = child) {
		if (child + 1 < p->nheap && p->heap[child + 1]->until_ns < p->heap[child]->until_ns)
			child++;
		if (p->heap[child]->until_ns >= pin->until_ns)
			break;
		heap_place(p, at, p->heap[child]);
	}
	heap_place(p, at, pin);
}

static void heap_remove(struct kvc_pins *p, struct kvc_pin *pin)
{
	size_t at = pin->heap_at - 1;
	struct kvc_pin *last;

	if (!pin->heap_at)
		return;
	last = p->heap[--p->nheap];
	pin->heap_at = 0;
	if (last != pin) {
		heap_place(p, at, last);
		heap_sift(p, at);
	}
}

int kvc_pin_end_locked(struct kvc *k, struct kvc_pin *p, uint64_t until_ns)
{
	struct kvc_pins *all = k->pins;

	if (until_ns != INT64_MAX && !p->heap_at &&
	    kvc_grow(&all->heap, all->nheap, &all->heap_room, sizeof *all->heap))
		return -ENOMEM;
	p->until_ns = until_ns;
	if (until_ns == INT64_MAX) {
		heap_remove(all, p);
	} else {
		if (!p->heap_at)
			heap_place(all, all->nheap++, p);
		heap_sift(all, p->heap_at - 1);
	}
	return 0;
}

struct kvc_pin *kvc_pin_ended_locked(struct kvc *k)
{
	struct kvc_pin *p = k->pins->nheap ? k->pins->heap[0] : NULL;

	return p && p->until_ns <= kvc_clock_ns(k) ? p : NULL;
}

/* ---- the users and bytes of pins ---- */

static uint64_t chunk_bytes(const struct kvc_pin *p)
{
	return p->chunk ? p->chunk->bytes : 0;
}

static void link_user(struct kvc *k, struct kvc_pin *p, struct kvc_user *u)
{
	p->user = u;
	k->pins->users += !u->pins++;
	u->pinned_pool += chunk_bytes(p);
	u->pinned_disk += p->disk;
}

static void unlink_user(struct kvc *k, struct kvc_pin *p)
{
	struct kvc_user *u = p->user;

	if (p->chunk && !kvc_list_empty(&p->chunk->excluded_link)) {
		kvc_list_del(&p->chunk->excluded_link);
		kvc_list_add_tail(&k->pins->back, &p->chunk->excluded_link);
	}
	u->pinned_pool -= chunk_bytes(p);
	u->pinned_disk -= p->disk;
	k->pins->users -= !--u->pins;
	kvc_user_settle_locked(k, u);
}

struct kvc_pin *kvc_pin_new_locked(struct kvc *k, uint64_t id, uint32_t uid, uint64_t until_ns,
				   struct kvc_chunk *c)
{
	struct kvc_pin *p = calloc(1, sizeof *p);
	struct kvc_user *u = p ? kvc_user_get_locked(k, uid) : NULL;

	if (!u || kvc_pin_end_locked(k, p, until_ns)) {
		if (u)
			kvc_user_settle_locked(k, u);
		free(p);
		return NULL;
	}
	p->serial = ++k->pins->serial;
	p->disk = LEAST;
	p->chunk = c;
	if (c)
		c->pin = p;
	p->slot.key = id;
	kvc_table_add(&k->pins->table, &p->slot);
	link_user(k, p, u);
	k->pins->pool += chunk_bytes(p);
	k->pins->disk += p->disk;
	return p;
}

void kvc_pin_free_locked(struct kvc *k, struct kvc_pin *p)
{
	heap_remove(k->pins, p);
	k->pins->pool -= chunk_bytes(p);
	k->pins->disk -= p->disk;
	unlink_user(k, p);
	kvc_table_del(&k->pins->table, &p->slot);
	if (p->chunk)
		p->chunk->pin = NULL;
	free(p);
}

int kvc_pin_give_locked(struct kvc *k, struct kvc_pin *p, uint32_t uid)
{
	struct kvc_user *u = kvc_user_get_locked(k, uid);

	if (!u)
		return -ENOMEM;
	if (u != p->user) {
		unlink_user(k, p);
		link_user(k, p, u);
	}
	return 0;
}

void kvc_pin_pool_locked(struct kvc *k, struct kvc_pin *p, int64_t by)
{
	p->user->pinned_pool += (uint64_t)by;
	k->pins->pool += (uint64_t)by;
}

void kvc_pin_disk_locked(struct kvc *k, struct kvc_pin *p, int64_t by)
{
	/* A file whose row was lost may have been counted with another size. */
	if (by < 0 && p->disk - LEAST < (uint64_t)-by)
		by = -(int64_t)(p->disk - LEAST);
	p->disk += (uint64_t)by;
	p->user->pinned_disk += (uint64_t)by;
	k->pins->disk += (uint64_t)by;
}

/* ---- the limits ---- */

static uint64_t pool_limit(const struct kvc *k)
{
	return k->pool.bytes * k->opt.pins_pct / 100;
}

static uint64_t disk_limit(const struct kvc *k)
{
	return k->pins->disk_size ? k->pins->disk_size * k->opt.pins_pct / 100 : UINT64_MAX;
}

int kvc_pin_excess_locked(struct kvc *k, const struct kvc_pin *p)
{
	const struct kvc_user *u = p->user;

	if (k->opt.pins_pct && u->slot.key &&
	    (u->pinned_pool > pool_limit(k) / 2 || u->pinned_disk > disk_limit(k) / 2 ||
	     u->pins > PINS / 2))
		/*
		 * EDQUOT even if all pins together are over their limit, too: the user can only
		 * remove pins of its own
		 */
		return -EDQUOT;
	if (!k->opt.pins_pct || k->pins->pool > pool_limit(k) || k->pins->disk > disk_limit(k) ||
	    k->pins->table.n > PINS)
		return -ENOSPC;
	return 0;
}

/*
 * Returns true if the user is over its limit, or if all users together are over theirs and this
 * user has at least the average.
 */
static bool over_limit(const struct kvc *k, const struct kvc_user *u, uint64_t has, uint64_t all,
		       uint64_t most)
{
	return (u->slot.key && has > most / 2) || (all > most && has >= all / k->pins->users);
}

bool kvc_pin_protects_locked(struct kvc *k, uint64_t id, uint64_t until_ns,
			     enum kvc_pin_against what)
{
	const struct kvc_pin *p = until_ns ? kvc_pin_find_locked(k, id) : NULL;
	const struct kvc_user *u = p ? p->user : NULL;

	if (!p || (until_ns != INT64_MAX && until_ns <= kvc_clock_ns(k)))
		return false;
	switch (what) {
	case KVC_PIN_POOL:
		return !over_limit(k, u, u->pinned_pool, k->pins->pool, pool_limit(k)) &&
		       !(u->slot.key && u->share_bytes + u->pinned_pool > kvc_user_share(k));
	case KVC_PIN_DISK: return !over_limit(k, u, u->pinned_disk, k->pins->disk, disk_limit(k));
	case KVC_PIN_ALL: break;
	}
	return true;
}

/* ---- exclusion from the pool's order ---- */

bool kvc_pin_out_locked(struct kvc *k, struct kvc_chunk *c)
{
	struct kvc_user *u;

	if (!c->pin || !kvc_pin_protects_locked(k, c->id, c->pin_until_ns, KVC_PIN_POOL))
		return false;
	u = c->pin->user;
	kvc_list_del(&c->excluded_link);
	kvc_list_add_tail(&u->excluded, &c->excluded_link);
	if (kvc_list_empty(&u->excluded_link))
		kvc_list_add_tail(&k->pins->excluded_users, &u->excluded_link);
	kvc_list_del(&c->chained_link);
	kvc_list_add_tail(&k->pins->chained, &c->chained_link);
	return true;
}

static struct kvc_chunk *pop_out(struct kvc_list *list)
{
	struct kvc_chunk *c = kvc_of(list->next, struct kvc_chunk, excluded_link);

	kvc_list_del(&c->excluded_link);
	return c;
}

/*
 * Checks one chunk of each user: a user's pins all hold or none does, except expired ones, which
 * are removed soon.
 */
struct kvc_chunk *kvc_pin_back_locked(struct kvc *k)
{
	struct kvc_pins *p = k->pins;

	if (!kvc_list_empty(&p->back))
		return pop_out(&p->back);
	for (unsigned i = 0; i < LOOKS && !kvc_list_empty(&p->excluded_users); i++) {
		struct kvc_user *u = kvc_of(p->excluded_users.next, struct kvc_user, excluded_link);
		const struct kvc_chunk *c = kvc_of(u->excluded.next, struct kvc_chunk,
						   excluded_link);

		kvc_list_del(&u->excluded_link);
		if (kvc_list_empty(&u->excluded))
			continue;
		kvc_list_add_tail(&p->excluded_users, &u->excluded_link);
		if (!kvc_pin_protects_locked(k, c->id, c->pin_until_ns, KVC_PIN_POOL))
			return pop_out(&u->excluded);
	}
	return NULL;
}

struct kvc_chunk *kvc_pin_chained_locked(struct kvc *k)
{
	struct kvc_list *e = k->pins->chained.next;

	if (e == &k->pins->chained)
		return NULL;
	kvc_list_del(e);
	return kvc_of(e, struct kvc_chunk, chained_link);
}

/* ---- the files of a pin ---- */

uint64_t kvc_pin_weight(uint64_t blocks)
{
	return kvc_round_up(blocks * 512, KVC_PAGE) + LEAST;
}

uint64_t kvc_pin_weight_of(const struct kvc_node *n)
{
	if (n->commit.lost || n->state == KVC_GONE || !S_ISREG(n->row.mode))
		return 0;
	return kvc_pin_weight(n->state == KVC_OPEN ? n->acct.reserved / 512 : n->row.blocks);
}

void kvc_pin_count_locked(struct kvc *k, struct kvc_node *n)
{
	struct kvc_pin *p = kvc_pin_find_locked(k, n->row.chunk);
	uint64_t now;

	if (!p)
		return;
	now = kvc_pin_weight_of(n);
	kvc_pin_disk_locked(k, p, (int64_t)(now - (n->pin.serial == p->serial ? n->pin.bytes : 0)));
	n->pin.serial = p->serial;
	n->pin.bytes = now;
}

void kvc_pin_leave_locked(struct kvc *k, struct kvc_node *n)
{
	struct kvc_pin *p = kvc_pin_find_locked(k, n->row.chunk);

	if (p && n->pin.serial == p->serial)
		kvc_pin_disk_locked(k, p, -(int64_t)n->pin.bytes);
	n->pin.serial = 0;
}

void kvc_pin_joined_locked(struct kvc *k, struct kvc_node *n)
{
	struct kvc_pin *p = kvc_pin_find_locked(k, n->row.chunk);

	if (p && p->counting)
		p->again = true;
	kvc_pin_count_locked(k, n);
}

/* Returns true if the walk that counts the pin's files has not reached this one. */
static bool to_be_counted(const struct kvc_pin *p, const struct kvc_node *n)
{
	return p->counting && n->row.ino > p->at && n->row.ino < p->below;
}

void kvc_pin_node_freed_locked(struct kvc *k, struct kvc_node *n)
{
	struct kvc_pin *p = n->pin.serial ? kvc_pin_find_locked(k, n->row.chunk) : NULL;

	if (p && n->pin.serial == p->serial && to_be_counted(p, n))
		kvc_pin_disk_locked(k, p, -(int64_t)n->pin.bytes);
}

void kvc_pin_node_loaded_locked(struct kvc *k, struct kvc_node *n)
{
	struct kvc_pin *p = kvc_pin_find_locked(k, n->row.chunk);

	if (!p || to_be_counted(p, n))
		return;
	n->pin.serial = p->serial;
	n->pin.bytes = kvc_pin_weight_of(n);
}

void kvc_pin_link_chunk_locked(struct kvc *k, struct kvc_chunk *c)
{
	c->pin = kvc_pin_find_locked(k, c->id);
	if (c->pin)
		c->pin->chunk = c;
}

void kvc_pin_forget_both(struct kvc *k, uint64_t id)
{
	struct kvc_pin *p = kvc_pin_find_locked(k, id);
	char key[40];

	if (!p)
		return;
	snprintf(key, sizeof key, KVC_PIN_KEY "%" PRIx64, id);
	/* if this fails for lack of memory, the next start finds that the pin does not exist */
	kvc_meta_del(k->cat, key);
	kvc_pin_free_locked(k, p);
}

void kvc_pins_free(struct kvc *k)
{
	kvc_table_each(&k->pins->table, s)
		free(kvc_of(s, struct kvc_pin, slot));
	kvc_table_fini(&k->pins->table);
	free(k->pins->heap);
}
