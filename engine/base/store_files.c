/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The rule for a store's folder and files, checked before any of them is used. A store can come
 * from an untrusted place (an unpacked archive, another user's folder), and its daemon often runs
 * as root. So no name in a store may lead elsewhere, and no other user may be able to change a name
 * later: the folder belongs to root or to this process's user and others cannot write in it, and
 * each file is a regular file of one of these two. kvc_open_own checks each file again when it is
 * opened.
 */
#include "store.h"

#include <dirent.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

static bool is_store_file(const char *name)
{
	static const char *const stems[] = {
		KVC_STORE_SUPER,   KVC_STORE_CATALOG,  KVC_STORE_DATA,
		KVC_STORE_RESERVE, KVC_STORE_POLICIES, KVC_STORE_MAKING,
	};

	for (size_t i = 0; i < sizeof stems / sizeof stems[0]; i++) {
		size_t n = strlen(stems[i]);

		if (!strncmp(name, stems[i], n) &&
		    (!name[n] || name[n] == '.' || name[n] == '-' || name[n - 1] == '.'))
			return true;
	}
	return false;
}

int kvc_store_folder_check(const char *dir, const struct stat *st, char *error)
{
	if (st->st_uid && st->st_uid != geteuid()) {
		snprintf(error, 512,
			 "the folder %.300s belongs to uid %u, who could change what is written "
			 "there; run this as that user, or chown the store to root",
			 dir, (unsigned)st->st_uid);
		return -EPERM;
	}
	if (st->st_mode & 022) {
		snprintf(error, 512,
			 "other users can write in the folder %.300s: chmod go-w it, after a look "
			 "at the files in it",
			 dir);
		return -EPERM;
	}
	return 0;
}

static int refuse_file(const char *path, int err, char *error)
{
	if (err == -ELOOP)
		snprintf(error, 512,
			 "%.300s is a symbolic link, which a store does not follow: put the file "
			 "itself there, or bind-mount it",
			 path);
	else if (err == -EPERM)
		snprintf(error, 512,
			 "%.300s belongs to another user: chown it to root or to the user that "
			 "mounts the store",
			 path);
	else if (err == -EISDIR || err == -EINVAL)
		snprintf(error, 512, "%.300s is not a regular file: remove it", path);
	else
		snprintf(error, 512, "cannot examine %.300s: %s", path, kvc_why(-err));
	return err;
}

int kvc_store_files_check(const struct kvc_store *s, bool writes, char *error)
{
	DIR *d = opendir(s->dir);
	struct dirent *e;
	char path[1280];
	int err = 0;

	if (!d) {
		err = -errno;
		snprintf(error, 512, "cannot list %.300s: %s", s->dir, kvc_why(-err));
		return err;
	}
	while (!err && (errno = 0, e = readdir(d)))
		if (is_store_file(e->d_name)) {
			snprintf(path, sizeof path, "%s/%.250s", s->dir, e->d_name);
			if ((err = kvc_check_own(path, writes)))
				refuse_file(path, err, error);
		}
	if (!err && errno) {
		err = -errno;
		snprintf(error, 512, "cannot list %.300s: %s", s->dir, kvc_why(-err));
	}
	closedir(d);
	return err;
}
