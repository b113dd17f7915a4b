/* SPDX-License-Identifier: Apache-2.0 */
/* The folder of a dir tier (dir.c), its mark (dir_mark.c) and its temporary files (dir_temps.c). */
#ifndef KVCT_DIR_H
#define KVCT_DIR_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/uio.h>

struct dir;
struct kvct_dir_temps;

#define KVCT_DIR_MARK ".kvcachefs-remote"
#define KVCT_DIR_TEMP 128 /* bytes of a temporary file's name, with its NUL */

/*
 * Opens the tier's folder with `flags` of open(2). Returns a descriptor, -ENOTCONN if another
 * folder is at the path, or another negative errno. Blocks on the filesystem.
 */
int kvct_dir_root(struct dir *d, int flags);
/* Take and release a reference to the tier's memory. The last kvct_dir_put frees it. */
void kvct_dir_get(struct dir *d);
void kvct_dir_put(struct dir *d);

/*
 * openat(2) with O_CLOEXEC, tried again once if NFS reports a stale handle. Returns a descriptor or
 * a negative errno. kvct_dir_file opens a regular file for reading; it follows no link, and does
 * not block on a fifo; -EBADMSG: the name is not a regular file.
 */
int kvct_dir_openat(int at, const char *name, int flags);
int kvct_dir_file(int sub, const char *name);
/*
 * Reads from an offset of a file; the bytes between its end and the end of its last page are zero.
 * Returns 0, -EBADMSG (the range is beyond that page) or another negative errno.
 */
int kvct_dir_read(int fd, const struct iovec *iov, int n, uint64_t off);

/*
 * Opens the folder in `store` that holds the files of its dir tiers, and creates it if `make` is
 * set. Sets `name` to the name of the file `what` of the tier `id`, which consists of the store's
 * uuid and the tier's id. Returns a descriptor or a negative errno.
 */
int kvct_dir_store_file(const char *store, const char *id, const char *what, bool make,
			char name[32]);

/*
 * The mark of a tier's folder. mark_read: returns false if the folder has no valid mark. mark_make:
 * creates the mark with this id, or with a random one if id is NULL; does nothing if a mark exists
 * or the folder cannot be written. mark_remembered and mark_remember read and write the id that the
 * store remembers; mark_remember returns 0 or a negative errno. All of them block on the
 * filesystem.
 */
bool kvct_dir_mark_read(int root, char id[33]);
void kvct_dir_mark_make(int root, const char *id);
bool kvct_dir_mark_remembered(const char *store, const char *id, char mark[33]);
int kvct_dir_mark_remember(const char *store, const char *id, const char *mark);

/* Creates the state for the temporary files of tier d; d must outlive it. NULL: out of memory. */
struct kvct_dir_temps *kvct_dir_temps_new(struct dir *d);
void kvct_dir_temps_free(struct kvct_dir_temps *t);
/*
 * Starts the thread that removes temporary files. Their names are noted in the folder `store` for
 * the tier `id`; if store is NULL they are not noted. Returns 0, or a negative errno if the thread
 * cannot be created. The thread holds a reference to the tier. kvct_dir_temps_stop ends the thread;
 * a thread that waits for a dead server is left behind.
 */
int kvct_dir_temps_start(struct kvct_dir_temps *t, const char *store, const char *id);
void kvct_dir_temps_stop(struct kvct_dir_temps *t);
/*
 * kvct_dir_temps_begin is called before a frame's temporary file is created. It sets `name` to a
 * unique name and returns a number for kvct_dir_temps_end. `hex` is the frame's name of 32 digits.
 * kvct_dir_temps_end is called when the file was renamed or removed; gone false: it could not be
 * removed, and the thread removes it later. Both need no lock and do not block on the tier.
 */
int kvct_dir_temps_begin(struct kvct_dir_temps *t, const char *hex, char name[KVCT_DIR_TEMP]);
void kvct_dir_temps_end(struct kvct_dir_temps *t, int number, const char *name, bool gone);

#endif
