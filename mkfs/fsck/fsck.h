/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The parts of fsck.kvcachefs: the report, opening a store whatever state its superblock is in
 * (open.c), the checks (check.c), and the rebuild (rebuild.c).
 *
 * All of them keep three things apart: what was read and is right, what was read and is wrong, and
 * what could not be read. Only the second is ever mended; the third is told, counted, and left as
 * it is, for it may be right.
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
/* Tells one finding and counts it; a kvc_found_fn with the report as arg. */
void kvm_found(void *report, bool mended, const char *what);
void kvm_foundf(struct kvm_report *r, bool mended, const char *format, ...)
	__attribute__((format(printf, 3, 4)));
/* Tells what could not be read or written, and counts it. */
void kvm_unread(struct kvm_report *r, int err, const char *format, ...)
	__attribute__((format(printf, 3, 4)));

/* Ranges of the data that cannot be read, as list() tells of them, in order. */
struct kvm_holes {
	struct kvm_hole {
		uint64_t at, len;
		int err;
	} *v;
	size_t n, capacity;
	int err; /* -ENOMEM */
};
/* For kvct_disk_unread, with the holes as arg. The owner frees v. */
void kvm_hole(void *holes, uint64_t at, uint64_t len, int err);

/*
 * Opens the store for the report's purpose, with all that its superblock, the copy, the catalog and
 * the frames can tell; what is wrong with them is found, and mended where the report says so.
 * `device`, or NULL, is where the data are if nobody knows any more. 0, or an errno with one line
 * in error[512].
 */
int kvm_open(struct kvc_store *s, const char *path, const char *device, struct kvm_report *r,
	     char *error);
/* The catalog of a store that is opened: while what was begun is not finished, the new one. */
const char *kvm_catalog(const struct kvc_store *s, char *buf);
/* Goes over all of an opened store. 0 or a negative errno. */
int kvm_check(struct kvc_store *s, bool data, struct kvm_report *r);
/*
 * Makes a new catalog from the frames in the data alone; the old one is kept beside it as *.old,
 * .old.1 and so on. Where several frames have one inode the newest generation counts, where several
 * have one path the newest file. What cannot be read is told, and is not in it; but the old
 * catalog, which alone knows of keys and remotes, has to be read, be damaged, or not be there.
 * Until the new one is whole, checked and on stable storage nothing else has changed.
 */
int kvm_rebuild(struct kvc_store *s, struct kvm_report *r);
/* The store id that most frames carry. 0, -ENOENT, or another errno. */
int kvm_find_uuid(struct kvc_tier *disk, uint8_t uuid[16]);

#endif
