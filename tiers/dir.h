/* SPDX-License-Identifier: Apache-2.0 */
/* The dir tier's folder (dir.c) and its temporary files (dir_temps.c). */
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
