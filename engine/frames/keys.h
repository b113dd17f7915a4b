/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Keys and the sealing of blocks: AES-256-GCM (NIST SP 800-38D) with keys derived by HKDF-SHA256
 * (RFC 5869). Only keys.c uses OpenSSL's crypto.
 *
 * The key file is private (base/secret.h; usually mode 0600) and has a line for each key: "ID HEX
 * [MODEL]". ID is 1 to 2^32-1, HEX has 64 digits (32 bytes). A key without MODEL is a master key,
 * from which the key of each model is derived. A key with MODEL is used for that model only, so
 * that removing it makes the frames of that model unreadable and no others. New frames use the key
 * with the highest id that fits. kvcachefs-security(7) describes key management.
 *
 *   model key = HKDF(key, salt "kvcachefs model 1", info model)
 *   frame key = HKDF(model key, salt nonce (12 random bytes), info "kvcachefs frame 1" ino gen)
 *   block i of a frame: nonce = i as 96 bits, big endian
 *   header key = HKDF(model key, salt "", info "kvcachefs header 1")
 * A frame key is used for one frame only, so a block number as nonce is never repeated.
 */
#ifndef KVC_KEYS_H
#define KVC_KEYS_H

#include "util.h"

#define KVC_MODEL_NAME 255

struct kvc_keys; /* memory is locked and excluded from core dumps */

/*
 * Reads a key file. Returns 0; or -EACCES (others may read the file), -EINVAL, -ENOENT or another
 * errno, with one line in error[512].
 */
int kvc_keys_open(struct kvc_keys **out, const char *path, char *error);
/*
 * Reads the file again while other threads use the keys: call kvc_keys_read, kvc_keys_each_read and
 * finally kvc_keys_read_end, from one thread. Keys are only ever added, so readers need no lock and
 * the keys that they use remain. An ID with a changed key is refused.
 *
 * kvc_keys_read returns 0 and holds a lock until kvc_keys_read_end; or an error like kvc_keys_open,
 * and nothing is changed.
 */
int kvc_keys_read(struct kvc_keys *k, const char *path, char *error);
/*
 * Calls fn for each added key, or for each known key that is missing in the file. A non-zero result
 * ends the walk and is returned.
 */
int kvc_keys_each_read(const struct kvc_keys *k, bool added, int (*fn)(void *arg, uint32_t id),
		       void *arg);
/* take: adds the new keys. retire: keys that are missing in the file no longer seal new frames. */
void kvc_keys_read_end(struct kvc_keys *k, bool take, bool retire);
/*
 * Is a thread between kvc_keys_read and kvc_keys_read_end? A rekey stays there while it walks all
 * placements. Does not block.
 */
bool kvc_keys_reading(struct kvc_keys *k);
/* Wipes and frees the keys; NULL is allowed. */
void kvc_keys_close(struct kvc_keys *k);
/* Returns the id of the key for new frames of a model, or 0 if the model has no key. */
uint32_t kvc_keys_for(const struct kvc_keys *k, const char *model);
bool kvc_keys_has(const struct kvc_keys *k, uint32_t id);
/* Calls fn for each id. A non-zero result ends the walk and is returned. */
int kvc_keys_each(const struct kvc_keys *k, int (*fn)(void *arg, uint32_t id), void *arg);
/*
 * Writes a value that is equal for equal keys and reveals nothing else of the key. Returns 0, or
 * -ENOENT if the key does not exist. The thread that reads the file can also ask for added keys.
 */
int kvc_keys_proof(const struct kvc_keys *k, uint32_t id, char text[33]);
/*
 * Derives the key with which the headers of a model's frames are proven in shared tiers (frame.h).
 * Errors as kvc_keys_frame_key.
 */
int kvc_keys_header_key(const struct kvc_keys *k, uint32_t id, const char *model, uint8_t key[32]);
/*
 * Derives the key of a frame. Returns 0, -ENOKEY (unknown id, or a key of another model) or -EIO.
 * The caller wipes the key with kvc_keys_wipe.
 */
int kvc_keys_frame_key(const struct kvc_keys *k, uint32_t id, const char *model,
		       const uint8_t nonce[12], uint64_t ino, uint64_t gen, uint8_t key[32]);

/*
 * Seals or opens a block; in == out is allowed. Returns 0, -ENOMEM or -EIO. kvc_keys_unseal also
 * returns -EBADMSG if the block or its associated data differ from what was sealed; it clears `out`
 * after any error. After an error of kvc_keys_seal `out` is undefined.
 */
int kvc_keys_seal(const uint8_t key[32], uint64_t block, const void *aad, size_t aad_len,
		  const uint8_t *in, size_t len, uint8_t *out, uint8_t tag[16]);
int kvc_keys_unseal(const uint8_t key[32], uint64_t block, const void *aad, size_t aad_len,
		    const uint8_t *in, size_t len, uint8_t *out, const uint8_t tag[16]);
/* HKDF-SHA256: derives `len` bytes into out. Returns 0 or -EIO. */
int kvc_keys_hkdf(const void *key, size_t key_len, const void *salt, size_t salt_len,
		  const void *info, size_t info_len, uint8_t *out, size_t len);
/* HMAC-SHA256 of a followed by b, truncated to 16 bytes. Returns 0, -ENOMEM or -EIO. */
int kvc_keys_mac(const uint8_t key[32], const void *a, size_t a_len, const void *b, size_t b_len,
		 uint8_t out[16]);
int kvc_keys_random(void *out, size_t len);
void kvc_keys_wipe(void *p, size_t len);

#endif
