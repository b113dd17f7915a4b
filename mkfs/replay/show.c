/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Output of kvcachectl replay: a table, or JSON. For a trace with several models, each model has a
 * row below the row of the whole trace.
 */
#include "ctl.h"
#include "replay_priv.h"

#include <string.h>

#define FIRST 14 /* minimum and maximum width of the first column */
#define LONGEST 40

static int column(const struct replay *o, unsigned p)
{
	return (int)kvc_max(strlen(o->policy[p].name), o->tiers ? 12u : 7u);
}

static bool has_own(const struct replay *o, uint32_t model)
{
	return o->setup.class && o->setup.class[model];
}

/* Formats a model for the first column, as in --model if it has its own policy. */
static void format_label(const struct replay *o, const struct kvm_trace *t, uint32_t model,
			 char *to, size_t capacity)
{
	const char *name = t->model_name[model];

	snprintf(to, capacity, "%s%s%s", *name ? name : "(none)", has_own(o, model) ? "=" : "",
		 has_own(o, model) ? kvc_policy_names[o->setup.class[model] - 1] : "");
}

static int first_column(const struct replay *o, const struct kvm_trace *t)
{
	char text[LONGEST + 1];
	size_t most = FIRST;

	for (uint32_t i = 0; i < t->models && t->models > 1; i++) {
		format_label(o, t, i, text, sizeof text);
		most = kvc_max(most, strlen(text));
	}
	return (int)most;
}

static void print_heads(const struct replay *o, const struct kvm_trace *t)
{
	printf("%s: %u requests, %llu accesses, %u chunks", t->name, t->requests,
	       (unsigned long long)t->accesses, t->chunks);
	if (t->models > 1)
		printf(", %u models", t->models);
	if (t->lost)
		printf(", %llu accesses lost", (unsigned long long)t->lost);
	printf("\n%*s", first_column(o, t),
	       o->tiers      ? "pool:disk"
	       : o->in_bytes ? "bytes"
			     : "chunks");
	for (unsigned p = 0; p < o->npolicies; p++)
		printf(" %*s", column(o, p), o->policy[p].name);
	printf(" %7s\n", "optimum");
}

void kvm_show_more(const struct replay *o, unsigned p, const struct kvm_cell *cell)
{
	const struct kvm_share *s = &cell->share;
	const struct kvm_learned *l = &s->learned;

	fprintf(stderr, "%s at %s: %.0f accesses a second, %.1f bytes a chunk\n%s",
		o->policy[p].name, kvm_capacity_text(cell->pool_capacity, o->in_bytes),
		s->accesses_per_s, (double)s->bytes / (double)cell->pool.chunks, s->text);
	if (l->made)
		fprintf(stderr,
			"learned %llu parents, %.4f wrong, %.4f not seen, %llu changed later; "
			"%llu requests\n",
			(unsigned long long)l->made, (double)l->wrong / (double)l->made,
			(double)l->loose / (double)l->made, (unsigned long long)l->mended,
			(unsigned long long)l->begun);
}

static double share_of(const struct kvm_part *p, int tier)
{
	return (double)p->hits[tier] / (double)p->asked;
}

static void print_model(const struct replay *o, const struct kvm_trace *t, unsigned c,
			const struct kvm_cell *s, uint32_t model)
{
	char text[1100];

	format_label(o, t, model, text, sizeof text);
	printf("%*s", first_column(o, t), text);
	for (unsigned p = 0; p < o->npolicies; p++) {
		const struct kvm_part *part = &s[p].part[model];

		if (!part->asked)
			printf(" %*s", column(o, p), "-");
		else if (o->disk[c])
			printf(" %*.3f+%5.3f ", column(o, p) - 7, share_of(part, 0),
			       share_of(part, 1));
		else
			printf(" %*.4f", column(o, p), share_of(part, 0));
	}
	if (s[o->npolicies].part[model].asked)
		printf(" %7.4f\n", share_of(&s[o->npolicies].part[model], 0));
	else
		printf(" %7s\n", "-");
}

static void print_row(const struct replay *o, const struct kvm_trace *t, unsigned c,
		      const struct kvm_cell *s)
{
	printf("%*s", first_column(o, t) - FIRST, "");
	if (o->disk[c]) {
		printf("%7s:", kvm_capacity_text(o->pool[c], o->in_bytes));
		printf("%-6s", kvm_capacity_text(o->disk[c], o->in_bytes));
	} else {
		printf("%14s", kvm_capacity_text(o->pool[c], o->in_bytes));
	}
	for (unsigned p = 0; p < o->npolicies; p++)
		if (o->disk[c])
			printf(" %*.3f+%5.3f ", column(o, p) - 7, s[p].share.pool, s[p].share.disk);
		else
			printf(" %*.4f", column(o, p), s[p].share.pool);
	printf(" %7.4f\n", s[o->npolicies].optimum);
	for (uint32_t i = 0; i < t->models && t->models > 1; i++)
		print_model(o, t, c, s, i);
}

static const char *name_of(const struct kvm_trace *t, uint32_t model)
{
	return *t->model_name[model] ? t->model_name[model] : NULL;
}

/* null: no accesses were counted */
static void json_part(struct kvm_json *j, const char *name, const struct kvm_part *p, int tier)
{
	if (p->asked)
		kvm_json_share(j, name, share_of(p, tier));
	else
		kvm_json_text(j, name, NULL);
}

static void json_model(struct replay *o, const struct kvm_trace *t, const struct kvm_cell *s,
		       uint32_t model)
{
	struct kvm_json *j = &o->out;

	kvm_json_begin(j, NULL, '{');
	kvm_json_text(j, "model", name_of(t, model));
	json_part(j, "optimum", &s[o->npolicies].part[model], 0);
	kvm_json_begin(j, "policies", '{');
	for (unsigned p = 0; p < o->npolicies; p++) {
		kvm_json_begin(j, o->policy[p].name, '{');
		json_part(j, "pool", &s[p].part[model], 0);
		json_part(j, "disk", &s[p].part[model], 1);
		kvm_json_end(j, '}');
	}
	kvm_json_end(j, '}');
	kvm_json_end(j, '}');
}

static void json_row(struct replay *o, const struct kvm_trace *t, unsigned c,
		     const struct kvm_cell *s)
{
	struct kvm_json *j = &o->out;

	kvm_json_begin(j, NULL, '{');
	kvm_json_number(j, o->in_bytes ? "pool_bytes" : "pool_chunks", o->pool[c]);
	kvm_json_number(j, o->in_bytes ? "disk_bytes" : "disk_chunks", o->disk[c]);
	kvm_json_share(j, "optimum", s[o->npolicies].optimum);
	kvm_json_begin(j, "policies", '{');
	for (unsigned p = 0; p < o->npolicies; p++) {
		kvm_json_begin(j, o->policy[p].name, '{');
		kvm_json_share(j, "pool", s[p].share.pool);
		kvm_json_share(j, "disk", s[p].share.disk);
		kvm_json_end(j, '}');
	}
	kvm_json_end(j, '}');
	kvm_json_begin(j, "models", '[');
	for (uint32_t i = 0; i < t->models; i++)
		json_model(o, t, s, i);
	kvm_json_end(j, ']');
	kvm_json_end(j, '}');
}

static void json_heads(struct replay *o, const struct kvm_trace *t)
{
	struct kvm_json *j = &o->out;

	kvm_json_begin(j, NULL, '{');
	kvm_json_text(j, "trace", t->name);
	kvm_json_number(j, "requests", t->requests);
	kvm_json_number(j, "accesses", t->accesses);
	kvm_json_number(j, "chunks", t->chunks);
	kvm_json_number(j, "lost", t->lost);
	kvm_json_begin(j, "models", '[');
	for (uint32_t i = 0; i < t->models; i++) {
		kvm_json_begin(j, NULL, '{');
		kvm_json_text(j, "model", name_of(t, i));
		kvm_json_text(j, "policy",
			      has_own(o, i) ? kvc_policy_names[o->setup.class[i] - 1] : NULL);
		kvm_json_end(j, '}');
	}
	kvm_json_end(j, ']');
	kvm_json_begin(j, "shares", '[');
}

void kvm_show_heads(struct replay *o, const struct kvm_trace *t)
{
	if (o->json)
		json_heads(o, t);
	else
		print_heads(o, t);
}

void kvm_show_row(struct replay *o, const struct kvm_trace *t, unsigned c, const struct kvm_cell *s)
{
	if (o->json)
		json_row(o, t, c, s);
	else
		print_row(o, t, c, s);
}

void kvm_show_end(struct replay *o)
{
	if (!o->json)
		return;
	kvm_json_end(&o->out, ']');
	kvm_json_end(&o->out, '}');
}
