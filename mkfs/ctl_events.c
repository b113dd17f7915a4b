/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kvcachectl events: what happens to files of a mount, as .kvcachefs/events tells it (kvcachefs(8)),
 * until a signal. The daemon keeps a read waiting for nothing, so it is asked again and again.
 */
#include "ctl.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>

#define LOOK_MS 50

static volatile sig_atomic_t stop;

static void on_signal(int sig)
{
	(void)sig;
	stop = 1;
}

/* What there is now; 0, or 1 after a message. */
static int pass_on(int fd)
{
	static char text[65536];
	ssize_t n;

	while ((n = read(fd, text, sizeof text)) > 0)
		if (fwrite(text, 1, (size_t)n, stdout) != (size_t)n)
			break;
	if (fflush(stdout))
		return kvm_fail("stdout: %s", strerror(errno));
	return n < 0 && errno != EINTR ? kvm_fail("the mount tells nothing more: %s",
						  strerror(errno))
				       : 0;
}

int kvm_run_events(int argc, char **argv)
{
	const struct sigaction act = { .sa_handler = on_signal };
	const char *text = NULL;
	const struct kvm_option options[] = { { "for", NULL, &text }, { 0 } };
	char mnt[KVM_PATH];
	uint64_t seconds = 0, end;
	int fd, err = kvm_options(&argc, argv, options);

	if (err)
		return err;
	if (text && (kvm_time_parse(text, &seconds) || !seconds))
		return kvm_misused("--for %s: a time such as 30s, 10m or 2h", text);
	if (kvm_mount_of(argc ? argv[0] : NULL, mnt) ||
	    (fd = kvm_mount_open(mnt, "events", O_RDONLY)) < 0)
		return 1;
	sigaction(SIGINT, &act, NULL);
	sigaction(SIGTERM, &act, NULL);
	signal(SIGPIPE, SIG_IGN);
	end = seconds ? kvc_mono_ns() + seconds * 1000000000 : UINT64_MAX;
	while (!(err = pass_on(fd)) && !stop && kvc_mono_ns() < end)
		poll(NULL, 0, LOOK_MS);
	if (!err)
		err = pass_on(fd);
	close(fd);
	return err;
}
