/* SPDX-License-Identifier: Apache-2.0 */
/* The key file of a mount in use: keys that were added to it join those of the mount. */
#ifndef KVC_KEYRING_H
#define KVC_KEYRING_H

#include "kvc.h"

/*
 * Compares a key with the proof in the catalog, and writes the proof: 1 the same key as before, 0 a
 * new one, -EINVAL another key than this store was encrypted with. Under the catalog's lock.
 */
int kvc_keyring_prove_both(struct kvc *k, uint32_t id);
/*
 * Reads the key file again. Without locks; blocks on the file. may_lose is asked for each key that
 * the file lacks: with 0 from all of them these keys seal nothing any more; NULL: they stay in use.
 * 0; or an error with one line in error[512], and all stays as it was.
 */
int kvc_keyring_read(struct kvc *k, int (*may_lose)(struct kvc *k, uint32_t id, char *error),
		     char *error);
/*
 * A frame of a shared tier is sealed with a key that this mount does not know: counts it and reads
 * the key file again, at most once a second. True: the key is known now. Without locks.
 */
bool kvc_keyring_learn(struct kvc *k, uint32_t id);

#endif
