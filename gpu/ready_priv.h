/* SPDX-License-Identifier: Apache-2.0 */
/*
 * State shared by ready.c and refill.c: the classes and the prepared files. ready.c describes it
 * and its lock.
 */
#ifndef KVCACHEFS_READY_PRIV_H
#define KVCACHEFS_READY_PRIV_H

#include "ready.h"

#define READY_MOUNTS 4

struct kvcachefs_place { /* a mount */
	char *path;
	/* asked: its share of the limits is known; busy: in use without the lock */
	bool asked, busy;
	/* short_ms: until when the mount counts as short of space */
	uint64_t dev, waits, looked_ms, short_ms;
};

struct kvcachefs_class {
	struct kvcachefs_class *next;
	struct kvcachefs_want w; /* the path is the folder only */
	struct kvcachefs_place *place;
	char *folder; /* with the mount */
	struct kvcachefs_map *ready;
	unsigned nready, making, out; /* out: taken, and not yet given back */
	/* the highest values of out: since peak_ms, and in the period before */
	unsigned peak, before, warmed;
	/* refused_ms: no file is tried before this time */
	uint64_t taken, used_ms, keep_ms, peak_ms, refused_ms;
	bool makes, teaches;
	int err; /* error of the last file that could not be prepared */
	char error[160];
};

struct kvcachefs_readiness {
	pthread_mutex_t lock;
	/* more: there is work; made: a file was prepared, or cannot be */
	pthread_cond_t more, made;
	struct kvcachefs_class *classes;
	struct kvcachefs_place places[READY_MOUNTS];
	unsigned nclasses, nready, making;
	bool freeing; /* the thread is removing files without the lock */
	uint64_t idle_ms;
	size_t bytes; /* bytes of prepared files, including those being prepared */
};

#pragma GCC visibility push(hidden)
extern struct kvcachefs_readiness kvcachefs_ready;
/* refill.c: starts the thread if it is not running. Returns false if there is none. */
bool kvcachefs_refill_locked(void);
/* Would one more file of that length be within the limits? */
bool kvcachefs_ready_fits_locked(size_t len);
/* Removes a prepared file from the class and returns it, or NULL. */
struct kvcachefs_map *kvcachefs_ready_pop_locked(struct kvcachefs_class *c);
/*
 * Add the files to remove to *gone; the caller passes it to kvcachefs_ready_free() without the
 * lock.
 */
void kvcachefs_ready_trim_locked(uint64_t now, struct kvcachefs_map **gone);
void kvcachefs_ready_short_locked(struct kvcachefs_place *p, uint64_t now,
				  struct kvcachefs_map **gone);
void kvcachefs_ready_free(struct kvcachefs_map *gone);
#pragma GCC visibility pop

#endif
