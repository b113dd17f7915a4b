/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A store: a folder with a superblock and a copy of it, the catalog and the disk tier's data file
 * (or the name of its block device). kvcachefs-format(5) documents them.
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

#define KVC_STORE_VERSION 3
#define KVC_STORE_SUPER "superblock"
#define KVC_STORE_CATALOG "catalog.sqlite"
/* What SQLite, and engine/catalog, keep beside a catalog of that name. */
#define KVC_STORE_BESIDE(catalog) \
	catalog "-journal", catalog "-wal", catalog "-shm", catalog "-mark"
#define KVC_STORE_DATA "data"
/* space that the daemon gives up when the filesystem is full (catalog_write.c) */
#define KVC_STORE_RESERVE "reserve"
#define KVC_STORE_RESERVE_SIZE (8ull << 20)
#define KVC_STORE_MIN_SIZE (16ull << 20)
#define KVC_STORE_SERVING (1ll << 40)
#define KVC_STORE_COPY "superblock.copy"
/* what eviction policies have learned (objects/replacers.c); it may be missing */
#define KVC_STORE_POLICIES "policies"
/*
 * A new catalog, and with mkfs a new superblock, are made as *.new and get the name *.next when all
 * of them is there: from then on the store is the new one, and who opens it first finishes what was
 * begun (store_next.c).
 */
#define KVC_STORE_CATALOG_NEW KVC_STORE_CATALOG ".new"
#define KVC_STORE_CATALOG_NEXT KVC_STORE_CATALOG ".next"
#define KVC_STORE_SUPER_NEXT KVC_STORE_SUPER ".next"
/* what mkfs has under way; nobody else makes files of such names */
#define KVC_STORE_MAKING ".mkfs.kvcachefs."

struct kvc_store {
	char dir[1024];
	char data[1280]; /* path of the data file or device */
	bool device;     /* `data` is a block device given to mkfs */
	uint8_t uuid[16];
	char uuid_text[37];
	uint64_t data_size; /* bytes */
	uint64_t created_ns;
	uint32_t version;
	bool read_only;     /* opened by kvc_store_look */
	uint64_t lost_from; /* fsck gave the data its length back: what lay behind this is lost */
	/*
	 * Proves that a frame's header was made by a daemon of this store (frames/frame.h). Not in
	 * a store that was made before there were such proofs, until it is mounted.
	 */
	uint8_t secret[32];
	bool has_secret;
	bool no_proof; /* fsck made the superblock from frames, and the secret is lost */
	int lock_fd;   /* the superblock, locked; -1 while not open */
};

/*
 * Writes a new superblock and its copy into s->dir from the fields of *s. Uuid and secret are made
 * here unless the uuid is set: then the store's frames are there already, and prove nothing with a
 * new secret. 0 or -errno.
 */
int kvc_super_create(struct kvc_store *s);
/*
 * What the superblock says in one line, which the catalog keeps as meta "store", and reading it: 0
 * with the fields of *s, or -EBADMSG.
 */
const char *kvc_super_text(const struct kvc_store *s, char *buf, size_t capacity);
int kvc_super_parse(struct kvc_store *s, const char *text);
/* Makes the uuid, and with it a secret, where there is none, and its text. 0 or -EIO. */
int kvc_super_name(struct kvc_store *s);
/*
 * Opens and locks the store in folder dir. 0, or one line for people in error[512] and: -ENOENT (no
 * such folder), -EINVAL (not a store), -EPROTO (newer format), -EBADMSG (the superblock is damaged
 * or missing: fsck mends it; nothing is changed, and s->dir is set), -EBUSY (in use), or another
 * errno: it could not be read, and may be good. Blocks while a daemon that is ending has the lock,
 * as long as that one gets on. Brings what was left halfway to its end, an older store a copy of
 * its superblock, and what others can read out of their reach.
 */
int kvc_store_open(struct kvc_store *s, const char *dir, char *error);
/* The same to read only, also from a filesystem that is: nothing is changed. */
int kvc_store_look(struct kvc_store *s, const char *dir, char *error);
/*
 * For fsck, after -EBADMSG: locks the store (the superblock is made where it is missing) and writes
 * what *s says. Or -EEXIST: it is whole by now.
 */
int kvc_store_mend(struct kvc_store *s, char *error);
/*
 * Gives a store without a secret one: s->secret where that is set already, or else a new one. The
 * store is open. 0 or -errno.
 */
int kvc_super_keyed(struct kvc_store *s);
/* The mount has ended: who waits for the store may know that it will be free. */
void kvc_store_ending(const struct kvc_store *s);
/* To be called now and then after that, when there was progress. */
void kvc_store_alive(const struct kvc_store *s);
void kvc_store_close(struct kvc_store *s);
/* The path of a file in the store, in buf[1280]. */
const char *kvc_super_path(const struct kvc_store *s, const char *name, char *buf);
/* The names of files in it are on stable storage when this returns. 0 or -errno. */
int kvc_super_sync_dir(const struct kvc_store *s);
/* Is there a file of that name in it? Also where that cannot be looked at. */
bool kvc_super_exists(const struct kvc_store *s, const char *name);
/*
 * Does the folder s->dir hold what only a store has, whatever state its superblock is in? Also
 * where that cannot be read.
 */
bool kvc_store_signs(const struct kvc_store *s);

struct stat;
/*
 * store_files.c: may the folder dir, with these attributes, be a store's? 0, or -EPERM (another
 * user's, or others can write in it) with one line in error[512].
 */
int kvc_store_folder_check(const char *dir, const struct stat *st, char *error);
/*
 * Are all files of the store in s->dir regular files, and for writing also root's or ours? 0, or a
 * negative errno with one line in error[512]. Reads the folder; opens no file.
 */
int kvc_store_files_check(const struct kvc_store *s, bool writes, char *error);

/*
 * super.c: a superblock in a file of s->dir. Reading fills in *s but dir. 0; -EBADMSG: none, or a
 * damaged one (*known: it has the magic); -EPROTO: a newer one; or what reading it answered.
 */
int kvc_super_load(struct kvc_store *s, const char *name, bool *known);
int kvc_super_read(struct kvc_store *s, int fd, bool *known);
/* Writes one, on stable storage when it returns. 0 or -errno. */
int kvc_super_save(const struct kvc_store *s, const char *name);
int kvc_super_write(const struct kvc_store *s, int fd);
/* Writes the copy where it is not the same. */
int kvc_super_save_copy(const struct kvc_store *s);

/* store_next.c: finishes what *.next files say, and removes what was left halfway. Locked only. */
int kvc_store_finish(struct kvc_store *s);
/*
 * Where a file of the store is mounted by itself, so that no new catalog takes the place of the old
 * one: -EBUSY and one line for people in error[512], before anything is begun. Else 0.
 */
int kvc_store_bound(const struct kvc_store *s, char *error);

#endif
