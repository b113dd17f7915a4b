/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kvcachectl events: prints the file events of a mount from .kvcachefs/events (kvcachefs-files(5))
 * until a signal, or publishes them to routers (publish.h). A read of that file never blocks, so
 * the command polls it.
 *
 * After a router subscribes, or after events were lost, all stored files are published. During that
 * walk, new events are still read and are published after the files, because they are newer.
 */
#include "ctl.h"
#include "publish.h"

#include <fcntl.h>
#include <ftw.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/xattr.h>

#define LOOK_MS 50
#define FILES_AT_ONCE 1024 /* files of a walk between two polls for events */
#define FOLDERS_OPEN 64

struct events {
	int fd;
	char mnt[KVM_PATH];
	char text[65536]; /* an incomplete line that was read */
	size_t n;
	struct kvm_publish *publish; /* NULL: print to stdout */
	bool lost;
};

static volatile sig_atomic_t stop;
static struct events *walked; /* nftw passes no argument to its callback */
static unsigned files;

static void on_signal(int sig)
{
	(void)sig;
	stop = 1;
}

static void handle_lines(struct events *e)
{
	char *line = e->text, *end;

	if (!e->publish) {
		fwrite(e->text, 1, e->n, stdout);
		e->n = 0;
		return;
	}
	for (; (end = memchr(line, '\n', e->n - (size_t)(line - e->text))); line = end + 1) {
		*end = 0;
		e->lost |= kvm_publish_line(e->publish, line);
	}
	e->n -= (size_t)(line - e->text);
	memmove(e->text, line, e->n);
}

/* Reads and forwards the available events. Returns 0, or 1 after a message. */
static int forward_events(struct events *e)
{
	ssize_t n;

	while ((n = read(e->fd, e->text + e->n, sizeof e->text - e->n)) > 0) {
		e->n += (size_t)n;
		handle_lines(e);
	}
	if (n < 0 && errno != EINTR)
		return kvm_fail("cannot read from the mount: %s", kvc_why(errno));
	if (e->publish)
		return kvm_publish_send(e->publish);
	return fflush(stdout) ? kvm_fail("stdout: %s", kvc_why(errno)) : 0;
}

static int publish_file(const char *path, const struct stat *st, int type, struct FTW *at)
{
	char tiers[256];
	ssize_t n;

	(void)st;
	(void)at;
	if (type != FTW_F)
		return stop;
	n = lgetxattr(path, "user.kvcachefs.tiers", tiers, sizeof tiers - 1);
	if (n > 0) {
		tiers[n] = 0;
		kvm_publish_file(walked->publish, path + strlen(walked->mnt) + 1, tiers);
	}
	return stop || (++files % FILES_AT_ONCE == 0 && forward_events(walked));
}

/* Publishes all files if a router has subscribed or events were lost. */
static void publish_all(struct events *e)
{
	if (!kvm_publish_joined(e->publish) && !e->lost)
		return;
	e->lost = false;
	walked = e;
	/* An incomplete walk is repeated only when events are lost again. */
	nftw(e->mnt, publish_file, FOLDERS_OPEN, FTW_PHYS | FTW_MOUNT);
}

static int follow(struct events *e, uint64_t seconds)
{
	const struct sigaction act = { .sa_handler = on_signal };
	uint64_t end = seconds ? kvc_mono_ns() + seconds * 1000000000 : UINT64_MAX;
	int err;

	sigaction(SIGINT, &act, NULL);
	sigaction(SIGTERM, &act, NULL);
	signal(SIGPIPE, SIG_IGN);
	while (!(err = forward_events(e)) && !stop && kvc_mono_ns() < end) {
		if (e->publish)
			publish_all(e);
		poll(NULL, 0, LOOK_MS);
	}
	return err ?: forward_events(e);
}

static bool parse_block_size(const char *text, uint32_t *tokens)
{
	size_t digits = strspn(text, "0123456789");

	*tokens = digits && !text[digits] && digits < 10 ? (uint32_t)strtoul(text, NULL, 10) : 0;
	return *tokens;
}

int kvm_run_events(int argc, char **argv)
{
	const char *text = NULL, *size = NULL;
	bool json = false; /* accepted; the output has no other form */
	struct kvm_publish_options zmq = { .topic = "" };
	const struct kvm_option options[] = {
		{ "for", NULL, &text },        { "zmq", NULL, &zmq.address },
		{ "topic", NULL, &zmq.topic }, { "arrays", &zmq.arrays, NULL },
		{ "bytes", &zmq.bytes, NULL }, { "tokens", NULL, &size },
		{ "json", &json, NULL },       { 0 },
	};
	static struct events e;
	uint64_t seconds = 0;
	int err = kvm_options(&argc, argv, options);

	if (err)
		return err;
	if (text &&
	    (err = kvm_time_arg("--for", text, UINT64_MAX, "a time of 1s or more", &seconds)))
		return err;
	if (size && !parse_block_size(size, &zmq.block_size))
		return kvm_misused("--tokens %s: give the number of tokens in a file, such as 256",
				   kvm_shown(size));
	if (!zmq.address && (*zmq.topic || zmq.arrays || zmq.bytes || size))
		return kvm_misused("--topic, --arrays, --bytes and --tokens need --zmq");
	if (zmq.address && json)
		return kvm_misused("--json and --zmq cannot be combined");
	zmq.mnt = e.mnt;
	if (kvm_mount_of(argc ? argv[0] : NULL, e.mnt) ||
	    (e.fd = kvm_mount_open(e.mnt, "events", O_RDONLY)) < 0)
		return 1;
	err = zmq.address ? kvm_publish_open(&e.publish, &zmq) : 0;
	if (!err)
		err = follow(&e, seconds);
	if (e.publish)
		kvm_publish_close(e.publish);
	close(e.fd);
	return err;
}
