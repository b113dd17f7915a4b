/* SPDX-License-Identifier: Apache-2.0 */
/* Which chunks the pool's policy keeps (retention.c). All under k->lock. */
#ifndef KVC_RETENTION_H
#define KVC_RETENTION_H

#include "chunk.h"

/*
 * Reports a use of the chunk to the pool's policy. The chunk is the next one of the request r,
 * whose replacer is that of the chunk's class. If the chunk enters, the policy decides whether it
 * is kept, and which chunks leave for it. may_refuse: false for a caller that is not known. made:
 * the request created the chunk.
 */
void kvc_retention_used_locked(struct kvc *k, struct kvc_request *r, struct kvc_chunk *c, bool made,
			       bool may_refuse);

#endif
