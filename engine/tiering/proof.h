/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Who made a frame: proofs of headers (frames/frame.h) by the keys that this mount has (proof.c).
 */
#ifndef KVC_PROOF_H
#define KVC_PROOF_H

#include "kvc.h"

/*
 * Gives f its proofs for a tier, shared or the store's own; f is final otherwise. In a shared tier
 * f->key_id says by which key; without a key file there are none. 0, -ENOKEY, -EIO.
 */
int kvc_proof_check(const struct kvc *k, bool shared, struct kvc_frame *f);
/*
 * May a frame that a placement names be believed? 0; -ENOKEY: its key is not ours; -EBADMSG.
 */
int kvc_proof_placed(const struct kvc *k, bool shared, const struct kvc_frame *f);
/*
 * May a frame of a shared tier be taken in, with its name, owner and mode? As above; -ENOENT: of a
 * version that proves nothing, so it is as if it were not there. Without a key file any may.
 */
int kvc_proof_found(const struct kvc *k, const struct kvc_frame *f);

#endif
