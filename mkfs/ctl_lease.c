/* SPDX-License-Identifier: Apache-2.0 */
/* kvcachectl prefetch and lease: lists of paths for .kvcachefs/lease. */
#include "ctl.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

/* A path as any program would name it, as seen from the root of its mount. */
static int print_below(FILE *out, const char *mnt, const char *path)
{
	KVC_MEM char *whole = realpath(path, NULL);
	size_t n = strlen(mnt);

	if (!whole)
		return kvm_fail("%s: %s", path, strerror(errno));
	if (strncmp(whole, mnt, n) != 0 || (whole[n] && whole[n] != '/'))
		return kvm_fail("%s: it is not below %s", path, mnt);
	fprintf(out, "%s\n", whole[n] ? whole + n + 1 : "");
	return 0;
}

/* The lines of the paths; the first may be the mount that the others are below of. */
static int print_paths(FILE *out, char mnt[KVM_PATH], int n, char **paths)
{
	struct stat first, root;
	int err = kvm_mount_of(paths[0], mnt);

	if (err)
		return err;
	if (!stat(paths[0], &first) && !stat(mnt, &root) && first.st_ino == root.st_ino &&
	    first.st_dev == root.st_dev) {
		if (n == 1)
			return kvm_misused("%s: behind the mount come the paths in it", paths[0]);
		for (int i = 1; i < n; i++)
			fprintf(out, "%s\n", paths[i]);
		return 0;
	}
	for (int i = 0; i < n && !err; i++)
		err = print_below(out, mnt, paths[i]);
	return err;
}

static int hold_lease(int fd)
{
	char buf[65536];
	ssize_t got;

	while ((got = read(fd, buf, sizeof buf)) > 0)
		fwrite(buf, 1, (size_t)got, stdout);
	if (got < 0)
		return kvm_fail("lease: %s", strerror(errno));
	if (fflush(stdout))
		return kvm_fail("%s", strerror(errno));
	pause();
	return 0;
}

/*
 * prefetch PATH...: asks for them without waiting. lease: prints the lines and holds until a
 * signal.
 */
static int ask(char **paths, int n, bool hold)
{
	KVC_MEM char *list = NULL;
	size_t len = 0, at = 0;
	char mnt[KVM_PATH];
	FILE *text = open_memstream(&list, &len);
	KVC_FD int fd = -1;
	int err;

	if (!text)
		return kvm_fail("out of memory");
	if (!hold)
		fputs("prefetch\n", text);
	err = print_paths(text, mnt, n, paths);
	if (fclose(text))
		return kvm_fail("out of memory");
	if (err)
		return err;
	fd = kvm_mount_open(mnt, "lease", O_RDWR);
	if (fd < 0)
		return 1;
	while (at < len) {
		ssize_t w = write(fd, list + at, len - at);

		if (w < 0)
			return kvm_fail("lease: %s", strerror(errno));
		at += (size_t)w;
	}
	return hold ? hold_lease(fd) : 0;
}

int kvm_run_prefetch(int argc, char **argv)
{
	int err = kvm_plain(&argc, argv);

	return err ?: ask(argv, argc, false);
}

int kvm_run_lease(int argc, char **argv)
{
	int err = kvm_plain(&argc, argv);

	return err ?: ask(argv, argc, true);
}
