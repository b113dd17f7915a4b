/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A tier in front of another that delays or breaks its calls, so that tests can change its
 * behaviour without branches in the drivers. The spec consists of words joined by '+':
 *   delay-get:MS delay-put:MS     sleep first
 *   fail-get:N fail-put:N         every Nth call fails with EIO (1: all)
 *   flip-get:N                    every Nth read has one bit flipped
 *   fail-while:PATH               all gets and puts fail with EIO while that file exists
 *   fail-places:PATH              reads of the places that the file lists fail: lines "AT ERRNO"
 *   delay-while:PATH              with a delay: only while that file exists
 *   only:NAME                     only the tier of that name (checked by registry.c)
 */
#include "registry.h"

#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

struct shim {
	struct kvc_tier tier;
	struct kvc_tier_ops ops;
	struct kvc_tier *below;
	unsigned long delay_get, delay_put, fail_get, fail_put, flip_get;
	char fail_while[128], delay_while[128], fail_places[128];
	_Atomic unsigned long gets, puts;
};

static struct shim *shim_of(struct kvc_tier *t)
{
	return kvc_of(t, struct shim, tier);
}

static int delay_or_fail(struct shim *s, unsigned long delay, unsigned long nth,
			 unsigned long count)
{
	uint64_t until = kvc_mono_ns() + delay * 1000000;

	while (kvc_mono_ns() < until && (!*s->delay_while || !access(s->delay_while, F_OK)))
		usleep((useconds_t)kvc_min(delay * 1000, 10000));
	if (*s->fail_while && !access(s->fail_while, F_OK))
		return -EIO;
	return nth && count % nth == 0 ? -EIO : 0;
}

/* Returns the error to inject at this place, or 0. */
static int place_error(const struct shim *s, uint64_t at)
{
	FILE *f = *s->fail_places ? fopen(s->fail_places, "re") : NULL;
	unsigned long long bad;
	int err, found = 0;

	while (f && !found && fscanf(f, "%llu %d", &bad, &err) == 2)
		found = bad == at ? -err : 0;
	if (f)
		fclose(f);
	return found;
}

static void shim_close(struct kvc_tier *t)
{
	struct shim *s = shim_of(t);

	s->below->ops->close(s->below);
	free(s);
}

static int shim_claim(struct kvc_tier *t, const struct kvc_where *w)
{
	struct shim *s = shim_of(t);

	return s->below->ops->claim(s->below, w);
}

static int shim_put(struct kvc_tier *t, const struct kvc_put *p, struct kvc_where *out)
{
	struct shim *s = shim_of(t);
	int err = delay_or_fail(s, s->delay_put, s->fail_put, atomic_fetch_add(&s->puts, 1) + 1);

	return err ?: s->below->ops->put(s->below, p, out);
}

static int shim_get_path(struct kvc_tier *t, const struct kvc_where *w, const char *path,
			 uint64_t off, const struct iovec *iov, int n)
{
	struct shim *s = shim_of(t);
	unsigned long count = atomic_fetch_add(&s->gets, 1) + 1;
	int err = delay_or_fail(s, s->delay_get, s->fail_get, count) ?: place_error(s, w->at);

	if (!err)
		err = kvc_tier_get(s->below, w, path, off, iov, n);
	if (!err && s->flip_get && count % s->flip_get == 0) {
		const struct iovec *last = &iov[n - 1];

		((uint8_t *)last->iov_base)[count * 7919 % (n > 1 ? last->iov_len : 100)] ^=
			1 << count % 8;
	}
	return err;
}

static int shim_get(struct kvc_tier *t, const struct kvc_where *w, uint64_t off,
		    const struct iovec *iov, int n)
{
	return shim_get_path(t, w, NULL, off, iov, n);
}

static bool shim_distrust(struct kvc_tier *t, const struct kvc_where *w)
{
	struct kvc_tier *b = shim_of(t)->below;

	return b->ops->distrust(b, w);
}

static int shim_have(struct kvc_tier *t, const struct kvc_where *w, const char *const *path,
		     size_t n, bool *has)
{
	struct shim *s = shim_of(t);
	unsigned long count = atomic_fetch_add(&s->gets, 1) + 1;
	int err = delay_or_fail(s, s->delay_get, s->fail_get, count);

	return err ?: s->below->ops->have(s->below, w, path, n, has);
}

static int shim_offer(struct kvc_tier *t, const char *node, const char *names, size_t len, size_t n,
		      bool *taken)
{
	struct kvc_tier *b = shim_of(t)->below;

	return b->ops->offer(b, node, names, len, n, taken);
}

static int shim_ask(struct kvc_tier *t, enum kvc_peer_kind kind, const char *names, size_t len,
		    uint64_t ns, struct kvc_node_answer *a, size_t *n)
{
	struct kvc_tier *b = shim_of(t)->below;

	return b->ops->ask(b, kind, names, len, ns, a, n);
}

static int shim_announce(struct kvc_tier *t, const struct kvc_announcement *a)
{
	struct kvc_tier *b = shim_of(t)->below;

	return b->ops->announce(b, a);
}

static int shim_rehead(struct kvc_tier *t, const struct kvc_where *w,
		       const uint8_t page[KVC_FRAME_HEADER])
{
	struct shim *s = shim_of(t);

	return s->below->ops->rehead(s->below, w, page);
}

static int shim_remove(struct kvc_tier *t, const struct kvc_where *w)
{
	struct shim *s = shim_of(t);

	return s->below->ops->remove(s->below, w);
}

static int shim_list(struct kvc_tier *t,
		     int (*fn)(void *arg, const struct kvc_where *w, const struct kvc_frame *f),
		     void *arg)
{
	struct shim *s = shim_of(t);

	return s->below->ops->list(s->below, fn, arg);
}

static int shim_start(struct kvc_tier *t)
{
	struct shim *s = shim_of(t);

	return s->below->ops->start(s->below);
}

static void shim_stop(struct kvc_tier *t)
{
	struct shim *s = shim_of(t);

	s->below->ops->stop(s->below);
}

static int shim_sync(struct kvc_tier *t)
{
	struct shim *s = shim_of(t);

	return s->below->ops->sync(s->below);
}

static int shim_sync_place(struct kvc_tier *t, const struct kvc_where *w)
{
	struct shim *s = shim_of(t);

	return s->below->ops->sync_place(s->below, w);
}

static void shim_usage(struct kvc_tier *t, struct kvc_tier_usage *u)
{
	struct shim *s = shim_of(t);

	s->below->ops->usage(s->below, u);
}

static void shim_watch_syncs(struct kvc_tier *t, bool unsynced, void (*failed)(void *arg),
			     void *arg)
{
	struct shim *s = shim_of(t);

	s->below->ops->watch_syncs(s->below, unsynced, failed, arg);
}

static enum kvc_tier_synced shim_synced(struct kvc_tier *t, const struct kvc_where *w)
{
	struct shim *s = shim_of(t);

	return s->below->ops->synced(s->below, w);
}

static int shim_device(struct kvc_tier *t, unsigned nr, struct kvc_tier_device *d)
{
	struct shim *s = shim_of(t);

	return s->below->ops->device(s->below, nr, d);
}

static int shim_change(struct kvc_tier *t, enum kvc_tier_change change, const struct kvc_store *st,
		       unsigned nr, char *error)
{
	struct shim *s = shim_of(t);

	return s->below->ops->change(s->below, change, st, nr, error);
}

static int shim_word(struct shim *s, const char *w, char *error)
{
	const struct {
		const char *name;
		unsigned long *n;
		char *path;
	} words[] = {
		{ "delay-get", &s->delay_get, NULL },    { "delay-put", &s->delay_put, NULL },
		{ "fail-get", &s->fail_get, NULL },      { "fail-put", &s->fail_put, NULL },
		{ "flip-get", &s->flip_get, NULL },      { "fail-while", NULL, s->fail_while },
		{ "delay-while", NULL, s->delay_while }, { "fail-places", NULL, s->fail_places },
	};
	const char *colon = strchr(w, ':');

	if (!strncmp(w, "only:", 5))
		return 0;
	for (size_t i = 0; colon && i < sizeof words / sizeof words[0]; i++) {
		char *end;

		if (strncmp(words[i].name, w, (size_t)(colon - w)) || words[i].name[colon - w])
			continue;
		if (words[i].path) {
			snprintf(words[i].path, 128, "%s", colon + 1);
			return 0;
		}
		*words[i].n = strtoul(colon + 1, &end, 10);
		if (colon[1] && !*end)
			return 0;
	}
	snprintf(error, 512, "option shim: '%s' is not valid; see kvcachefs(8)", w);
	return -EINVAL;
}

static void shim_bound(struct kvc_tier *t, unsigned most)
{
	struct kvc_tier *b = shim_of(t)->below;

	b->ops->bound(b, most);
}

static bool shim_enter(struct kvc_tier *t, const struct kvc_where *w, bool removes)
{
	struct kvc_tier *b = shim_of(t)->below;

	return b->ops->enter(b, w, removes);
}

static void shim_leave(struct kvc_tier *t, const struct kvc_where *w, bool removes)
{
	struct kvc_tier *b = shim_of(t)->below;

	b->ops->leave(b, w, removes);
}

int kvct_shim_open(struct kvc_tier *below, const char *spec, struct kvc_tier **out, char *error)
{
	struct shim *s = calloc(1, sizeof *s);
	KVC_MEM char *copy = strdup(spec);
	char *save = NULL;
	int err = 0;

	if (!s || !copy) {
		free(s);
		snprintf(error, 512, "out of memory");
		return -ENOMEM;
	}
	for (char *w = strtok_r(copy, "+", &save); w && !err; w = strtok_r(NULL, "+", &save))
		err = shim_word(s, w, error);
	if (err) {
		free(s);
		return err;
	}
	s->below = below;
	s->ops = *below->ops; /* its name and capabilities; other calls are passed on */
	s->ops.close = shim_close;
	s->ops.start = below->ops->start ? shim_start : NULL;
	s->ops.stop = below->ops->stop ? shim_stop : NULL;
	s->ops.claim = below->ops->claim ? shim_claim : NULL;
	s->ops.put = shim_put;
	s->ops.get = shim_get;
	s->ops.get_path = below->ops->get_path ? shim_get_path : NULL;
	s->ops.distrust = below->ops->distrust ? shim_distrust : NULL;
	s->ops.have = below->ops->have ? shim_have : NULL;
	s->ops.offer = below->ops->offer ? shim_offer : NULL;
	s->ops.ask = below->ops->ask ? shim_ask : NULL;
	s->ops.announce = below->ops->announce ? shim_announce : NULL;
	s->ops.load = NULL; /* so that each read is a get */
	s->ops.rehead = below->ops->rehead ? shim_rehead : NULL;
	s->ops.remove = shim_remove;
	s->ops.list = below->ops->list ? shim_list : NULL;
	s->ops.sync = below->ops->sync ? shim_sync : NULL;
	s->ops.sync_place = below->ops->sync_place ? shim_sync_place : NULL;
	s->ops.bound = below->ops->bound ? shim_bound : NULL;
	s->ops.enter = below->ops->enter ? shim_enter : NULL;
	s->ops.leave = below->ops->leave ? shim_leave : NULL;
	s->ops.synced = below->ops->synced ? shim_synced : NULL;
	s->ops.watch_syncs = below->ops->watch_syncs ? shim_watch_syncs : NULL;
	s->ops.usage = shim_usage;
	s->ops.device = below->ops->device ? shim_device : NULL;
	s->ops.change = below->ops->change ? shim_change : NULL;
	s->tier = *below; /* its id and codec */
	s->tier.ops = &s->ops;
	*out = &s->tier;
	return 0;
}
