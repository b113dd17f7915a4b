/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Objects of this node as frames for other nodes (serve.c). The FUSE side's server of peers calls
 * these functions; it has checked that the peer knows the secret.
 */
#ifndef KVC_SERVE_H
#define KVC_SERVE_H

#include "caller.h"
#include "frame.h"

struct kvc;
struct kvc_node;
struct kvc_server; /* remembers the checksums of frames that were made */
struct kvc_served; /* one frame that is being sent */

/* Returns NULL if out of memory. Free it with kvc_server_free when no frame is open. */
struct kvc_server *kvc_server_new(struct kvc *k);
void kvc_server_free(struct kvc_server *v); /* NULL is allowed */

/*
 * Finds the object or the folder at a path, which is relative to the mount. No other node and no
 * remote is asked, and an object that only a remote has is not found. head: only the frame's header
 * is wanted. Returns 0 and *out, which the caller frees with kvc_serve_close; -ENOENT; -ENOMEM; or
 * -EIO. Does not wait.
 */
int kvc_serve_find(struct kvc_server *v, const char *path, bool head, struct kvc_served **out);
/*
 * Finds the inode at a path as kvc_serve_find does, also a file that is not served. "." is the root
 * of the mount. Returns 0, -ENOENT, or another error.
 */
int kvc_serve_path(struct kvc *k, const char *path, uint64_t *ino);
/*
 * May the file be served, without asking any tier but the disk? Returns 0; -ENOENT; or -EIO if only
 * the disk has the file, and does not answer.
 */
int kvc_serve_may_locked(struct kvc *k, const struct kvc_node *n);
/* May this node have the object or the folder at a path? */
bool kvc_serve_may_have_both(struct kvc *k, const char *path);
/*
 * Tells which of n paths this node may have, without loading anything: sets a bit for each in
 * bits[(n + 7) / 8], as POST /have answers (peer_sign.h). The paths follow each other, each with a
 * zero byte at its end. Does not wait.
 */
void kvc_serve_have(struct kvc_server *v, const char *paths, size_t n, uint8_t *bits);
/*
 * Makes the frame ready to be read. An object outside the pool is loaded from the disk tier first,
 * and it stays in the pool until kvc_serve_close. Returns 0; KVC_WAIT, as caller.h says; -ENOENT if
 * the object is not published any more, or its model has no key; or another error. Reads the whole
 * object if its checksum is not known yet.
 */
int kvc_serve_open(struct kvc_served *s, struct kvc_wait *w);
/* Returns the length of the frame in bytes, a multiple of a page. After kvc_serve_open. */
uint64_t kvc_serve_length(const struct kvc_served *s);
/* Returns the frame's header. After kvc_serve_open. */
const uint8_t *kvc_serve_header(const struct kvc_served *s);
/*
 * Copies `len` bytes from byte `off` of the frame; the range must be inside the frame. Returns 0;
 * -ESTALE if the object has changed since kvc_serve_open, so that no byte may be sent any more; or
 * another error. Sealed frames are read fastest in order. One thread at a time.
 */
int kvc_serve_read(struct kvc_served *s, uint64_t off, void *buf, size_t len);
/* Ends the use. Must not be called between a KVC_WAIT and its wake. */
void kvc_serve_close(struct kvc_served *s);

#endif
