/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A coded payload (KVC_FRAME_CODED): the raw payload cut into blocks of KVC_BLOCK bytes, each coded
 * on its own (codec.h), then sealed on its own when there are keys (keys.h):
 *
 *   blocks     one after the other, each `stored` bytes long
 *   padding    zeros up to a page
 *   table      per block: u32 stored, u32 kind, 16 bytes tag (zero when not sealed); padded with
 *              zeros to a page
 *
 * There is always one block at least, so that an empty object is sealed too. What each block's tag
 * speaks for (its associated data) is the frame's identity (store, inode, generation, lengths,
 * flags, codec, key), in a shared tier also its path and attributes, the number of blocks and the
 * block's place, kind and lengths: a block that was moved, exchanged or cut off, and a frame that
 * stands where another belongs, do not open.
 */
#ifndef KVC_PAYLOAD_H
#define KVC_PAYLOAD_H

#include "frame.h"

/* larger payloads are not compressed: they would have to be held in memory */
#define KVC_PAYLOAD_COMPRESS_MAX (256ull << 20)

struct kvc_recipe {
	enum kvc_codec codec;
	int level;
	const struct kvc_keys *keys; /* NULL: not sealed */
	uint32_t key_id;             /* 0: not sealed */
};

/* The length of the table for a payload, in bytes. */
uint64_t kvc_payload_table(uint64_t raw_len);

struct kvc_encoder;
/*
 * Begins to code f->raw_len bytes, which `read` gives in order (as struct kvc_put). f has its
 * identity, and in a shared tier its name part; the encoder sets f's flags, codec, key, nonce,
 * stored_len. With a codec the whole is coded here, for the length must be known; where nothing is
 * gained f->codec ends as none, and without keys the frame as a plain one. Without a codec and
 * without keys f stays as it was (not CODED) and *out is NULL: the payload goes as it is. 0,
 * -ENOMEM, -EIO, or what `read` answered.
 */
int kvc_encoder_new(struct kvc_encoder **out, struct kvc_frame *f, const struct kvc_recipe *r,
		    int (*read)(void *arg, void *buf, size_t len, uint64_t off), void *arg);
/* The next `len` bytes of the stored payload; in order only. */
int kvc_encoder_read(struct kvc_encoder *e, void *buf, size_t len);
/* Wipes and frees. */
void kvc_encoder_free(struct kvc_encoder *e);

/*
 * Decodes a whole payload into raw (f->raw_len bytes). `data` are the blocks and `table` the table,
 * both from outside; data may be raw itself where the codec is none, and NULL where nothing is in
 * it. 0; -EBADMSG: not what was
 * written; -ENOKEY: sealed with a key that we do not have; -ENOMEM. Checks f->raw_sum unless it is
 * sealed, and nothing else of f's checksums.
 */
int kvc_payload_decode(const struct kvc_frame *f, const struct kvc_keys *keys, const uint8_t *data,
		       const uint8_t *table, uint8_t *raw);

#endif
