/* SPDX-License-Identifier: Apache-2.0 */
/* The parsed arguments of kvcachectl replay, shared by its files. */
#ifndef KVM_REPLAY_PRIV_H
#define KVM_REPLAY_PRIV_H

#include "json.h"
#include "replay.h"

#define CAPACITIES 16
#define POLICIES 32
#define MODELS 256

/* A policy for each cache. `name` is A, or A:B if the disk has its own policy. */
struct pair {
	unsigned pool, disk;
	char name[32];
};

/* A model with its own policy. */
struct own {
	const char *model;
	unsigned policy;
};

struct replay {
	struct pair policy[POLICIES];
	unsigned npolicies;
	struct own own[MODELS];
	unsigned nown;
	char *own_text; /* memory of their names */
	uint64_t pool[CAPACITIES], disk[CAPACITIES];
	unsigned ncapacities;
	bool in_bytes; /* the capacities are in bytes */
	uint64_t seed;
	unsigned jobs;
	struct kvm_setup setup;
	bool verbose, tiers, all_tiers, json;
	struct kvm_json out;
	const char *svg;
};

/* Returns the row of a policy, or -1 after a message that it does not exist. */
int kvm_replay_policy(const char *name);
/* Parses --model. Returns 0, or the exit status after a message. */
int kvm_replay_models(struct replay *o, const char *words);
/* Returns the classes of a trace's models, which the caller frees; NULL after a message. */
uint8_t *kvm_replay_classes(const struct replay *o, const struct kvm_trace *t);

/* Prints the heading of a trace. */
void kvm_show_heads(struct replay *o, const struct kvm_trace *t);
/* Prints the row of the c-th capacity: the cells of the policies, then of the optimum. */
void kvm_show_row(struct replay *o, const struct kvm_trace *t, unsigned c,
		  const struct kvm_cell *s);
/* Call it after the last row. */
void kvm_show_end(struct replay *o);
/* --verbose: prints details of the p-th policy. */
void kvm_show_more(const struct replay *o, unsigned p, const struct kvm_cell *cell);

#endif
