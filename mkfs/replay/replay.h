/* SPDX-License-Identifier: Apache-2.0 */
/* Traces of requests in memory, and the simulations of kvcachectl replay. */
#ifndef KVM_REPLAY_H
#define KVM_REPLAY_H

#include "replacer.h"
#include "policy.h"

#include <stdio.h>

/*
 * A trace. Its file has one request per line, as JSON: "hash_ids": [...], the chunks of the prompt
 * in order, as numbers that stand for the prefix up to and including the chunk; "bytes": [...],
 * their sizes; "timestamp", the arrival time in ms; and "model", the name or number of the
 * request's model. The same number in two models means two chunks. "ended" ("tool", "turn" or
 * "closed") and "returns" (seconds) tell when the session's next request was expected, as known at
 * the end of this one; they have the meaning of kvcachectl hint. A recording also has lines
 * {"lost": N}: N accesses were lost there (trace_join.c).
 *
 * In memory, chunks are numbered from 0, and the ids of all requests are in one array: request r
 * has the ids from at[r] to at[r + 1] - 1.
 */
struct kvm_trace {
	const char *name;
	uint32_t *id;
	uint64_t *at;
	double *ms;                /* 0: no timestamp */
	uint64_t *bytes, mean;     /* sizes of chunks; mean 0: no sizes */
	uint32_t requests, chunks; /* chunks: distinct chunks */
	uint64_t accesses;
	uint64_t lost; /* accesses that are missing in a recording */
	/* At least one model if there is a request; "" is the model of requests that name none. */
	uint32_t models, *model; /* model: of each request */
	uint8_t *outlook;        /* of each request (policy/replacer.h) */
	char **model_name;
};

/* Reads a trace. Returns 0, or 1 after a message. The caller frees it, also after a failure. */
int kvm_trace_read(struct kvm_trace *t, const char *path);
void kvm_trace_free(struct kvm_trace *t);

/* How well the prefix chains were learned. */
struct kvm_learned {
	uint64_t made; /* created chunks */
	/* created chunks without an observed parent, and with a wrong parent */
	uint64_t loose, wrong;
	uint64_t mended; /* chunks whose parent changed later */
	uint64_t begun;  /* requests, as inferred */
};

/*
 * Hit ratios of the chunks accessed in the last half of the requests; the first half fills the
 * caches. A chunk counts as a hit only if all chunks before it in its request are hits too. disk:
 * hits that are only on disk.
 */
struct kvm_share {
	double pool, disk;
	double accesses_per_s;
	uint64_t bytes;  /* memory for the policy's state */
	char text[4096]; /* the policy's own description of the pool's state, in lines */
	struct kvm_learned learned;
};

/* The source of the prefix chains. */
enum kvm_chain { KVM_NONE, KVM_TOLD, KVM_LEARNED };

#define KVM_CLIENTS 64
#define KVM_THREADS 64

struct kvm_setup {
	enum kvm_chain chain;
	/*
	 * Requests that run concurrently, up to KVM_CLIENTS, and, for learned chains, the threads
	 * that make their calls.
	 */
	uint32_t clients, threads;
	/*
	 * The class (base/policy.h) of each model of the trace. As in the daemon, models with their
	 * own policy have a replacer of that policy. NULL: all classes are 0.
	 */
	const uint8_t *class;
};

/* Counted accesses and hits of one model. */
struct kvm_part {
	uint64_t asked, hits[2]; /* in the pool and on disk; for the optimum only the first */
};

#define KVM_BYTES_MOST (1ull << 50) /* limit for a chunk and for a cache */

/* A simulation and its result: hit ratios, or the optimum for the larger cache. */
struct kvm_cell {
	/*
	 * The pool and the disk, each with its policy and its capacity in chunks or bytes;
	 * disk_capacity 0: no disk.
	 */
	struct kvc_replacer_conf pool, disk;
	uint64_t pool_capacity, disk_capacity;
	bool in_bytes; /* the capacities are in bytes */
	bool is_optimum;
	struct kvm_part *part; /* results per model; the caller provides it, zeroed */
	struct kvm_share share;
	double optimum;
	/* valid after kvm_jobs_wait */
	bool ready;
	int err;
};

/* Runs a simulation. Returns 0 or -ENOMEM. */
int kvm_replay(const struct kvm_trace *t, const struct kvm_setup *setup, struct kvm_cell *cell);
/*
 * Computes Belady's optimum for single chunks: the chunk whose next access is the latest is
 * evicted. If the sizes differ, a better choice may exist. Returns a negative number if memory is
 * short.
 */
double kvm_optimum(const struct kvm_trace *t, uint64_t capacity, bool in_bytes,
		   struct kvm_part *part);

/*
 * Starts the simulation of n cells with up to `threads` threads. The trace, the setup and the cells
 * must stay valid until kvm_jobs_end. Returns NULL if memory is short.
 */
#define KVM_JOBS 256
struct kvm_jobs *kvm_jobs_start(const struct kvm_trace *t, const struct kvm_setup *setup,
				struct kvm_cell *cell, unsigned n, unsigned threads);
/* Waits for a cell. Returns 0 or -ENOMEM. */
int kvm_jobs_wait(struct kvm_jobs *j, unsigned cell);
/* Ends the jobs: running cells are completed, others are skipped. j may be NULL. */
void kvm_jobs_end(struct kvm_jobs *j);

/* A curve of a chart: hit ratios at the chart's capacities. */
struct kvm_curve {
	const char *name;
	const double *share;
};

/* Appends a chart, as a part of an SVG file, at `top` pixels from its upper edge. */
#define KVM_CHART_WIDTH 760
#define KVM_CHART_HEIGHT 420
void kvm_chart(FILE *out, int top, const char *title, const uint64_t *capacity, unsigned ncapacity,
	       bool in_bytes, const struct kvm_curve *curve, unsigned ncurves);
/* Returns a capacity as text, with a unit if it is in bytes, in a static buffer of the thread. */
const char *kvm_capacity_text(uint64_t capacity, bool in_bytes);

#endif
