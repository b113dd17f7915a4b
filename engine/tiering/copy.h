/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The copy of one object into one tier: reads the segment, makes the frame and stores it (copy.c).
 * The caller holds no locks, except where a name ends in _locked.
 */
#ifndef KVC_COPY_H
#define KVC_COPY_H

#include "fetch.h"
#include "node.h"
#include "payload.h"

#include <xxhash.h>

struct kvc_copy {
	struct kvc *k;
	struct kvc_node *n; /* the caller keeps a reference */
	unsigned tier;
	int fd; /* the segment; this struct owns the descriptor; -1: not open yet */
	/*
	 * The caller knows that nobody can change the segment's bytes, or discards the copy if
	 * somebody does. So the tier may write from the segment's pages.
	 */
	bool stable;
	bool sync; /* the copy is put on stable storage, if its tier can do that (kvc_put.sync) */
	/* if stable: the segment's mapping (NULL: not mapped), and a buffer for the sum */
	uint8_t *map, *step;
	size_t map_len;
	/*
	 * The data ranges of a sparse file and their encoded table, in one allocation. table is
	 * NULL if the object is copied as a dense file.
	 */
	struct kvc_buffer memory;
	struct kvc_range *ranges;
	uint8_t *table;
	size_t nranges, table_len;
	uint8_t first[KVC_KV_LAYOUT_FIRST]; /* bytes of the segment, for layouts that need them */
	size_t at;                          /* index of the range being read */
	uint64_t at_off;                    /* bytes of that range already read */
	/* sums of the raw payload and, if a codec or a key changes it, of the stored payload */
	XXH3_state_t *sum, *stored_sum;
	struct kvc_sum raw;
	struct kvc_encoder *enc;
	struct kvc_frame *f; /* the frame as stored */
	bool shared;
	struct kvc_where name; /* in a shared tier */
	bool has_name;         /* this copy holds the name; kvc_copy_unname_locked releases it */
	/* the object's bytes came from a lossy copy; the frame repeats the error of that copy */
	bool decoded;
	struct kvc_codec_kv kv; /* for a codec with loss: its code, and the layout of the bytes */
	/*
	 * The tier whose copy has the coded blocks of these decoded bytes, which are reused; -1:
	 * none.
	 */
	int source;
	struct kvc_fetch_want from;
	/* if the frame's codec is one with loss: the sum of the bytes that it decodes to */
	struct kvc_sum back;
};

/*
 * Makes the frame of generation gen and stores it in the tier. size (bytes) and blocks (512 bytes
 * each) are those of the segment. Returns 0 and sets *where, or -EALREADY if another thread is
 * changing the name in the shared tier, or the tier's error. Blocks on the tier.
 */
int kvc_copy_write(struct kvc_copy *c, uint64_t gen, uint64_t size, uint64_t blocks,
		   struct kvc_where *where);
/*
 * Is the stored frame sealed with the newest key of its model? False if the key file got a new key
 * since.
 */
bool kvc_copy_newest(const struct kvc_copy *c);
/*
 * Releases the name in the shared tier, after the copy was recorded or queued for removal. The
 * caller holds k->lock.
 */
void kvc_copy_unname_locked(struct kvc_copy *c);
/* Computes the sum of the first `size` bytes of fd. Returns 0 or a negative errno. */
int kvc_copy_sum(int fd, uint64_t size, struct kvc_sum *sum);
/* Closes the segment; it is not needed any more. Does nothing if it is not open. */
void kvc_copy_close(struct kvc_copy *c);
/* Closes the segment and frees the members. The struct itself belongs to the caller. */
void kvc_copy_fini(struct kvc_copy *c);

#endif
