/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The label of a block device that has a store's data. A device's name can stand for another disk
 * after a restart, so nothing is written to a device before its label was compared with the store.
 * The label is the first page of the device, and a copy is the last page of the data. The first
 * and the last KVC_LABEL_ROOM bytes of the data hold no frames, so that nothing that a user stores
 * lies where other tools look for a filesystem's signature. kvcachefs-format(5) documents it.
 */
#ifndef KVC_LABEL_H
#define KVC_LABEL_H

#include "store.h"

#define KVC_LABEL_ROOM (1ull << 20)

struct kvc_label {
	uint8_t uuid[16]; /* of the store */
	uint32_t index;   /* of the device in the store: 0 */
	uint64_t size;    /* bytes of the device that the store uses */
};

/*
 * Opens the block device s->data for this process alone, with the given open flags, and learns its
 * size in bytes. Symbolic links are followed, as in /dev/disk/by-id. Returns a descriptor that the
 * caller closes, or a negative errno with one line in error[512]; -ENOTBLK: not a block device.
 */
int kvc_label_device_open(const struct kvc_store *s, int flags, uint64_t *size, char *error);
/* Reads the first page. 0; -ENODATA: no label; -EBADMSG: a damaged one; -EPROTO: a newer one. */
int kvc_label_read(int fd, struct kvc_label *l);
/* Does the label name this store? */
bool kvc_label_is(const struct kvc_label *l, const struct kvc_store *s);
/* Writes the copy and then the first page; both are on stable storage on return. 0 or -errno. */
int kvc_label_write(const struct kvc_store *s, int fd);
/*
 * Compares the label with the store; changes nothing. 0, -EXDEV (not this store's device), -EBADMSG
 * (the first page is damaged) or another negative errno, with one line in error[512].
 */
int kvc_label_check(const struct kvc_store *s, int fd, char *error);
/*
 * For fsck: writes the label again if its first page is damaged and the copy is the store's, or if
 * it has another size. 0; -EXDEV or another negative errno: it is not this store's device.
 */
int kvc_label_mend(const struct kvc_store *s, int fd);

#endif
