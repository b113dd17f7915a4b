/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The tiers that exist. main and the tools open them here; the engine gets them opened.
 */
#ifndef KVCT_REGISTRY_H
#define KVCT_REGISTRY_H

#include "options.h"
#include "store.h"
#include "tier.h"

#define KVCT_MAX 4

/* Opens the tiers that the options ask for, in order. 0 with *n, or one line in error[512] and a negative errno. */
int kvct_open_all(const struct kvc_store *s, const struct kvc_options *o, struct kvc_tier *tiers[KVCT_MAX], unsigned *n, char *error);
void kvct_close_all(struct kvc_tier **tiers, unsigned n);

/* The disk tier (disk.c): the store's data file or device. */
int kvct_disk_open(const struct kvc_store *s, struct kvc_tier **out, char *error);
/*
 * A tier that stands in front of another and breaks it as `spec` says (shim.c). Takes over `below`. -EINVAL with a line.
 */
int kvct_shim_open(struct kvc_tier *below, const char *spec, struct kvc_tier **out, char *error);

#endif
