/* SPDX-License-Identifier: Apache-2.0 */
/* The state of all floors: made, joined by the hooks (engine/README) and freed as one. */
#ifndef KVC_FLOORS_H
#define KVC_FLOORS_H

#include "account.h"
#include "admit.h"
#include "clock.h"
#include "copies.h"
#include "demote.h"
#include "dirty.h"
#include "drop.h"
#include "evict.h"
#include "folders.h"
#include "ino.h"
#include "kept.h"
#include "layers.h"
#include "limit.h"
#include "model.h"
#include "node.h"
#include "notify.h"
#include "pace.h"
#include "pin.h"
#include "share.h"
#include "survey.h"
#include "tally.h"
#include "tierq.h"
#include "took.h"
#include "trash.h"
#include "unit.h"
#include "used.h"

#include <pthread.h>

enum { KVC_COMMITTER, KVC_SYNCER, KVC_ANSWERER, KVC_NOTIFIER, KVC_EVICTOR, KVC_SAVER, KVC_THREADS };

struct kvc_floors {
	struct kvc k; /* first */
	struct kvc_dirty dirty;
	struct kvc_inos inos;
	struct kvc_nodes nodes;
	struct kvc_chunks chunks;
	struct kvc_kept kept;
	struct kvc_used used;
	struct kvc_users users;
	struct kvc_pins pins;
	struct kvc_clock clock;
	struct kvc_models models;
	struct kvc_tallies tallies;
	struct kvc_tooks tooks;
	struct kvc_account account;
	struct kvc_admits admit;
	struct kvc_surveys surveys;
	struct kvc_work work;
	struct kvc_tier_state tier[KVC_TIERS + 1];
	struct kvc_trashcan trash;
	struct kvc_folders folders;
	struct kvc_pace pace;
	struct kvc_notices notices;
	struct kvc_units units;
	struct kvc_drops drops;
	struct kvc_share share;
	struct kvc_evict evict;
	struct kvc_demotes demotes;
	pthread_t thread[KVC_THREADS];
	unsigned nthreads; /* that run, in the order of the enum */
};

static inline struct kvc_floors *kvc_floors_of(struct kvc *k)
{
	return kvc_of(k, struct kvc_floors, k);
}

/* With nothing in it; NULL: out of memory. */
struct kvc *kvc_floors_new(void);
/* What is in memory goes: files are closed before their pool is. Of one thread. */
void kvc_floors_empty(struct kvc *k);
/* When catalog and pool are closed, too. */
void kvc_floors_free(struct kvc *k);

#endif
