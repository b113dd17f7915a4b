/* SPDX-License-Identifier: Apache-2.0 */
/* What the files of kvcachectl replay share: what was asked for. */
#ifndef KVM_REPLAY_PRIV_H
#define KVM_REPLAY_PRIV_H

#include "json.h"
#include "replay.h"

#define CAPACITIES 16
#define POLICIES 32
#define MODELS 256

/* What goes by which policy; `name` is A, or A:B where they are told apart. */
struct pair {
	unsigned pool, disk;
	char name[32];
};

/* A model with a policy of its own. */
struct own {
	const char *model;
	unsigned policy;
};

struct replay {
	struct pair policy[POLICIES];
	unsigned npolicies;
	struct own own[MODELS];
	unsigned nown;
	char *own_text; /* where their names are */
	uint64_t pool[CAPACITIES], disk[CAPACITIES];
	unsigned ncapacities;
	bool in_bytes; /* these */
	uint64_t seed;
	unsigned jobs;
	struct kvm_way way;
	bool verbose, tiers, all_tiers, json;
	struct kvm_json out;
	const char *svg;
};

/* A policy's row, or -1 after the message that it is none. */
int kvm_replay_policy(const char *name);
/* Of --model. 0, or the exit status after the message. */
int kvm_replay_models(struct replay *o, const char *words);
/* The classes of a trace's models, the caller's to free; NULL after a message. */
uint8_t *kvm_replay_classes(const struct replay *o, const struct kvm_trace *t);

/* Before a trace's shares. class: as kvm_replay_classes has it. */
void kvm_show_heads(struct replay *o, const struct kvm_trace *t);
/* Those of one capacity, the c-th: the cells of the policies, and then the optimum's. */
void kvm_show_row(struct replay *o, const struct kvm_trace *t, unsigned c,
		  const struct kvm_cell *s);
/* After the last. */
void kvm_show_end(struct replay *o);
/* --verbose: of the p-th policy. */
void kvm_show_more(const struct replay *o, unsigned p, const struct kvm_cell *cell);

#endif
