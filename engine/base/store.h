/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A store: a folder with a superblock, the catalog and the disk tier's data file (or the name of
 * its block device). The superblock is one page with a checksum; kvcachefs-format(5) documents it.
 * A store in use is locked by an open-file-description lock on the superblock, which ends with its
 * process: two daemons never mount one store.
 *
 * The lock covers every byte, up to the last there can be. A daemon whose mount has ended and which
 * is still copying down gives up one far byte of it, KVC_STORE_SERVING; so who comes next knows
 * that it is worth waiting. It also stamps the superblock's mtime as long as it gets on.
 */
#ifndef KVC_STORE_H
#define KVC_STORE_H

#include "util.h"

#define KVC_STORE_VERSION 2
#define KVC_STORE_SUPER "superblock"
#define KVC_STORE_CATALOG "catalog.sqlite"
#define KVC_STORE_DATA "data"
/* space that the daemon gives up when the filesystem is full (catalog_write.c) */
#define KVC_STORE_RESERVE "reserve"
#define KVC_STORE_RESERVE_SIZE (8ull << 20)
#define KVC_STORE_MIN_SIZE (16ull << 20)
#define KVC_STORE_SERVING (1ll << 40)

struct kvc_store {
	char dir[1024];
	char data[1280]; /* path of the data file or device */
	bool device;     /* `data` is a block device given to mkfs */
	uint8_t uuid[16];
	char uuid_text[37];
	uint64_t data_size; /* bytes */
	uint64_t created_ns;
	/*
	 * Proves that a frame's header was made by a daemon of this store (frames/frame.h). Not in
	 * a store that was made before there were such proofs, until it is mounted.
	 */
	uint8_t secret[32];
	bool has_secret;
	int lock_fd; /* the superblock, locked; -1 while not open */
};

/*
 * Writes a new superblock into s->dir from the fields of *s. Uuid and secret are made here unless
 * the uuid is set: then the store's frames are there already, and prove nothing with a new secret.
 * 0 or -errno.
 */
int kvc_store_create(struct kvc_store *s);
/*
 * Opens and locks the store in folder dir. 0, or one line for people in error[512] and: -ENOENT (no
 * such folder), -EINVAL (not a store), -EPROTO (newer format), -EBADMSG (superblock damaged),
 * -EBUSY (in use), or another errno. Blocks while a daemon that is ending has the lock, as long as
 * that one gets on.
 */
int kvc_store_open(struct kvc_store *s, const char *dir, char *error);
/*
 * Gives a store without a secret one: s->secret where that is set already, or else a new one. The
 * store is open. 0 or -errno.
 */
int kvc_store_keyed(struct kvc_store *s);
/* The mount has ended: who waits for the store may know that it will be free. */
void kvc_store_ending(const struct kvc_store *s);
/* To be called now and then after that, when there was progress. */
void kvc_store_alive(const struct kvc_store *s);
void kvc_store_close(struct kvc_store *s);
/* The path of a file in the store, in buf[1280]. */
const char *kvc_store_path(const struct kvc_store *s, const char *name, char *buf);

#endif
