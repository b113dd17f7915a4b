/* SPDX-License-Identifier: Apache-2.0 */
/*
 * An engine in the test's own process: a store in memory, with a tier of the test's own beside the
 * pool. Without engine_start() it has no threads: nothing happens but what the test calls, and no
 * file is copied down.
 */
#ifndef ENGINE_H
#define ENGINE_H

#include "cache.h"
#include "commit_batch.h"
#include "dir_invalidate.h"
#include "file.h"
#include "tier_queue.h"
#include "deferred_free.h"

extern struct kvc *engine;
/* What the engine's own clock shows beside the time (with kvc_clock_ns wrapped). */
extern _Atomic uint64_t engine_later_ns;

/* Makes the store, and opens it with these options beside its own; ends the program with 77 where
 * there may be none. */
void engine_new(const char *options);
void engine_start(void);
/* Ends it, with its store. */
void engine_end(void);
/* The same engine anew: after an end in order, or as after a kill with the pool lost. */
void engine_again(bool killed);
/* Whatever is not right in the catalog fails. The engine is shut meanwhile, and opened again. */
void engine_check(void);

/* The number of what was made. */
uint64_t engine_folder(uint64_t parent, const char *name);
/* A file that was written and closed; its bytes follow from its number. */
uint64_t engine_file(uint64_t parent, const char *name);
#define HOUSE_FILE 5000 /* bytes */
/* It is in the tier too, as if a copy had been made. */
void engine_place(uint64_t ino);
/* Is the name there, and has the file its bytes? */
bool engine_has(uint64_t parent, const char *name);
/* What the kernel holds of it is forgotten. */
void engine_forget(uint64_t ino);
void engine_commit(void);

/* The tier; its calls may be set. */
#define HOUSE_SLOTS 256
#define HOUSE_SLOT (64ull << 10)
extern struct engine_tier {
	bool used[HOUSE_SLOTS];
	/* before the call does what it does, and what it answers then where that is not 0 */
	int (*_Atomic on_get)(uint64_t at);
	int (*_Atomic on_write)(uint64_t ino); /* of a frame that is put */
	int (*_Atomic on_rehead)(uint64_t at, const struct kvc_frame *f);
	/* when the header is made, and before that is recorded */
	void (*_Atomic on_put)(uint64_t ino);
	int (*_Atomic on_remove)(uint64_t at);
	_Atomic unsigned reheads, removes;
} engine_tier;
/* The header that lies there. */
int engine_header(uint64_t at, struct kvc_frame *f);

#endif
