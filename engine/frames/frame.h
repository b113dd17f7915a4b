/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A frame: an object as a tier stores it. A 4-KiB header, then the payload. The header is two parts
 * with a checksum each: 512 bytes of identity that never change, and the name part (path and
 * attributes), which a rename brings up to date in place, and whose loss costs only the name in a
 * rebuild. Documented in kvcachefs-format(5).
 *
 * The checksums say that a header is whole, not who made it: who stores a header as his file's
 * bytes has made one too. So each part has a proof beside its checksum, by a key that no user can
 * read: in the store's own tier the store's secret, in shared tiers one from the key file.
 *
 * The payload of a sparse object is a range table (one page or more, see frame.c) and the bytes of
 * those ranges; of any other object its bytes. Coding comes after that (payload.h).
 */
#ifndef KVC_FRAME_H
#define KVC_FRAME_H

#include "codec.h"
#include "keys.h"
#include "util.h"

#define KVC_FRAME_HEADER 4096
#define KVC_FRAME_IDENTITY 512
#define KVC_FRAME_VERSION 2
#define KVC_FRAME_PATH_MAX 3072

enum {
	KVC_FRAME_SPARSE = 1, /* the payload is ranges, before coding */
	KVC_FRAME_CODED = 2,  /* the payload is coded blocks (payload.h) */
	KVC_FRAME_SEALED = 4, /* and they are encrypted */
	/* of a shared tier: known by its path, which is then part of what is checked */
	KVC_FRAME_SHARED = 8,
	KVC_FRAME_FOLDER = 16, /* a folder, so that other nodes find it; without payload */
};

struct kvc_frame {
	/* identity */
	uint8_t store[16];
	uint64_t ino, gen;
	uint64_t size;       /* of the file */
	uint64_t raw_len;    /* of the payload before coding */
	uint64_t stored_len; /* of the payload as it follows the header */
	uint32_t flags, codec;
	/* of the payload before and after coding; raw_sum is zero in sealed frames */
	struct kvc_sum raw_sum, stored_sum;
	uint32_t key_id;
	uint8_t nonce[12];                  /* of the frame's key (keys.h) */
	char key_model[KVC_MODEL_NAME + 1]; /* the model that it was derived for */
	/* name part */
	uint32_t mode, uid, gid;
	uint64_t mtime_ns, btime_ns;
	char path[KVC_FRAME_PATH_MAX + 1]; /* "" when it does not fit */
	/* of the identity, and of the name part with it; zero: none */
	struct kvc_sum proof, name_proof;
};

/* An empty one; the caller frees it. NULL: out of memory. */
struct kvc_frame *kvc_frame_new(void);
/* Encodes into a header page. */
void kvc_frame_encode(const struct kvc_frame *f, uint8_t page[KVC_FRAME_HEADER]);
/*
 * Decodes a header page from outside and compares its checksums. 0; -EBADMSG: no frame, or a
 * damaged one; -EPROTO: another version. A damaged name part gives path "" and mode 0 and is no
 * error. Proofs are only taken over.
 */
int kvc_frame_decode(const uint8_t page[KVC_FRAME_HEADER], struct kvc_frame *f);

/* Gives f its proofs, once all else in it is final. 0, -ENOMEM or -EIO. */
int kvc_frame_prove(struct kvc_frame *f, const uint8_t key[32]);
/* What of a decoded frame was made by who has the key: 0, or -ENOMEM or -EIO: it cannot be told. */
enum kvc_proven { KVC_PROVEN_NOTHING, KVC_PROVEN_IDENTITY, KVC_PROVEN_ALL };
int kvc_frame_proven(const struct kvc_frame *f, const uint8_t key[32], enum kvc_proven *out);
/* Takes the name part away, as if it were damaged: path "", mode 0, nobody's. */
void kvc_frame_unname(struct kvc_frame *f);

#define KVC_RANGES_MAX (1u << 20) /* ranges of a frame at most */
struct kvc_range {
	uint64_t off, len;
};
/*
 * The size in bytes of a table of n ranges (a multiple of a page), or 0 where n is beyond what a
 * frame may hold.
 */
size_t kvc_frame_ranges_size(uint64_t n);
void kvc_frame_ranges_encode(const struct kvc_range *r, size_t n, uint8_t *out);
/*
 * Reads a table of at most `len` bytes for a file of `size` bytes: ranges ascend, do not touch each
 * other's bytes and end within the size. 0 with *r (the caller frees) and *n, -EBADMSG, or -ENOMEM.
 */
int kvc_frame_ranges_decode(const uint8_t *in, size_t len, uint64_t size, struct kvc_range **r,
			    size_t *n);

#endif
