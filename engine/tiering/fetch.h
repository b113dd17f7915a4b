/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reads a frame into a segment (fd), straight into its pages where it is not coded. Without locks.
 */
#ifndef KVC_FETCH_H
#define KVC_FETCH_H

#include "kvc.h"

struct kvc_want {
	uint64_t ino, size;
	struct kvc_place place;
	bool shared, has_sum;
	struct kvc_sum sum; /* where it is known: of the object's bytes */
};
/*
 * older: the frame is of an older version. 0; -EBADMSG damaged, -ENOENT not there, -ESTALE another
 * version; -ENOKEY; or another.
 */
int kvc_fetch(struct kvc *k, struct kvc_tier *t, const struct kvc_want *w, int fd, bool *older);

#endif
