/* SPDX-License-Identifier: Apache-2.0 */
/*
 * .kvcachefs/tenants: the limits, bytes and counters of each tenant (limits/tenant.h), one line
 * each after a line with the names of the columns. A limit of 0 means no limit, and the uid "-"
 * means no user. The name is last, with %XX for special characters.
 */
#include "cache.h"
#include "tenant.h"
#include "tenants.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

static int by_number(const void *a, const void *b)
{
	const struct kvc_tenant *x = a, *y = b;

	return x->slot.key < y->slot.key ? -1 : x->slot.key > y->slot.key;
}

struct kvc_tenant *kvc_tenants_copy(struct kvc *k, size_t *n)
{
	struct kvc_tenant *all = malloc(KVC_TENANTS * sizeof *all);

	*n = 0;
	if (!all)
		return NULL;
	kvc_lock(k);
	kvc_table_each(&k->tenants->table, s)
		if (*n < KVC_TENANTS)
			all[(*n)++] = *kvc_of(s, struct kvc_tenant, slot);
	kvc_unlock(k);
	qsort(all, *n, sizeof *all, by_number);
	return all;
}

void kvc_print_tenants(struct kvc *k, FILE *out)
{
	struct kvc_tenant *all;
	size_t n;

	fputs("quota share used pool uid ", out);
#define X(column, what) fputs(#column " ", out);
	KVC_TENANT_COUNTERS(X)
#undef X
	fputs("name\n", out);
	all = kvc_tenants_copy(k, &n);
	for (size_t i = 0; i < n; i++) {
		const struct kvc_tenant *t = &all[i];

		fprintf(out, "%" PRIu64 " %" PRIu64 " %" PRIu64 " %" PRIu64 " ", t->quota, t->share,
			t->used, t->pool);
		if (t->uid == KVC_TENANT_NOBODY)
			fputs("- ", out);
		else
			fprintf(out, "%" PRId64 " ", t->uid);
#define X(column, what) fprintf(out, "%" PRIu64 " ", t->column);
		KVC_TENANT_COUNTERS(X)
#undef X
		kvc_put_plain(out, t->name, strlen(t->name));
		fputc('\n', out);
	}
	free(all);
}
