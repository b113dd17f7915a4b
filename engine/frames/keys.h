/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Keys and the sealing of blocks: AES-256-GCM (NIST SP 800-38D), keys derived by HKDF-SHA256 (RFC
 * 5869). The only room that knows OpenSSL's crypto.
 *
 * The key file has mode 0600 and a line for each key: "ID HEX [MODEL]", ID from 1 to 2^32-1, HEX 64
 * digits (32 bytes). Without MODEL the key is a master key, from which each model's own is derived;
 * with it, it is used for that model alone, so that its removal makes that model's frames
 * unreadable and no others. New frames use the highest id that fits. kvcachefs-security(7) tells
 * how to live with it.
 *
 *   model key = HKDF(key, salt "kvcachefs model 1", info model)
 *   frame key = HKDF(model key, salt nonce (12 random bytes), info "kvcachefs frame 1" ino gen)
 *   block i of a frame: nonce = i as 96 bits, big endian
 *   header key = HKDF(model key, salt "", info "kvcachefs header 1")
 * A frame key serves one frame only, so counting its blocks never repeats a nonce.
 */
#ifndef KVC_KEYS_H
#define KVC_KEYS_H

#include "util.h"

#define KVC_MODEL_NAME 255

struct kvc_keys; /* in memory that is locked and left out of core dumps */

/*
 * Reads a key file. 0; or -EACCES (others may read it), -EINVAL, -ENOENT... with one line for
 * people in error[512].
 */
int kvc_keys_open(struct kvc_keys **out, const char *path, char *error);
/*
 * Reads the file again while others use the keys: kvc_keys_read, kvc_keys_each_read and at last
 * kvc_keys_read_end, from one thread. Keys are only ever added, so readers need no lock and keep
 * what they have. An ID that has another key than before is refused.
 *
 * kvc_keys_read: 0, then a lock is held until kvc_keys_read_end; or an error as of kvc_keys_open,
 * and nothing has changed.
 */
int kvc_keys_read(struct kvc_keys *k, const char *path, char *error);
/*
 * Calls fn for each added key, or for each known one that the file lacks. A non-zero answer ends it
 * and is returned.
 */
int kvc_keys_each_read(const struct kvc_keys *k, bool added, int (*fn)(void *arg, uint32_t id),
		       void *arg);
/* take: adds the keys; retire: those that the file lacks seal no new frames. */
void kvc_keys_read_end(struct kvc_keys *k, bool take, bool retire);
/*
 * Is a thread between kvc_keys_read and kvc_keys_read_end? A rekey is there for as long as a walk
 * of all placements takes. Does not block.
 */
bool kvc_keys_reading(struct kvc_keys *k);
/* Wipes and frees; NULL is allowed. */
void kvc_keys_close(struct kvc_keys *k);
/* The key for new frames of a model: an id above 0, or 0 where there is none. */
uint32_t kvc_keys_for(const struct kvc_keys *k, const char *model);
bool kvc_keys_has(const struct kvc_keys *k, uint32_t id);
/* Calls fn for each id; a non-zero answer ends it and is returned. */
int kvc_keys_each(const struct kvc_keys *k, int (*fn)(void *arg, uint32_t id), void *arg);
/*
 * A value that tells whether a key is the same as another time, and nothing else of it. -ENOENT: no
 * such key. For the thread that reads the file: added keys have one too.
 */
int kvc_keys_proof(const struct kvc_keys *k, uint32_t id, char text[33]);
/*
 * What proves headers in shared tiers (frame.h): of a model, by a key of the file. As
 * kvc_keys_frame_key.
 */
int kvc_keys_header_key(const struct kvc_keys *k, uint32_t id, const char *model, uint8_t key[32]);
/* The key of one frame. 0, -ENOKEY (no such id), -EIO. The caller wipes it with kvc_keys_wipe. */
int kvc_keys_frame_key(const struct kvc_keys *k, uint32_t id, const char *model,
		       const uint8_t nonce[12], uint64_t ino, uint64_t gen, uint8_t key[32]);

/*
 * Seals or opens a block, in place where in == out: 0, -ENOMEM or -EIO (it could not be done).
 * open: -EBADMSG where anything is not as it was sealed; out is zero after any error.
 */
int kvc_keys_seal(const uint8_t key[32], uint64_t block, const void *aad, size_t aad_len,
		  const uint8_t *in, size_t len, uint8_t *out, uint8_t tag[16]);
int kvc_keys_unseal(const uint8_t key[32], uint64_t block, const void *aad, size_t aad_len,
		    const uint8_t *in, size_t len, uint8_t *out, const uint8_t tag[16]);
/* HKDF-SHA256: `len` bytes into out. 0 or -EIO. */
int kvc_keys_hkdf(const void *key, size_t key_len, const void *salt, size_t salt_len,
		  const void *info, size_t info_len, uint8_t *out, size_t len);
/* HMAC-SHA256 of a and then b, cut to 16 bytes. 0, -ENOMEM or -EIO. */
int kvc_keys_mac(const uint8_t key[32], const void *a, size_t a_len, const void *b, size_t b_len,
		 uint8_t out[16]);
int kvc_keys_random(void *out, size_t len);
void kvc_keys_wipe(void *p, size_t len);

#endif
