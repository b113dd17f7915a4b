/* SPDX-License-Identifier: Apache-2.0 */
/* Asking for a commit. What it will write is on the lists of dirty.h; the committer is commit.c. */
#include "dirty.h"

void kvc_commit_soon_locked(struct kvc *k, bool now)
{
	if (!k->dirty->soon || (now && !k->dirty->now))
		pthread_cond_signal(&k->dirty->cond);
	k->dirty->soon = true;
	k->dirty->now |= now;
}
