/* SPDX-License-Identifier: Apache-2.0 */
/*
 * An engine in the test's own process: a store in memory, with a tier of the test's own beside the
 * pool. Without house_start() it has no threads: nothing happens but what the test calls, and no
 * file is copied down.
 */
#ifndef HOUSE_H
#define HOUSE_H

#include "cache.h"
#include "commit.h"
#include "drop.h"
#include "file.h"
#include "tierq.h"
#include "trash.h"

extern struct kvc *house;
/* What the engine's own clock shows beside the time (with kvc_clock_ns wrapped). */
extern _Atomic uint64_t house_later_ns;

/* Makes the store, and opens it with these options beside its own; ends the program with 77 where
 * there may be none. */
void house_new(const char *options);
void house_start(void);
/* Ends it, with its store. */
void house_end(void);
/* The same engine anew: after an end in order, or as after a kill with the pool lost. */
void house_again(bool killed);
/* Whatever is not right in the catalog fails. The engine is shut meanwhile, and opened again. */
void house_check(void);

/* The number of what was made. */
uint64_t house_folder(uint64_t parent, const char *name);
/* A file that was written and closed; its bytes follow from its number. */
uint64_t house_file(uint64_t parent, const char *name);
#define HOUSE_FILE 5000 /* bytes */
/* It is in the tier too, as if a copy had been made. */
void house_place(uint64_t ino);
/* Is the name there, and has the file its bytes? */
bool house_has(uint64_t parent, const char *name);
/* What the kernel holds of it is forgotten. */
void house_forget(uint64_t ino);
void house_commit(void);

/* The tier; its calls may be set. */
#define HOUSE_SLOTS 256
#define HOUSE_SLOT (64ull << 10)
extern struct house_tier {
	bool used[HOUSE_SLOTS];
	/* before the call does what it does, and what it answers then where that is not 0 */
	int (*_Atomic on_get)(uint64_t at);
	int (*_Atomic on_write)(uint64_t ino); /* of a frame that is put */
	int (*_Atomic on_rehead)(uint64_t at, const struct kvc_frame *f);
	/* when the header is made, and before that is recorded */
	void (*_Atomic on_put)(uint64_t ino);
	int (*_Atomic on_remove)(uint64_t at);
	_Atomic unsigned reheads, removes;
} house_tier;
/* The header that lies there. */
int house_header(uint64_t at, struct kvc_frame *f);

#endif
