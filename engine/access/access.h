/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Accesses: which client uses which chunks, and in which order. The replacers (objects/replacers.h)
 * learn about accesses from here. All under k->lock.
 *
 * A request, in the policies' sense, is a series of uses by one client without a pause. A client is
 * a process of an engine, one thread of it (kvc_chain_infer_client), or a lease, whose paths are
 * one prompt. A chunk's parent is reported by a lease or an attribute, or inferred from the order
 * of a client's calls (policy/chain_infer.h); it is stored in the chunk's row.
 *
 * A new chunk is `fresh` until the client that creates it goes on to another chunk or pauses. Only
 * then is its size known, and whether its file was renamed into another chunk, so only then do the
 * policies learn its request and its parent. Until then they treat it as a new chunk without a
 * request, so that it can be evicted in its turn if stores fill the pool quickly. If another client
 * uses the chunk or creates its child, and its parent was reported, the policies learn of it at
 * once.
 *
 * An access to a chunk counts for its ancestors too, although no client asked for them: an engine
 * that has the beginning of a prompt on its device stores and loads only the rest. Without this, a
 * policy by rank would evict the beginning first, and the rest would be useless. The first chunk of
 * a request is queued when the request ends, and so is a chunk whose parent a client reports. A
 * thread that may block then walks up the chain, to the first ancestor with a later access, and
 * stamps the rows, whether they are in memory or not. Until then, eviction by rank spares the
 * parent of each queued chunk, and thereby all its ancestors (evict/trimmer.c).
 */
#ifndef KVC_ACCESS_H
#define KVC_ACCESS_H

#include "replacers.h"
#include "rings.h"
#include "chunk.h"

#define KVC_CLIENTS 64

struct kvc_client {
	uint32_t id; /* 0: unused */
	unsigned class;
	uint64_t last, last_ns;  /* the chunk that it used last, and when */
	uint64_t noted;          /* the last chunk that was reported to the policies */
	uint64_t made;           /* `last`, if it created this chunk; else 0 */
	uint64_t counted;        /* the last chunk that was counted as found, */
	uint64_t counted_file;   /* and its file */
	uint64_t serial;         /* number of its request; 0: none */
	unsigned n;              /* number of chunks in the request */
	struct kvc_chunk *fresh; /* the chunk that it is creating, referenced by c->refs */
	uint64_t made_ns;
	bool loose;    /* the order of the chunks in its request is not known */
	bool recorded; /* the creation of `fresh` was recorded in the access ring */
	bool ahead;    /* it prefetches: not a use yet, so the access ring does not record it */
	struct kvc_request request[KVC_CACHES];
};

/* Chunks whose ancestors must be stamped. */
#define KVC_ACCESS_ANCESTORS 256

struct kvc_ancestors {
	struct {
		uint64_t id, parent;
	} of[KVC_ACCESS_ANCESTORS];
	unsigned n;
	uint64_t next; /* the chunk that is stamped next; 0: none */
};

struct kvc_access_tracker {
	uint32_t ids[KVC_CLIENTS]; /* the clients' ids, side by side: every open searches them */
	unsigned latest;           /* index of the last match */
	struct kvc_client client[KVC_CLIENTS];
	struct kvc_chain_infer *infer; /* NULL: no parent was inferred yet */
	struct kvc_ancestors ancestors;
	uint64_t serial;
	uint32_t leases; /* number of client ids given to leases */
};

/* Returns a new client id for the paths of a lease. */
uint64_t kvc_access_lease_client_locked(struct kvc *k);
/*
 * A client (0: unknown) uses a file of a chunk. hit: the object was in the pool. All files of a
 * chunk in one request are one use; if the request uses the first of them again, that is another
 * use. Returns true if the chunk counts as found: this is a use of its own, or the first after its
 * creation.
 */
bool kvc_access_record_locked(struct kvc *k, struct kvc_chunk *c, uint64_t file, uint64_t caller,
			      bool hit);
/* The client created one of the chunk's files. */
void kvc_access_made_locked(struct kvc *k, struct kvc_chunk *c, uint64_t caller);
/* A file that was chunk `from` by itself is now part of chunk c. */
void kvc_access_moved_locked(struct kvc *k, uint64_t from, struct kvc_chunk *c, uint64_t caller);
/* A file or folder was renamed. */
void kvc_access_renamed_locked(struct kvc *k, uint64_t ino);
/* A client reported the chunk's parent (0: it has none). */
void kvc_access_set_parent_locked(struct kvc *k, struct kvc_chunk *c, uint64_t parent);
/* The chunk is the next victim: ends its time as a fresh chunk. */
void kvc_access_settle_locked(struct kvc *k, struct kvc_chunk *c);
/* The client's request has ended. */
void kvc_access_request_end_locked(struct kvc *k, uint64_t caller);
/*
 * Is the chunk the last one that a request under way has used? Its client may be about to report it
 * as a parent.
 */
bool kvc_access_is_last_locked(const struct kvc *k, const struct kvc_chunk *c);
/* Called periodically: ends the requests of clients that pause. */
void kvc_access_tick_locked(struct kvc *k);
/*
 * No chunk can be evicted although space is needed: ends all requests, so that they protect no
 * chunk. Returns false if there was none.
 */
bool kvc_access_end_all_locked(struct kvc *k);
/* At unmount. */
void kvc_access_free(struct kvc *k);

/*
 * Queues the first chunk of a request, so that its ancestors are stamped. If the queue is full,
 * they are stamped after the chunk's next access.
 */
void kvc_access_ancestors_add_locked(struct kvc *k, const struct kvc_chunk *c);
/*
 * Called periodically and before the last commit: stamps a bounded number of chunks. Without locks.
 */
void kvc_access_ancestors_stamp(struct kvc *k);

#endif
