/* SPDX-License-Identifier: Apache-2.0 */
/* The key file of a running mount: keys that were added to the file join the keys in use. */
#ifndef KVC_KEYRING_H
#define KVC_KEYRING_H

#include "kvc.h"

/*
 * Compares key id with the proof in the catalog, and writes the proof. Returns 1 if the proof was
 * there and is the same, 0 if the key is new, -EINVAL if the store was encrypted with another key
 * of this number, or another negative errno. The caller holds both locks; at the start of a mount
 * the catalog's lock is enough.
 */
int kvc_keyring_prove_both(struct kvc *k, uint32_t id);
/*
 * Reads the key file again. may_lose is called for each key in use that the file no longer has; if
 * it returns 0 for all of them, these keys seal no new frames. If may_lose is NULL they stay in
 * use. Returns 0; or an error with one line of text in error[512], and the keys in use are
 * unchanged. The caller holds no locks. Blocks on the file.
 */
int kvc_keyring_read(struct kvc *k, int (*may_lose)(struct kvc *k, uint32_t id, char *error),
		     char *error);
/*
 * A frame of a shared tier is sealed with a key that this mount does not know: reads the key file
 * again, at most once a second. Returns true if the key is known afterwards; otherwise counts the
 * frame. The caller holds no locks.
 */
bool kvc_keyring_learn(struct kvc *k, uint32_t id);

#endif
