/* SPDX-License-Identifier: Apache-2.0 */
/* Reads a frame from a tier into a segment. The caller holds no locks. */
#ifndef KVC_FETCH_H
#define KVC_FETCH_H

#include "kvc.h"

struct kvc_fetch_want {
	uint64_t ino, size;
	struct kvc_place place;
	bool shared, has_sum;
	/* the object's path, for a tier that finds a frame by it (get_path); or NULL */
	const char *path;
	/* the sum of the bytes that the copy decodes to (kvc_place_raw), valid if has_sum */
	struct kvc_sum sum;
};
/*
 * Reads the frame that *w describes from tier t into fd, which is open for reading and writing and
 * gets the size w->size. Returns 0; -EBADMSG if the frame is damaged; -ENOENT if it does not exist;
 * -ESTALE if the tier holds another version of the object; -ENOKEY if its key is unknown;
 * -ETIMEDOUT; or another error of the tier or the pool. The content of fd is undefined after an
 * error. Blocks on the tier.
 */
int kvc_fetch(struct kvc *k, struct kvc_tier *t, const struct kvc_fetch_want *w, int fd);
/*
 * Reads the stored payload of the dense, coded frame that *w describes, without decoding it, into
 * *payload, which is empty, and its header into *f. The memory is from the budget for copies.
 * Returns 0; -ENOMEM if the budget does not have enough memory now; or an error as above. The
 * caller frees *payload (kvc_budget_buffer_free).
 */
struct kvc_frame;
struct kvc_buffer;
int kvc_fetch_coded(struct kvc *k, struct kvc_tier *t, const struct kvc_fetch_want *w,
		    struct kvc_frame *f, struct kvc_buffer *payload);

#endif
