/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kvcachectl trace: records the requests of a mount in the format of kvcachectl replay. The mount
 * reports accesses to chunks in .kvcachefs/trace; trace_join.c makes requests of them.
 */
#include "trace.h"

#include "atomic_file.h"
#include "ctl.h"

#include <fcntl.h>
#include <inttypes.h>
#include <poll.h>
#include <signal.h>
#include <string.h>

#define LOOK_MS 50
#define TRACE_TIME "a time from 1s to 11574w, such as 90s, 10m or 1d"
/* The daemon reports an access at most this much later (access/access.h). */
#define LATE_NS 1500000000ull

struct trace {
	const char *file;
	bool paths;
	uint64_t seconds;
	struct kvm_join *join;
	uint64_t stop_ns; /* later accesses are not recorded */
	char *text;       /* text that was read, and the end of its last parsed line */
	size_t n, capacity;
};

static volatile sig_atomic_t signals;

static void on_signal(int sig)
{
	(void)sig;
	signals++;
}

static int take_use(struct trace *t, const char *line)
{
	struct kvm_use u;
	char what[16] = "";

	if (sscanf(line,
		   "use %" SCNu64 " %" SCNu32 " %" SCNu64 " %" SCNu64 " %" SCNu64 " %" SCNu64
		   " %15s",
		   &u.ns, &u.client, &u.id, &u.file, &u.bytes, &u.parent, what) != 7)
		return -EINVAL;
	if (u.ns > t->stop_ns)
		return 0;
	u.made = strchr(what, 'm');
	u.leased = strchr(what, 'l');
	u.learned = strchr(what, 'k');
	u.told = strchr(what, 't');
	return kvm_join_use(t->join, &u);
}

static int take_line(struct trace *t, char *line)
{
	uint64_t ns, id;
	uint32_t client;
	int at = 0;

	if (sscanf(line, "name %" SCNu64 " %n", &id, &at) == 1 && at)
		return kvm_join_name(t->join, id, line + at);
	if (sscanf(line, "lost %" SCNu64, &id) == 1)
		kvm_join_lost(t->join, id);
	else if (sscanf(line, "end %" SCNu64 " %" SCNu32, &ns, &client) == 2)
		kvm_join_end(t->join, client);
	else
		return take_use(t, line);
	return 0;
}

/* Reads the available lines. Returns 0, or 1 after a message. */
static int read_lines(struct trace *t, int fd)
{
	ssize_t n;

	do {
		char *line = t->text, *end;

		if (t->capacity - t->n < 65536) {
			char *p = realloc(t->text, t->capacity + (1u << 20));

			if (!p)
				return kvm_fail("%s", kvc_why(ENOMEM));
			line = t->text = p;
			t->capacity += 1u << 20;
		}
		n = read(fd, t->text + t->n, t->capacity - t->n);
		if (n < 0 && errno == EINTR)
			return 0;
		if (n < 0)
			return kvm_fail("cannot read from the mount: %s", kvc_why(errno));
		t->n += (size_t)n;
		for (; (end = memchr(line, '\n', t->n - (size_t)(line - t->text)));
		     line = end + 1) {
			int err;

			*end = 0;
			err = take_line(t, line);
			if (err)
				return kvm_fail("%s: %s", line, kvc_why(-err));
		}
		t->n -= (size_t)(line - t->text);
		memmove(t->text, line, t->n);
	} while (n);
	return 0;
}

/*
 * Records until a signal or until the time is over; then waits for late reports, or for another
 * signal.
 */
static int record(struct trace *t, int fd, FILE *out)
{
	uint64_t began = kvc_mono_ns(), now = began, end;
	int err;

	end = t->seconds ? began + t->seconds * 1000000000u : UINT64_MAX;
	t->stop_ns = UINT64_MAX;
	do {
		if (t->stop_ns == UINT64_MAX && (signals || now >= end))
			t->stop_ns = kvc_min(now, end);
		err = read_lines(t, fd);
		kvm_join_write(t->join, now);
		if ((fflush(out) | ferror(out)) && !err)
			err = kvm_fail("%s: %s", t->file ?: "stdout", kvc_why(errno));
		if (!err && signals < 2)
			poll(NULL, 0, LOOK_MS);
		now = kvc_mono_ns();
	} while (!err && signals < 2 && (t->stop_ns == UINT64_MAX || now - t->stop_ns < LATE_NS));
	kvm_join_write(t->join, UINT64_MAX);
	return err;
}

int kvm_trace_record(const char *mnt, uint64_t seconds, FILE *to, struct kvm_join **out)
{
	struct trace t = { .file = "temporary file", .seconds = seconds };
	int fd = kvm_mount_open(mnt, "trace", O_RDONLY), err;

	if (fd < 0)
		return 1;
	err = kvm_join_open(&t.join, to, false);
	if (err)
		err = kvm_fail("%s", kvc_why(-err));
	else if ((err = record(&t, fd, to)))
		kvm_join_close(t.join);
	else
		*out = t.join;
	free(t.text);
	close(fd);
	return err;
}

static int parse_trace_options(struct trace *t, int *argc, char **argv)
{
	const char *time = NULL, *seconds = NULL;
	bool json = false; /* accepted; the output has no other form */
	const struct kvm_option options[] = {
		{ "o", NULL, &t->file },
		{ "output", NULL, &t->file },
		{ "paths", &t->paths, NULL },
		{ "for", NULL, &time },
		{ "seconds", NULL, &seconds },
		{ "json", &json, NULL },
		{ 0 },
	};
	char *end = NULL;
	int err = kvm_options(argc, argv, options);

	if (!err && time && seconds)
		return kvm_misused("--for and --seconds cannot be combined");
	if (!err && time)
		return kvm_time_arg("--for", time, KVM_TIME_MAX, TRACE_TIME, &t->seconds);
	if (err || !seconds)
		return err;
	t->seconds = strtoull(seconds, &end, 10);
	if (*seconds < '0' || *seconds > '9' || *end || !t->seconds || t->seconds > 1000000000)
		return kvm_misused("--seconds: %s is not a number of seconds", kvm_shown(seconds));
	return 0;
}

static void print_summary(const struct trace *t)
{
	struct kvm_joined j;
	const char *name;
	uint64_t requests;

	kvm_join_show(t->join, &j);
	fprintf(stderr, "%" PRIu64 " requests of %" PRIu64 " chunks", j.requests, j.uses);
	if (j.lost)
		fprintf(stderr,
			"; %" PRIu64 " accesses were lost, and %" PRIu64
			" requests that may have contained them are omitted",
			j.lost, j.left_out);
	fputc('\n', stderr);
	/* the file does not contain the names */
	for (size_t i = 0; !t->paths && (name = kvm_join_model(t->join, i, &requests)); i++)
		fprintf(stderr, "model %zu is %s: %" PRIu64 " requests\n", i, name, requests);
}

int kvm_run_trace(int argc, char **argv)
{
	struct sigaction act = { .sa_handler = on_signal };
	struct trace t = { .file = NULL };
	struct kvm_atomic_file b = { .f = stdout };
	char mnt[KVM_PATH];
	int fd, failed = 0, err = parse_trace_options(&t, &argc, argv);

	if (err)
		return err;
	sigaction(SIGINT, &act, NULL);
	sigaction(SIGTERM, &act, NULL);
	signal(SIGPIPE, SIG_IGN);
	fd = kvm_mount_of(argc ? argv[0] : NULL, mnt) ? -1 : kvm_mount_open(mnt, "trace", O_RDONLY);
	if (fd < 0)
		return 1;
	if (t.file && (failed = kvm_atomic_file_open(&b, t.file, 0666, false))) {
		close(fd);
		return kvm_fail("-o %s: %s", kvm_shown(t.file), kvm_atomic_file_why(-failed));
	}
	failed = kvm_join_open(&t.join, b.f, t.paths);
	if (failed) {
		err = kvm_fail("%s", kvc_why(-failed));
	} else {
		err = record(&t, fd, b.f);
		print_summary(&t);
		kvm_join_close(t.join);
	}
	free(t.text);
	close(fd);
	/* If the mount has ended, the recording is complete up to then. */
	if (t.file)
		failed = kvm_atomic_file_close(&b, failed);
	else
		failed = ferror(stdout) | fclose(stdout) ? -errno : 0;
	if (failed && !err)
		err = kvm_fail("%s: %s", t.file ?: "stdout", kvm_atomic_file_why(-failed));
	return err;
}
