/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Paths in the mount. For a file with several names, the path has the name that the catalog returns
 * first.
 */
#include "path.h"

#include "node.h"

#include <string.h>

struct first_name {
	uint64_t parent;
	char name[256];
};

static int first_name_take(void *arg, const struct kvc_name *n)
{
	struct first_name *f = arg;

	f->parent = n->parent;
	snprintf(f->name, sizeof f->name, "%s", n->name);
	return 1;
}

int kvc_path_both(struct kvc *k, uint64_t ino, char *buf)
{
	char path[KVC_FRAME_PATH_MAX + 1];
	size_t at = sizeof path - 1;
	struct first_name name;

	buf[0] = path[at] = 0;
	while (ino != KVC_ROOT) {
		int got = kvc_name_of(k->cat, ino, first_name_take, &name);
		size_t len = got == 1 ? strlen(name.name) : 0;

		if (got != 1 || len + 1 > at)
			return got < 0 ? got : 0;
		if (path[at])
			path[--at] = '/';
		at -= len;
		memcpy(path + at, name.name, len);
		ino = name.parent;
	}
	memcpy(buf, path + at, sizeof path - at);
	return 0;
}

int kvc_path_in_both(struct kvc *k, uint64_t parent, const char *name, char *path)
{
	size_t len;
	int err = kvc_path_both(k, parent, path);

	if (err)
		return err;
	if (parent != KVC_ROOT && !*path)
		return -ENAMETOOLONG;
	len = strlen(path);
	if (len + strlen(name) + 1 > KVC_FRAME_PATH_MAX)
		return -ENAMETOOLONG;
	snprintf(path + len, KVC_FRAME_PATH_MAX + 1 - len, "%s%s", len ? "/" : "", name);
	return 0;
}

void kvc_path_model_name(const char *path, char *name)
{
	size_t len = strcspn(path, "/");

	*name = 0;
	if (path[len] == '/' && len <= KVC_MODEL_NAME) {
		memcpy(name, path, len);
		name[len] = 0;
	}
}

int kvc_path_frame_name_both(struct kvc *k, struct kvc_node *n, struct kvc_frame *f)
{
	f->mode = n->row.mode;
	f->uid = n->row.uid;
	f->gid = n->row.gid;
	f->mtime_ns = n->row.mtime_ns;
	f->btime_ns = n->row.btime_ns;
	return kvc_path_both(k, n->row.ino, f->path);
}
