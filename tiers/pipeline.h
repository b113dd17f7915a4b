/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The pieces of a long transfer, moved by several threads (pipeline.c). The thread that has the
 * transfer works on its pieces itself, and threads of the pipeline that are idle help it: while a
 * piece is being written, the next one is read and its checksum computed.
 */
#ifndef KVCT_PIPELINE_H
#define KVCT_PIPELINE_H

#include "tier.h"

#define KVCT_PIPELINE_PIECE KVC_TIER_PIECE /* bytes of a piece; the last one may be shorter */
#define KVCT_PIPELINE_BUFFER KVC_TIER_PART /* bytes of a thread's buffer */

/*
 * A transfer. Its functions return 0 or a negative errno, which ends the transfer: pieces that are
 * being moved are finished, and no others begin. part->off is the offset of the piece in the
 * transfer, if `begin` does not change it.
 */
struct kvct_transfer {
	uint64_t len; /* bytes; 0: `begin` sets the place and length of each piece */
	uint64_t n;   /* number of pieces if len is 0 */
	void *arg;
	/*
	 * Prepares a piece. Called in order, by one thread at a time. part->p has
	 * KVCT_PIPELINE_BUFFER bytes, aligned to a page. The function may set it to bytes of its
	 * own instead, which must stay valid until the end of the transfer. NULL: nothing to
	 * prepare.
	 */
	int (*begin)(void *arg, struct kvc_part *part);
	/* Moves a piece to or from p. Called in any order, by several threads at the same time. */
	int (*move)(void *arg, const struct kvc_part *part);
	/* Completes a piece. Called in order, by one thread at a time. NULL: nothing to do. */
	int (*end)(void *arg, const struct kvc_part *part);
	/* a caller waits for it: it gets help before the transfers for which this is false */
	bool urgent;
	/* the device that it uses: kvct_pipeline_bound limits the helpers of one device */
	unsigned device;
};

struct kvct_pipeline;
/* Creates a pipeline without threads. Returns NULL if out of memory. */
struct kvct_pipeline *kvct_pipeline_new(void);
/*
 * Starts the threads, KVC_TIER_HELPERS of them (tier.h). Returns 0 or a negative errno; the
 * pipeline can be used in both cases, and with fewer threads it is slower.
 */
int kvct_pipeline_start(struct kvct_pipeline *l);
/*
 * At most `most` helpers work for one device at a time, so that a device that hangs does not hold
 * all of them. Without a call: any number.
 */
void kvct_pipeline_bound(struct kvct_pipeline *l, unsigned most);
/* Returns when a piece of this device was last moved (kvc_mono_ns), or 0. */
uint64_t kvct_pipeline_moved_ns(const struct kvct_pipeline *l, unsigned device);
/* Stops the threads. Transfers that are under way, and later ones, are made without helpers. */
void kvct_pipeline_stop(struct kvct_pipeline *l);
/* Stops the threads and frees the pipeline; NULL is allowed. */
void kvct_pipeline_free(struct kvct_pipeline *l);
/*
 * Makes the transfer and returns when all its pieces are finished: 0, or the first error of its
 * functions. buf is as for `begin`, and may be NULL if `begin` is NULL. *moving, which may be NULL,
 * is set to whether the error is one of `move`. Blocks; no lock may be held.
 */
int kvct_pipeline_run(struct kvct_pipeline *l, const struct kvct_transfer *t, uint8_t *buf,
		      bool *moving);

#endif
