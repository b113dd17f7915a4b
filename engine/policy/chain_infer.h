/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Infers the parents of chunks from the order in which clients access them. An engine opens the
 * cached chunks of a prompt from its beginning, computes the rest and creates new chunks in order.
 * So a new chunk is a child of the chunk that its client accessed just before, unless it seems to
 * begin another prompt.
 *
 * The caller stores the parents that are known. This file remembers the last accesses of each
 * client, and its own guesses, to check them later. It has no lock; each call takes the same short
 * time. The state is not saved at unmount: clients are threads, and their numbers mean nothing
 * after a restart. A client that cannot be trusted is recognized again within a few chunks.
 */
#ifndef KVC_CHAIN_INFER_H
#define KVC_CHAIN_INFER_H

#include "util.h"

/*
 * A request ends after a pause of KVC_CHAIN_INFER_PAUSE_NS. The client may create the chunks that
 * it computes up to KVC_CHAIN_INFER_COMPUTE_NS later.
 */
#define KVC_CHAIN_INFER_PAUSE_NS 1000000000ull
#define KVC_CHAIN_INFER_COMPUTE_NS 30000000000ull

struct kvc_chain_infer;

struct kvc_inferred {
	uint64_t parent; /* 0: none, or not known */
	bool begins;     /* the chunk begins a request of this client */
	bool unsure;     /* the parents of this client's chunks are not known */
};

/* Returns 0, or -ENOMEM. */
int kvc_chain_infer_open(struct kvc_chain_infer **out);
void kvc_chain_infer_close(struct kvc_chain_infer *o);
/*
 * Returns the client to which a call of this process and thread belongs. At first the client is the
 * process, because its threads may share the work on one prompt. If the process was seen to work on
 * several prompts in turn, each thread may have a prompt of its own; then the client is the
 * thread's id with the bit KVC_CHAIN_INFER_THREAD. Ids of processes and threads are below that bit.
 */
#define KVC_CHAIN_INFER_THREAD (1u << 30) /* KVC_CLIENTS_END */
uint32_t kvc_chain_infer_client(struct kvc_chain_infer *o, uint32_t process, uint32_t thread);
/*
 * A client (from kvc_chain_infer_client) accesses a chunk at now_ns (kvc_mono_ns). `known`: the
 * chunk exists and its parent is known_parent (0: none); otherwise it is being created. Repeated
 * accesses to one chunk, for example to its layers, count once. A guess about a chunk may be
 * corrected when the chunk is accessed again: the caller then stores the new parent
 * (kvc_replacer_set_parent), unless a client named the parent.
 */
void kvc_chain_infer_access(struct kvc_chain_infer *o, uint32_t client, uint64_t id,
			    uint64_t now_ns, bool known, uint64_t known_parent,
			    struct kvc_inferred *out);

#endif
