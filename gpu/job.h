/* SPDX-License-Identifier: Apache-2.0 */
/* A transfer in a queue: a copy of the submitted arguments, and the steps that carry it out. */
#ifndef KVCACHEFS_JOB_H
#define KVCACHEFS_JOB_H

#include "transfer.h"

enum kvcachefs_step_state {
	KVCACHEFS_STEP_WAITS,
	KVCACHEFS_STEP_QUEUED, /* its work is on the device's stream, before its mark */
	KVCACHEFS_STEP_OVER,   /* done, failed, or skipped */
};

struct kvcachefs_step {
	uint32_t layer;
	size_t first, n;              /* its items, in the job's order */
	struct kvcachefs_transfer *t; /* used only by the thread that runs the job */
	enum kvcachefs_step_state state;
	void *mark; /* on the thread's stream; set at QUEUED, and kept until the job is freed */
	int err;    /* error of its first failed item; may be set from QUEUED on */
};

struct kvcachefs_job_cache;
struct kvcachefs_job {
	bool store;
	struct kvcachefs_paged *p; /* the cache of the call */
	struct kvcachefs_job_cache *caches;
	struct kvcachefs_item *items; /* copies, sorted by layer */
	size_t *order;                /* for each item, its index in the caller's array */
	size_t n, nsteps;
	struct kvcachefs_step *steps;
	struct kvcachefs_item *theirs; /* the caller's items; their err is written at the end */
	/* on the caller's stream at the time of submitting; or NULL */
	void *mark;
	void *arena;
	/* the result */
	int err;
	size_t failed, skipped;
	uint64_t bytes; /* moved */
	char error[160];
};

/* Callbacks of a running job, called by the thread that runs it. */
struct kvcachefs_job_watch {
	void *arg;
	bool (*cancelled)(void *arg);
	/* Asks whether to publish. After it returned true the job cannot be cancelled. */
	bool (*commit)(void *arg);
	/* Sets the step's state, mark and error, which other threads read. */
	void (*tell)(void *arg, struct kvcachefs_step *s, enum kvcachefs_step_state state,
		     void *mark, int err);
};

#pragma GCC visibility push(hidden)
/*
 * Copies the arguments to a new job. With a device it sets a mark on the stream. Returns 0,
 * -EINVAL, -ENOMEM, -ENODEV or -EBUSY. Does not block.
 */
int kvcachefs_job_new(struct kvcachefs_job **out, bool store, const struct kvcachefs_paged *p,
		      struct kvcachefs_item *items, size_t n, void *stream);
/* Carries the job out and sets its result. With a device the work runs on `stream`. Blocks. */
void kvcachefs_job_run(struct kvcachefs_job *j, const char *mount, void *stream,
		       const struct kvcachefs_job_watch *w);
/* Ends a job that has not begun, with the error `err`. */
void kvcachefs_job_drop(struct kvcachefs_job *j, int err, const struct kvcachefs_job_watch *w);
void kvcachefs_job_free(struct kvcachefs_job *j);
#pragma GCC visibility pop

#endif
