/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Names that went lately (went.c): of such a one the filter still says that it may be there, and a
 * cache is asked for what it has dropped more than for anything else. Under the catalog's lock.
 */
#ifndef KVC_WENT_H
#define KVC_WENT_H

#include "util.h"

struct kvc_went {
	struct kvc_went_name *names; /* NULL until the first; without memory none is kept */
};

void kvc_went_fini(struct kvc_went *w);
/* The name is nowhere: its removal is committed, and nothing came since. */
void kvc_went_add(struct kvc_went *w, uint64_t parent, uint64_t hash, const char *name);
/* It may be there from now on. */
void kvc_went_back(struct kvc_went *w, uint64_t parent, uint64_t hash);
/* True: it is nowhere. False: not known. */
bool kvc_went_has(const struct kvc_went *w, uint64_t parent, uint64_t hash, const char *name);

#endif
