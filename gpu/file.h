/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A new file of a mount: made under a temporary name beside its own, at its final size with room
 * prepared, mapped, and renamed when it is whole.
 */
#ifndef KVCACHEFS_FILE_H
#define KVCACHEFS_FILE_H

#include "layout.h"

#define KVCACHEFS_LAYOUT_XATTR "user.kvc.layout"

struct kvcachefs_file {
	char *path, *tmp; /* tmp: NULL where none was made */
	void *map;
	size_t len;
	int fd; /* -1: none */
};

#pragma GCC visibility push(hidden)
/* MOUNT/PATH and the length; nothing is made yet. -ENOMEM. */
int kvcachefs_file_init(struct kvcachefs_file *f, const char *mount, const char *path, size_t len);
/* Makes the file, with the folders of its path below the mount, and maps it, to be written. */
int kvcachefs_file_make(struct kvcachefs_file *f, const char *mount);
/* It is whole: unmapped, given that layout (NULL: none) and closed; not published yet. */
int kvcachefs_file_seal(struct kvcachefs_file *f, const char *layout);
/* Gives a sealed file its name. */
int kvcachefs_file_publish(struct kvcachefs_file *f);
/* Removes what was not published, and frees. Any state after init, also where that failed. */
void kvcachefs_file_fini(struct kvcachefs_file *f);
#pragma GCC visibility pop

#endif
