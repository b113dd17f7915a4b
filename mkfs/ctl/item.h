/* SPDX-License-Identifier: Apache-2.0 */
/* Files, chunks, models and folders of a mount (item.c). */
#ifndef KVM_ITEM_H
#define KVM_ITEM_H

#include "ctl.h"

#include <sys/stat.h>

#define KVM_VALUE 1100 /* maximum length of an attribute's value, plus the final zero */

struct kvm_item {
	const char *is; /* file, chunk (a folder that is one chunk), model, folder or other */
	uint64_t bytes, files;
	/* last open for reading of any of its files, in seconds since 1970; 0: none */
	int64_t used;
};

/*
 * Gets the attribute user.kvcachefs.NAME. Returns 1 with the value. Returns 0 if the attribute does
 * not exist, is not permitted, or its file is being removed. Otherwise returns a negative errno,
 * which is also stored in *failed (may be NULL).
 */
int kvm_item_attr(const char *path, const char *name, char value[KVM_VALUE], int *failed);
/* root: the root of the mount. Returns 0 or a negative errno. */
int kvm_item_get(const char *path, const struct stat *root, struct kvm_item *it);
/* Is it a file or a chunk? */
bool kvm_item_has_files(const struct kvm_item *it);
/*
 * Calls fn for each entry of the folder, in the order of their names, until it returns nonzero.
 * Does nothing if the folder does not exist any more. Returns that value, 0, or 1 after a message.
 */
int kvm_item_each_entry(const char *folder, int (*fn)(void *arg, const char *path), void *arg);
/*
 * Calls fn for each chunk at or below the path, in the order of their names, until it returns
 * nonzero. A file in a folder that is not a chunk is a chunk by itself. Returns that value, 0, or 1
 * after a message.
 */
int kvm_item_each_chunk(const char *path,
			int (*fn)(void *arg, const char *path, const struct kvm_item *it),
			void *arg);

#endif
