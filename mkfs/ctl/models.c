/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The largest models of a mount, for kvcachectl status: some columns of .kvcachefs/models
 * (engine/report/models.c).
 */
#include "ctl.h"

#include "json.h"
#include "units.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#define UNKNOWN UINT64_MAX
#define COLUMNS_MAX 64u

/* The columns that are read, and their members. */
static const struct {
	const char *name;
	size_t at;
} wanted[] = {
	{ "found", offsetof(struct kvm_model, found) },
	{ "absent", offsetof(struct kvm_model, absent) },
	{ "pool_bytes", offsetof(struct kvm_model, pool_bytes) },
	{ "bytes", offsetof(struct kvm_model, bytes) },
};

/* Reads the names of the columns. Returns the number of columns before the name of the model. */
static unsigned read_columns(char *head, size_t at[COLUMNS_MAX], bool *counting)
{
	unsigned n = 0;
	char *save;

	for (char *w = strtok_r(head, " ", &save); w && n < COLUMNS_MAX;
	     w = strtok_r(NULL, " ", &save)) {
		if (!strcmp(w, "name")) {
			w = strtok_r(NULL, " ", &save);
			*counting = w && !strcmp(w, "counting");
			return n;
		}
		at[n] = SIZE_MAX;
		for (size_t i = 0; i < sizeof wanted / sizeof wanted[0]; i++)
			if (!strcmp(wanted[i].name, w))
				at[n] = wanted[i].at;
		n++;
	}
	return 0;
}

static bool read_model(char *line, const size_t *at, unsigned n, struct kvm_model *m)
{
	char *save, *w = strtok_r(line, " ", &save);

	*m = (struct kvm_model){ .name = "" };
	for (unsigned i = 0; i < n; i++, w = strtok_r(NULL, " ", &save)) {
		uint64_t v = w && *w != '-' ? strtoull(w, NULL, 10) : UNKNOWN;

		if (!w)
			return false;
		if (at[i] != SIZE_MAX)
			memcpy((char *)m + at[i], &v, sizeof v);
	}
	if (!w)
		return false;
	snprintf(m->name, sizeof m->name, "%s", w);
	return strcmp(w, "/") != 0 && strcmp(w, "//") != 0;
}

/* Models are ordered by the bytes of their files; until those are counted, by bytes in the pool. */
static uint64_t rank(const struct kvm_model *m)
{
	return m->bytes == UNKNOWN ? m->pool_bytes : m->bytes;
}

/* Inserts the model into the largest ones, in order. */
static void keep_largest(struct kvm_models *all, const struct kvm_model *m)
{
	size_t i = all->n < KVM_MODELS ? all->n++ : KVM_MODELS;

	if (i == KVM_MODELS && rank(m) <= rank(&all->v[--i])) {
		return;
	}
	for (; i && rank(&all->v[i - 1]) < rank(m); i--)
		all->v[i] = all->v[i - 1];
	all->v[i] = *m;
}

int kvm_models(const char *mnt, struct kvm_models *all)
{
	KVC_MEM char *text = NULL;
	size_t at[COLUMNS_MAX];
	char *save, *line;
	unsigned n;

	*all = (struct kvm_models){ .n = 0 };
	if (kvm_mount_text(mnt, "models", &text))
		return 1;
	line = strtok_r(text, "\n", &save);
	n = line ? read_columns(line, at, &all->counting) : 0;
	while (n && (line = strtok_r(NULL, "\n", &save))) {
		struct kvm_model m;

		if (read_model(line, at, n, &m)) {
			all->models++;
			keep_largest(all, &m);
		}
	}
	return 0;
}

void kvm_models_json(struct kvm_json *j, const struct kvm_models *all)
{
	kvm_json_number(j, "models_count", all->models);
	kvm_json_bool(j, "models_counted", !all->counting);
	kvm_json_begin(j, "models", '[');
	for (size_t i = 0; i < all->n; i++) {
		const struct kvm_model *m = &all->v[i];

		kvm_json_begin(j, NULL, '{');
		kvm_json_text(j, "model", m->name);
		if (m->bytes == UNKNOWN)
			kvm_json_text(j, "bytes", NULL);
		else
			kvm_json_number(j, "bytes", m->bytes);
		kvm_json_number(j, "pool_bytes", m->pool_bytes);
		kvm_json_number(j, "asked", m->found + m->absent);
		kvm_json_number(j, "found", m->found);
		kvm_json_end(j, '}');
	}
	kvm_json_end(j, ']');
}

void kvm_models_print(const struct kvm_models *all)
{
	char size[32], pool[32];

	if (!all->n)
		return;
	printf("\n%10s %10s %8s %9s  %s\n", "size", "in memory", "asked", "found",
	       all->counting          ? "model (files are being counted)"
	       : all->models > all->n ? "largest models; kvcachectl ls lists all"
				      : "model");
	for (size_t i = 0; i < all->n; i++) {
		const struct kvm_model *m = &all->v[i];
		uint64_t asked = m->found + m->absent;

		printf("%10s %10s %8" PRIu64,
		       m->bytes == UNKNOWN ? "-" : kvc_size_text(m->bytes, size),
		       kvc_size_text(m->pool_bytes, pool), asked);
		if (asked)
			printf(" %8.1f%%", 100 * (double)m->found / (double)asked);
		else
			printf(" %9s", "-");
		printf("  %.50s%s\n", m->name, strlen(m->name) > 50 ? "..." : "");
	}
}
