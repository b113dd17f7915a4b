/* SPDX-License-Identifier: Apache-2.0 */
/* Loads an object from a tier into the pool (load.c). */
#ifndef KVC_LOAD_H
#define KVC_LOAD_H

#include "node.h"

/*
 * Starts to load a LOWER object, or joins the load under way. prefetch: nobody waits for the
 * object; without it, a prefetch under way is one no more. The caller may then park on
 * n->wait.ready; it is woken with 0 or the error. Returns 0; -ENOENT if no tier has a copy; or
 * another negative errno if no load was started. The caller holds k->lock.
 */
int kvc_load_start_locked(struct kvc *k, struct kvc_node *n, bool prefetch);
/*
 * The copy of inode ino in this tier is damaged: forgets it, as a load does, and queues a new copy
 * if the pool has the object. If no copy is left the file is dropped, and *lost is set. Returns 0
 * or a negative errno; -EBUSY if a load is under way, which will find the damage itself. The caller
 * holds both locks.
 */
int kvc_load_bad_copy_both(struct kvc *k, uint64_t ino, unsigned tier, bool *lost);

/*
 * Did a load fail with `err` because no tier served the object in time, although the file still
 * exists? A reader then sees a miss: open fails with -ENOENT, and a lease does not count the object
 * as resident. A writer gets the error itself, so that it does not take an error for a missing
 * file. -ENOKEY and the pool's errors are not included, since they do not pass by themselves.
 */
static inline bool kvc_load_unserved(int err)
{
	return err == -EIO || err == -ETIMEDOUT;
}

#endif
