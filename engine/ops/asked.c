/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Names that clients ask for and do not find. The kernel looks up a name before it creates it, so
 * not every lookup of a missing name is a question: a lookup is part of a store if the same thread
 * creates the name within MADE_NS. (The two requests follow each other at once, but on a busy
 * machine the thread may wait in between.) Therefore a lookup is counted only later: when the
 * thread looks up another name, or the same name again after AGAIN_NS, or when the counters are
 * read. A counter never decreases.
 *
 * The kernel caches missing names (miss timeout: fs/session.c), and answers repeated lookups of
 * them itself. These lookups are not counted.
 */
#include "ops.h"

#include "gone.h"
#include "model_stats.h"

#include <stdlib.h>

#define SLOTS 1024u
#define DEPTH 64 /* folders above a name that are followed in memory */
#define MADE_NS 300000000ull
/* a thread's next lookup of the same name counts again after this time */
#define AGAIN_NS 100000000ull
#define SETTLED_NS 1000000ull /* a report counts lookups that are at least this old */

struct kvc_asked {
	struct asked_slot {
		_Alignas(KVC_CACHE_LINE) pthread_mutex_t m;
		/* the thread's latest lookup of a missing name; key 0: none */
		uint64_t key, model, when_ns;
		struct kvc_gone_name dropped;
	} slot[SLOTS];
};

struct kvc_asked *kvc_asked_new(void)
{
	struct kvc_asked *a = aligned_alloc(KVC_CACHE_LINE, sizeof *a);

	for (unsigned i = 0; a && i < SLOTS; i++)
		a->slot[i] = (struct asked_slot){ .m = PTHREAD_MUTEX_INITIALIZER };
	return a;
}

void kvc_asked_free(struct kvc_asked *a)
{
	free(a);
}

static uint64_t key_of(uint64_t parent, const char *name, uint32_t thread)
{
	uint64_t place = parent * 0x9e3779b97f4a7c15ull ^ (uint64_t)thread << 32;

	return (kvc_name_hash(name) ^ place) | 1; /* not 0 */
}

/* All threads of other PID namespaces have the id 0: the names they look up choose the slot. */
static struct asked_slot *slot_of(struct kvc *k, uint64_t key, uint32_t thread)
{
	uint64_t by = (thread ?: key) * 0x9e3779b97f4a7c15ull;

	return &k->asked->slot[(by >> 32) % SLOTS];
}

/*
 * Follows the folders up to the root. The kernel knows them all, so they should be in memory. Sets
 * *model to KVC_UNSET if one is not. Returns false if no joint hold was possible.
 */
static bool joint_model(struct kvc *k, uint64_t folder, uint64_t *model)
{
	if (!kvc_joint_begin(k->joint))
		return false;
	*model = 0;
	for (unsigned depth = 0; folder != KVC_ROOT && *model != KVC_UNSET; depth++) {
		struct kvc_node *n = kvc_node_find_locked(k, folder);

		if (depth == DEPTH) { /* it is counted without a model */
			*model = 0;
			break;
		}
		*model = n ? folder : KVC_UNSET;
		folder = n ? n->row.parent : folder;
	}
	kvc_joint_end(k->joint);
	return true;
}

static uint64_t model_of(struct kvc *k, uint64_t folder)
{
	uint64_t model;

	if (joint_model(k, folder, &model) && model != KVC_UNSET)
		return model;
	kvc_lock_both(k);
	if (kvc_node_model_both(k, folder, &model))
		model = 0;
	kvc_unlock_both(k);
	return model;
}

static bool joint_count(struct kvc *k, uint64_t model)
{
	bool counted;

	if (!kvc_joint_begin(k->joint))
		return false;
	counted = kvc_model_stats_absent_joint(k, model);
	kvc_joint_end(k->joint);
	return counted;
}

static void count(struct kvc *k, uint64_t model, const struct kvc_gone_name *dropped)
{
	kvc_count(&k->stats, lookups_absent);
	kvc_gone_name_count(k, dropped);
	if (kvc_lock_unless_joint(k, joint_count(k, model)))
		return;
	kvc_model_stats_absent_locked(k, model, 1);
	kvc_unlock_to_joint(k);
}

void kvc_asked_absent(struct kvc *k, uint64_t parent, const char *name, uint32_t thread)
{
	uint64_t key = key_of(parent, name, thread), model = model_of(k, parent), before;
	struct asked_slot *s = slot_of(k, key, thread);
	struct kvc_gone_name dropped = kvc_gone_name_find(k, parent, kvc_name_hash(name));
	struct kvc_gone_name dropped_before;
	uint64_t now = kvc_mono_ns();
	bool counts;

	pthread_mutex_lock(&s->m);
	/* not twice for one name: a program often calls exists() and then mkdir() */
	counts = s->key && (s->key != key || now - s->when_ns >= AGAIN_NS);
	before = s->model;
	dropped_before = s->dropped;
	s->dropped = dropped;
	s->key = key;
	s->model = model;
	s->when_ns = now;
	pthread_mutex_unlock(&s->m);
	if (counts)
		count(k, before, &dropped_before);
}

void kvc_asked_made(struct kvc *k, uint64_t parent, const char *name, uint32_t thread)
{
	uint64_t key = key_of(parent, name, thread);
	struct asked_slot *s = slot_of(k, key, thread);

	pthread_mutex_lock(&s->m);
	if (s->key == key && kvc_mono_ns() - s->when_ns < MADE_NS)
		s->key = 0;
	pthread_mutex_unlock(&s->m);
	kvc_gone_name_forget(k, parent, kvc_name_hash(name));
}

void kvc_asked_settle(struct kvc *k)
{
	uint64_t now = kvc_mono_ns();

	for (unsigned i = 0; i < SLOTS; i++) {
		struct asked_slot *s = &k->asked->slot[i];
		struct kvc_gone_name dropped;
		uint64_t model;
		bool counts;

		pthread_mutex_lock(&s->m);
		model = s->model;
		dropped = s->dropped;
		counts = s->key && s->when_ns + SETTLED_NS <= now;
		if (counts)
			s->key = 0;
		pthread_mutex_unlock(&s->m);
		if (counts)
			count(k, model, &dropped);
	}
}
