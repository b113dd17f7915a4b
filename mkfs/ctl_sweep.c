/* SPDX-License-Identifier: Apache-2.0 */
/* kvcachectl import and rekey: long work of the daemon, by .kvcachefs/control. */
#include "ctl.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>

/* Starts a sweep and waits for its end. */
static int sweep(const char *inside, const char *word)
{
	char line[256], mnt[KVM_PATH];
	int fd = kvm_mount_of(inside, mnt) ? -1 : kvm_mount_open(mnt, "control", O_WRONLY);

	if (fd < 0)
		return 1;
	if (write(fd, word, strlen(word)) < 0) {
		int err = errno;

		close(fd);
		return kvm_fail("%s: %s", word,
				err == EBUSY ? "another sweep is under way" : strerror(err));
	}
	close(fd);
	for (;;) {
		ssize_t n;

		fd = kvm_mount_open(mnt, "control", O_RDONLY);
		if (fd < 0)
			return 1;
		n = read(fd, line, sizeof line - 1);
		close(fd);
		line[n > 0 ? n : 0] = 0;
		if (!strstr(line, "running:"))
			break;
		usleep(100000);
	}
	fputs(line, stdout);
	return strncmp(line, word, strlen(word)) || strstr(line, "failed: ") ||
	       !strstr(line, " 0 failed");
}

int kvm_run_import(int argc, char **argv)
{
	int err = kvm_plain(&argc, argv);

	return err ?: sweep(argc ? argv[0] : NULL, "import");
}

int kvm_run_rekey(int argc, char **argv)
{
	int err = kvm_plain(&argc, argv);

	return err ?: sweep(argc ? argv[0] : NULL, "rekey");
}
