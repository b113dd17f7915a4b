/* SPDX-License-Identifier: Apache-2.0 */
/* Files that are made ready before a store needs them. All calls are for any thread. */
#ifndef KVCACHEFS_READY_H
#define KVCACHEFS_READY_H

#include "map.h"

struct kvcachefs_class; /* files alike: of one length, for one folder and device */
struct kvcachefs_want {
	const char *mount;
	uint64_t dev;     /* the mount's */
	const char *path; /* below the mount: of its first folder, or of none */
	size_t len;
	int device;
};

#pragma GCC visibility push(hidden)
/* The folder that a file of that path is made ready in: its first so many characters. */
size_t kvcachefs_folder_len(const char *path);
/* For tests: after so long without a store they go, and what was refused is tried again. */
void kvcachefs_ready_idle(unsigned ms);
/*
 * A new file of that length, without a name, open (m->fd) and mapped, to *m: true. false: none is
 * ready. Either way *of, where it is not NULL, is given back when that file is over; and more are
 * made ready. Blocks on nothing and allocates nothing where one is ready.
 */
bool kvcachefs_ready_take(const struct kvcachefs_want *w, struct kvcachefs_class **of,
			  struct kvcachefs_map **m);
void kvcachefs_ready_back(struct kvcachefs_class *of);
/* There was no room: all that is ready of that mount goes. false: nothing was. */
bool kvcachefs_ready_short(uint64_t dev);
/* What is over the bound is gone when this returns, and none is being made beyond it. */
void kvcachefs_ready_trim(void);
/*
 * Waits until n of them are ready, which stay so without a store for keep_ms where that is more
 * than what all have. -ENOSPC: the bounds or the pool have not the room; else why none can be made.
 */
int kvcachefs_ready_warm(const struct kvcachefs_want *w, unsigned n, uint64_t keep_ms);
/* How many are ready; for tests. */
unsigned kvcachefs_ready_count(void);

/*
 * prepare.c, for ready.c's thread: one file, made and mapped, in `folder`, which begins with the
 * mount; makes: the folder too; *teaches: see there. -ENOSPC: the pool has no room to spare;
 * -ESTALE: another mount is there now; -EAGAIN: the folder is not there.
 */
int kvcachefs_prepare(const char *folder, const struct kvcachefs_want *w, bool makes, bool *teaches,
		      struct kvcachefs_map **out);
/*
 * How often somebody has waited for room in that mount, or was refused it, and how much of the
 * pool is free; false: it does not say.
 */
bool kvcachefs_prepare_look(const char *mount, uint64_t *waits, uint64_t *spare);
#pragma GCC visibility pop

#endif
