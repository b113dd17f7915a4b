/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Proofs of headers (frames/frame.h) with the keys of this mount: they tell who made a frame
 * (proof.c). Callers need no lock.
 */
#ifndef KVC_PROOF_H
#define KVC_PROOF_H

#include "kvc.h"

/*
 * Adds the proofs to f, which must be complete otherwise. shared: f is for a shared tier and is
 * proven by key f->key_id; without a key file it gets no proof. Else it is for the store's own
 * tier. Returns 0, -ENOKEY or -EIO.
 */
int kvc_proof_add(const struct kvc *k, bool shared, struct kvc_frame *f);
/*
 * May a frame that a placement of ours names be believed? Returns 0, -ENOKEY if its key is unknown,
 * or -EBADMSG.
 */
int kvc_proof_placed(const struct kvc *k, bool shared, const struct kvc_frame *f);
/*
 * May a frame found in a shared tier be imported with its name, owner and mode? Returns 0, or
 * -ENOKEY or -EBADMSG as above. Without a key file every frame may be imported.
 */
int kvc_proof_found(const struct kvc *k, const struct kvc_frame *f);

#endif
