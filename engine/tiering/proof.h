/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The origin of a frame (proof.c): proofs of headers (frames/frame.h) with the keys of this mount,
 * and the identity of this store in shared tiers. Callers of the proofs need no lock.
 */
#ifndef KVC_PROOF_H
#define KVC_PROOF_H

#include "kvc.h"

/*
 * Adds the proofs to f, which must be complete except for them. shared: f is for a shared tier and
 * is proven by key f->key_id; without a key file it gets no proof. If shared is false, f is for the
 * store's own tier. Returns 0, -ENOKEY or -EIO.
 */
int kvc_proof_add(const struct kvc *k, bool shared, struct kvc_frame *f);
/*
 * May this mount trust a frame that one of its placements names? Returns 0; -ENOKEY if this mount
 * lacks its key, also if it has another key of that number; or -EBADMSG.
 */
int kvc_proof_placed(const struct kvc *k, bool shared, const struct kvc_frame *f);
/*
 * May a frame found in a shared tier be imported with its name, owner and mode? Returns 0, or
 * -ENOKEY or -EBADMSG as above. Without a key file every frame may be imported.
 */
int kvc_proof_found(const struct kvc *k, const struct kvc_frame *f);

/*
 * The identity of this store. Runs once at mount, before the first put. Sets k->shared_id if there
 * is a shared tier. A copy of a store gets a new identity, and one line in the log says so. Returns
 * 0, or -errno if the catalog or the superblock cannot be read or written. The caller holds both
 * locks.
 */
int kvc_proof_identity_start_both(struct kvc *k);

#endif
