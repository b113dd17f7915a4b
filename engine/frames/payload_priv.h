/* SPDX-License-Identifier: Apache-2.0 */
/* The layout of coded payloads, which payload.c and payload_encoder.c share. */
#ifndef KVC_PAYLOAD_PRIV_H
#define KVC_PAYLOAD_PRIV_H

#include "payload.h"

#define KVC_PAYLOAD_ENTRY 24 /* bytes of a block's entry in the table */

/* The associated data: the part of the frame, followed by the part of the block. */
struct kvc_payload_aad {
	size_t len; /* length of the frame's part */
	uint8_t b[160 + KVC_MODEL_NAME + KVC_FRAME_PATH_MAX + 64];
};

/* Return the number of blocks of a payload, and the length of block i. */
uint64_t kvc_payload_blocks(uint64_t raw_len);
size_t kvc_payload_block_len(uint64_t raw_len, uint64_t i);
/* Returns the kind of the block with this entry, and its stored length. */
uint32_t kvc_payload_block_kind(const uint8_t *entry, size_t *stored);

/* Sets the part of the frame. */
void kvc_payload_aad_frame(struct kvc_payload_aad *a, const struct kvc_frame *f);
/* Appends the part of block i, and returns the whole length. a->len stays. */
size_t kvc_payload_aad_block(struct kvc_payload_aad *a, uint64_t i, uint32_t kind, size_t stored);

/*
 * Opens block i of a sealed payload, from `in` to `to`, which may be equal. Returns 0, -EBADMSG or
 * -EIO.
 */
int kvc_payload_open_block(const struct kvc_decoder *d, uint64_t i, const uint8_t *in, uint8_t *to);

#endif
