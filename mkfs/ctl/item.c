/* SPDX-License-Identifier: Apache-2.0 */
/* Files, chunks, models and folders of a mount, as the commands of kvcachectl see them. */
#include "item.h"

#include <dirent.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/xattr.h>

int kvm_item_attr(const char *path, const char *name, char value[KVM_VALUE], int *failed)
{
	static const int none[] = { ENODATA, ENOTSUP, EACCES, EPERM, ENOENT, ESTALE, EINVAL };
	char whole[64];
	ssize_t n;

	snprintf(whole, sizeof whole, "user.kvcachefs.%s", name);
	n = lgetxattr(path, whole, value, KVM_VALUE - 1);
	value[n > 0 ? n : 0] = 0;
	for (size_t i = 0; i < sizeof none / sizeof *none && n < 0; i++)
		if (errno == none[i])
			return 0;
	if (n >= 0)
		return 1;
	if (failed)
		*failed = -errno;
	return -errno;
}

static void add_file(struct kvm_item *it, const struct stat *st)
{
	it->files++;
	it->bytes += (uint64_t)st->st_size;
	if (st->st_atime > it->used)
		it->used = st->st_atime;
}

/* Adds up the files of a chunk's folder. Files that are removed in between are skipped. */
static int add_files(struct kvm_item *it, const char *path)
{
	DIR *d = opendir(path);
	struct dirent *e;
	struct stat st;
	int err = 0;

	if (!d)
		return -errno;
	while (!err && (errno = 0, e = readdir(d)))
		if (fstatat(dirfd(d), e->d_name, &st, AT_SYMLINK_NOFOLLOW))
			err = errno == ENOENT ? 0 : -errno;
		else if (S_ISREG(st.st_mode))
			add_file(it, &st);
	err = err ?: -errno;
	closedir(d);
	return err;
}

int kvm_item_get(const char *path, const struct stat *root, struct kvm_item *it)
{
	char value[KVM_VALUE], up[KVM_PATH + 8];
	struct stat st;
	int chunk;

	*it = (struct kvm_item){ .is = "other" };
	if (lstat(path, &st))
		return -errno;
	if (S_ISREG(st.st_mode)) {
		it->is = "file";
		add_file(it, &st);
		return 0;
	}
	if (!S_ISDIR(st.st_mode))
		return 0;
	chunk = kvm_item_attr(path, "tiers", value, NULL);
	if (chunk < 0)
		return chunk;
	if (chunk) {
		it->is = "chunk";
		return add_files(it, path);
	}
	it->is = "folder";
	if (st.st_ino == root->st_ino)
		return 0;
	snprintf(up, sizeof up, "%s/..", path);
	if (stat(up, &st))
		return -errno;
	if (st.st_ino == root->st_ino)
		it->is = "model";
	return 0;
}

bool kvm_item_has_files(const struct kvm_item *it)
{
	return !strcmp(it->is, "file") || !strcmp(it->is, "chunk");
}

/* ---- the chunks at and below a path ---- */

struct walk {
	struct stat root;
	int (*fn)(void *arg, const char *path, const struct kvm_item *it);
	void *arg;
};

int kvm_item_each_entry(const char *folder, int (*fn)(void *arg, const char *path), void *arg)
{
	struct dirent **e = NULL;
	int n = scandir(folder, &e, NULL, alphasort), end = 0;

	if (n < 0)
		return errno == ENOENT ? 0 : kvm_fail("%s: %s", folder, kvc_why(errno));
	for (int i = 0; i < n; i++) {
		/* on the heap: a deep tree would need too much stack */
		KVC_MEM char *below = NULL;

		if (!end && strcmp(e[i]->d_name, ".") != 0 && strcmp(e[i]->d_name, "..") != 0)
			end = asprintf(&below, "%s/%s", folder, e[i]->d_name) < 0
				      ? kvm_fail("out of memory")
				      : fn(arg, below);
		free(e[i]);
	}
	free(e);
	return end;
}

/* Entries that are removed in between are skipped. */
static int walk_entry(void *arg, const char *path)
{
	const struct walk *w = arg;
	struct kvm_item it;
	int err = kvm_item_get(path, &w->root, &it);

	if (err == -ENOENT || (!err && !strcmp(it.is, "other")))
		return 0;
	if (err)
		return kvm_fail("%s: %s", path, kvc_why(-err));
	return kvm_item_has_files(&it) ? w->fn(w->arg, path, &it)
				       : kvm_item_each_entry(path, walk_entry, arg);
}

int kvm_item_each_chunk(const char *path,
			int (*fn)(void *arg, const char *path, const struct kvm_item *it),
			void *arg)
{
	struct walk w = { .fn = fn, .arg = arg };
	char mnt[KVM_PATH], real[PATH_MAX];
	struct kvm_item it;
	int err;

	if (kvm_mount_of(path, mnt))
		return 1;
	if (!realpath(path, real) || stat(mnt, &w.root))
		return kvm_fail("%s: %s", path, kvc_why(errno));
	if ((err = kvm_item_get(real, &w.root, &it)))
		return kvm_fail("%s: %s", path, kvc_why(-err));
	if (!strcmp(it.is, "other"))
		return kvm_fail("%s: it is not a file or a folder", path);
	return kvm_item_has_files(&it) ? fn(arg, path, &it)
				       : kvm_item_each_entry(real, walk_entry, &w);
}
