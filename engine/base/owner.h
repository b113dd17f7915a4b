/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Whose a pool is. A store's uuid goes with every copy of it (cp -a, a snapshot, a restore), so it
 * does not tell two of them apart; the superblock's file does: its device, its inode and the handle
 * that the filesystem has for it, which no copy keeps and every rename does. A pool has them in a
 * file of its own, KVC_OWNER_MARK, and is used by that store alone. Its daemon holds a lock on the
 * file for as long as it lives.
 */
#ifndef KVC_OWNER_H
#define KVC_OWNER_H

#include "store.h"

#define KVC_OWNER_MARK ".store"

struct kvc_owner {
	uint64_t dev, ino;
	char handle[300]; /* in hex; "-" where the filesystem has none */
	char uuid[37];
	char dir[1024]; /* where the store was, for people */
};

/* Of an opened store; -1 as fd takes the superblock in s->dir. 0 or -errno. */
int kvc_owner_of(const struct kvc_store *s, int fd, struct kvc_owner *o);
/* Are both one store? Where it lies does not count. */
bool kvc_owner_same(const struct kvc_owner *a, const struct kvc_owner *b);
/* The mark of a pool. 0, -ENOENT (there is none), -EBADMSG (not one), or another errno. */
int kvc_owner_read(const char *pool, struct kvc_owner *o);
/* Writes it, and takes its lock: a descriptor to hold, or -errno. */
int kvc_owner_mark(const char *pool, const struct kvc_owner *o);
/* Is a daemon there that holds it? So is one for who cannot look. */
bool kvc_owner_lives(const char *pool);

#endif
