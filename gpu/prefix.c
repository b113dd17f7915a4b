/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The longest cached prefix of a list of paths, by one look at the mount: its answer has a line a
 * file, in the order of the paths, and that of a folder has one for each file in it (lease.c tells
 * which are whose). Cached is what is in the pool, on the way there, or in a tier.
 */
#include "layout.h"

/* Is all of path i there? */
static bool there(const struct kvcachefs_lease *l, size_t i, bool held)
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

	while (i < n && there(l, i, held))
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

	/* What is lost between the look and the lease ends the prefix before it. */
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
