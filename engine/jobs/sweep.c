/* SPDX-License-Identifier: Apache-2.0 */
/* Starts, stops and reports sweeps; see sweep.h. */
#include "sweep.h"

#include "ops.h"
#include "log.h"
#include "tier_queue.h"

#include <inttypes.h>
#include <string.h>

struct kvc_sweep_kind {
	const char *name;
	const char *seen, *changed, *failed; /* words for its counters */
	int (*run)(struct kvc_sweep *s);
	int (*words)(struct kvc_sweep *s, char *words, FILE *answer);
};

static const struct kvc_sweep_kind kinds[] = {
	{ "import", "looked at", "changed", "failed", kvc_import_run, NULL },
	{ "rekey", "looked at", "changed", "failed", kvc_rekey_run, NULL },
	{ "flush", "to copy", "copied", "failed", kvc_flush_run, NULL },
	{ "verify", "looked at", "damaged", "unreadable", kvc_verify_run, kvc_verify_words },
	{ "grow", "looked at", "grown", "failed", kvc_devices_grow, kvc_devices_words },
	{ "add", "looked at", "added", "failed", kvc_devices_add, kvc_devices_words },
	{ "remove", "looked at", "moved", "failed", kvc_devices_remove, kvc_devices_words },
	{ "stay", "looked at", "changed", "failed", kvc_devices_stay, kvc_devices_words },
};

/* done: whether the sweep has ended, and s->err is final. */
static void sweep_line(const struct kvc_sweep *s, bool done, char *line, size_t capacity)
{
	const struct kvc_sweep_kind *w = s->kind;

	snprintf(line, capacity, "%" PRIu64 " %s, %" PRIu64 " %s, %" PRIu64 " %s%s%s", s->seen,
		 w->seen, s->changed, w->changed, s->failed, w->failed, done && s->err ? ": " : "",
		 done && s->err ? strerror(-s->err) : "");
}

/* Prints the number by which a caller recognizes the status of the sweep that it started. */
static void print_number(uint64_t number, FILE *out)
{
	fprintf(out, "number %" PRIu64 "\n", number);
}

static void *sweep_thread(void *arg)
{
	struct kvc_sweep *s = arg;
	char line[256];

	s->err = s->kind->run(s);
	if (!s->err && s->stop)
		s->err = -ECANCELED;
	s->done = true;
	sweep_line(s, true, line, sizeof line);
	kvc_info("%s: %s", s->kind->name, *s->why ? s->why : line);
	return NULL;
}

static const struct kvc_sweep_kind *sweep_kind_of(const char *name)
{
	for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++)
		if (!strcmp(name, kinds[i].name))
			return &kinds[i];
	return NULL;
}

/*
 * Starts the thread of a sweep, or returns -EBUSY if the previous sweep is still running. On
 * success, sets *old to the previous sweep, if any. The caller joins its thread and frees
 * the struct.
 */
static int sweep_begin_locked(struct kvc *k, struct kvc_sweep *s, struct kvc_sweep **old)
{
	int err;

	if (k->stopping || !k->started)
		return -ESHUTDOWN;
	if (k->sweep && !k->sweep->done)
		return -EBUSY;
	s->number = kvc_mono_ns();
	err = -pthread_create(&s->thread, NULL, sweep_thread, s);
	if (err)
		return err;
	*old = k->sweep;
	k->sweep = s;
	return 0;
}

int kvc_sweep_begin(struct kvc *k, const char *name, char *words, FILE *answer)
{
	const struct kvc_sweep_kind *kind = sweep_kind_of(name);
	struct kvc_sweep *s = calloc(1, sizeof *s), *old = NULL;
	int err = !kind ? -EINVAL : s ? 0 : -ENOMEM;
	uint64_t number;

	if (!err) {
		s->k = k;
		s->kind = kind;
		err = kind->words ? kind->words(s, words, answer) : *words ? -EINVAL : 0;
	}
	if (!err) {
		kvc_lock(k);
		err = sweep_begin_locked(k, s, &old);
		number = s->number; /* the next sweep frees this one */
		kvc_unlock(k);
		if (!err)
			print_number(number, answer);
	}
	if (err)
		free(s);
	if (old) {
		pthread_join(old->thread, NULL);
		free(old);
	}
	return err;
}

int kvc_sweep_end(struct kvc *k, const char *name)
{
	int err = 0;

	kvc_lock(k);
	if (k->sweep && !k->sweep->done && !strcmp(k->sweep->kind->name, name))
		k->sweep->stop = true;
	else
		err = -ESRCH;
	kvc_unlock(k);
	return err;
}

void kvc_sweep_print(struct kvc *k, FILE *out)
{
	struct kvc_sweep *s;
	char line[256];
	bool done;

	kvc_lock(k);
	s = k->sweep;
	/* read once: the sweep may end between two lines of the text */
	done = s && s->done;
	if (s)
		sweep_line(s, done, line, sizeof line);
	if (done && *s->why)
		fprintf(out, "%s done: %s\nerror %d\n", s->kind->name, s->why, -s->err);
	else if (!s)
		fprintf(out, "idle\n");
	else
		fprintf(out,
			"%s %s %s\nerror %d\nseen %" PRIu64 "\nchanged %" PRIu64 "\nfailed %" PRIu64
			"\nlost %" PRIu64 "\nreplaced %" PRIu64 "\nevicted %" PRIu64
			"\nbytes %" PRIu64 "\nall_bytes %" PRIu64 "\n",
			s->kind->name, done ? "done:" : "running:", line, done ? -s->err : 0,
			s->seen, s->changed, s->failed, s->lost, s->replaced, s->evicted, s->bytes,
			s->all_bytes);
	if (s)
		print_number(s->number, out);
	kvc_tier_each(k, t)
		if (s && s->tier_failed[t])
			fprintf(out, "failed_in %s %" PRIu64 "\n", k->tier[t].t->ops->name,
				s->tier_failed[t]);
	kvc_unlock(k);
}

void kvc_sweep_stop(struct kvc *k)
{
	struct kvc_sweep *s;

	kvc_lock(k);
	s = k->sweep;
	k->sweep = NULL;
	kvc_unlock(k);
	if (!s)
		return;
	s->stop = true;
	/* Listing a filesystem whose server is dead may never end. */
	if (!kvc_join(s->thread, kvc_mono_ns() + k->opt.deadline_ms * 1000000)) {
		free(s);
		return;
	}
	kvc_warn("the job %s does not end; the daemon exits without waiting for it", s->kind->name);
	pthread_detach(s->thread);
	kvc_lock(k);
	k->work->left++;
	kvc_unlock(k);
}
