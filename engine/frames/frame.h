/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A frame: an object as a tier stores it. It is a header of 4 KiB and the payload. The header has
 * two parts, each with a checksum. The identity, 512 bytes, never changes. The name part (path and
 * attributes) is updated in place by a rename; if it is lost, a rebuild loses only the name.
 * kvcachefs-format(5) documents the format.
 *
 * The checksums show that a header is intact, but not who made it: a user can store a valid header
 * as the bytes of a file. Therefore each part also has a proof, made with a key that no user can
 * read. In the store's own tier the key is the store's secret; in shared tiers it is derived from
 * the key file.
 *
 * The payload of a sparse object is a range table (one or more pages, see frame.c) and the bytes of
 * its ranges. The payload of any other object is its bytes. Coding is applied to this payload
 * (payload.h).
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
	KVC_FRAME_SPARSE = 1, /* before coding, the payload is a range table and ranges */
	KVC_FRAME_CODED = 2,  /* the payload is coded blocks (payload.h) */
	KVC_FRAME_SEALED = 4, /* the blocks are encrypted */
	/* in a shared tier: the frame is identified by its path, which is authenticated, too */
	KVC_FRAME_SHARED = 8,
	KVC_FRAME_FOLDER = 16, /* a folder, for lookups by other nodes; no payload */
	/*
	 * The bytes are not those that were written, because this frame or an earlier one of the
	 * object was coded with loss.
	 */
	KVC_FRAME_DECODED = 32,
};

struct kvc_frame {
	/* identity */
	uint8_t store[16];
	uint64_t ino, gen;
	uint64_t size;       /* size of the file */
	uint64_t raw_len;    /* length of the payload before coding */
	uint64_t stored_len; /* length of the stored payload, which follows the header */
	uint32_t flags, codec;
	/* with loss: the relative error in millionths, of all and of the worst block */
	uint32_t error_ppm, worst_ppm;
	/* checksums of the payload before and after coding; raw_sum is zero in sealed frames */
	struct kvc_sum raw_sum, stored_sum;
	uint32_t key_id;
	uint8_t nonce[12];                  /* nonce of the frame's key (keys.h) */
	char key_model[KVC_MODEL_NAME + 1]; /* the model for which the key was derived */
	/* name part */
	uint32_t mode, uid, gid;
	uint64_t mtime_ns, btime_ns;
	char path[KVC_FRAME_PATH_MAX + 1]; /* "" if the path is too long */
	/* proofs of the identity, and of the name part together with the identity; zero: none */
	struct kvc_sum proof, name_proof;
};

/* Returns an empty frame, which the caller frees, or NULL if out of memory. */
struct kvc_frame *kvc_frame_new(void);
/* Encodes the frame into a header page. */
void kvc_frame_encode(const struct kvc_frame *f, uint8_t page[KVC_FRAME_HEADER]);
/*
 * Decodes a header page from outside and verifies its checksums. Returns 0; -EBADMSG if it is not a
 * header or is damaged; -EPROTO if it has another version. A damaged name part is not an error and
 * results in path "" and mode 0. The proofs are copied, not verified.
 */
int kvc_frame_decode(const uint8_t page[KVC_FRAME_HEADER], struct kvc_frame *f);

/* Sets the proofs of f. Everything else in f must be final. Returns 0, -ENOMEM or -EIO. */
int kvc_frame_prove(struct kvc_frame *f, const uint8_t key[32]);
/*
 * Sets *out to the part of a decoded frame that was made with the key. Returns 0, or -ENOMEM or
 * -EIO if the proofs could not be computed.
 */
enum kvc_proven { KVC_PROVEN_NOTHING, KVC_PROVEN_IDENTITY, KVC_PROVEN_ALL };
int kvc_frame_proven(const struct kvc_frame *f, const uint8_t key[32], enum kvc_proven *out);
/* Removes the name part as if it were damaged: path "", mode 0, owner 0. */
void kvc_frame_unname(struct kvc_frame *f);

#define KVC_RANGES_MAX (1u << 20) /* maximum number of ranges in a frame */
struct kvc_range {
	uint64_t off, len;
};
/*
 * Returns the size of a table of n ranges in bytes, a multiple of a page, or 0 if n is above
 * KVC_RANGES_MAX.
 */
size_t kvc_frame_ranges_size(uint64_t n);
void kvc_frame_ranges_encode(const struct kvc_range *r, size_t n, uint8_t *out);
/*
 * Decodes and checks a table of at most `len` bytes for a file of `size` bytes: ranges ascend, do
 * not overlap and end within the size. Returns 0 with *r, which the caller frees, and *n; -EBADMSG;
 * or -ENOMEM.
 */
int kvc_frame_ranges_decode(const uint8_t *in, size_t len, uint64_t size, struct kvc_range **r,
			    size_t *n);

#endif
