/* SPDX-License-Identifier: Apache-2.0 */
/* The dir tier's folder (dir.c), its mark (dir_mark.c) and its temporary files (dir_temps.c). */
#ifndef KVCT_DIR_H
#define KVCT_DIR_H

#include <stdbool.h>
#include <stddef.h>

struct dir;
struct kvct_dir_temps;

#define KVCT_DIR_MARK ".kvcachefs-remote"
#define KVCT_DIR_TEMP 128 /* bytes of a temporary file's name, with its end */

/*
 * Opens the tier's folder with these flags of open(2): a descriptor. -ENOTCONN: another folder is
 * at its path now. Waits for the filesystem.
 */
int kvct_dir_root(struct dir *d, int flags);
/* One more reference to the tier's memory, and one less: the last frees it. */
void kvct_dir_get(struct dir *d);
void kvct_dir_put(struct dir *d);

/*
 * openat(2) with O_CLOEXEC, and once more if NFS says that what it knew of the name is stale: a
 * descriptor or a negative errno. file opens a regular file for reading, follows no link and waits
 * for no fifo; -EBADMSG: it is something else.
 */
int kvct_dir_openat(int at, const char *name, int flags);
int kvct_dir_file(int sub, const char *name);

/*
 * Opens the folder of the store `store` with the files that it keeps for its dir tiers; `make`:
 * makes the folder. Tells the name of the file `what` of a tier there, `id`: the store's uuid and
 * the tier's id. A descriptor or a negative errno.
 */
int kvct_dir_store_file(const char *store, const char *id, const char *what, bool make,
			char name[32]);

/*
 * The mark of a tier's folder. read: false if it has none, or something else is in its place. make:
 * makes it with that id, or with a new one (NULL), unless it is there or that is refused.
 * remembered, remember: what the store keeps of it.
 */
bool kvct_dir_mark_read(int root, char id[33]);
void kvct_dir_mark_make(int root, const char *id);
bool kvct_dir_mark_remembered(const char *store, const char *id, char mark[33]);
int kvct_dir_mark_remember(const char *store, const char *id, const char *mark);

/* The temporary files of tier d, which outlives them. NULL: no memory. */
struct kvct_dir_temps *kvct_dir_temps_new(struct dir *d);
void kvct_dir_temps_free(struct kvct_dir_temps *t);
/*
 * Starts the thread that removes temporary files. They are noted in the store's folder `store`, if
 * it is not NULL, for the tier `id`. 0 or a negative errno: no thread. The thread has a reference
 * to the tier. stop ends it; a thread that waits for a dead server is left behind.
 */
int kvct_dir_temps_start(struct kvct_dir_temps *t, const char *store, const char *id);
void kvct_dir_temps_stop(struct kvct_dir_temps *t);
/*
 * Before a frame's temporary file is made: its name, which no other file has, and a number for the
 * second call. `hex`: the 32 digits of the frame. That is made once the file is renamed or removed;
 * `gone` false: it could not be removed, and is removed later. No locks; they do not wait.
 */
int kvct_dir_temps_begin(struct kvct_dir_temps *t, const char *hex, char name[KVCT_DIR_TEMP]);
void kvct_dir_temps_end(struct kvct_dir_temps *t, int number, const char *name, bool gone);

#endif
