/* SPDX-License-Identifier: Apache-2.0 */
/*
 * An engine in the test's process: a store in memory, and a tier of the test beside the pool.
 * Without engine_start() it has no threads: nothing happens except the calls of the test, and no
 * file is copied to the tier.
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
/* Added to the engine's clock (with kvc_clock_ns wrapped). */
extern _Atomic uint64_t engine_later_ns;

/*
 * Makes the store, and opens it with these options beside the usual ones. Ends the program with
 * status 77 if the machine does not allow it.
 */
void engine_new(const char *options);
void engine_start(void);
/* Closes the engine and removes its store. */
void engine_end(void);
/* Opens the same engine again: after a regular end, or as after a kill with the pool lost. */
void engine_again(bool killed);
/*
 * Fails the test if the catalog is inconsistent. Closes the engine for the check, and opens it
 * again.
 */
void engine_check(void);

/* Makes a folder; returns its number. */
uint64_t engine_folder(uint64_t parent, const char *name);
/* Writes and closes a file; its bytes depend on its number. Returns the number. */
uint64_t engine_file(uint64_t parent, const char *name);
#define HOUSE_FILE 5000 /* bytes */
/* Gives the file a copy in the tier. */
void engine_place(uint64_t ino);
/* True if the name exists and the file has its bytes. */
bool engine_has(uint64_t parent, const char *name);
/* Forgets all references of the kernel. */
void engine_forget(uint64_t ino);
void engine_commit(void);

/* The tier of the test. Its hooks may be set. */
#define HOUSE_SLOTS 256
#define HOUSE_SLOT (64ull << 10)
extern struct engine_tier {
	bool used[HOUSE_SLOTS];
	/* called before the operation; a result other than 0 is returned instead */
	int (*_Atomic on_get)(uint64_t at);
	int (*_Atomic on_write)(uint64_t ino); /* for a frame that is stored */
	int (*_Atomic on_rehead)(uint64_t at, const struct kvc_frame *f);
	/* called after the header was written, and before the copy is recorded */
	void (*_Atomic on_put)(uint64_t ino);
	int (*_Atomic on_remove)(uint64_t at);
	_Atomic unsigned reheads, removes;
} engine_tier;
/* Reads the stored header. */
int engine_header(uint64_t at, struct kvc_frame *f);

#endif
