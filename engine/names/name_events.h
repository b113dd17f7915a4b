/* SPDX-License-Identifier: Apache-2.0 */
/* Names that go, for who reads the news (telemetry/event_ring.h). Both locks. */
#ifndef KVC_NAME_EVENTS_H
#define KVC_NAME_EVENTS_H

#include "event_ring.h"

/*
 * The node had this name: it is dropped, or now has another one (what). Nothing where nobody
 * reads.
 */
void kvc_name_events_tell_both(struct kvc *k, enum kvc_event_kind what, const struct kvc_node *n,
			       uint64_t parent, const char *name);

#endif
