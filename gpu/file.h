/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A new file of a mount: at its final size with room prepared, and mapped; made now under a
 * temporary name beside its own, or ready without a name (ready.h). It is filled, gets the
 * temporary name where it has none, and its own when it is whole; what its mapping can serve a load
 * with is the cache's then (maps.h), and what was registered is unregistered by aside.c.
 */
#ifndef KVCACHEFS_FILE_H
#define KVCACHEFS_FILE_H

#include "ready.h"

#define KVCACHEFS_LAYOUT_XATTR "user.kvc.layout"

struct kvcachefs_file {
	char *path; /* then, behind its NUL, room for a temporary name */
	size_t len, mount_len;
	void *map;          /* writable; NULL: there is none, or no bytes */
	bool named, pinned; /* it has the temporary name; the mapping is registered */
	int fd;             /* -1: none */
	struct kvcachefs_map *m;
	struct kvcachefs_class *of;
};

#pragma GCC visibility push(hidden)
/* How much memory the names take. */
size_t kvcachefs_file_room(const char *mount, const char *path);
/* MOUNT/PATH and the length; nothing is made yet. `room` is the caller's, and stays till fini. */
void kvcachefs_file_init(struct kvcachefs_file *f, char *room, const char *mount, const char *path,
			 size_t len);
/*
 * Makes the file, with the folders of its path below the mount, whose device number is `dev`, and
 * maps it, to be written; what was ready is registered for the device where that is >= 0.
 */
int kvcachefs_file_make(struct kvcachefs_file *f, uint64_t dev, int device);
/* One that is not is registered all the same; f->pinned says whether it is. */
void kvcachefs_file_pin(struct kvcachefs_file *f, int device);
/* It is whole: given that layout (NULL: none) and closed; not published yet. No more is written. */
int kvcachefs_file_seal(struct kvcachefs_file *f, const char *layout);
/* Gives a sealed file its name. */
int kvcachefs_file_publish(struct kvcachefs_file *f);
/* Removes what was not published. Any state after init, also where that failed. */
void kvcachefs_file_fini(struct kvcachefs_file *f);
#pragma GCC visibility pop

#endif
