/* SPDX-License-Identifier: Apache-2.0 */
/* Wear of flash: bytes written to each tier, today and in total (wear.c). Under k->lock. */
#ifndef KVC_WEAR_H
#define KVC_WEAR_H

#include "kvc.h"

/*
 * Bytes written to a tier, today and in total; `day` is today's number since 1970 by the store's
 * clock.
 */
struct kvc_wear {
	uint64_t day, today, all;
};

void kvc_wear_add_locked(struct kvc *k, unsigned tier, uint64_t bytes);
/*
 * The same for bytes written to store accesses, in the catalog and in the file of the policies'
 * state. They count for daily=.
 */
void kvc_wear_access_add_locked(struct kvc *k, uint64_t bytes);
struct kvc_wear kvc_wear_access_show_locked(struct kvc *k);
/* Returns the tier's bytes as of now: after midnight `today` is 0. */
struct kvc_wear kvc_wear_show_locked(struct kvc *k, unsigned tier);
/*
 * Write the figures to the catalog, and read them. They are written once a minute, so a start after
 * a kill may lack the last minute.
 */
void kvc_wear_save_both(struct kvc *k);
int kvc_wear_load_both(struct kvc *k);
/*
 * Deletes a tier's figures, because its number is given to another tier. Returns 0 or a negative
 * errno.
 */
int kvc_wear_forget_both(struct kvc *k, unsigned tier);

#endif
