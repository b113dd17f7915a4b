/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Who uses which chunks, and in which order: what policies know of (replacers.h). All under
 * k->lock.
 *
 * A request, as policies know it, is what one client uses without a pause: a process of an engine
 * (or a thread of it: kvc_chain_infer_client), or a lease, whose paths are one prompt. What follows
 * what is told, by a lease or an attribute, or learned from the order of a client's calls
 * (policy/chain_infer.h); the chunk's row keeps it.
 *
 * A chunk that a client has made is fresh until that client goes on to another one, or pauses: only
 * then its size is known, and whether its file was renamed into another chunk. Only then policies
 * hear whose it is and what it follows; until then they have it as one that just came, so that it
 * goes in its turn where stores are that fast.
 */
#ifndef KVC_ACCESS_H
#define KVC_ACCESS_H

#include "ancestors.h"
#include "replacers.h"
#include "access_ring.h"

#define KVC_CLIENTS 64

struct kvc_client {
	uint32_t id; /* 0: nobody's */
	unsigned class;
	uint64_t last, last_ns;  /* the chunk that it used last, and when */
	uint64_t noted;          /* the one of which policies heard last */
	uint64_t serial;         /* of its request; 0: none */
	unsigned n;              /* chunks of it */
	struct kvc_chunk *fresh; /* made by it; kept by c->inflight */
	uint64_t made_ns;
	bool loose;    /* what follows what in its request is not known */
	bool recorded; /* that it made it */
	bool ahead;    /* it asks for what will be used: that is none yet, for who records */
	struct kvc_request request[KVC_CACHES];
};

struct kvc_access_tracker {
	uint32_t ids[KVC_CLIENTS]; /* theirs, side by side: each open looks for one */
	unsigned latest;           /* where the last one was found */
	struct kvc_client client[KVC_CLIENTS];
	struct kvc_order *infer; /* NULL: nothing was learned yet */
	struct kvc_ancestors ancestors;
	uint64_t serial;
	uint32_t leases; /* clients made for them */
};

/* Who uses (kvc_client) for a lease's paths. */
uint64_t kvc_access_lease_client_locked(struct kvc *k);
/*
 * Somebody (kvc_client; 0: nobody that is known) uses a file of a chunk. hit: it was there. All
 * files of a chunk in one request are one use; the one that was first, again, is another.
 */
void kvc_access_record_locked(struct kvc *k, struct kvc_chunk *c, uint64_t file, uint64_t who,
			      bool hit);
/* He has made one of its files. */
void kvc_access_made_locked(struct kvc *k, struct kvc_chunk *c, uint64_t who);
/* A file that was chunk `from` by itself is in this one now. */
void kvc_access_moved_locked(struct kvc *k, uint64_t from, struct kvc_chunk *c, uint64_t who);
/* A file or folder has another name. */
void kvc_access_renamed_locked(struct kvc *k, uint64_t ino);
/* It follows this one (0: none), somebody says. */
void kvc_access_set_parent_locked(struct kvc *k, struct kvc_chunk *c, uint64_t parent);
/* It is the next to go, and must not be fresh any more. */
void kvc_access_settle_locked(struct kvc *k, struct kvc_chunk *c);
/* His request is over. */
void kvc_access_request_end_locked(struct kvc *k, uint64_t who);
/* Now and then: what pauses is over. */
void kvc_access_tick_locked(struct kvc *k);
/*
 * Nobody can be evicted, and somebody has to: what is under way protects nothing any more. False:
 * nothing was.
 */
bool kvc_access_loosen_locked(struct kvc *k);
/* At the end. */
void kvc_access_free(struct kvc *k);

#endif
