/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Finds the longest cached prefix of a list of paths with one lookup. The mount answers with one
 * line per file in the order of the paths, and with one line for each file of a folder (lease.c
 * maps lines to paths). Objects count as cached if they are in the pool, being loaded, or in a
 * tier.
 */
#include "layout.h"

#include <string.h>

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

int kvcachefs_groups_check(size_t n, size_t per)
{
	if (!per || n % per)
		return kvcachefs_fail(-EINVAL, "%zu paths are not groups of %zu", n, per);
	return 0;
}

/* Returns the number of groups, of n paths in all, that a parted lease holds completely. */
static size_t groups_held(const struct kvcachefs_lease *l, size_t n, size_t per)
{
	size_t held = 0;

	for (size_t i = 0; i < n; i += per) {
		size_t k = 0;

		while (k < per && is_cached(l, i + k, true))
			k++;
		held += k == per;
	}
	return held;
}

int kvcachefs_exists(const char *mount, const char *const *paths, size_t n, size_t per, bool tiers,
		     uint8_t *bits)
{
	struct kvcachefs_lease *l;
	int err = kvcachefs_groups_check(n, per);

	if (err || !n)
		return err;
	err = kvcachefs_lease_parted(&l, mount, paths, n,
				     tiers ? KVCACHEFS_LOOK : KVCACHEFS_LOOK_HERE);
	if (err)
		return err;
	memset(bits, 0, (n / per + 7) / 8);
	for (size_t i = 0; i < n / per; i++) {
		size_t k = 0;

		while (k < per && is_cached(l, i * per + k, !tiers))
			k++;
		if (k == per)
			bits[i / 8] |= (uint8_t)(1u << i % 8);
	}
	kvcachefs_lease_free(l);
	return 0;
}

int kvcachefs_prefix(const char *mount, const char *const *paths, size_t n, size_t *count)
{
	struct kvcachefs_lease *l;
	int err = n ? kvcachefs_lease_parted(&l, mount, paths, n, KVCACHEFS_LOOK) : 0;

	if (!n)
		*count = 0;
	if (err || !n)
		return err;
	*count = leading(l, n, false);
	kvcachefs_lease_free(l);
	return 0;
}

/* Takes a lease on the longest prefix of n paths that stays cached, in groups of `per`. */
static int prefix_lease(struct kvcachefs_lease **out, const char *mount, const char *const *paths,
			size_t n, size_t per, size_t *count)
{
	struct kvcachefs_lease *l = NULL;
	size_t held;
	int err;

	/* objects dropped between the lookup and the lease end the prefix before them */
	while (n) {
		err = kvcachefs_lease_parted(&l, mount, paths, n, "");
		if (err)
			return err;
		held = leading(l, n, true) / per * per;
		if (held == n)
			break;
		kvcachefs_lease_free(l);
		l = NULL;
		n = held;
	}
	*out = l;
	*count = n;
	return 0;
}

int kvcachefs_prefix_lease(struct kvcachefs_lease **out, const char *mount,
			   const char *const *paths, size_t n, size_t *count)
{
	size_t most;
	int err = kvcachefs_prefix(mount, paths, n, &most);

	return err ?: prefix_lease(out, mount, paths, most, 1, count);
}

int kvcachefs_groups_lease(struct kvcachefs_lease **out, const char *mount,
			   const char *const *paths, size_t n, size_t per, bool prefix, bool quick,
			   size_t *count)
{
	struct kvcachefs_lease *l;
	int err = 0;

	if (n && (prefix || quick)) {
		bool waits = false;
		size_t most;

		err = kvcachefs_lease_parted(&l, mount, paths, n, KVCACHEFS_LOOK);
		if (err)
			return err;
		most = prefix ? leading(l, n, false) / per * per : n;
		for (size_t i = 0; i < most; i++)
			waits |= is_cached(l, i, false) && !is_cached(l, i, true);
		kvcachefs_lease_free(l);
		if (quick && waits)
			return 1;
		n = most;
	}
	if (prefix) {
		err = prefix_lease(out, mount, paths, n, per, &n);
		*count = n / per;
		return err;
	}
	if (n)
		err = kvcachefs_lease_parted(&l, mount, paths, n, "");
	if (err)
		return err;
	*count = n ? groups_held(l, n, per) : 0;
	*out = n ? l : NULL;
	return 0;
}
