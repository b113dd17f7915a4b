/* SPDX-License-Identifier: Apache-2.0 */
/* Which chunks the policy of the disk tier keeps (disk_retention.c). All under k->lock. */
#ifndef KVC_DISK_RETENTION_H
#define KVC_DISK_RETENTION_H

#include "chunk.h"

/*
 * Reports a use of the chunk to the policy of the disk tier, as kvc_retention_used_locked does for
 * the pool's. If the policy does not have the chunk, it decides whether to keep it, and which
 * chunks it gives up for it.
 */
void kvc_disk_retention_used_locked(struct kvc *k, struct kvc_request *r, struct kvc_chunk *c,
				    bool made, bool may_refuse);

#endif
