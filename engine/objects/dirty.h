/* SPDX-License-Identifier: Apache-2.0 */
/* What the next commit is to write, and who waits for it. All under k->lock. */
#ifndef KVC_DIRTY_H
#define KVC_DIRTY_H

#include "kvc.h"

struct kvc_dirty {
	/* by dirty_link; used: chunks that have a row, of which only the use has changed */
	struct kvc_list nodes, chunks, used;
	struct kvc_list sync_waiters;  /* fsyncs: for the commit, and then for the disk */
	struct kvc_list lingering[2];  /* since this commit, and since the one before (file.h) */
	uint64_t committed;            /* the last committed transaction */
	pthread_cond_t cond;           /* the committer's */
	pthread_cond_t committed_cond; /* committed went up */
	bool soon, now;
	/* when the use of known chunks was last written; under the catalog's lock */
	uint64_t chunks_ns;
};

/* There is something to commit: within commit=, or now. */
void kvc_commit_soon_locked(struct kvc *k, bool now);

#endif
