/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Counting what the files of each model use (model_count.c): at mount, and after a large folder has
 * moved to another model. telemetry/model_use.h has the figures.
 */
#ifndef KVC_MODEL_COUNT_H
#define KVC_MODEL_COUNT_H

#include "kvc.h"

/* Forgets all figures and counts all files. The thread of model_rescan.c runs the count. */
void kvc_model_count_ask_locked(struct kvc *k);
/* Returns true if the count can go on: SQLite has every inode that it has to find there. */
bool kvc_model_count_due_locked(const struct kvc *k);
/*
 * Counts the next files, and ends the count after the last one. Called without locks. Returns 0 or
 * a negative errno; then the files are not counted yet.
 */
int kvc_model_count_some(struct kvc *k);
/* Returns true while files are counted: inodes below *below, and those up to *at are done. */
bool kvc_model_count_show_locked(const struct kvc *k, uint64_t *at, uint64_t *below);
/*
 * A folder moved from one model to another, with all files below it. Moves their figures at once if
 * they are few; otherwise, or after an error, requests a count.
 */
void kvc_model_count_moved_both(struct kvc *k, uint64_t folder, uint64_t from, uint64_t to);
/*
 * At mount, after the inode numbers: reads the figures that the previous daemon stored if it
 * unmounted cleanly (clean), or requests a count. At a clean unmount: stores them. Returns 0 or a
 * negative errno.
 */
int kvc_model_count_load_both(struct kvc *k, bool clean);
void kvc_model_count_save_both(struct kvc *k);

#endif
