/* SPDX-License-Identifier: Apache-2.0 */
/* Bytes that were written to each tier, today and in all (wear.c). Under k->lock. */
#ifndef KVC_WEAR_H
#define KVC_WEAR_H

#include "kvc.h"

/* Of a tier; `today` is of that day, counted in days since 1970 by the store's clock. */
struct kvc_wear {
	uint64_t day, today, all;
};

void kvc_wear_add_locked(struct kvc *k, unsigned tier, uint64_t bytes);
/* The same of bytes that are written to the catalog to store accesses; they count to daily=. */
void kvc_wear_access_add_locked(struct kvc *k, uint64_t bytes);
struct kvc_wear kvc_wear_access_show_locked(struct kvc *k);
/* As of now: after midnight nothing was written today. */
struct kvc_wear kvc_wear_show_locked(struct kvc *k, unsigned tier);
/* To and from the catalog: a start goes on with what the last minute before a kill may lack. */
void kvc_wear_save_both(struct kvc *k);
int kvc_wear_load_both(struct kvc *k);
/* The number is another tier's from now on. 0, or why the catalog does not take it. */
int kvc_wear_forget_both(struct kvc *k, unsigned tier);

#endif
