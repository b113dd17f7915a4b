/* SPDX-License-Identifier: Apache-2.0 */
/* Events about names; see name_events.h. */
#include "name_events.h"

#include "node.h"
#include "path.h"

#include <string.h>

void kvc_name_events_tell_both(struct kvc *k, enum kvc_event_kind what, const struct kvc_node *n,
			       uint64_t parent, const char *name)
{
	char path[KVC_FRAME_PATH_MAX + 1];
	char *gone;

	/* below a folder that was dropped and reported before, nothing has a path */
	if (!k->event_ring || kvc_path_in_both(k, parent, name, path) || !*path)
		return;
	if ((gone = strdup(path)))
		kvc_event_ring_gone_locked(k, what, n, gone);
}
