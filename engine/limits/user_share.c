/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Holds: which user keeps which file in the pool. What is open or leased is not evicted, so a user
 * who opens all that is there would keep everybody else out for as long as he likes. So what one
 * user holds is bounded by share= of the pool, root excepted; what he asks beyond that is refused
 * (EDQUOT) at once: a wait would hold an entry of the kernel's queue, which others need. The rest
 * of the pool can always be evicted, as far as this user goes. Two that work together have two
 * shares.
 *
 * Each node has a list of its holds, one for each user; u->held is the sum of what the nodes of his
 * holds take (n->held each), kept as their room and state change. A node that is loaded counts what
 * the load was given.
 *
 * A mapping outlives the close, keeps its file from being evicted, and is seen only by looking
 * (kvc_pool_segment_in_use: four system calls). So a hold stays after the last close, idle, until
 * the file leaves the pool, which it does only where nobody has it mapped. Only where a user would
 * be over his share his idle holds are looked at, and those forgotten whose files are not mapped,
 * or are held by another user too: whose mapping it is cannot be told, and the last of them counts.
 * Who opens the same files again and again has his holds there already.
 *
 * An open file takes some memory and often a descriptor of the daemon, whatever it has in the pool.
 * So how many files one user has open is bounded too (u->files), root excepted.
 *
 * Not seen is what a file grows by passthrough while it is open, beyond what was prepared for it
 * (DESIGN section 4): that counts from the next attributes or close on.
 */
#include "user_share.h"

/* Bytes that the node keeps from others while somebody holds it. */
static uint64_t weight(const struct kvc_node *n)
{
	if (n->state == KVC_LOADING)
		return kvc_max(n->reserved, kvc_round_up(n->row.blocks * 512, KVC_PAGE));
	return kvc_has_segment(n) ? n->reserved : 0;
}

static struct kvc_user_hold *find(const struct kvc_node *n, const struct kvc_user *u)
{
	struct kvc_user_hold *h = n->holders;

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
	if (n && !(u && find(n, u)))
		more += kvc_has_segment(n) ? n->reserved
					   : kvc_round_up(n->row.blocks * 512, KVC_PAGE);
	return !more || (u ? u->held : 0) + more <= kvc_user_share(k);
}

int kvc_user_share_check_locked(struct kvc *k, const struct kvc_wait *w, const struct kvc_node *n,
				uint64_t more)
{
	return kvc_user_share_fits_locked(k, w->uid, n, more) ? 0 : KVC_OVER_SHARE;
}

int kvc_user_share_may_open_locked(struct kvc *k, uint32_t uid, const struct kvc_node *n)
{
	const struct kvc_user *u = uid ? kvc_user_find_locked(k, uid) : NULL;
	const struct kvc_user_hold *h = u && n ? find(n, u) : NULL;

	if (!u || !k->users->files_max || u->files < k->users->files_max || (h && h->opens))
		return 0;
	kvc_count(&k->stats, share_refusals);
	return -EMFILE;
}

void kvc_user_share_add_locked(struct kvc *k, struct kvc_node *n, uint32_t uid, bool open)
{
	struct kvc_user *u = uid ? kvc_user_get_locked(k, uid) : NULL;
	struct kvc_user_hold *h = u ? find(n, u) : NULL;

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
		/* while nobody holds it, it may be out of date */
		kvc_user_share_recount_locked(k, n);
		h->next = n->holders;
		n->holders = h;
		u->holds++;
		u->held += n->held;
	}
	kvc_list_del(&h->idle);
	h->count++;
	u->files += open && !h->opens;
	h->opens += open;
}

void kvc_user_share_forget_locked(struct kvc *k, struct kvc_user_hold *h)
{
	struct kvc_user_hold **at = &h->node->holders;

	while (*at != h)
		at = &(*at)->next;
	*at = h->next;
	kvc_list_del(&h->idle);
	h->user->held -= h->node->held;
	h->user->holds--;
	h->user->files -= h->opens > 0;
	kvc_user_settle_locked(k, h->user);
	free(h);
}

void kvc_user_share_remove_locked(struct kvc *k, struct kvc_node *n, uint32_t uid, bool open)
{
	struct kvc_user *u = uid ? kvc_user_find_locked(k, uid) : NULL;
	struct kvc_user_hold *h = u ? find(n, u) : NULL;

	if (!h || !h->count)
		return;
	if (open && h->opens && !--h->opens)
		u->files--;
	if (--h->count)
		return;
	if (weight(n))
		kvc_list_add_tail(&u->idle, &h->idle);
	else
		kvc_user_share_forget_locked(k, h);
}

void kvc_user_share_recount_locked(struct kvc *k, struct kvc_node *n)
{
	uint64_t now = weight(n), was = n->held;

	if (now == was)
		return;
	n->held = now;
	for (struct kvc_user_hold *h = n->holders, *next; h; h = next) {
		next = h->next;
		h->user->held += now - was;
		if (!now && !h->count)
			kvc_user_share_forget_locked(k, h);
	}
}

struct kvc_user_hold *kvc_user_share_idle_locked(struct kvc *k, uint32_t uid)
{
	struct kvc_user *u = kvc_user_find_locked(k, uid);
	struct kvc_list *e;

	if (!u || kvc_list_empty(&u->idle))
		return NULL;
	e = u->idle.next;
	kvc_list_del(e);
	kvc_list_add_tail(&u->idle, e);
	return kvc_of(e, struct kvc_user_hold, idle);
}

void kvc_user_share_node_freed_locked(struct kvc *k, struct kvc_node *n)
{
	while (n->holders)
		kvc_user_share_forget_locked(k, n->holders);
}
