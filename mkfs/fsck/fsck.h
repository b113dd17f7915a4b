/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Shared by the parts of fsck.kvcachefs: the report, opening a store with a damaged superblock
 * (open.c), the checks (check.c), and the rebuild of the catalog (rebuild.c).
 *
 * All parts distinguish three results: data that was read and is correct, data that was read and is
 * wrong, and data that could not be read. Only wrong data is repaired. Unreadable data is reported,
 * counted and left unchanged, because it may be correct.
 */
#ifndef KVM_FSCK_H
#define KVM_FSCK_H

#include "catalog_check.h"
#include "store.h"
#include "tier.h"

struct kvm_report {
	bool mend;
	unsigned found, mended, unread;
};
/* Prints and counts one problem. It is a kvc_found_fn with the report as its argument. */
void kvm_found(void *report, bool mended, const char *what);
void kvm_foundf(struct kvm_report *r, bool mended, const char *format, ...)
	__attribute__((format(printf, 3, 4)));
/* Prints and counts data that could not be read or written. */
void kvm_unread(struct kvm_report *r, int err, const char *format, ...)
	__attribute__((format(printf, 3, 4)));

/* Unreadable ranges of the data, in the order in which list() reports them. */
struct kvm_holes {
	struct kvm_hole {
		uint64_t at, len;
		int err;
	} *v;
	size_t n, capacity;
	int err; /* -ENOMEM */
};
/*
 * Adds a range: the callback of kvct_devices_unread, with the holes as its argument. The owner
 * frees v.
 */
void kvm_hole(void *holes, uint64_t at, uint64_t len, int err);

/* Paths of devices that the user gives. */
struct kvm_devices {
	char path[KVC_DEVICES][1024]; /* absolute; or a number, as text */
	unsigned n;
};
/*
 * Opens the store. If its superblock is damaged, the store's properties are taken from the
 * superblock's copy, the catalog, or the labels of the devices and the frames. Problems are
 * reported, and repaired if r->mend is set. `given` has new names of devices, or the devices if
 * nothing else names them; `lost` has devices to remove from the store, by path or number. Returns
 * 0, or a negative errno with one line in error[512].
 */
int kvm_open(struct kvc_store *s, const char *path, const struct kvm_devices *given,
	     const struct kvm_devices *lost, struct kvm_report *r, char *error);
/*
 * Returns the path of the store's catalog in buf. While a replacement is not finished, that is the
 * new catalog.
 */
const char *kvm_catalog(const struct kvc_store *s, char *buf);
/* Checks the whole opened store. data: also read all payloads. Returns 0 or a negative errno. */
int kvm_check(struct kvc_store *s, bool data, struct kvm_report *r);
/*
 * Reads the payload of the frame at this place and compares its sum. Returns 0, -EBADMSG if the
 * payload is damaged, or another negative errno if it cannot be read.
 */
int kvm_check_payload(struct kvc_tier *t, const struct kvc_where *w, uint64_t stored_len,
		      const struct kvc_sum *want);
/*
 * Makes a new catalog from the frames in the data. The old catalog is kept as *.old, .old.1 and so
 * on. If several frames have the same inode, the newest generation wins; if several have the same
 * path, the newest file wins; if frames overlap, the first one wins. But a frame with a damaged
 * payload wins only if all of them are damaged. Unreadable frames are reported and left out. Keys
 * and remotes are only in the old catalog. It may be damaged or absent, but a read error ends the
 * rebuild. Nothing else is changed until the new catalog is complete, checked and on stable
 * storage. Returns 0 or a negative errno.
 */
int kvm_rebuild(struct kvc_store *s, struct kvm_report *r);
/*
 * Finds the store id that most frames have. Returns 0, -ENOENT (no frames) or another negative
 * errno.
 */
int kvm_find_uuid(struct kvc_tier *disk, uint8_t uuid[16]);

#endif
