/* SPDX-License-Identifier: Apache-2.0 */
/* Loads: from a tier into the pool (load.c). */
#ifndef KVC_LOAD_H
#define KVC_LOAD_H

#include "node.h"

/* Starts loading a LOWER object; who waits parks on n->waiters. */
int kvc_load_start_locked(struct kvc *k, struct kvc_node *n, bool prefetch);

#endif
