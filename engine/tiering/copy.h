/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One copy in the making: a segment read, made a frame, and put into a tier (copy.c). Without
 * locks.
 */
#ifndef KVC_COPY_H
#define KVC_COPY_H

#include "node.h"
#include "payload.h"

#include <xxhash.h>

struct kvc_copy {
	struct kvc *k;
	struct kvc_node *n; /* held by the caller */
	unsigned tier;
	int fd; /* the segment, the caller's own descriptor; -1: none yet */
	/* of a sparse file, in one piece of memory; table NULL: it is not sparse */
	struct kvc_buffer memory;
	struct kvc_range *ranges;
	uint8_t *table;
	size_t nranges, table_len;
	size_t at;       /* the range that is read */
	uint64_t at_off; /* bytes of it already read */
	/* of the raw payload, and of what the tier gets where that is another */
	XXH3_state_t *sum, *stored_sum;
	struct kvc_sum raw;
	struct kvc_encoder *enc;
	struct kvc_frame *f; /* as it was put */
	bool shared;
	struct kvc_where name; /* in a shared tier */
	bool named;            /* that is ours: kvc_copy_unname_locked */
};

/*
 * Makes the frame of generation gen and puts it; size and blocks are the segment's. 0 with *where;
 * -EALREADY: the name is being changed by another; or the tier's error.
 */
int kvc_copy_write(struct kvc_copy *c, uint64_t gen, uint64_t size, uint64_t blocks,
		   struct kvc_where *where);
/* Is the frame that was written sealed with its model's newest key? False after a new key. */
bool kvc_copy_newest(const struct kvc_copy *c);
/* When what it put is recorded, or is to go. */
void kvc_copy_unname_locked(struct kvc_copy *c);
/* The sum of the segment's first `size` bytes. */
int kvc_copy_sum(int fd, uint64_t size, struct kvc_sum *sum);
/* Its segment is not read any more. */
void kvc_copy_close(struct kvc_copy *c);
/* Closes fd and frees what it holds. */
void kvc_copy_fini(struct kvc_copy *c);

#endif
