/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The longest cached prefix of a list of paths, by one look at the mount: its answer has a line a
 * file, in the order of the paths, and that of a folder has one for each file in it. Cached is what
 * is in the pool, on the way there, or in a tier.
 */
#include "priv.h"

#include <string.h>

/* The lines of one path, from *at on: is all of it there? */
static bool there(const struct kvcachefs_lease *l, size_t *at, const char *path, bool held)
{
	size_t len = strlen(path), n = 0;
	const struct kvcachefs_object *o;
	bool all = true;

	for (; (o = kvcachefs_lease_object(l, *at)); ++*at, n++) {
		bool itself = !strcmp(o->path, path);

		if (!itself && (strncmp(o->path, path, len) || o->path[len] != '/'))
			break;
		all &= !o->err || (!held && o->err == -ENODATA);
		if (itself) { /* a file has one line */
			++*at;
			return all;
		}
	}
	return n && all;
}

static size_t leading(const struct kvcachefs_lease *l, const char *const *paths, size_t n,
		      bool held)
{
	size_t at = 0, i = 0;

	while (i < n && there(l, &at, paths[i], held))
		i++;
	return i;
}

int kvcachefs_prefix(const char *mount, const char *const *paths, size_t n, size_t *count)
{
	struct kvcachefs_lease *l;
	int err = n ? kvcachefs_look(&l, mount, paths, n) : 0;

	if (!n)
		*count = 0;
	if (err || !n)
		return err;
	*count = leading(l, paths, n, false);
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

		err = kvcachefs_lease_new(&l, mount, paths, most);
		if (err)
			return err;
		held = leading(l, paths, most, true);
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
