/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Folders that moved to another model while they held more files than one hold of the locks may
 * visit (model_moves.c). A background walk moves the figures of their files. Until the walk has
 * reached a file, it is counted in the model that it came from. All under k->lock.
 */
#ifndef KVC_MODEL_MOVES_H
#define KVC_MODEL_MOVES_H

#include "model_stats.h"

#define KVC_MODEL_MOVES_MAX 64u    /* moves that may be under way */
#define KVC_MODEL_MOVES_PAGES 4096 /* maximum memory of their bitmaps, in pages */

/* The moves that a path passes: at each folder the newest move, the deepest folder first. */
struct kvc_model_move_path {
	struct kvc_model_move *on[KVC_MODEL_MOVES_MAX];
	unsigned n;
};

/* Returns true if any move is under way. */
static inline bool kvc_model_moves_any(const struct kvc *k)
{
	return k->model_stats->moves.under_way > 0;
}
/* Adds the newest move of this folder, if it has one, to the path. */
void kvc_model_moves_pass_locked(const struct kvc *k, uint64_t folder,
				 struct kvc_model_move_path *p);
/*
 * Returns the model in which a file that is not in memory is counted. p: the moves on its path;
 * model: the model that its path names.
 */
uint64_t kvc_model_moves_counted(const struct kvc_model_move_path *p, uint64_t ino, uint64_t model);
/*
 * A folder has moved from one model to another. p: the moves that its old path passed, including
 * those of the folder itself; below: files with numbers from here on do not exist yet. Returns 0
 * with a new move, which is under way until kvc_model_moves_end_locked; -ENOMEM or -E2BIG.
 */
int kvc_model_moves_begin_locked(struct kvc *k, uint64_t folder, uint64_t from, uint64_t to,
				 uint64_t below, const struct kvc_model_move_path *p,
				 struct kvc_model_move **out);
void kvc_model_moves_end_locked(struct kvc *k, struct kvc_model_move *m);
/* The oldest move that is under way, or NULL. */
struct kvc_model_move *kvc_model_moves_first_locked(const struct kvc *k);
/* Returns true if this move is still under way; m may have been freed. */
bool kvc_model_moves_has_locked(const struct kvc *k, const struct kvc_model_move *m);
/*
 * The file is counted in the model that its path names. Called for every file that is made, counted
 * or moved.
 */
void kvc_model_moves_mark_locked(struct kvc *k, uint64_t ino);
/* Returns true if memory was short, so that all files must be counted again. */
bool kvc_model_moves_failed(const struct kvc *k);
/* Returns true if files move out of this model or into it; KVC_UNSET: out of any model. */
bool kvc_model_moves_change(const struct kvc *k, uint64_t model);
/*
 * Returns true if t->use is what the files of the model use. Otherwise the files are being counted,
 * files move between this model and another one, or they are counted in the sum of the others. For
 * the others themselves: returns true if the figures of all models are known.
 */
bool kvc_model_moves_use_known_locked(const struct kvc *k, const struct kvc_model_stats *t);
/* Ends all moves, because all files are counted again, or at unmount. */
void kvc_model_moves_forget_locked(struct kvc *k);

/*
 * The position of a walk over the folder's files, for objects/model_count.c: folders to visit, each
 * followed by the hash of the last name that was read there.
 */
struct kvc_stack *kvc_model_moves_walk(struct kvc_model_move *m);

#endif
