/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The opens of each model (tally.c), and what of them was in the pool. There may be any number of
 * models: KVC_TALLIES_SHOWN of them, those with the most opens, are shown one by one, and what is
 * counted for the others is one sum. For metrics each number only grows as long as it is shown.
 */
#ifndef KVC_TALLY_H
#define KVC_TALLY_H

#include "kvc.h"
#include "table.h"

#define KVC_TALLIES_SHOWN 100u

struct kvc_opens {
	uint64_t hits, misses;
};

struct kvc_tallies { /* under k->lock; zero at first */
	struct kvc_table table;
	struct kvc_opens all, rest; /* rest: of those that were not shown at that time */
	unsigned shown;
};

/* A file of the model (0: of none) is opened, and the pool has it or not. */
void kvc_tally_locked(struct kvc *k, uint64_t model, bool hit);

struct kvc_tally_row {
	char name[256];
	uint64_t model;
	struct kvc_opens n, total; /* n: since it is shown */
};
struct kvc_tally_list {
	struct kvc_tally_row *v; /* the most opens first; of free() */
	size_t n, models;        /* models: of which something was opened */
	/* rest: what n leaves out, and only grows; all: of everything */
	struct kvc_opens all, rest;
};
/*
 * What is to be shown, which is chosen anew. Takes the locks, a while each. 0 or -ENOMEM; the
 * caller frees v.
 */
int kvc_tallies(struct kvc *k, struct kvc_tally_list *out);
/* The name of a model's folder in name[256]: 1; 0: there is none; or it cannot be read now. */
int kvc_tally_name(struct kvc *k, uint64_t model, char *name);
/* At the end. */
void kvc_tallies_free(struct kvc *k);

#endif
