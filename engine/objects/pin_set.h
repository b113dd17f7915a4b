/* SPDX-License-Identifier: Apache-2.0 */
/* Setting, loading and ending pins (pin_set.c). Both locks. */
#ifndef KVC_PIN_SET_H
#define KVC_PIN_SET_H

#include "kvc.h"

/*
 * This user pins a chunk until then (0: not any more; INT64_MAX: for ever). The caller writes it to
 * the chunk's row. Gives the locks back in between while the files of a folder are counted. 0, or
 * -EDQUOT (the user's share is full), -ENOSPC (all that may be pinned is), -EBUSY (unpinned or
 * dropped meanwhile, or files are moved there all the time), -ENOMEM or -EIO, and nothing has
 * changed.
 */
int kvc_pin_set_both(struct kvc *k, uint64_t chunk, uint32_t uid, uint64_t until_ns);
/* At the start, before the pool is looked at: what is pinned, by whom, and how much that is. */
int kvc_pins_load_both(struct kvc *k);
/* Forgets some of the pins that have ended. Returns whether there may be more of them. */
bool kvc_pins_end_both(struct kvc *k);

#endif
