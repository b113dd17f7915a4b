/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Counting what the files of each model use (model_count.c): at mount, and when a folder moves to
 * another model. telemetry/model_use.h has the figures.
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
 * A folder has moved to another parent. If its files belong to another model now, moves their
 * figures: at once if they are few, otherwise in the thread of model_rescan.c. Requests a count of
 * all files after an error.
 */
void kvc_model_count_moved_both(struct kvc *k, uint64_t folder, uint64_t old_parent,
				uint64_t new_parent);
/* Returns true if files of a moved folder are left to be visited. */
bool kvc_model_count_moves_locked(const struct kvc *k);
/*
 * Visits the next files of a moved folder. Called without locks. Returns 0, or a negative errno
 * after it has requested a count of all files.
 */
int kvc_model_count_move_some(struct kvc *k);
/*
 * At mount, after the inode numbers: reads the figures that the previous daemon stored if it
 * unmounted cleanly (clean), or requests a count. At a clean unmount: stores them. Returns 0 or a
 * negative errno.
 */
int kvc_model_count_load_both(struct kvc *k, bool clean);
void kvc_model_count_save_both(struct kvc *k);

#endif
