/* SPDX-License-Identifier: Apache-2.0 */
/* The numbers of tiers, by which placements name them. */
#ifndef KVC_TIER_SLOTS_H
#define KVC_TIER_SLOTS_H

#include "kvc.h"

struct kvc_tier;

/*
 * Gives each of the mount's tiers its number, and sets k->tier[].t, k->order, k->shared and
 * k->seats. At the start, before anything is read of files. 0, or one line for people in error[512]
 * and a negative errno.
 */
int kvc_tier_slots_take(struct kvc *k, struct kvc_tier **tiers, unsigned n, char *error);

#endif
