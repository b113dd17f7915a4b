/* SPDX-License-Identifier: Apache-2.0 */
/*
 * mount.kvcachefs STORE MOUNTPOINT [-o OPTIONS] [-sfnv]: the helper that mount(8) runs for `mount
 * -t kvcachefs` and for fstab. It executes kvcachefs from one of the usual folders or from its own
 * folder. With the option remount, it changes the options of a mount in use (remount.c).
 */
#include "remount.h"

#include "registry.h"
#include "tool.h"

#include <errno.h>
#include <libgen.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void beside(char *path, size_t capacity)
{
	ssize_t n = readlink("/proc/self/exe", path, capacity - 16);

	path[n > 0 ? n : 0] = 0;
	char *slash = strrchr(path, '/');

	if (slash)
		memcpy(slash + 1, "kvcachefs", sizeof "kvcachefs");
}

/*
 * Finds STORE and MOUNTPOINT (words) and the options, in the form in which mount(8) passes them.
 * Returns true if the call asks for a remount.
 */
static bool is_remount(int argc, char **argv, const char *words[2], const char **options)
{
	int n = 0;

	*options = NULL;
	for (int i = 1; i < argc; i++) {
		if (!strcmp(argv[i], "-o") && i + 1 < argc)
			*options = argv[++i];
		else if (*argv[i] != '-' && n < 2)
			words[n++] = argv[i];
	}
	return n == 2 && *options && kvm_remount_asked(*options);
}

int main(int argc, char **argv)
{
	const char *words[2], *options;
	static const char *const places[] = {
		"/usr/sbin/kvcachefs",
		"/usr/local/sbin/kvcachefs",
		"/sbin/kvcachefs",
	};
	char own[PATH_MAX + 16] = "";

	if (argc == 2 && (!strcmp(argv[1], "--help") || !strcmp(argv[1], "-h"))) {
		printf("usage: mount -t kvcachefs STORE MOUNTPOINT [-o OPTIONS]\n"
		       "       mount -o remount,OPTIONS MOUNTPOINT\n"
		       "Mounts a kvcachefs store, or changes the options of a mounted one. Do not "
		       "run\n"
		       "mount.kvcachefs yourself: mount(8) runs it for the type kvcachefs.\n"
		       "See mount.kvcachefs(8) and kvcachefs(8) for details.\n");
		return 0;
	}
	if (argc == 2 && !strcmp(argv[1], "--version")) {
		struct kvc_library sqlite = kvc_catalog_library();

		kvct_put_version(stdout, "mount.kvcachefs", &sqlite, 1);
		return 0;
	}
	/* -f of mount(8) means a dry run; for kvcachefs it would mean the foreground */
	for (int i = 1; i < argc; i++)
		if (!strcmp(argv[i], "-f"))
			return 0;
	kvm_name = "mount.kvcachefs";
	if (is_remount(argc, argv, words, &options))
		return kvm_remount(words[0], words[1], options);
	argv[0] = (char *)"kvcachefs";
	beside(own, sizeof own);
	if (*own)
		execv(own, argv);
	for (size_t i = 0; i < sizeof places / sizeof places[0]; i++)
		execv(places[i], argv);
	fprintf(stderr,
		"mount.kvcachefs: cannot start kvcachefs from its own folder or /usr/sbin: %s\n",
		strerror(errno));
	return 1;
}
