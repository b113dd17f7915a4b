/* SPDX-License-Identifier: Apache-2.0 */
/* The parts of fsck.kvcachefs: the report, and the rebuild (fsck_rebuild.c). */
#ifndef KVM_FSCK_H
#define KVM_FSCK_H

#include "catalog_check.h"
#include "store.h"
#include "tier.h"

struct kvm_report {
	bool mend, quiet;
	unsigned found, mended;
};
/* Tells one finding and counts it; a kvc_found_fn with the report as arg. */
void kvm_found(void *report, bool mended, const char *what);
void kvm_foundf(struct kvm_report *r, bool mended, const char *format, ...)
	__attribute__((format(printf, 3, 4)));

/*
 * Makes a new catalog from the frames in the tier alone; the old one is kept beside it as *.old.
 * Where several frames have one inode the newest generation counts, where several have one path the
 * newest file.
 */
int kvm_rebuild(struct kvc_store *s, struct kvc_tier *disk);
/* The store id that the frames carry, for a store whose superblock is damaged. 0 or -ENOENT. */
int kvm_find_uuid(struct kvc_tier *disk, uint8_t uuid[16]);

#endif
