/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A store: a folder with a superblock and a copy of it, the catalog, and the disk tier's data file
 * (or the name of its block device). kvcachefs-format(5) documents them. A store in use is locked
 * by an open-file-description lock on the superblock, which ends with its process: two daemons
 * never mount the same store.
 *
 * The lock covers every possible byte. A daemon whose mount has ended, but which is still copying
 * to tiers, unlocks one distant byte, KVC_STORE_SERVING; so the next process that opens the store
 * knows that it should wait. The daemon also updates the superblock's mtime as long as it makes
 * progress.
 */
#ifndef KVC_STORE_H
#define KVC_STORE_H

#include "util.h"

#define KVC_STORE_VERSION 4
#define KVC_STORE_SUPER "superblock"
#define KVC_STORE_CATALOG "catalog.sqlite"
/* Files that SQLite and engine/catalog keep beside a catalog of that name. */
#define KVC_STORE_BESIDE(catalog) \
	catalog "-journal", catalog "-wal", catalog "-shm", catalog "-mark"
#define KVC_STORE_DATA "data"
/* space that the daemon releases when the filesystem is full (catalog_write.c) */
#define KVC_STORE_RESERVE "reserve"
#define KVC_STORE_RESERVE_SIZE (8ull << 20)
#define KVC_STORE_MIN_SIZE (16ull << 20)
#define KVC_STORE_SERVING (1ll << 40)
#define KVC_STORE_COPY "superblock.copy"
/* saved state of eviction policies (access/replacer_save.c); it may be missing */
#define KVC_STORE_POLICIES "policies"
/*
 * A new catalog, and with mkfs a new superblock, are made as *.new and renamed to *.next when they
 * are complete. From then on the store is the new one, and the next process that opens it completes
 * the change (store_next.c).
 */
#define KVC_STORE_CATALOG_NEW KVC_STORE_CATALOG ".new"
#define KVC_STORE_CATALOG_NEXT KVC_STORE_CATALOG ".next"
#define KVC_STORE_SUPER_NEXT KVC_STORE_SUPER ".next"
/* files that mkfs is making; no other file has such a name */
#define KVC_STORE_MAKING ".mkfs.kvcachefs."

/*
 * The devices of a store: block devices and files with its data. A device's number, its index in
 * kvc_store.dev, is part of the place of each frame and stays the same while the device is part of
 * the store.
 */
#define KVC_DEVICES 16
/* A place in the disk tier is the number of a device and the offset in the device. */
#define KVC_DEVICE_BITS 48
#define KVC_DEVICE_MOST (1ull << KVC_DEVICE_BITS) /* bytes */

enum kvc_device_kind {
	KVC_DEVICE_NONE,  /* this number is not used */
	KVC_DEVICE_OWN,   /* the file KVC_STORE_DATA in the store's folder; it has number 0 */
	KVC_DEVICE_BLOCK, /* a block device, with a label (label.h) */
	KVC_DEVICE_FILE,  /* a file elsewhere, with a label */
	KVC_DEVICE_KINDS
};

struct kvc_device {
	char path[1280];
	enum kvc_device_kind kind;
	uint64_t size; /* bytes that the store uses */
	bool leaving;  /* kvcachectl remove empties it: it gets no new frames */
	/* fsck restored the length of a file: the bytes beyond this offset were lost; 0: none */
	uint64_t lost_from;
};

/* Memory for a superblock as text. */
#define KVC_STORE_TEXT 6144

struct kvc_store {
	char dir[1024];
	struct kvc_device dev[KVC_DEVICES];
	uint8_t uuid[16];
	char uuid_text[37];
	uint64_t created_ns;
	uint32_t version;
	bool read_only; /* opened by kvc_store_open_read */
	/*
	 * Proves that a frame's header was made by a daemon of this store (frames/frame.h). A store
	 * from an older version gets it at its first mount.
	 */
	uint8_t secret[32];
	bool has_secret;
	/*
	 * fsck took the fields from the frames, which do not contain the secret. If it found no
	 * uuid either, kvc_super_name() has made both.
	 */
	bool no_proof;
	int lock_fd; /* the locked superblock; -1: not open */
};

/* Returns the sum of the sizes of all devices, in bytes. */
uint64_t kvc_super_size(const struct kvc_store *s);
/* Returns the number of devices. */
unsigned kvc_super_devices(const struct kvc_store *s);
/* Returns the number of the device of that path, or KVC_DEVICES. */
unsigned kvc_super_find(const struct kvc_store *s, const char *path);
/*
 * Checks whether a superblock has space for the devices' paths. Returns 0, or -E2BIG with one line
 * in error[512].
 */
int kvc_super_fits(const struct kvc_store *s, char *error);
/* Makes device 0 a file of this size in the store's folder, and removes all others. */
void kvc_super_own(struct kvc_store *s, uint64_t size);
/*
 * Writes the superblock of an open, locked store and its copy. Returns 0 or a negative errno; after
 * an error the old superblock may still be valid.
 */
int kvc_super_update(const struct kvc_store *s);
/*
 * Writes a new superblock and its copy into s->dir from the fields of *s. If the uuid is zero,
 * makes a uuid and a secret. If the uuid is set, makes neither: the store has frames already, and a
 * new secret could not prove them. Returns 0 or a negative errno.
 */
int kvc_super_create(struct kvc_store *s);
/*
 * kvc_super_text writes the superblock as text to buf[KVC_STORE_TEXT]; the catalog stores it as
 * meta "store". kvc_super_parse reads such a text; it returns 0 with the fields of *s set, or
 * -EBADMSG.
 */
const char *kvc_super_text(const struct kvc_store *s, char *buf);
int kvc_super_parse(struct kvc_store *s, const char *text);
/* Makes a uuid and a secret if the uuid is zero, and sets uuid_text. Returns 0 or -EIO. */
int kvc_super_name(struct kvc_store *s);
/*
 * Opens and locks the store in folder dir. Returns 0, or one of these errors with one line in
 * error[512]: -ENOENT (no such folder), -EINVAL (not a store), -EPROTO (a newer format), -EBADMSG
 * (the superblock is damaged or missing and fsck can repair it; nothing is changed, and s->dir is
 * set), -EBUSY (in use), or another errno: the store could not be read, and may be good. Blocks
 * while a daemon that is ending holds the lock, as long as it makes progress. Completes interrupted
 * changes, gives an older store a copy of its superblock, and makes the store's files unreadable
 * for other users.
 */
int kvc_store_open(struct kvc_store *s, const char *dir, char *error);
/*
 * Opens the store for reading only, also on a read-only filesystem: nothing is changed. Returns as
 * kvc_store_open does.
 */
int kvc_store_open_read(struct kvc_store *s, const char *dir, char *error);
/*
 * True if fsck repairs a store whose secret is lost. Until fsck has proven the frames with a new
 * secret, the superblock must stay damaged: with a good superblock, a mount would make a secret
 * that proves no frame.
 */
static inline bool kvc_store_unproven(const struct kvc_store *s)
{
	return s->no_proof && !s->has_secret;
}
/*
 * For fsck, after -EBADMSG: locks the store (and creates the superblock if it is missing) and
 * writes the fields of *s, unless kvc_store_unproven(): then kvc_super_add_secret() writes them.
 * Returns 0, -EEXIST if the superblock is good by now, or another negative errno.
 */
int kvc_store_repair(struct kvc_store *s, char *error);
/*
 * Gives an open store without a secret the secret in s->secret, or a new one if that is zero.
 * Returns 0 or a negative errno.
 */
int kvc_super_add_secret(struct kvc_store *s);
/* Call it when the mount has ended: tells waiting processes that the store will be free soon. */
void kvc_store_ending(const struct kvc_store *s);
/* Call it from time to time after kvc_store_ending, if there was progress. */
void kvc_store_alive(const struct kvc_store *s);
void kvc_store_close(struct kvc_store *s);
/* Writes the path of a file in the store to buf[1280], and returns buf. */
const char *kvc_super_path(const struct kvc_store *s, const char *name, char *buf);
/*
 * Syncs the store's folder, so that new names are on stable storage. Returns 0 or a negative errno.
 */
int kvc_super_sync_dir(const struct kvc_store *s);
/* True if the store has a file of that name, or if that cannot be determined. */
bool kvc_super_exists(const struct kvc_store *s, const char *name);
/*
 * True if the folder s->dir has files that only a store has, whatever the state of its superblock,
 * or if they cannot be read.
 */
bool kvc_store_signs(const struct kvc_store *s);

struct stat;
/*
 * Checks whether the folder dir, with these attributes, may be a store's. Returns 0, or -EPERM (it
 * belongs to another user, or others can write in it) with one line in error[512].
 */
int kvc_store_folder_check(const char *dir, const struct stat *st, char *error);
/*
 * Checks that all files of the store in s->dir are regular files and, if `writes` is set, belong to
 * root or to this process's user. Returns 0, or a negative errno with one line in error[512]. Reads
 * the folder; opens no file.
 */
int kvc_store_files_check(const struct kvc_store *s, bool writes, char *error);

/*
 * super.c: reads a superblock from a file of s->dir. Sets all fields of *s but dir. Returns 0;
 * -EBADMSG: no superblock, or a damaged one (*known: it has the magic); -EPROTO: a newer format; or
 * the error of reading.
 */
int kvc_super_load(struct kvc_store *s, const char *name, bool *known);
int kvc_super_read(struct kvc_store *s, int fd, bool *known);
/* Write a superblock; it is on stable storage on return. Return 0 or a negative errno. */
int kvc_super_save(const struct kvc_store *s, const char *name);
int kvc_super_write(const struct kvc_store *s, int fd);
/* Writes the copy if it differs. Returns 0 or a negative errno. */
int kvc_super_save_copy(const struct kvc_store *s);

/*
 * store_next.c: completes the changes that *.next files describe, and removes unfinished files.
 * Needs the lock of the store. Returns 0 or a negative errno.
 */
int kvc_store_finish(struct kvc_store *s);
/*
 * Returns -EBUSY with one line in error[512] if a file of the store is a mount point, so that a new
 * catalog cannot replace it; otherwise 0. Call it before a change begins.
 */
int kvc_store_bound(const struct kvc_store *s, char *error);

#endif
