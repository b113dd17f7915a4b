/* SPDX-License-Identifier: Apache-2.0 */
/* Loads: from a tier into the pool (load.c). */
#ifndef KVC_LOAD_H
#define KVC_LOAD_H

#include "node.h"

/* Starts loading a LOWER object; who waits parks on n->waiters. */
int kvc_load_start_locked(struct kvc *k, struct kvc_node *n, bool prefetch);
/*
 * The copy in this tier is known to be bad: it is forgotten, as by a load, and made anew where
 * another has the file; else the file goes (*lost). 0, or why not; -EBUSY: a load is under way,
 * which will find out itself.
 */
int kvc_load_bad_copy_both(struct kvc *k, uint64_t ino, unsigned tier, bool *lost);

/*
 * Did a load end with this because no tier served it in time, although the file still exists? A
 * reader is then told of a miss: its opens fail with -ENOENT, and a lease does not count it as
 * resident. A writer gets the error itself, because it must not take an error for an absence.
 * -ENOKEY and errors of the pool are not among them: they do not pass by themselves.
 */
static inline bool kvc_load_unserved(int err)
{
	return err == -EIO || err == -ETIMEDOUT;
}

#endif
