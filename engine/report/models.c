/* SPDX-License-Identifier: Apache-2.0 */
/*
 * .kvcachefs/models: counters of each model (telemetry/model_stats.h), one line each after a line
 * with the names of the columns. The name is last, with %XX for special characters. "/" stands for
 * files in the root, and "//" for forgotten models and models without a name.
 */
#include "cache.h"
#include "ops.h"
#include "model_stats.h"

#include <inttypes.h>
#include <string.h>

#define BATCH 16 /* models under one hold of the locks */

static int copy_name(void *arg, const struct kvc_name *n)
{
	if (n->parent == KVC_ROOT)
		snprintf(arg, 256, "%s", n->name);
	return n->parent == KVC_ROOT;
}

static void print_model(FILE *out, const struct kvc_model_stats *t, const char *name)
{
#define X(column, what) fprintf(out, "%" PRIu64 " ", t->column);
	KVC_MODEL_STATS(X)
#undef X
	kvc_put_plain(out, name, strlen(name));
	fputc('\n', out);
}

/* Models without a name share one line. */
void kvc_print_models(struct kvc *k, FILE *out)
{
	struct kvc_model_stats t[BATCH], nameless = { .slot.key = KVC_UNSET };
	char name[BATCH][256];
	size_t at = 0, n;

#define X(column, what) fputs(#column " ", out);
	KVC_MODEL_STATS(X)
#undef X
	fputs("name\n", out);
	kvc_asked_settle(k);
	do {
		memset(name, 0, sizeof name);
		kvc_lock_both(k);
		n = kvc_model_stats_show_locked(k, &at, t, BATCH);
		for (size_t i = 0; i < n; i++)
			if (t[i].slot.key && t[i].slot.key != KVC_UNSET)
				kvc_name_of(k->cat, t[i].slot.key, copy_name, name[i]);
		kvc_unlock_both(k);
		for (size_t i = 0; i < n; i++)
			if (!t[i].slot.key || *name[i])
				print_model(out, &t[i], t[i].slot.key ? name[i] : "/");
			else
				kvc_model_stats_add(&nameless, &t[i]);
	} while (n);
	print_model(out, &nameless, "//");
}
