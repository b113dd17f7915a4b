/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Finds the longest cached prefix of a list of paths with one lookup. The mount answers with one
 * line per file in the order of the paths, and with one line for each file of a folder (lease.c
 * maps lines to paths). Objects count as cached if they are in the pool, being loaded, or in a
 * tier.
 */
#include "layout.h"

/* Is the whole path i cached? */
static bool is_cached(const struct kvcachefs_lease *l, size_t i, bool held)
{
	size_t at, n = kvcachefs_lease_part(l, i, &at);
	bool all = n > 0;

	for (size_t k = 0; k < n; k++) {
		int err = kvcachefs_lease_object(l, at + k)->err;

		all &= !err || (!held && err == -ENODATA);
	}
	return all;
}

static size_t leading(const struct kvcachefs_lease *l, size_t n, bool held)
{
	size_t i = 0;

	while (i < n && is_cached(l, i, held))
		i++;
	return i;
}

int kvcachefs_prefix(const char *mount, const char *const *paths, size_t n, size_t *count)
{
	struct kvcachefs_lease *l;
	int err = n ? kvcachefs_lease_parted(&l, mount, paths, n, true) : 0;

	if (!n)
		*count = 0;
	if (err || !n)
		return err;
	*count = leading(l, n, false);
	kvcachefs_lease_free(l);
	return 0;
}

int kvcachefs_prefix_lease(struct kvcachefs_lease **out, const char *mount,
			   const char *const *paths, size_t n, size_t *count)
{
	struct kvcachefs_lease *l = NULL;
	size_t most;
	int err = kvcachefs_prefix(mount, paths, n, &most);

	/* objects dropped between the lookup and the lease end the prefix before them */
	while (!err && most) {
		size_t held;

		err = kvcachefs_lease_parted(&l, mount, paths, most, false);
		if (err)
			return err;
		held = leading(l, most, true);
		if (held == most)
			break;
		kvcachefs_lease_free(l);
		l = NULL;
		most = held;
	}
	if (err)
		return err;
	*out = l;
	*count = most;
	return 0;
}
