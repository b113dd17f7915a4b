/* SPDX-License-Identifier: Apache-2.0 */
/* The struct of a lease, for lease.c, lease_order.c, lease_wait.c and lease_walk.c. */
#ifndef KVC_LEASE_PRIV_H
#define KVC_LEASE_PRIV_H

#include "cache.h"
#include "gone.h"
#include "hint.h"
#include "node.h"

#define KVC_LEASE_SEEK_BYTES (192u << 10) /* memory of names being looked up (remote_batch.c) */
#define KVC_LEASE_HOLD_ITEMS 64           /* items processed under one hold of the locks */

struct kvc_lease_item {
	char *path;
	size_t line;    /* line of the request */
	uint64_t model; /* of a name that does not exist */
	struct kvc_gone_name dropped;
	/* counted in n->refs.leases (KVC_LEASE_LOOK and _HINT: n->refs.engine), or NULL */
	struct kvc_node *n;
	int err;
	/* the missing name on the path that was last looked up in the shared tiers; 0: none */
	uint64_t asked;
};

/* A load that a lease starts (lease_order.c). */
struct kvc_lease_load {
	uint64_t chunk;   /* the file's folder, if that is a chunk; or 0 */
	const char *name; /* of the file, in the path of its item */
	size_t item;
	size_t layer; /* the number of the chunk's loads before this one */
	/* the number of the prompt, and of the run of items of one chunk */
	size_t prompt, run;
};

struct kvc_lease {
	struct kvc_lease_item *v;
	size_t n, capacity;
	size_t at;     /* no object before this index is being loaded any more */
	char *request; /* the list; `hint` refers to it */
	char *text;
	size_t len;
	enum kvc_lease_mode mode;
	uint32_t uid;
	uint64_t client;
	/* the current prompt: its first chunk, the chunk of the previous path; the current line */
	uint64_t first, before, line;
	uint64_t model;               /* of the current path; 0: none */
	struct kvc_gone_name dropped; /* the missing name of the current path */
	const struct kvc_asker *user; /* only in kvc_lease_new and _start */
	struct kvc_hint_words hint;   /* KVC_LEASE_HINT */
	size_t objects;               /* limit of n */
	size_t bytes, most;           /* memory of the lease, and its limit */
	/* see kvc_lease_walk_both */
	uint64_t missing_in, hidden_in;
	char missing[256];
	bool here;                      /* no shared tier is asked for names */
	bool started;                   /* no names are looked up in the shared tiers any more */
	struct kvc_remote_batch *batch; /* names that are being looked up, or NULL */
	size_t sought;                  /* no item before this one is being looked up */
	size_t sought_to;               /* `batch` has names of items before this one */
	/*
	 * Waiting for names that do not exist (lease_wait.c). until_ns 0: the lease does not wait.
	 */
	uint64_t until_ns;
	bool seeks;                 /* the shared tiers may be asked */
	bool again;                 /* they were asked before */
	bool waits;                 /* it has a place (names/arrival.h) */
	uint64_t asked_ns, next_ns; /* the last and the next time at which they are asked */
	uint64_t interval_ns;       /* between the two */
	size_t arrived;             /* no item before this one is waited for */
	bool over;                  /* the wait is over */
	bool found;                 /* items were found whose loads were not started yet */
	/*
	 * A name arrived that the kernel may remember as missing: the notice, and the looks for it.
	 */
	bool unknown;
	uint64_t notice;
	unsigned looks;
};

/* lease_walk.c */
/* Counts the node as an item of the lease. */
void kvc_lease_add_node_locked(struct kvc *k, struct kvc_lease *l, struct kvc_node *n);
/*
 * May the lease have this object too? `load`: bytes, if it has to be loaded; a load counts in the
 * user's share from its start. Returns 0 or -EDQUOT.
 */
int kvc_lease_share_locked(struct kvc *k, const struct kvc_lease *l, const struct kvc_node *n,
			   uint64_t load);
/*
 * Walks a path from the root. *n has no reference. If the result is -ENOENT, l->missing is the name
 * that was not found, in the folder l->missing_in; or the name of a file that an incomplete chunk
 * hides, in l->hidden_in. The other one of the two is 0.
 */
int kvc_lease_walk_both(struct kvc *k, struct kvc_lease *l, const char *path, struct kvc_node **n);
/* Releases the locks now and then; done: items so far. */
static inline void kvc_lease_pause_both(struct kvc *k, size_t done)
{
	if (done % KVC_LEASE_HOLD_ITEMS == 0)
		kvc_pause_both(k);
}
/* Returns -ECANCELED if the user does not wait for the result any more, or 0. */
static inline int kvc_lease_cancelled(const struct kvc_lease *l)
{
	return l->user->ends && atomic_load(l->user->ends) ? -ECANCELED : 0;
}

/* lease_order.c */
/*
 * Starts the loads of the items that are not in the pool, layer by layer. If a load cannot be
 * started, its item gets the error. Returns 0, -ENOMEM or -ECANCELED. Releases and retakes the
 * locks.
 */
int kvc_lease_load_both(struct kvc *k, struct kvc_lease *l);

/* lease_wait.c */
/*
 * Decides whether the lease looks up names in the shared tiers, or waits for names. Call it after
 * the last item. Returns false if it does neither, and can be started.
 */
bool kvc_lease_has_missing(struct kvc *k, struct kvc_lease *l);
/*
 * Looks up the missing names in the shared tiers, and waits for names as long as the lease does.
 * Returns 0 when the loads can be started, KVC_WAIT, -EINTR (kvc_lease_start), or an error.
 */
int kvc_lease_seek(struct kvc *k, struct kvc_lease *l, struct kvc_wait *w);
/* Frees what the two have taken. */
void kvc_lease_seek_end(struct kvc *k, struct kvc_lease *l);

#endif
