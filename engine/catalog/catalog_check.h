/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Checking and mending a catalog that nobody uses, for fsck: one row a rule in catalog_check.c.
 * What lies in the tiers is compared by fsck itself, with the placement calls here.
 */
#ifndef KVC_CATALOG_CHECK_H
#define KVC_CATALOG_CHECK_H

#include "catalog.h"

/* Called for each thing found; `mended` tells whether it was put right. */
typedef void kvc_found_fn(void *arg, bool mended, const char *what);

/*
 * Refuses a catalog of another format: returns -EPROTO with one line in error[512], and otherwise
 * 0, also if the format cannot be read. No file is changed. Call it before kvc_check_pages.
 */
int kvc_check_format(const char *path, char *error);
/*
 * Is the database itself whole? 0; -EBADMSG after telling fn: it was read, and is not (then only a
 * rebuild helps; with `mend` damaged indexes alone are made anew); any other errno: it could not be
 * read, and may be whole. Without `mend` no file is changed.
 */
int kvc_check_pages(const char *path, bool mend, kvc_found_fn *fn, void *arg);
/* All rules over an open catalog, under its lock. 0 or a negative errno, as above. */
int kvc_check_rules(struct kvc_catalog *c, bool mend, kvc_found_fn *fn, void *arg);

/*
 * The rows of meta of a database that may be damaged, as far as they can be read. 0, -ENOENT: there
 * is none; -EBADMSG: it was read, and is damaged, there may be more; any other errno: it could not
 * be read; or what fn answered other than 0, which ends it. No file is changed.
 */
int kvc_check_meta(const char *path, int (*fn)(void *arg, const char *key, const char *value),
		   void *arg);

/*
 * Chunks whose drop a daemon did not end (names/chunk_drop.c), which is no fault: how many, and
 * with `mend` it is ended. Before the rules.
 */
int kvc_check_drops(struct kvc_catalog *c, bool mend, uint64_t *chunks);

/* Sum of the lengths placed in a tier. */
int kvc_check_placed_bytes(struct kvc_catalog *c, unsigned tier, uint64_t *bytes);
/* Forgets a placement, and keeps objects.lower true to what is left. */
int kvc_check_unplace(struct kvc_catalog *c, uint64_t ino, unsigned tier);

#endif
