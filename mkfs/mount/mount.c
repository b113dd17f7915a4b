/* SPDX-License-Identifier: Apache-2.0 */
/*
 * mount.kvcachefs STORE MOUNTPOINT [-o OPTIONS] [-sfnv]: the helper that mount(8) runs for `mount
 * -t kvcachefs` and for fstab. It executes kvcachefs from one of the usual folders or from its own
 * folder.
 */
#include "registry.h"

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

int main(int argc, char **argv)
{
	static const char *const places[] = {
		"/usr/sbin/kvcachefs",
		"/usr/local/sbin/kvcachefs",
		"/sbin/kvcachefs",
	};
	char own[PATH_MAX + 16] = "";

	if (argc == 2 && (!strcmp(argv[1], "--help") || !strcmp(argv[1], "-h"))) {
		printf("usage: mount -t kvcachefs STORE MOUNTPOINT [-o OPTIONS]\n"
		       "Mounts a kvcachefs store; mount(8) runs this program. See "
		       "mount.kvcachefs(8) and kvcachefs(8) for details.\n");
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
