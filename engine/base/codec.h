/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Codecs: what makes an object smaller on its way to a tier. An object is coded in blocks of
 * KVC_BLOCK bytes, each on its own, so memory is bounded and a decoder writes straight into the
 * segment's pages. Each block says how it was coded (its kind), because a codec decides block by
 * block: what does not pay stays as it is.
 *
 * The only room that knows zstd.
 */
#ifndef KVC_CODEC_H
#define KVC_CODEC_H

#include "util.h"

#define KVC_BLOCK (1u << 20)
#define KVC_BLOCK_ROOM (KVC_BLOCK + 4096u) /* what coding may write before it is given up */

/* Of an object; the numbers are written into frames and the catalog. */
enum kvc_codec {
	KVC_CODEC_NONE,
	KVC_CODEC_ZSTD,
	KVC_CODEC_BF16, /* "bf16+zstd": the bytes of 2-byte floats apart, also good for fp16 and fp8
			 */
	KVC_CODECS
};
extern const char *const kvc_codec_names[]; /* in the order of the enum, ended by NULL */

/* Of a block. */
enum kvc_kind { KVC_KIND_RAW, KVC_KIND_ZSTD, KVC_KIND_PLANES, KVC_KINDS };

/*
 * The contexts and scratch memory of one coding at a time. They are kept for the next: making them
 * anew would cost more than coding a block. They count towards the budget (budget.h), are freed
 * when memory is short, and taking one waits for memory. NULL: out of memory. After secrets passed
 * through it, `wipe` clears the scratch.
 */
struct kvc_work;
struct kvc_work *kvc_codec_work_take(void);
void kvc_codec_work_give(struct kvc_work *w, bool wipe);
/* Two buffers of it for the caller, of KVC_BLOCK and KVC_BLOCK_ROOM bytes. */
uint8_t *kvc_codec_work_in(struct kvc_work *w);
uint8_t *kvc_codec_work_out(struct kvc_work *w);

/*
 * Codes `len` bytes (1 to KVC_BLOCK) into out, which has KVC_BLOCK_ROOM bytes. Returns the length
 * of what it wrote and its kind, or 0 where coding does not pay or fails: the block is then stored
 * raw. `level` is zstd's, for KVC_CODEC_ZSTD.
 */
size_t kvc_codec_encode(struct kvc_work *w, enum kvc_codec codec, int level, const uint8_t *in,
			size_t len, uint8_t *out, uint32_t *kind);
/*
 * The way back, from bytes that may be hostile: exactly `len` bytes into out. 0 or -EBADMSG; out
 * may hold anything then.
 */
int kvc_codec_decode(struct kvc_work *w, uint32_t kind, const uint8_t *in, size_t stored,
		     uint8_t *out, size_t len);

#endif
