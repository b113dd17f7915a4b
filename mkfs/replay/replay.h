/* SPDX-License-Identifier: Apache-2.0 */
/* A trace of requests in memory, and what can be found out with it, for kvcachectl replay. */
#ifndef KVM_REPLAY_H
#define KVM_REPLAY_H

#include "replacer.h"
#include "policy.h"

#include <stdio.h>

/*
 * A trace: JSON lines, one request each, with "hash_ids": [...], the chunks of its prompt in order,
 * by numbers that stand for the prefix up to and with the chunk, "bytes": [...], their sizes, and
 * "timestamp", when it comes, in ms; and "model", a name or a number, whose the request is; one
 * number of two models is two chunks. Of a recording there are lines {"lost": N}, N uses of chunks
 * that it lacks there (trace_join.c). Here chunks are numbered anew from 0, and the ids of all
 * requests lie in one array: request r has those from at[r] to at[r + 1] - 1.
 */
struct kvm_trace {
	const char *name;
	uint32_t *id;
	uint64_t *at;
	double *ms;                /* 0 where it is not told */
	uint64_t *bytes, mean;     /* of chunks; mean 0: no size is told */
	uint32_t requests, chunks; /* chunks: different ones */
	uint64_t accesses;
	uint64_t lost; /* accesses that a recording lacks */
	/* at least one where there is a request; "": of requests that tell none */
	uint32_t models, *model; /* model: of each request */
	char **model_name;
};

/* 0, or 1 after a message. Who has it frees it, also after a failure. */
int kvm_trace_read(struct kvm_trace *t, const char *path);
void kvm_trace_free(struct kvm_trace *t);

/*
 * What hit, as a prefix of its request, of the chunks asked for in the last half of the requests:
 * the first half fills the cache. disk: what did not hit in the pool but below it, and lengthened
 * the prefix.
 */
struct kvm_learned {
	uint64_t made;         /* chunks that were created */
	uint64_t loose, wrong; /* of which the chain was not seen, or a wrong one */
	uint64_t mended;       /* chunks of which it was changed later */
	uint64_t begun;        /* requests, as they were seen */
};

struct kvm_share {
	double pool, disk;
	double accesses_per_s;
	uint64_t bytes;  /* of memory for the policy's state */
	char text[4096]; /* what it says of itself, lines; of the pool's */
	struct kvm_learned learned;
};

/* Where the chain comes from. */
enum kvm_chain { KVM_NONE, KVM_TOLD, KVM_LEARNED };

#define KVM_CLIENTS 64
#define KVM_THREADS 64

struct kvm_way {
	enum kvm_chain chain;
	/*
	 * learned: requests that are under way at once, up to KVM_CLIENTS; and the threads on them
	 */
	uint32_t clients, threads;
	/*
	 * The classes (base/policy.h) of the trace's models: as in the daemon those with a policy
	 * of their own have the order of that policy; NULL: all are 0
	 */
	const uint8_t *class;
};

/* What one model asked for, in the requests that count, and what of it hit. */
struct kvm_part {
	uint64_t asked, hits[2]; /* in the pool, and on disk; or, of the optimum, the first */
};

#define KVM_BYTES_MOST (1ull << 50) /* of a chunk, and of a cache */

/* What is to be found out, and what was: shares, or of the larger of both the optimum. */
struct kvm_cell {
	/* a pool over a disk, each with its policy and room for so many chunks, or bytes; 0: no
	 * disk */
	struct kvc_replacer_conf pool, disk;
	uint64_t pool_room, disk_room;
	bool in_bytes; /* the trace has sizes */
	bool is_optimum;
	struct kvm_part *part; /* of each model of the trace; the caller's, zeroed */
	struct kvm_share share;
	double optimum;
	/* kvm_jobs_wait tells */
	bool ready;
	int err;
};

/* 0 or -ENOMEM. */
int kvm_replay(const struct kvm_trace *t, const struct kvm_way *way, struct kvm_cell *cell);
/*
 * Belady's optimum for single chunks: what is used again last, goes. Where sizes differ another
 * choice may be better still. Negative: out of memory.
 */
double kvm_optimum(const struct kvm_trace *t, uint64_t capacity, bool in_bytes,
		   struct kvm_part *part);

/*
 * `n` cells, by up to so many threads; the trace, the way and the cells stay until kvm_jobs_end.
 * NULL: out of memory.
 */
#define KVM_JOBS 256
struct kvm_jobs *kvm_jobs_start(const struct kvm_trace *t, const struct kvm_way *way,
				struct kvm_cell *cell, unsigned n, unsigned threads);
/* Until this one is done. 0 or -ENOMEM. */
int kvm_jobs_wait(struct kvm_jobs *j, unsigned cell);
/* What was not begun is left; what was is waited for. NULL is none. */
void kvm_jobs_end(struct kvm_jobs *j);

/* One curve of a picture: the shares at the picture's capacities. */
struct kvm_curve {
	const char *name;
	const double *share;
};

/* Appends a chart as part of an SVG file, `top` down from its upper edge. */
#define KVM_CHART_WIDTH 760
#define KVM_CHART_HEIGHT 420
void kvm_chart(FILE *out, int top, const char *title, const uint64_t *capacity, unsigned ncapacity,
	       bool in_bytes, const struct kvm_curve *curve, unsigned ncurves);
/* A capacity, in bytes with a unit; in static room of the thread's. */
const char *kvm_room_text(uint64_t capacity, bool in_bytes);

#endif
