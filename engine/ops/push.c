/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Offers to another node: it is told the paths of objects, and reads them from here if it takes
 * them. Workers of the peers tier send the requests, AT_ONCE at a time, so that a node that does
 * not answer leaves workers for lookups. The call waits for the answer; if its time is over before,
 * the offer is still made. PLACES and BYTES bound the memory.
 */
#include "push.h"

#include "cache.h"
#include "folder.h"
#include "incomplete.h"
#include "path.h"
#include "remote_lookup.h"
#include "tier_queue.h"

#include <string.h>

#define AT_ONCE 2u
#define PLACES 32u
#define TIMES 3u /* as for wait slots: a user may have this many times the free places */
#define BYTES (128u << 10)
#define HOLD_ITEMS 32u          /* paths of a list that are walked under one hold of the locks */
#define ANSWER_NS 5000000000ull /* beyond deadline=, for the lookups of the other node */

struct push {
	struct kvc_remote_turn turn; /* first, because the queue frees it */
	struct kvc_list link;        /* in k->pushes->all */
	bool runs;
	struct kvc_list waiters; /* the call, or nothing */
	unsigned tier;
	char node[300];
	size_t n, len;
	char names[]; /* each with a zero byte at its end */
};

/* Names that are being collected. */
struct names {
	char *text;
	size_t len, capacity, n;
};

static int add_name(struct names *s, const char *path)
{
	size_t len = strlen(path) + 1;

	if (s->len + len > BYTES)
		return -E2BIG;
	while (s->len + len > s->capacity) {
		size_t more = 2 * s->capacity + 4096;
		char *p = realloc(s->text, more);

		if (!p)
			return -ENOMEM;
		s->text = p;
		s->capacity = more;
	}
	memcpy(s->text + s->len, path, len);
	s->len += len;
	s->n++;
	return 0;
}

/* Adds a file, which must be published. */
static int add_file_both(struct kvc *k, struct names *s, uint64_t folder, const char *name,
			 uint64_t ino)
{
	char path[KVC_FRAME_PATH_MAX + 1];
	struct kvc_node *n;
	int err = kvc_node_get_both(k, ino, &n);

	if (err)
		return err == -ENOENT ? 0 : err; /* it was dropped just now */
	err = n->state == KVC_OPEN ? -ETXTBSY : 0;
	kvc_node_settle_locked(k, n);
	err = err ?: kvc_path_in_both(k, folder, name, path);
	if (!err && strchr(path, '\n'))
		err = -EINVAL;
	return err ?: add_name(s, path);
}

static int add_folder_both(struct kvc *k, struct names *s, struct kvc_node *folder)
{
	struct kvc_entries e = { 0 };
	uint64_t after = 0;
	int err = 0;

	for (int more = 1; more == 1 && !err;) {
		more = kvc_folder_entries_some_both(k, folder->row.ino, &after, &e);
		err = more < 0 ? more : 0;
		for (size_t i = 0; i < e.n && !err; i++)
			if (S_ISREG(e.v[i].kind) && !kvc_incomplete_temporary(e.v[i].name))
				err = add_file_both(k, s, folder->row.ino, e.v[i].name, e.v[i].ino);
		if (more == 1)
			kvc_pause_both(k);
	}
	free(e.v);
	return err;
}

/* Adds the file of a path below the folder, if it exists. Changes the path. */
static int add_listed_both(struct kvc *k, struct names *s, struct kvc_node *folder, char *path,
			   const struct kvc_asker *user)
{
	uint64_t parent = 0, at = folder->row.ino;
	const char *name = NULL;
	uint32_t kind = S_IFDIR;
	struct kvc_node *n;
	char *save = NULL;
	int err = 0;

	for (char *w = strtok_r(path, "/", &save); w && !err; w = strtok_r(NULL, "/", &save)) {
		err = !strcmp(w, "..") || strlen(w) > 255 ? -EINVAL : kvc_node_get_both(k, at, &n);
		if (err)
			break;
		err = user && !kvc_lease_asker_may(user, &n->row, 1) ? -EACCES : 0;
		kvc_node_settle_locked(k, n);
		parent = at;
		name = w;
		err = err ?: kvc_name_get(k->cat, parent, name, &at, &kind);
	}
	err = err ?: !S_ISREG(kind) ? -EINVAL : kvc_node_get_both(k, at, &n);
	if (!err) {
		err = user && !kvc_lease_asker_may(user, &n->row, 4) ? -EACCES : 0;
		kvc_node_settle_locked(k, n);
	}
	err = err ?: add_file_both(k, s, parent, name, at);
	return err == -ENOENT ? 0 : err;
}

static void push_run(struct kvc *k, struct kvc_job *j);

/* Starts the oldest offers that do not run yet. */
static void push_next_locked(struct kvc *k)
{
	kvc_list_each(e, &k->pushes->all) {
		struct push *p = kvc_of(e, struct push, link);

		if (k->pushes->running == AT_ONCE || k->stopping)
			return;
		if (p->runs)
			continue;
		p->runs = true;
		k->pushes->running++;
		kvc_remote_lookup_turn_locked(k, &p->turn, p->tier, push_run);
	}
}

static void push_run(struct kvc *k, struct kvc_job *j)
{
	struct push *p = kvc_of(j, struct push, turn.job);
	struct kvc_tier *t = k->tier[j->tier].t;
	KVC_MEM bool *taken = calloc(p->n, sizeof *taken);
	size_t refused = 0;
	int err = taken ? t->ops->offer(t, p->node, p->names, p->len, p->n, taken) : -ENOMEM;

	for (size_t i = 0; i < p->n; i++)
		refused += !taken || !taken[i];
	kvc_count_by(&k->stats, pushes, p->n);
	kvc_count_by(&k->stats, pushes_refused, refused);
	if (!err && refused)
		err = -ENODATA;
	else if (err == -EACCES) /* an error that a file call also has for other reasons */
		err = -EKEYREJECTED;
	kvc_lock(k);
	kvc_remote_lookup_turn_ended_locked(k, j->tier);
	kvc_wait_wake_all_locked(k, &p->waiters, err);
	kvc_list_del(&p->link);
	k->pushes->running--;
	push_next_locked(k);
	kvc_unlock(k);
}

/* Returns the number of the tier that can make offers, or -ENXIO. */
static int push_tier(const struct kvc *k)
{
	for (unsigned i = 0; i < k->ntiers; i++)
		if (k->tier[k->order[i]].t->ops->offer)
			return (int)k->order[i];
	return -ENXIO;
}

/* Is a place free for another offer of this user? */
static bool has_place_locked(struct kvc *k, uint32_t uid)
{
	unsigned all = 0, mine = 0;

	kvc_list_each(e, &k->pushes->all) {
		all++;
		mine += kvc_of(e, struct push, link)->turn.uid == uid;
	}
	return all < PLACES && mine < TIMES * (PLACES - all);
}

void kvc_push_init(struct kvc_pushes *p)
{
	kvc_list_init(&p->all);
}

void kvc_push_fini(struct kvc_pushes *p)
{
	kvc_list_each_safe(e, &p->all) {
		struct push *x = kvc_of(e, struct push, link);

		if (!x->runs) /* the queue of the tier frees the others */
			free(x);
	}
}

/* Checks that the node can be asked. *tier: the tier that asks it. */
static int may_push(const struct kvc *k, const char *node, const struct kvc_wait *w, int *tier)
{
	if (!*node || strlen(node) >= sizeof((struct push *)0)->node || !w)
		return -EINVAL;
	*tier = push_tier(k);
	return *tier < 0 ? *tier : 0;
}

/* Offers the names, and parks the call. */
static int offer_names_both(struct kvc *k, const struct names *s, const char *node, int tier,
			    struct kvc_wait *w)
{
	struct push *p;

	if (!s->n)
		return -ENODATA;
	if (!has_place_locked(k, w->uid))
		return -EBUSY;
	p = calloc(1, sizeof *p + s->len);
	if (!p)
		return -ENOMEM;
	snprintf(p->node, sizeof p->node, "%s", node);
	memcpy(p->names, s->text, s->len);
	p->n = s->n;
	p->len = s->len;
	p->turn.uid = w->uid;
	kvc_list_init(&p->waiters);
	w->deadline_ns = kvc_mono_ns() + k->opt.deadline_ms * 1000000 + ANSWER_NS;
	w->patient = true; /* a node that does not answer is no error of a load */
	p->tier = (unsigned)tier;
	kvc_list_add_tail(&k->pushes->all, &p->link);
	push_next_locked(k);
	return kvc_wait_park_locked(k, &p->waiters, w);
}

int kvc_push_both(struct kvc *k, struct kvc_node *n, const char *node, struct kvc_wait *w)
{
	struct names s = { 0 };
	int tier, err = may_push(k, node, w, &tier);

	if (!err && S_ISDIR(n->row.mode)) {
		err = add_folder_both(k, &s, n);
	} else if (!err) {
		char path[KVC_FRAME_PATH_MAX + 1];

		err = n->state == KVC_OPEN ? -ETXTBSY : kvc_path_both(k, n->row.ino, path);
		err = err ?: strchr(path, '\n') ? -EINVAL : add_name(&s, path);
	}
	err = err ?: offer_names_both(k, &s, node, tier, w);
	free(s.text);
	return err;
}

int kvc_push_list_both(struct kvc *k, struct kvc_node *n, const char *list,
		       const struct kvc_asker *user, struct kvc_wait *w)
{
	KVC_MEM char *copy = strdup(list);
	char *rest = copy, *node = strsep(&rest, "\n"), *path;
	struct names s = { 0 };
	size_t done = 0;
	int tier, err = copy ? may_push(k, node, w, &tier) : -ENOMEM;

	if (!err && !S_ISDIR(n->row.mode))
		err = -EINVAL;
	while (!err && (path = strsep(&rest, "\n"))) {
		err = *path ? add_listed_both(k, &s, n, path, user) : 0;
		if (++done % HOLD_ITEMS == 0)
			kvc_pause_both(k);
	}
	err = err ?: offer_names_both(k, &s, node, tier, w);
	free(s.text);
	return err;
}
