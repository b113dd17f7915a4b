/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A new file of a mount, with its final size, allocated and mapped. It is either created under a
 * temporary name beside its final name, or taken from the prepared files, which have no name
 * (ready.h). It is filled, gets the temporary name if it has none, and gets its final name when it
 * is complete. Then the cache of mappings owns its mapping if that can serve a load (maps.h);
 * unmap.c unregisters the rest.
 */
#ifndef KVCACHEFS_FILE_H
#define KVCACHEFS_FILE_H

#include "ready.h"

#define KVCACHEFS_LAYOUT_XATTR "user.kvc.layout"

struct kvcachefs_file {
	char *path; /* followed, after its NUL, by space for a temporary name */
	size_t len, mount_len;
	void *map;          /* writable; NULL: not mapped, or the file is empty */
	bool named, pinned; /* it has the temporary name; the mapping is registered */
	bool plain;         /* it is written by system calls, and not mapped */
	bool open;          /* it is sealed, and stays open until it is published */
	int fd;             /* -1: none */
	uint64_t dev;       /* of the mount; set by make */
	struct kvcachefs_map *m;
	struct kvcachefs_class *of;
};

#pragma GCC visibility push(hidden)
/* Returns the size of the memory for the names. */
size_t kvcachefs_file_names_size(const char *mount, const char *path);
/*
 * Sets the path to MOUNT/PATH, and the length. Creates nothing. The caller provides the memory
 * `names`, which must live until fini.
 */
void kvcachefs_file_init(struct kvcachefs_file *f, char *names, const char *mount, const char *path,
			 size_t len);
/*
 * Sets *dev to the device of the mount. Returns -ENOENT if no kvcachefs is mounted there: without
 * this check, a store after an unmount would write to the folder below the mount. Calls statx() on
 * the mount, and looks up .kvcachefs. The lookup is made only by the first call for a mount if the
 * kernel has unique numbers of mounts (Linux 6.8).
 */
int kvcachefs_file_mount(const char *mount, uint64_t *dev);
/*
 * Creates the file, with the missing folders of its path below the mount with device number `dev`,
 * and maps it for writing. A prepared file is registered for `device` if that is >= 0. Returns 0 or
 * a negative errno: -EINVAL if the path is not that of a file, -EXDEV if it leads out of the mount,
 * for example by a symbolic link. Blocks.
 */
int kvcachefs_file_make(struct kvcachefs_file *f, uint64_t dev, int device);
/*
 * Creates the file likewise, without a name, for writing by system calls: it is not mapped, and has
 * no bytes yet. Pages of small files are not worth a mapping. On -ENOSPC after this call the caller
 * may try again if kvcachefs_ready_short() returns true.
 */
int kvcachefs_file_make_plain(struct kvcachefs_file *f, uint64_t dev);
/* Registers the mapping if it is not registered. f->pinned then tells whether it is. */
void kvcachefs_file_pin(struct kvcachefs_file *f, int device);
/*
 * Completes the file: sets its layout (NULL: none) and closes it; a plain file stays open if the
 * process has only few open plain files. The file is not published yet, and must not be written any
 * more. Returns 0 or a negative errno.
 */
int kvcachefs_file_seal(struct kvcachefs_file *f, const char *layout);
/*
 * Completes the file as seal does, for publishing under another path. The caller provides the
 * memory `names`, of renamed_size bytes, which must live until fini.
 */
size_t kvcachefs_file_renamed_size(const struct kvcachefs_file *f, const char *path);
int kvcachefs_file_seal_as(struct kvcachefs_file *f, char *names, const char *path);
/*
 * Gives a sealed file its name. With kept NULL, an existing file of that name is replaced.
 * Otherwise the existing file stays, the new file is removed, and *kept tells whether that
 * happened. Returns 0 or a negative errno.
 */
int kvcachefs_file_publish(struct kvcachefs_file *f, bool *kept);
/*
 * Removes the file if it was not published, and frees the members. Allowed in any state after init,
 * also after an error.
 */
void kvcachefs_file_fini(struct kvcachefs_file *f);
#pragma GCC visibility pop

#endif
