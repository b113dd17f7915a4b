/* SPDX-License-Identifier: Apache-2.0 */
/*
 * .kvcachefs/models: counters of each model (telemetry/model_stats.h) and what its files use, one
 * line each after a line with the names of the columns. The name is last, with %XX for special
 * characters. "/" stands for files in the root, and "//" for forgotten models and models without a
 * name. "-" is a number that is not known: the files are being counted, or those of this model are
 * counted under "//" because there are too many models. While files are counted, the first line
 * ends with the word "counting".
 */
#include "cache.h"
#include "ops.h"
#include "model_moves.h"
#include "model_use.h"
#include "tier_queue.h"

#include <inttypes.h>
#include <string.h>

#define BATCH 16 /* models under one hold of the locks */

static int copy_name(void *arg, const struct kvc_name *n)
{
	if (n->parent == KVC_ROOT)
		snprintf(arg, 256, "%s", n->name);
	return n->parent == KVC_ROOT;
}

/* A model as it is printed. */
struct line {
	struct kvc_model_stats t;
	bool known;           /* t.use is known */
	uint64_t quota, used; /* 0: no quota */
};

static void print_known(FILE *out, uint64_t n, bool known)
{
	if (known)
		fprintf(out, "%" PRIu64 " ", n);
	else
		fputs("- ", out);
}

static void print_model(struct kvc *k, FILE *out, const struct line *l, const char *name)
{
	const struct kvc_model_use *u = &l->t.use;
	uint64_t remote = 0;

	kvc_tier_each(k, t)
		remote += t == KVC_DISK ? 0 : u->tier[t];
#define X(column, what) fprintf(out, "%" PRIu64 " ", l->t.column);
	KVC_MODEL_STATS(X)
#undef X
	for (unsigned r = 0; r < KVC_REASONS_N; r++)
		fprintf(out, "%" PRIu64 " ", l->t.evicted[r]);
	print_known(out, u->files, l->known);
	print_known(out, u->bytes, l->known);
	print_known(out, u->tier[KVC_DISK], l->known);
	print_known(out, remote, l->known);
	fprintf(out, "%" PRIu64 " %" PRIu64 " ", l->quota, l->used);
	kvc_put_plain(out, name, strlen(name));
	fputc('\n', out);
}

static void print_head(struct kvc *k, FILE *out)
{
	bool counting;

#define X(column, what) fputs(#column " ", out);
	KVC_MODEL_STATS(X)
#undef X
#define X(reason, what) fputs("evicted_" #reason " ", out);
	KVC_REASONS(X)
#undef X
	kvc_lock(k);
	counting = k->model_stats->count.running || kvc_model_moves_any(k);
	kvc_unlock(k);
	fprintf(out, "files bytes disk_bytes remote_bytes quota used name%s\n",
		counting ? " counting" : "");
}

/* Copies the next models, with their names. Returns their number. */
static size_t copy_lines_both(struct kvc *k, size_t *at, struct line l[BATCH],
			      char name[BATCH][256])
{
	struct kvc_model_stats t[BATCH];
	size_t n = kvc_model_stats_show_locked(k, at, t, BATCH);

	for (size_t i = 0; i < n; i++) {
		uint64_t model = t[i].slot.key;
		const struct kvc_quota *q = kvc_quota_of_locked(k, model);

		l[i] = (struct line){
			.t = t[i],
			.known = kvc_model_moves_use_known_locked(
				k, model == KVC_UNSET ? &k->model_stats->others : &t[i]),
			.quota = q ? q->limit : 0,
			.used = q ? q->used : 0,
		};
		if (model && model != KVC_UNSET)
			kvc_name_of(k->cat, model, copy_name, name[i]);
	}
	return n;
}

/* Models without a name share one line. */
void kvc_print_models(struct kvc *k, FILE *out)
{
	struct line l[BATCH], nameless = { .known = true };
	char name[BATCH][256];
	size_t at = 0, n;

	print_head(k, out);
	kvc_asked_settle(k);
	do {
		memset(name, 0, sizeof name);
		kvc_lock_both(k);
		n = copy_lines_both(k, &at, l, name);
		kvc_unlock_both(k);
		for (size_t i = 0; i < n; i++) {
			if (!l[i].t.slot.key || *name[i]) {
				print_model(k, out, &l[i], l[i].t.slot.key ? name[i] : "/");
				continue;
			}
			kvc_model_stats_add(&nameless.t, &l[i].t);
			nameless.known &= l[i].known;
		}
	} while (n);
	print_model(k, out, &nameless, "//");
}
