/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Users: one record for each uid that has a pin or, except for root, a file that it has open or
 * leased, or may have mapped. So that no user can keep the others out forever, each has limits: its
 * share and its number of open files here, and its pins in pin.c. Root has no limits of its own,
 * since it can take everything anyway.
 *
 * User shares. Open and leased files are not evicted, so a user that opens every file would keep
 * all others out of the pool for as long as it likes. Therefore the bytes that one user keeps are
 * limited to share= of the pool, except for root. A request beyond that is refused at once
 * (EDQUOT): a wait would occupy an entry of the kernel's queue, which other users need. Two users
 * that work together have two shares.
 *
 * Each node has a list of entries, one for each user. u->share_bytes is the sum of n->share.bytes
 * over the nodes of the user's entries, updated when the size or state of the nodes changes. A node
 * that is being loaded counts the bytes reserved for the load.
 *
 * A mapping outlives the close and protects its file from eviction, but only a check finds it
 * (kvc_pool_segment_in_use: four system calls). Therefore an entry stays, idle, after the last
 * close, until the file leaves the pool; a mapped file cannot. Idle entries are checked only if the
 * user would exceed its share. An idle entry is forgotten if its file is not mapped, or if another
 * user has an entry for the file too: the owner of a mapping is not known, so the mapping is
 * charged to the last user that has an entry. A client that opens the same files again and again
 * finds its entries present.
 *
 * An open file costs memory, and often a descriptor of the daemon, whatever its size. Therefore the
 * number of files that one user has open is limited too (u->files), except for root.
 *
 * Not counted at once: the bytes by which a file grows through passthrough beyond its
 * preallocation. They count from the next getattr or close on.
 */
#include "user.h"

struct kvc_user *kvc_user_find_locked(struct kvc *k, uint32_t uid)
{
	struct kvc_slot *s = kvc_table_find(&k->users->table, uid);

	return s ? kvc_of(s, struct kvc_user, slot) : NULL;
}

struct kvc_user *kvc_user_get_locked(struct kvc *k, uint32_t uid)
{
	struct kvc_user *u = kvc_user_find_locked(k, uid);

	if (u || !(u = calloc(1, sizeof *u)))
		return u;
	kvc_list_init(&u->idle);
	kvc_list_init(&u->excluded);
	kvc_list_init(&u->excluded_link);
	u->slot.key = uid;
	kvc_table_add(&k->users->table, &u->slot);
	return u;
}

void kvc_user_settle_locked(struct kvc *k, struct kvc_user *u)
{
	if (u->entries || u->pins)
		return;
	kvc_table_del(&k->users->table, &u->slot);
	kvc_list_del(&u->excluded_link);
	free(u);
}

uint64_t kvc_user_share(const struct kvc *k)
{
	return k->pool.bytes / 100 * k->opt.share_pct;
}

void kvc_users_free(struct kvc *k)
{
	kvc_table_each(&k->users->table, s)
		free(kvc_of(s, struct kvc_user, slot));
	kvc_table_fini(&k->users->table);
}

/* Returns the bytes of the pool that the node takes while a user has it open or leased. */
static uint64_t share_weight(const struct kvc_node *n)
{
	if (n->state == KVC_LOADING)
		return kvc_max(n->acct.reserved, kvc_round_up(n->row.blocks * 512, KVC_PAGE));
	return kvc_node_has_segment(n) ? n->acct.reserved : 0;
}

static struct kvc_share_entry *share_find(const struct kvc_node *n, const struct kvc_user *u)
{
	struct kvc_share_entry *h = n->share.entries;

	while (h && h->user != u)
		h = h->next;
	return h;
}

bool kvc_user_share_fits_locked(struct kvc *k, uint32_t uid, const struct kvc_node *n,
				uint64_t more)
{
	const struct kvc_user *u;

	if (!uid || k->opt.share_pct >= 100)
		return true;
	u = kvc_user_find_locked(k, uid);
	if (n && !(u && share_find(n, u)))
		more += kvc_node_has_segment(n) ? n->acct.reserved
						: kvc_round_up(n->row.blocks * 512, KVC_PAGE);
	return !more || (u ? u->share_bytes : 0) + more <= kvc_user_share(k);
}

int kvc_user_share_check_locked(struct kvc *k, const struct kvc_wait *w, const struct kvc_node *n,
				uint64_t more)
{
	return kvc_user_share_fits_locked(k, w->uid, n, more) ? 0 : KVC_OVER_SHARE;
}

bool kvc_user_may_open_more_locked(struct kvc *k, uint32_t uid, const struct kvc_node *n)
{
	const struct kvc_user *u = uid ? kvc_user_find_locked(k, uid) : NULL;
	const struct kvc_share_entry *h = u && n ? share_find(n, u) : NULL;

	return !u || !k->users->files_max || u->files < k->users->files_max || (h && h->opens);
}

int kvc_user_share_may_open_locked(struct kvc *k, uint32_t uid, const struct kvc_node *n)
{
	if (kvc_user_may_open_more_locked(k, uid, n))
		return 0;
	kvc_count(&k->stats, share_refusals);
	return -EMFILE;
}

void kvc_user_share_add_locked(struct kvc *k, struct kvc_node *n, uint32_t uid, bool open)
{
	struct kvc_user *u = uid ? kvc_user_get_locked(k, uid) : NULL;
	struct kvc_share_entry *h = u ? share_find(n, u) : NULL;

	if (!u)
		return;
	if (!h) {
		h = calloc(1, sizeof *h);
		if (!h) {
			kvc_user_settle_locked(k, u);
			return;
		}
		kvc_list_init(&h->idle);
		h->node = n;
		h->user = u;
		/* n->share.bytes may be out of date while the node has no entries */
		kvc_user_share_recount_locked(k, n);
		h->next = n->share.entries;
		n->share.entries = h;
		u->entries++;
		u->share_bytes += n->share.bytes;
	}
	kvc_list_del(&h->idle);
	h->count++;
	u->files += open && !h->opens;
	h->opens += open;
}

void kvc_user_share_forget_locked(struct kvc *k, struct kvc_share_entry *h)
{
	struct kvc_share_entry **at = &h->node->share.entries;

	while (*at != h)
		at = &(*at)->next;
	*at = h->next;
	kvc_list_del(&h->idle);
	h->user->share_bytes -= h->node->share.bytes;
	h->user->entries--;
	h->user->files -= h->opens > 0;
	kvc_user_settle_locked(k, h->user);
	free(h);
}

void kvc_user_share_remove_locked(struct kvc *k, struct kvc_node *n, uint32_t uid, bool open)
{
	struct kvc_user *u = uid ? kvc_user_find_locked(k, uid) : NULL;
	struct kvc_share_entry *h = u ? share_find(n, u) : NULL;

	if (!h || !h->count)
		return;
	if (open && h->opens && !--h->opens)
		u->files--;
	if (--h->count)
		return;
	if (share_weight(n))
		kvc_list_add_tail(&u->idle, &h->idle);
	else
		kvc_user_share_forget_locked(k, h);
}

void kvc_user_share_recount_locked(struct kvc *k, struct kvc_node *n)
{
	uint64_t now = share_weight(n), was = n->share.bytes;

	if (now == was)
		return;
	n->share.bytes = now;
	for (struct kvc_share_entry *h = n->share.entries, *next; h; h = next) {
		next = h->next;
		h->user->share_bytes += now - was;
		if (!now && !h->count)
			kvc_user_share_forget_locked(k, h);
	}
}

struct kvc_share_entry *kvc_user_share_idle_locked(struct kvc *k, uint32_t uid)
{
	struct kvc_user *u = kvc_user_find_locked(k, uid);
	struct kvc_list *e;

	if (!u || kvc_list_empty(&u->idle))
		return NULL;
	e = u->idle.next;
	kvc_list_del(e);
	kvc_list_add_tail(&u->idle, e);
	return kvc_of(e, struct kvc_share_entry, idle);
}

void kvc_user_share_node_freed_locked(struct kvc *k, struct kvc_node *n)
{
	while (n->share.entries)
		kvc_user_share_forget_locked(k, n->share.entries);
}
