/* SPDX-License-Identifier: Apache-2.0 */
/* Setting, loading and expiring pins (pin_set.c). Under both locks. */
#ifndef KVC_PIN_SET_H
#define KVC_PIN_SET_H

#include "kvc.h"

/*
 * Pins a chunk for this user until until_ns (INT64_MAX: no end), or removes its pin (0). The caller
 * writes the time to the chunk's row. Releases the locks in between while it counts the files of a
 * folder. Returns 0, -EDQUOT (the user's part of the pinnable bytes is used up), -ENOSPC (all
 * pinnable bytes are used up), -EBUSY (the chunk was unpinned or dropped in the meantime, or files
 * keep being moved into it), -ENOMEM or -EIO. After an error nothing has changed.
 */
int kvc_pin_set_both(struct kvc *k, uint64_t chunk, uint32_t uid, uint64_t until_ns);
/* At mount, before the pool is scanned: loads all pins and counts their files. */
int kvc_pins_load_both(struct kvc *k);
/* Removes some of the expired pins. Returns true if more may have expired. */
bool kvc_pins_end_both(struct kvc *k);

#endif
