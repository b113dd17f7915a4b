/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which chunk follows which, learned from the order in which clients use them. An engine opens what
 * it finds of a prompt from its beginning on, computes the rest and creates that in order: so a new
 * chunk follows what its client used just before, unless it seems to begin another prompt. What is
 * once known of a chunk is the caller's to keep; this remembers what each client did last, and what
 * it was told, to see if that was right. It has no lock, and each call takes the same short time.
 * It begins anew at a mount: its clients are threads, whose numbers say nothing of the next ones,
 * and one that is not to be trusted shows that again within a few chunks.
 */
#ifndef KVC_CHAIN_INFER_H
#define KVC_CHAIN_INFER_H

#include "util.h"

/* A request is over after such a pause; what a client computed it creates up to so much later. */
#define KVC_CHAIN_INFER_PAUSE_NS 1000000000ull
#define KVC_CHAIN_INFER_COMPUTE_NS 30000000000ull

struct kvc_order;

struct kvc_seen {
	uint64_t parent; /* what it follows; 0: nothing that is known */
	bool begins;     /* with it a request of this client begins */
	bool unsure;     /* of this client's chunks nobody knows what they follow */
};

/* 0 or -ENOMEM. */
int kvc_chain_infer_open(struct kvc_order **out);
void kvc_chain_infer_close(struct kvc_order *o);
/*
 * Which client it is whose thread makes a call: the process, since its threads may share what is to
 * be done for a prompt, or (KVC_CHAIN_INFER_THREAD and the thread) one thread of it, once the
 * process was seen to work on several prompts in turns: then each may have its own. Ids are below
 * that bit.
 */
#define KVC_CHAIN_INFER_THREAD (1u << 30) /* KVC_CLIENTS_END */
uint32_t kvc_chain_infer_client(struct kvc_order *o, uint32_t process, uint32_t thread);
/*
 * A client (what is one by the order of its calls: a process, or a thread) uses a chunk at now_ns
 * (kvc_mono_ns). known: it was there before, and follows known_parent (0: nothing); else it is
 * being made. Several uses of one chunk in a row, such as of its layers, are one. What was in doubt
 * when a chunk was made may be answered otherwise when it is used again: unless its chain was told,
 * the caller takes that over (kvc_replacer_set_parent).
 */
void kvc_chain_infer_see(struct kvc_order *o, uint32_t client, uint64_t id, uint64_t now_ns,
			 bool known, uint64_t known_parent, struct kvc_seen *out);

#endif
