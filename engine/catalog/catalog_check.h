/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Checking and repairing a catalog that no process uses, for fsck. Each rule is a row of a table in
 * catalog_check.c. fsck itself compares the contents of the tiers, with the placement functions
 * here.
 */
#ifndef KVC_CATALOG_CHECK_H
#define KVC_CATALOG_CHECK_H

#include "catalog.h"

/* Called for each error; `mended` tells whether it was repaired. */
typedef void kvc_found_fn(void *arg, bool mended, const char *what);

/*
 * Refuses a catalog of another format: returns -EPROTO with one line in error[512], and otherwise
 * 0, also if the format cannot be read. No file is changed. Call it before kvc_check_pages.
 */
int kvc_check_format(const char *path, char *error);
/*
 * Checks the database file. Returns 0; -EBADMSG, after reporting to fn, if the database was read
 * and is damaged, so that only a rebuild helps; or another errno if it could not be read and may be
 * intact. With `mend`, damaged indexes are rebuilt. Without `mend` no file is changed.
 */
int kvc_check_pages(const char *path, bool mend, kvc_found_fn *fn, void *arg);
/* Checks all rules in an open catalog, under its lock. Returns 0 or a negative errno as above. */
int kvc_check_rules(struct kvc_catalog *c, bool mend, kvc_found_fn *fn, void *arg);

/*
 * Calls fn for the readable rows of meta in a database that may be damaged. Returns 0; -ENOENT if
 * no database exists; -EBADMSG if it is damaged, so that rows may be missing; another errno if it
 * could not be read; or the first non-zero result of fn, which ends the walk. No file is changed.
 */
int kvc_check_meta(const char *path, int (*fn)(void *arg, const char *key, const char *value),
		   void *arg);

/*
 * Sets *chunks to the number of chunks whose drop is incomplete because the daemon was killed
 * (names/chunk_drop.c). That is not an error. With `mend`, completes the drops. Call it before
 * kvc_check_rules.
 */
int kvc_check_drops(struct kvc_catalog *c, bool mend, uint64_t *chunks);

/* Sets *bytes to the sum of the lengths of all placements in a tier. */
int kvc_check_placed_bytes(struct kvc_catalog *c, unsigned tier, uint64_t *bytes);
/* Deletes a placement and updates objects.lower. */
int kvc_check_unplace(struct kvc_catalog *c, uint64_t ino, unsigned tier);

#endif
