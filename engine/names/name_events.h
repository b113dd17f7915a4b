/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Events about removed and changed names, for readers of the event ring (telemetry/rings.h).
 */
#ifndef KVC_NAME_EVENTS_H
#define KVC_NAME_EVENTS_H

#include "rings.h"

/*
 * Reports that the node lost this name: it was dropped, or has another name now. Does nothing if
 * the ring has no reader.
 */
void kvc_name_events_tell_both(struct kvc *k, enum kvc_event_kind what, const struct kvc_node *n,
			       uint64_t parent, const char *name);

#endif
