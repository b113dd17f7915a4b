/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Objects that another node offers (POST /offer, frames/peer_sign.h). The FUSE side's server of
 * peers calls these functions; it has checked that the node knows the secret.
 */
#ifndef KVC_OFFER_H
#define KVC_OFFER_H

#include "caller.h"

#include <stddef.h>

#define KVC_OFFER_BYTES (1u << 20) /* maximum memory of an offer */

struct kvc;
struct kvc_offer;

/*
 * Begins to look up n names, which follow each other in names[len], each with a zero byte at its
 * end. Returns 0 and *out, which the caller frees with kvc_offer_end; -EOPNOTSUPP: no remote, from
 * which the objects could be read; -ENOSPC: the pool or the catalog is full; or another error. Does
 * not wait.
 */
int kvc_offer_begin(struct kvc *k, const char *names, size_t len, size_t n, struct kvc_offer **out);
/*
 * Looks the names up in the shared tiers, as an open does, and starts to load the objects. Returns
 * 0, KVC_WAIT (caller.h), or an error.
 */
int kvc_offer_run(struct kvc_offer *o, struct kvc_wait *w);
/* After kvc_offer_run: sets a bit for each object that this node has or loads. */
void kvc_offer_bits(struct kvc_offer *o, uint8_t *bits);
/*
 * Counts what was not taken. Loads go on. Must not be called between a KVC_WAIT and its wake. NULL
 * is allowed.
 */
void kvc_offer_end(struct kvc_offer *o);

#endif
