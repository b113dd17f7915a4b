/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A file that a tool creates or replaces atomically. The tool writes to FILE.PID.new in the same
 * folder, and the last step renames that to FILE. A tool that is killed leaves the old file
 * unchanged. If FILE is a device or a pipe, it is written directly.
 */
#ifndef KVM_ATOMIC_FILE_H
#define KVM_ATOMIC_FILE_H

#include <stdbool.h>
#include <stdio.h>
#include <sys/stat.h>

struct kvm_atomic_file {
	FILE *f;       /* the caller writes to it */
	char *path;    /* the final path, without symbolic links */
	char *temp;    /* the temporary path; NULL: path is written directly */
	bool only_new; /* never replace an existing file */
};

/*
 * Opens the file for writing. A replaced file keeps its owner and mode; a new file gets `mode`.
 * Returns 0 or a negative errno: -EEXIST if only_new is set and the name exists, -EBUSY if the
 * existing file cannot be replaced (a bind mount). After an error there is nothing to close.
 */
int kvm_atomic_file_open(struct kvm_atomic_file *b, const char *path, mode_t mode, bool only_new);
/*
 * Closes and frees the file. If err is 0, the contents are synced and renamed to the final path;
 * otherwise they are discarded. Returns err, or the error of this function; after any error the old
 * file is unchanged.
 */
int kvm_atomic_file_close(struct kvm_atomic_file *b, int err);
/* Like kvc_why, for the errors of the two functions above. */
const char *kvm_atomic_file_why(int err);
/*
 * Syncs the folder of path, so that a new name survives a power failure. Returns 0 or a negative
 * errno.
 */
int kvm_sync_name(const char *path);

#endif
