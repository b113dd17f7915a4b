/* SPDX-License-Identifier: Apache-2.0 */
/* kvcachectl stats and config: files of .kvcachefs. */
#include "ctl.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>

/* Copies a file to stdout. */
static int show(const char *inside, const char *name)
{
	char buf[65536], mnt[KVM_PATH];
	int fd = kvm_mount_of(inside, mnt) ? -1 : kvm_mount_open(mnt, name, O_RDONLY);
	ssize_t n = 0;

	if (fd < 0)
		return 1;
	while ((n = read(fd, buf, sizeof buf)) > 0)
		fwrite(buf, 1, (size_t)n, stdout);
	close(fd);
	return n < 0 ? kvm_fail("%s: %s", name, strerror(errno)) : 0;
}

int kvm_run_stats(int argc, char **argv)
{
	int err = kvm_plain(&argc, argv);

	return err ?: show(argc ? argv[0] : NULL, "stats");
}

int kvm_run_config(int argc, char **argv)
{
	int err = kvm_plain(&argc, argv);

	return err ?: show(argc ? argv[0] : NULL, "config");
}
