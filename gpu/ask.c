/* SPDX-License-Identifier: Apache-2.0 */
/* See ask.h. */
#include "ask.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int kvcachefs_ask_new(struct kvcachefs_ask **out, const char *const *paths, size_t n, size_t per,
		      bool prefix)
{
	int err = kvcachefs_groups_check(n, per);
	size_t capacity = sizeof **out;
	struct kvcachefs_ask *a;
	char *at;

	for (size_t i = 0; i < n && !err; i++) {
		size_t len = strlen(paths[i]) + 1 + sizeof *paths;

		if (len == 1 + sizeof *paths || strchr(paths[i], '\n'))
			err = kvcachefs_fail(-EINVAL, "path %zu is empty or contains a newline", i);
		else if (__builtin_add_overflow(capacity, len, &capacity))
			err = kvcachefs_fail(-ENOMEM, "out of memory");
	}
	if (err)
		return err;
	a = calloc(1, capacity);
	if (!a)
		return kvcachefs_fail(-ENOMEM, "out of memory");
	a->n = n;
	a->per = per;
	a->prefix = prefix;
	at = (char *)(a->paths + n);
	for (size_t i = 0; i < n; i++) {
		a->paths[i] = at;
		at = stpcpy(at, paths[i]) + 1;
	}
	*out = a;
	return 0;
}

bool kvcachefs_ask_run(struct kvcachefs_ask *a, const char *mount, bool quick)
{
	int err = kvcachefs_groups_lease(&a->lease, mount, a->paths, a->n, a->per, a->prefix, quick,
					 &a->count);

	a->slow = err == 1;
	if (a->slow)
		return false;
	if (err) {
		kvcachefs_ask_drop(a, err == -ECANCELED ? -EIO : err, kvcachefs_error());
		return true;
	}
	for (size_t i = 0; a->lease && i < kvcachefs_lease_count(a->lease); i++) {
		const struct kvcachefs_object *o = kvcachefs_lease_object(a->lease, i);

		a->bytes += o->err ? 0 : o->size;
	}
	if (!a->count) {
		kvcachefs_lease_free(a->lease);
		a->lease = NULL;
		a->bytes = 0;
	}
	return true;
}

void kvcachefs_ask_drop(struct kvcachefs_ask *a, int err, const char *why)
{
	kvcachefs_lease_free(a->lease);
	a->lease = NULL;
	a->count = 0;
	a->bytes = 0;
	a->err = err;
	snprintf(a->error, sizeof a->error, "%s", why);
}

void kvcachefs_ask_free(struct kvcachefs_ask *a)
{
	if (!a)
		return;
	kvcachefs_lease_free(a->lease);
	free(a);
}
