/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The label of a block device that has a store's data. A device's name can mean another disk after
 * a restart, so nothing is written to a device before its label was compared with the store. The
 * label is the first page of the device; a copy is the last page of the data. The first and the
 * last KVC_LABEL_ROOM bytes of the data hold no frames, so that users' bytes are never in the
 * places where other tools look for a filesystem's signature. kvcachefs-format(5) documents it.
 */
#ifndef KVC_LABEL_H
#define KVC_LABEL_H

#include "store.h"

#define KVC_LABEL_ROOM (1ull << 20)

struct kvc_label {
	uint8_t uuid[16]; /* uuid of the store */
	uint32_t index;   /* number of the device in the store: 0 */
	uint64_t size;    /* bytes of the device that the store uses */
};

/*
 * Opens the block device s->data exclusively, with the given open flags, and sets *size to its size
 * in bytes. Symbolic links are followed, as in /dev/disk/by-id. Returns a descriptor that the
 * caller closes, or a negative errno with one line in error[512]; -ENOTBLK: not a block device.
 */
int kvc_label_device_open(const struct kvc_store *s, int flags, uint64_t *size, char *error);
/*
 * Reads the label in the first page. Returns 0, -ENODATA (no label), -EBADMSG (damaged), -EPROTO (a
 * newer format), or another negative errno.
 */
int kvc_label_read(int fd, struct kvc_label *l);
/* True if the label names this store. */
bool kvc_label_is(const struct kvc_label *l, const struct kvc_store *s);
/*
 * Writes the copy and then the first page; both are on stable storage on return. Returns 0 or a
 * negative errno.
 */
int kvc_label_write(const struct kvc_store *s, int fd);
/*
 * Compares the label with the store; changes nothing. Returns 0, -EXDEV (not this store's device),
 * -EBADMSG (the first page is damaged) or another negative errno, with one line in error[512].
 */
int kvc_label_check(const struct kvc_store *s, int fd, char *error);
/*
 * For fsck: writes the label again if its first page is damaged and the copy is the store's, or if
 * it has another size. Returns 0, or -EXDEV or another negative errno if the device is not this
 * store's.
 */
int kvc_label_repair(const struct kvc_store *s, int fd);

#endif
