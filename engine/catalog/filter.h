/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A filter of names (filter.c): tells that a name certainly does not exist, or that it may exist.
 * The functions need no lock.
 */
#ifndef KVC_FILTER_H
#define KVC_FILTER_H

#include "util.h"

struct kvc_filter;

/* Returns NULL without memory. A new filter is not filled: every name may exist. */
struct kvc_filter *kvc_filter_new(void);
void kvc_filter_free(struct kvc_filter *f);
/* Records that a name, given by its folder and hash, now exists; or that it no longer exists. */
void kvc_filter_add(struct kvc_filter *f, uint64_t parent, uint64_t hash);
void kvc_filter_removed(struct kvc_filter *f);
bool kvc_filter_may_have(struct kvc_filter *f, uint64_t parent, uint64_t hash);
/*
 * Refills the filter. After begin, added names also go into the new filter; add_old adds the
 * existing names; end replaces the old filter by the new one, or discards the new one. `names`:
 * approximate number of names. One thread does all of this. Returns 0 or -ENOMEM.
 */
int kvc_filter_begin(struct kvc_filter *f, uint64_t names);
void kvc_filter_add_old(struct kvc_filter *f, uint64_t parent, uint64_t hash);
void kvc_filter_end(struct kvc_filter *f, bool good);
/*
 * Is a refill worthwhile, because many names were removed, more names exist than it was sized for,
 * or it was never filled?
 */
bool kvc_filter_stale(struct kvc_filter *f);

#endif
