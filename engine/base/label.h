/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The label of a device of a store: of a block device, and of a data file outside the store's
 * folder. A device's name can mean another disk after a restart, so nothing is written to a device
 * before its label has been compared with the store. The label is the first page of the device; a
 * copy is the last page of the data. The first and the last KVC_LABEL_ROOM bytes of the data hold
 * no frames, so that users' bytes are never in the places where other tools look for a filesystem's
 * signature. kvcachefs-format(5) documents it.
 *
 * `nr` is the number of the device in the store, an index into s->dev; its kind is
 * KVC_DEVICE_BLOCK or KVC_DEVICE_FILE.
 */
#ifndef KVC_LABEL_H
#define KVC_LABEL_H

#include "store.h"

#define KVC_LABEL_ROOM (1ull << 20)

struct kvc_label {
	uint8_t uuid[16]; /* uuid of the store */
	uint32_t index;   /* number of the device in the store */
	uint64_t size;    /* bytes of the device that the store uses */
};

/*
 * Opens the device, a block device exclusively, with the given open flags, and sets *size to its
 * size in bytes. Symbolic links are followed to a block device, as in /dev/disk/by-id. Returns a
 * descriptor that the caller closes, or a negative errno with one line in error[512]; -ENOTBLK: not
 * a block device.
 */
int kvc_label_device_open(const struct kvc_store *s, unsigned nr, int flags, uint64_t *size,
			  char *error);
/*
 * The same for a device that this process already has open exclusively: the second open is not
 * exclusive, because that would fail.
 */
int kvc_label_device_again(const struct kvc_store *s, unsigned nr, int flags, uint64_t *size,
			   char *error);
/*
 * Checks that no two names of the store lead to one device. Returns 0, or -EEXIST with one line in
 * error[512]. Names that lead to nothing are not examined.
 */
int kvc_label_distinct(const struct kvc_store *s, char *error);
/*
 * Reads the label in the first page. Returns 0, -ENODATA (no label), -EBADMSG (damaged), -EPROTO (a
 * newer format), or another negative errno.
 */
int kvc_label_read(int fd, struct kvc_label *l);
/* True if the label names this store and number. */
bool kvc_label_is(const struct kvc_label *l, const struct kvc_store *s, unsigned nr);
/*
 * Clears the label's space at both ends of a new device, and the place of a backup partition table
 * at the end of a block device of `size` bytes; then writes the label. Returns 0 or a negative
 * errno.
 */
int kvc_label_make(const struct kvc_store *s, unsigned nr, int fd, uint64_t size);
/*
 * Checks that the filesystem of the open file has space for `more` bytes: an allocation that fails
 * fills the filesystem for seconds. Returns 0, also if the space is not known, or -ENOSPC with one
 * line in error[512].
 */
int kvc_label_room(int fd, const char *path, uint64_t more, char *error);
/*
 * Makes the file of a device (KVC_DEVICE_FILE) with all its space and its label, and puts it on
 * stable storage. Returns 0, or a negative errno with one line in error[512]; -EEXIST: a file of
 * that name exists, and is not changed. After any other error no file is left. May block for long
 * on a filesystem that cannot reserve space.
 */
int kvc_label_file_make(const struct kvc_store *s, unsigned nr, char *error);
/*
 * Writes the copy and then the first page; both are on stable storage on return. Returns 0 or a
 * negative errno.
 */
int kvc_label_write(const struct kvc_store *s, unsigned nr, int fd);
/* Writes only the copy, before a device grows. It is on stable storage on return. */
int kvc_label_write_copy(const struct kvc_store *s, unsigned nr, int fd);
/* Overwrites the label and its copy. Returns 0 or a negative errno. */
int kvc_label_clear(const struct kvc_store *s, unsigned nr, int fd);
/*
 * Compares the label with the store; changes nothing. Returns 0, -EXDEV (not this device of the
 * store), -EBADMSG (the first page is damaged) or another negative errno, with one line in
 * error[512].
 */
int kvc_label_check(const struct kvc_store *s, unsigned nr, int fd, char *error);
/*
 * For fsck: writes the label again if the first page is damaged and the copy names this store, or
 * if the sizes in the label and in the store differ. Returns 0, or -EXDEV or another negative errno
 * if the device is not this store's.
 */
int kvc_label_repair(const struct kvc_store *s, unsigned nr, int fd);

#endif
