/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The usage of each model's files: their number, their bytes, and the bytes of their copies in each
 * tier (model_use.c). All under k->lock.
 */
#ifndef KVC_MODEL_USE_H
#define KVC_MODEL_USE_H

#include "model_stats.h"

/* Copies what the files of a model use. Returns false if it is not known. */
bool kvc_model_use_get_locked(const struct kvc *k, uint64_t model, struct kvc_model_use *u);
/* Returns the bytes of the model's files in the pool. */
uint64_t kvc_model_use_pool_locked(const struct kvc *k, uint64_t model);
/*
 * Returns true if the file is counted: its changes must be counted too. Otherwise the running count
 * of all files has not reached it yet.
 */
bool kvc_model_use_counts(const struct kvc *k, uint64_t ino);
/*
 * The file is added to the count of files (files 1), removed from it (-1) or neither (0), and its
 * bytes have changed by `bytes`.
 */
void kvc_model_use_file_locked(struct kvc *k, const struct kvc_node *n, int64_t files,
			       int64_t bytes);
/* The bytes of the file's copy in the tier have changed; 0: no copy. */
void kvc_model_use_place_locked(struct kvc *k, const struct kvc_node *n, unsigned tier,
				uint64_t before, uint64_t now);
/* Returns the usage of a file in memory. */
struct kvc_model_use kvc_model_use_of(const struct kvc *k, const struct kvc_node *n);
/* A file that uses u moves to another model. */
void kvc_model_use_move_locked(struct kvc *k, uint64_t ino, uint64_t from, uint64_t to,
			       const struct kvc_model_use *u);
/*
 * Called before a new file is counted. Its number may have been issued before a count of all files
 * began, although the file exists only now.
 */
void kvc_model_use_enters_locked(struct kvc *k, uint64_t ino);

/*
 * The count of all files (objects/model_count.c). begin: forgets all figures; from now on, files
 * with the number `below` or a higher one are counted at once. visit: the file is reached, and uses
 * u. advance: all files up to this number are counted. end: the figures are complete.
 */
void kvc_model_use_begin_locked(struct kvc *k, uint64_t below);
void kvc_model_use_visit_locked(struct kvc *k, uint64_t ino, uint64_t model,
				const struct kvc_model_use *u);
void kvc_model_use_advance_locked(struct kvc *k, uint64_t ino);
void kvc_model_use_end_locked(struct kvc *k);
/* Sets the figures of a model, as an earlier daemon has stored them. */
void kvc_model_use_restore_locked(struct kvc *k, uint64_t model, const struct kvc_model_use *u);

#endif
