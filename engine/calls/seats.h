/* SPDX-License-Identifier: Apache-2.0 */
/* The numbers of tiers, by which placements name them. */
#ifndef KVC_SEATS_H
#define KVC_SEATS_H

#include "kvc.h"

struct kvc_tier;

/*
 * Gives each of the mount's tiers its number, and sets k->tier[].t, k->order, k->shared and
 * k->seats. At the start, before anything is read of files. 0, or one line for people in error[512]
 * and a negative errno.
 */
int kvc_seats_take(struct kvc *k, struct kvc_tier **tiers, unsigned n, char *error);

#endif
