/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What ready.c and refill.c share: the classes, and how much is ready. ready.c says what it is, and
 * what the lock is for.
 */
#ifndef KVCACHEFS_READY_PRIV_H
#define KVCACHEFS_READY_PRIV_H

#include "ready.h"

#define READY_MOUNTS 4

struct kvcachefs_place { /* a mount */
	char *path;
	bool asked, busy; /* for its part of the bounds; in use without the lock */
	uint64_t dev, waits, looked_ms, short_ms; /* short_ms: until when it is */
};

struct kvcachefs_class {
	struct kvcachefs_class *next;
	struct kvcachefs_want w; /* its path: the folder alone */
	struct kvcachefs_place *place;
	char *folder; /* with the mount */
	struct kvcachefs_map *ready;
	unsigned nready, making, out;  /* out: taken, and not given back */
	unsigned peak, before, warmed; /* the most of out: since peak_ms, and in the time before */
	/* refused: until when none is tried */
	uint64_t taken, used_ms, keep_ms, peak_ms, refused_ms;
	bool makes, teaches;
	int err; /* of the last that could not be made */
	char error[160];
};

struct kvcachefs_readiness {
	pthread_mutex_t lock;
	pthread_cond_t more, made; /* there is something to do; one was made, or cannot be */
	struct kvcachefs_class *classes;
	struct kvcachefs_place places[READY_MOUNTS];
	unsigned nclasses, nready, making;
	bool freeing; /* the thread lets go of some, without the lock */
	uint64_t idle_ms;
	size_t bytes; /* of what is ready or being made */
};

#pragma GCC visibility push(hidden)
extern struct kvcachefs_readiness kvcachefs_ready;
/* refill.c. The thread, begun if need be; false: there is none. */
bool kvcachefs_refill_locked(void);
/* Would one more of that length be within the bounds? */
bool kvcachefs_ready_fits_locked(size_t len);
/* One that is ready, or NULL. */
struct kvcachefs_map *kvcachefs_ready_pop_locked(struct kvcachefs_class *c);
/* Those that are to go are added to *gone, for kvcachefs_ready_free() without the lock. */
void kvcachefs_ready_trim_locked(uint64_t now, struct kvcachefs_map **gone);
void kvcachefs_ready_short_locked(struct kvcachefs_place *p, uint64_t now,
				  struct kvcachefs_map **gone);
void kvcachefs_ready_free(struct kvcachefs_map *gone);
#pragma GCC visibility pop

#endif
