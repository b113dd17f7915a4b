/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A filter of names: says of a name that it surely is not there, or that it may be (filter.c).
 * Calls need no lock.
 */
#ifndef KVC_FILTER_H
#define KVC_FILTER_H

#include "util.h"

struct kvc_filter;

struct kvc_filter *
kvc_filter_new(void); /* NULL: no memory. It is not filled: everything may be there */
void kvc_filter_free(struct kvc_filter *f);
/* A name, by its folder and hash, is there from now on; or is not any more. */
void kvc_filter_add(struct kvc_filter *f, uint64_t parent, uint64_t hash);
void kvc_filter_removed(struct kvc_filter *f);
bool kvc_filter_may_have(struct kvc_filter *f, uint64_t parent, uint64_t hash);
/*
 * Makes it anew: after begin, names that are added go into the new one too; add_old puts in the
 * others; end makes it the one that is asked (or gives it up). `names`: about how many there are. 0
 * or -ENOMEM. One thread.
 */
int kvc_filter_begin(struct kvc_filter *f, uint64_t names);
void kvc_filter_add_old(struct kvc_filter *f, uint64_t parent, uint64_t hash);
void kvc_filter_end(struct kvc_filter *f, bool good);
/* So many names went, or came beyond its size, that it is worth it; or it was never filled. */
bool kvc_filter_stale(struct kvc_filter *f);

#endif
