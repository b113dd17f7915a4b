/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Codecs compress objects on their way to a tier. An object is coded in blocks of KVC_BLOCK bytes,
 * each on its own, so memory is bounded and a decoder writes directly into the segment's pages.
 * Each block has a kind that says how it was coded, because a codec decides for each block: a block
 * that does not become smaller is stored raw.
 *
 * Only codec.c uses zstd.
 */
#ifndef KVC_CODEC_H
#define KVC_CODEC_H

#include "kvq.h"
#include "util.h"

#define KVC_BLOCK (1u << 20)
/* maximum size of a coded block; coding stops there */
#define KVC_BLOCK_ROOM (KVC_BLOCK + 4096u)

/* The codec of an object. The numbers are stored in frames and in the catalog. */
enum kvc_codec {
	KVC_CODEC_NONE,
	KVC_CODEC_ZSTD,
	/* "bf16+zstd": separates the bytes of 2-byte floats; also good for fp16 and fp8 */
	KVC_CODEC_BF16,
	KVC_CODECS
};
/*
 * In frames whose blocks may be coded with loss: this number plus enum kvc_kvq_code. The other
 * blocks are those of KVC_CODEC_BF16.
 */
#define KVC_CODEC_KVQ 16u
static inline bool kvc_codec_lossy(uint32_t codec)
{
	return codec >= KVC_CODEC_KVQ && codec < KVC_CODEC_KVQ + KVC_KVQ_CODES;
}
/*
 * The values of compress=, in the order of kvc_codec_names (ended by NULL): the lossless codecs and
 * then those with loss.
 */
#define KVC_CODEC_CHOICES (KVC_CODECS + KVC_KVQ_CODES)
extern const char *const kvc_codec_names[];
static inline bool kvc_codec_choice_lossy(uint64_t choice)
{
	return choice >= KVC_CODECS && choice < KVC_CODEC_CHOICES;
}
/* Returns the name of a frame's codec, or "unknown". */
const char *kvc_codec_name(uint32_t codec);

/* The coding of a block. */
enum kvc_kind { KVC_KIND_RAW, KVC_KIND_ZSTD, KVC_KIND_PLANES, KVC_KIND_KVQ, KVC_KINDS };

/*
 * Contexts and scratch memory for one coding at a time. They are reused, because creating them
 * costs more than coding a block. They count towards the budget (budget.h) and are freed when
 * memory is short. kvc_codec_work_get waits for memory, kvc_codec_work_try does not; both return
 * NULL if there is none. `wipe` clears the scratch memory after it held secrets.
 */
struct kvc_codec_work;
struct kvc_codec_work *kvc_codec_work_get(void);
struct kvc_codec_work *kvc_codec_work_try(void);
void kvc_codec_work_put(struct kvc_codec_work *w, bool wipe);
/* Return the two buffers of *w, of KVC_BLOCK and KVC_BLOCK_ROOM bytes. */
uint8_t *kvc_codec_work_in(struct kvc_codec_work *w);
uint8_t *kvc_codec_work_out(struct kvc_codec_work *w);

/*
 * Codes `len` bytes (1 to KVC_BLOCK) into out, which has KVC_BLOCK_ROOM bytes. Returns the coded
 * length and sets *kind, or returns 0 if the block does not become smaller or coding fails: the
 * block is then stored raw. `level` is the level of zstd, for KVC_CODEC_ZSTD.
 */
size_t kvc_codec_encode(struct kvc_codec_work *w, enum kvc_codec codec, int level,
			const uint8_t *in, size_t len, uint8_t *out, uint32_t *kind);
/* How a file is coded with loss. */
struct kvc_codec_kv {
	enum kvc_kvq_code code;
	struct kvc_kv_layout layout;
	uint64_t vectors; /* of the file (kvc_kv_layout_fit) */
};
/*
 * Codes a block at offset `off` of a file with loss (kvq.h), if the file has a layout and
 * kvc_kvq_judge (the guard) accepts the loss; otherwise without loss, as KVC_CODEC_BF16 does.
 * Returns the same as kvc_codec_encode. If *kind is KVC_KIND_KVQ, `back` (KVC_BLOCK bytes) has the
 * bytes that a decoder will return, and *loss the loss. Otherwise `back` is undefined, and *loss is
 * zero.
 */
size_t kvc_codec_encode_kv(struct kvc_codec_work *w, const struct kvc_codec_kv *kv, uint64_t off,
			   const uint8_t *in, size_t len, uint8_t *out, uint32_t *kind,
			   uint8_t *back, struct kvc_kvq_loss *loss);
/*
 * Decodes a block, which may be hostile: exactly `len` bytes into out. Returns 0, or -EBADMSG or
 * -ENOMEM with undefined bytes in out.
 */
int kvc_codec_decode(struct kvc_codec_work *w, uint32_t kind, const uint8_t *in, size_t stored,
		     uint8_t *out, size_t len);

#endif
