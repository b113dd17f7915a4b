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

#include "budget.h"
#include "frame.h"

/*
 * Larger payloads are not compressed. Smaller ones are coded once and held in memory, if the budget
 * (budget.h) has so much at once; else they are coded twice: the first time for their length only.
 */
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
 * Begins to code f->raw_len bytes, which `read` gives in order (as struct kvc_put), and a second
 * time from offset 0 if they are coded twice. f has its
 * identity, and in a shared tier its name part; the encoder sets f's flags, codec, key, nonce,
 * stored_len. With a codec the whole is coded here, for the length must be known; where nothing is
 * gained f->codec ends as none, and without keys the frame as a plain one. Without a codec and
 * without keys f stays as it was (not CODED) and *out is NULL: the payload goes as it is. Memory is
 * the budget's, for copies; waits for it. 0, -ENOMEM, -EIO, or what `read` answered.
 */
int kvc_payload_encoder_new(struct kvc_encoder **out, struct kvc_frame *f,
			    const struct kvc_recipe *r,
			    int (*read)(void *arg, void *buf, size_t len, uint64_t off), void *arg);
/*
 * The next `len` bytes of the stored payload; in order only. 0, what `read` answered, -EIO, or
 * -ECANCELED: the payload has changed since it was coded for its length.
 */
int kvc_payload_encoder_read(struct kvc_encoder *e, void *buf, size_t len);
/* Wipes and frees. */
void kvc_payload_encoder_free(struct kvc_encoder *e);

/*
 * Decodes a payload block by block. f and `table`, both from outside, must stay until the decoder
 * is freed. 0; -EBADMSG: not what was written; -ENOKEY: sealed with a key that we do not have;
 * -ENOMEM; -EIO. Blocks in one thread.
 */
struct kvc_decoder;
int kvc_payload_decoder_new(struct kvc_decoder **out, const struct kvc_frame *f,
			    const struct kvc_keys *keys, const uint8_t *table);
/*
 * The lengths of the next block: as it is stored and once it is decoded, both at most KVC_BLOCK.
 * 1; 0: there are no more blocks; or -EBADMSG.
 */
int kvc_payload_decoder_next(struct kvc_decoder *d, size_t *stored, size_t *raw);
/*
 * Decodes the block that kvc_payload_decoder_next told of, from `in` to `to`, which may be the same
 * for a payload without a codec. 0, -EBADMSG or -EIO; `to` may hold anything then.
 */
int kvc_payload_decoder_block(struct kvc_decoder *d, const uint8_t *in, uint8_t *to);
/*
 * After the last block: 0, or -EBADMSG: the lengths or, unless it is sealed, the bytes are not
 * those that f tells of. Nothing else of f's checksums is checked.
 */
int kvc_payload_decoder_end(struct kvc_decoder *d);
/* Wipes and frees; NULL is allowed. */
void kvc_payload_decoder_free(struct kvc_decoder *d);
/*
 * Decodes a whole payload into raw (f->raw_len bytes). data are the blocks; it may be raw itself if
 * the codec is none, and NULL if it is empty. Errors as above.
 */
int kvc_payload_decode(const struct kvc_frame *f, const struct kvc_keys *keys, const uint8_t *data,
		       const uint8_t *table, uint8_t *raw);

#endif
