/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The owner of a pool. Every copy of a store (cp -a, a snapshot, a restore) has the same uuid, so
 * the uuid does not tell copies apart. The superblock's file does: its device, its inode number and
 * the handle that the filesystem gives it. They stay the same after a rename, and are different in
 * a copy. A pool has them in a file of its own, KVC_OWNER_MARK, and is used by that store alone.
 * The pool's daemon holds a lock on the file as long as it lives.
 */
#ifndef KVC_OWNER_H
#define KVC_OWNER_H

#include "store.h"

#define KVC_OWNER_MARK ".store"

struct kvc_owner {
	uint64_t dev, ino;
	char handle[300]; /* in hex; "-" if the filesystem has no handles */
	char uuid[37];
	char dir[1024]; /* path of the store at that time, for messages */
};

/*
 * Sets *o for an opened store; with fd -1 it reads the superblock in s->dir. Returns 0 or a
 * negative errno.
 */
int kvc_owner_of(const struct kvc_store *s, int fd, struct kvc_owner *o);
/* True if both are the same store. Its path may differ. */
bool kvc_owner_same(const struct kvc_owner *a, const struct kvc_owner *b);
/*
 * Reads the mark of a pool. Returns 0, -ENOENT (no mark), -EBADMSG (not a valid mark), or another
 * negative errno.
 */
int kvc_owner_read(const char *pool, struct kvc_owner *o);
/*
 * Writes the mark and locks it. Returns a descriptor that holds the lock until it is closed, or a
 * negative errno.
 */
int kvc_owner_mark(const char *pool, const struct kvc_owner *o);
/* True if a running daemon holds the mark's lock, or if that cannot be determined. */
bool kvc_owner_lives(const char *pool);

#endif
