/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A coded payload (KVC_FRAME_CODED): the raw payload is divided into blocks of KVC_BLOCK bytes.
 * Each block is coded separately (codec.h) and, if there are keys, sealed separately (keys.h):
 *
 *   blocks     in order, each `stored` bytes long
 *   padding    zeros up to a page
 *   table      for each block: u32 stored, u32 kind, 16 bytes tag (zero if not sealed); padded with
 *              zeros to a page
 *
 * There is at least one block, so that an empty object is sealed, too. The associated data of a
 * block's tag are the identity of the frame (store, inode, generation, lengths, flags, codec, key),
 * in a shared tier its path and attributes, the number of blocks, and the number, kind and lengths
 * of the block. Therefore a block that was moved, exchanged or truncated cannot be opened, and
 * neither can a frame in the place of another one.
 */
#ifndef KVC_PAYLOAD_H
#define KVC_PAYLOAD_H

#include "budget.h"
#include "frame.h"

/*
 * Larger payloads are not compressed. Smaller payloads are coded once and held in memory, if the
 * budget (budget.h) has enough memory without waiting. Otherwise they are coded twice, the first
 * time only to learn the length.
 */
#define KVC_PAYLOAD_COMPRESS_MAX (256ull << 20)

struct kvc_recipe {
	enum kvc_codec codec;
	int level;
	const struct kvc_keys *keys; /* NULL: the payload is not sealed */
	uint32_t key_id;             /* 0: the payload is not sealed */
	/*
	 * NULL: a random nonce. Otherwise the nonce, 12 bytes, so that the same frame is made each
	 * time. A frame with another payload, path or attributes must not have it with this key.
	 */
	const uint8_t *nonce;
	/*
	 * NULL: without loss. Otherwise f->codec becomes KVC_CODEC_KVQ plus the code if any block
	 * is coded with loss. The payload is that of a dense object. `codec` is not used.
	 */
	const struct kvc_codec_kv *kv;
};

/* Returns the length of the block table of a payload, in bytes. */
uint64_t kvc_payload_table(uint64_t raw_len);

struct kvc_encoder;
/*
 * Starts to code f->raw_len bytes, which `read` returns in order (as in struct kvc_put), and again
 * from offset 0 if they are coded twice. f has its identity, and in a shared tier its name part;
 * the encoder sets flags, codec, key, nonce and stored_len in f. With a codec this call codes the
 * whole payload, because the length must be known. If coding saves nothing, f->codec becomes none,
 * and without keys the frame becomes a plain one. Without a codec and without keys f is unchanged
 * (not CODED) and *out is NULL: the payload is stored as it is. The memory is from the budget for
 * copies; the call waits for it. Returns 0, -ENOMEM, -EIO, or the error of `read`.
 */
int kvc_payload_encoder_new(struct kvc_encoder **out, struct kvc_frame *f,
			    const struct kvc_recipe *r,
			    int (*read)(void *arg, void *buf, size_t len, uint64_t off), void *arg);
/*
 * The same for a payload that another frame, `from`, already stores. Its blocks are not decoded:
 * sealed blocks are opened with `keys`, and all are sealed for f if f is sealed. `from` must be
 * coded and dense, with the length of f; if f is not sealed, it must also have a codec. `payload`
 * has the whole stored payload of `from`, and the caller has verified its checksum. On success the
 * bytes belong to the encoder; after an error they are undefined.
 * Returns 0, -EBADMSG, -ENOKEY, -ENOMEM or -EIO.
 */
int kvc_payload_encoder_copy(struct kvc_encoder **out, struct kvc_frame *f,
			     const struct kvc_recipe *r, const struct kvc_frame *from,
			     const struct kvc_keys *keys, struct kvc_buffer *payload);
/*
 * Returns the next `len` bytes of the stored payload, in order. Returns 0, the error of `read`,
 * -EIO, or -ECANCELED if the payload has changed since its length was determined.
 */
int kvc_payload_encoder_read(struct kvc_encoder *e, void *buf, size_t len);
/*
 * The loss of a payload. The sum is that of the bytes which a decoder will return: the raw_sum of
 * the frame. Errors are relative root mean squares, of all blocks with loss and of the worst one.
 */
struct kvc_payload_loss {
	struct kvc_sum sum;
	uint64_t bytes;   /* in blocks that are coded with loss */
	uint64_t refused; /* blocks that are not, although the recipe asks for it */
	double error, worst;
};
/*
 * Returns whether any block is coded with loss, and sets *loss, whose sum is valid after the last
 * byte of the payload was read. Without loss, only loss->refused is meaningful.
 */
bool kvc_payload_encoder_loss(const struct kvc_encoder *e, struct kvc_payload_loss *loss);
/* Wipes and frees the encoder. */
void kvc_payload_encoder_free(struct kvc_encoder *e);

/*
 * Decodes a payload block by block. f and `table`, both untrusted, must stay valid until the
 * decoder is freed. Returns 0; -EBADMSG if f does not describe a coded payload that can be decoded;
 * -ENOKEY if the payload is sealed with an unknown key; -ENOMEM; or -EIO.
 */
struct kvc_decoder;
int kvc_payload_decoder_new(struct kvc_decoder **out, const struct kvc_frame *f,
			    const struct kvc_keys *keys, const uint8_t *table);
/*
 * Returns 1 with the stored and the decoded length of the next block, both at most KVC_BLOCK; 0
 * after the last block; or -EBADMSG. The blocks have the numbers 0, 1 and so on. The caller lets
 * one thread at a time call it, and likewise for kvc_payload_decoder_sum.
 */
int kvc_payload_decoder_next(struct kvc_decoder *d, size_t *stored, size_t *raw);
/*
 * Decodes block `i`, which kvc_payload_decoder_next has returned, from `in` to `to`, which may be
 * equal for a payload without a codec. Several threads may decode different blocks at the same
 * time; with a codec, a thread waits for another one if there is no memory for both. Returns 0,
 * -EBADMSG or -EIO; after an error `to` is undefined.
 */
int kvc_payload_decoder_block(struct kvc_decoder *d, uint64_t i, const uint8_t *in, uint8_t *to);
/* Call it with the decoded bytes of each block, in order. */
void kvc_payload_decoder_sum(struct kvc_decoder *d, uint64_t i, const uint8_t *raw);
/*
 * Call it after the last block. Returns 0, or -EBADMSG if the lengths or, in a payload that is not
 * sealed, the checksum of the bytes differ from f. Verifies nothing else.
 */
int kvc_payload_decoder_end(struct kvc_decoder *d);
/* Wipes and frees the decoder, which no thread uses; NULL is allowed. */
void kvc_payload_decoder_free(struct kvc_decoder *d);
/*
 * Decodes a whole payload into raw (f->raw_len bytes). data has the blocks. It may be equal to raw
 * if the codec is none, and NULL if it is empty. Errors as above.
 */
int kvc_payload_decode(const struct kvc_frame *f, const struct kvc_keys *keys, const uint8_t *data,
		       const uint8_t *table, uint8_t *raw);

#endif
