/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Requests of other nodes that were answered, so that a recorded request cannot be sent again.
 * Memory is bounded: a bucket that is full forgets its oldest request. From then on all requests of
 * this bucket with the same or an earlier time are refused. At n requests per second, the oldest
 * request of a full bucket is about 65536 / n seconds old, and new requests are younger. A secret
 * chooses the bucket. So a node whose clock is fast, or one that sends many requests, cannot cause
 * the requests of other nodes to be refused as old. Any thread may call these functions.
 *
 * The table is valid for an epoch: a random number that is drawn at the start, and that each
 * request must contain. So a request that was answered before a restart of the daemon is refused
 * after it. If the clock was set back, new requests would be older than those in the table. So a
 * new epoch begins, with an empty table.
 */
#ifndef KVFS_REPLAY_H
#define KVFS_REPLAY_H

#include "peer_sign.h"

struct kvfs_replay;

struct kvfs_replay *kvfs_replay_new(void); /* NULL: out of memory */
void kvfs_replay_free(struct kvfs_replay *r);
/*
 * Records a request whose signature is right. Returns NULL, or the reason to refuse it, a constant
 * text. If the reason is that the request is of another epoch, sets `epoch` to the present one;
 * otherwise to an empty text. now_ms: the server's clock.
 */
const char *kvfs_replay_refuses(struct kvfs_replay *r, uint64_t now_ms,
				const struct kvc_peer_request *q, kvc_peer_text epoch);

#endif
