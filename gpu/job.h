/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A transfer in a queue: its own copy of what was submitted, its steps, and how they are carried
 * out.
 */
#ifndef KVCACHEFS_JOB_H
#define KVCACHEFS_JOB_H

#include "transfer.h"

enum kvcachefs_step_state {
	KVCACHEFS_STEP_WAITS,
	KVCACHEFS_STEP_QUEUED, /* its work is on the device's stream, before its mark */
	KVCACHEFS_STEP_OVER,   /* done, failed, or never begun */
};

struct kvcachefs_step {
	uint32_t layer;
	size_t first, n;              /* its items, in the job's order */
	struct kvcachefs_transfer *t; /* of the thread that runs it */
	enum kvcachefs_step_state state;
	void *mark; /* on the thread's stream; from QUEUED on it stays until the job is freed */
	int err;    /* of its first item that failed; from QUEUED on, and may come later */
};

struct kvcachefs_job_cache;
struct kvcachefs_job {
	bool store;
	struct kvcachefs_paged *p; /* the call's cache */
	struct kvcachefs_job_cache *caches;
	struct kvcachefs_item *items; /* copies, by layer */
	size_t *order;                /* which of the caller's each is */
	size_t n, nsteps;
	struct kvcachefs_step *steps;
	struct kvcachefs_item *theirs; /* the caller's; their err is written at the end */
	void *mark;                    /* on the caller's stream, when it was submitted; or NULL */
	void *arena;
	/* How it ended. */
	int err;
	size_t failed;
	char error[160];
};

/* What a running job asks and tells; from the thread that runs it. */
struct kvcachefs_job_watch {
	void *arg;
	bool (*cancelled)(void *arg);
	/* The last question: may it publish? From a true on it cannot be cancelled. */
	bool (*commit)(void *arg);
	/* The step's state, mark and error, which others read, are set there. */
	void (*tell)(void *arg, struct kvcachefs_step *s, enum kvcachefs_step_state state,
		     void *mark, int err);
};

#pragma GCC visibility push(hidden)
/* Copies; -EINVAL, -ENOMEM. With a device it marks the stream: -ENODEV, -EBUSY. Never waits. */
int kvcachefs_job_new(struct kvcachefs_job **out, bool store, const struct kvcachefs_paged *p,
		      struct kvcachefs_item *items, size_t n, void *stream);
/*
 * Carries it out, on a stream of the caller's where it is on a device, and writes how it ended.
 * Blocks.
 */
void kvcachefs_job_run(struct kvcachefs_job *j, const char *mount, void *stream,
		       const struct kvcachefs_job_watch *w);
/* It ends without having begun, with that error. */
void kvcachefs_job_drop(struct kvcachefs_job *j, int err, const struct kvcachefs_job_watch *w);
void kvcachefs_job_free(struct kvcachefs_job *j);
#pragma GCC visibility pop

#endif
