/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kvcachectl import, rekey, flush, verify, and the commands in devices.c: start long work in the
 * daemon through .kvcachefs/control and wait for its end. That file also shows the progress: a line
 * for people, then lines of "name value". Interrupting the command does not stop the work.
 */
#include "ctl.h"

#include "json.h"

#include <fcntl.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>

#define LOOK_US 100000

struct sweep {
	const char *name;
	char mnt[KVM_PATH], text[4096]; /* contents of .kvcachefs/control */
	bool json;
	uint64_t number; /* of the job in the daemon */
};

static volatile sig_atomic_t left;

static void on_sweep_signal(int sig)
{
	(void)sig;
	left = 1;
}

/* Reports that a job is running in the daemon, which runs one job at a time. */
static int refuse_busy(const char *mnt, const char *words)
{
	char job[32] = "";
	KVC_FD int fd = kvm_mount_open(mnt, "control", O_RDONLY);
	ssize_t n = fd < 0 ? 0 : read(fd, job, sizeof job - 1);

	if (fd < 0)
		return 1;
	job[n > 0 ? n : 0] = 0;
	job[strcspn(job, " \n")] = 0;
	return kvm_fail("%.*s: kvcachectl %s is running; try again when it has ended",
			(int)strcspn(words, " "), words,
			strcmp(job, "stay") != 0 ? job : "remove --cancel");
}

int kvm_control(const char *mnt, const char *words, char *answer, size_t capacity)
{
	int fd = kvm_mount_open(mnt, "control", O_RDWR), err, unread;
	ssize_t n;

	if (fd < 0)
		return 1;
	err = write(fd, words, strlen(words)) < 0 ? errno : 0;
	n = pread(fd, answer, capacity - 1, 0);
	unread = n < 0 ? errno : 0;
	close(fd);
	answer[n > 0 ? n : 0] = 0;
	if (!err && unread)
		return kvm_fail(
			"%.*s: the daemon accepted the command, but its answer cannot be read: %s",
			(int)strcspn(words, " "), words, kvc_why(unread));
	answer[strcspn(answer, err ? "\n" : "")] = 0;
	if (!err)
		return 0;
	if (err == EBUSY && !*answer)
		return refuse_busy(mnt, words);
	if (err == ESRCH && !*answer)
		return kvm_fail("%s --stop: %s is not running", words + strlen("stop "),
				words + strlen("stop "));
	return kvm_fail("%.*s: %s", (int)strcspn(words, " "), words,
			*answer         ? answer
			: err == EINVAL ? "the daemon of this mount does not have this command; "
					  "use the kvcachectl of its version"
					: kvc_why(err));
}

static int read_progress(struct sweep *s)
{
	int fd = kvm_mount_open(s->mnt, "control", O_RDONLY), err;
	ssize_t n;

	if (fd < 0)
		return 1;
	n = read(fd, s->text, sizeof s->text - 1);
	err = n < 0 ? errno : 0;
	close(fd);
	s->text[n > 0 ? n : 0] = 0;
	return err ? kvm_fail("%s continues in the daemon, but its progress cannot be read: %s",
			      s->name, kvc_why(err))
		   : 0;
}

uint64_t kvm_sweep_value(const char *text, const char *name)
{
	size_t n = strlen(name);

	for (const char *at = text; (at = strchr(at, '\n')); at++)
		if (!strncmp(at + 1, name, n) && at[1 + n] == ' ')
			return strtoull(at + 1 + n, NULL, 10);
	return 0;
}

static uint64_t value_of(const struct sweep *s, const char *name)
{
	return kvm_sweep_value(s->text, name);
}

/* Calls fn with the number of missing copies of each tier. */
static void each_missing(const struct sweep *s, void (*fn)(void *arg, const char *tier, uint64_t n),
			 void *arg)
{
	char tier[64];
	uint64_t n;

	for (const char *at = s->text; (at = strchr(at, '\n')); at++)
		if (sscanf(at + 1, "failed_in %63s %" SCNu64, tier, &n) == 2)
			fn(arg, tier, n);
}

static void add_tier(void *arg, const char *tier, uint64_t n)
{
	char *list = arg;

	snprintf(list + strlen(list), 256 - strlen(list), "%s%s %" PRIu64, *list ? ", " : "", tier,
		 n);
}

static void json_tier(void *arg, const char *tier, uint64_t n)
{
	kvm_json_number(arg, tier, n);
}

static void progress(const struct sweep *s)
{
	uint64_t done = value_of(s, "bytes"), all = value_of(s, "all_bytes");
	char a[32];

	fprintf(stderr, "\r%.*s, %s", (int)strcspn(s->text, "\n"), s->text, kvc_size_text(done, a));
	if (all)
		fprintf(stderr, " (%" PRIu64 " %%)", kvc_min(100, done * 100 / all));
	fputs("\033[K", stderr);
}

/* The copies that verify found undamaged. */
static uint64_t good_copies(const struct sweep *s)
{
	return value_of(s, "seen") - value_of(s, "changed") - value_of(s, "failed") -
	       value_of(s, "replaced");
}

static void print_verified(const struct sweep *s)
{
	uint64_t replaced = value_of(s, "replaced");

	printf("%.*s, %" PRIu64 " good", (int)strcspn(s->text, "\n"), s->text, good_copies(s));
	if (replaced)
		printf(", %" PRIu64 " replaced by other nodes", replaced);
	putchar('\n');
}

static void print_sweep_json(const struct sweep *s)
{
	struct kvm_json j = { stdout, false };
	uint64_t changed = value_of(s, "changed"), failed = value_of(s, "failed");
	bool verify = !strcmp(s->name, "verify");

	kvm_json_begin(&j, NULL, '{');
	kvm_json_text(&j, "mount", s->mnt);
	kvm_json_text(&j, "what", s->name);
	kvm_json_number(&j, "seen", value_of(s, "seen"));
	if (verify)
		kvm_json_number(&j, "good", good_copies(s));
	kvm_json_number(&j, verify ? "damaged" : "changed", changed);
	kvm_json_number(&j, verify ? "unreadable" : "failed", failed);
	if (verify) {
		kvm_json_number(&j, "lost", value_of(s, "lost"));
		kvm_json_number(&j, "replaced", value_of(s, "replaced"));
	}
	if (!strcmp(s->name, "remove"))
		kvm_json_number(&j, "evicted", value_of(s, "evicted"));
	kvm_json_number(&j, "bytes", value_of(s, "bytes"));
	kvm_json_begin(&j, "failed_in", '{');
	each_missing(s, json_tier, &j);
	kvm_json_end(&j, '}');
	kvm_json_end(&j, '}');
	putchar('\n');
}

/* Is the text about another job? Then the one that this command began has ended. */
static bool is_other(const struct sweep *s)
{
	return value_of(s, "number") != s->number;
}

/* Prints the result of the finished sweep. Returns the exit status. */
static int print_result(const struct sweep *s)
{
	int head = (int)strcspn(s->text, "\n");
	bool verify = !strcmp(s->name, "verify");
	uint64_t changed = value_of(s, "changed"), failed = value_of(s, "failed");
	char tiers[256] = "";

	if (is_other(s))
		return kvm_fail(
			"%s has ended, but its result is unknown, because another job has started",
			s->name);
	if (!strncmp(s->text, "import done", 11) && value_of(s, "error") == ENODEV)
		return kvm_fail("import: this mount has no shared tier; mount with remote=");
	if (!strncmp(s->text, "rekey done", 10) && value_of(s, "error") == ENOKEY)
		return kvm_fail("rekey: this mount has no keys; mount with keyfile=");
	if (!strncmp(s->text, "rekey done: ", 12) && value_of(s, "error") &&
	    !strstr(s->text, "\nseen "))
		return kvm_fail("rekey: %.*s; the keys are unchanged", head - 12, s->text + 12);
	if (value_of(s, "error") && !strstr(s->text, "\nseen "))
		return kvm_fail("%s: %.*s", s->name, head - (int)strlen(s->name) - 7,
				s->text + strlen(s->name) + 7); /* " done: " */
	if (s->json)
		print_sweep_json(s);
	else if (verify)
		print_verified(s);
	else if (!value_of(s, "error") && kvm_devices_result(s->name, s->text))
		; /* it is printed */
	else
		printf("%.*s\n", head, s->text);
	if (value_of(s, "error"))
		return 1;
	if (!failed && !(verify && changed))
		return 0;
	each_missing(s, add_tier, tiers);
	if (verify)
		return kvm_fail("damaged or unreadable copies, by tier: %s; for %" PRIu64
				" files this was the last copy",
				tiers, value_of(s, "lost"));
	return kvm_fail("%" PRIu64
			" files failed%s%s; the daemon retries them, and its log has the reasons",
			failed, *tiers ? ", by tier: " : "", tiers);
}

static int await(struct sweep *s)
{
	struct sigaction act = { .sa_handler = on_sweep_signal };
	bool people = isatty(STDERR_FILENO);

	sigaction(SIGINT, &act, NULL);
	sigaction(SIGTERM, &act, NULL);
	for (;;) {
		if (read_progress(s))
			return 1;
		if (is_other(s))
			break;
		if (people)
			progress(s);
		if (left || !strstr(s->text, " running: "))
			break;
		usleep(LOOK_US);
	}
	if (people)
		fputs("\r\033[K", stderr);
	if (left && !is_other(s) && strstr(s->text, " running: "))
		return kvm_fail("%s continues in the daemon%s", s->name,
				!strcmp(s->name, "verify") ? "; kvcachectl verify --stop stops it"
				: !strcmp(s->name, "remove")
					? "; kvcachectl remove --stop DEVICE stops it"
					: "");
	return print_result(s);
}

/* Starts the sweep and waits for its end. */
static int run_sweep(struct sweep *s, const char *inside, const char *words)
{
	char answer[512];
	int err = kvm_mount_of(inside, s->mnt) ?: kvm_control(s->mnt, words, answer, sizeof answer);

	if (err)
		return err;
	if (sscanf(answer, "number %" SCNu64, &s->number) != 1)
		return kvm_fail("%s has begun, but the daemon's answer has no number; use the "
				"kvcachectl of its version",
				s->name);
	return await(s);
}

int kvm_sweep(const char *name, const char *inside, const char *words, bool json)
{
	struct sweep s = { .name = name, .json = json };

	return run_sweep(&s, inside, words);
}

static int simple(const char *name, int argc, char **argv)
{
	struct sweep s = { .name = name };
	const struct kvm_option options[] = { { "json", &s.json, NULL }, { 0 } };
	int err = kvm_options(&argc, argv, options);

	return err ?: run_sweep(&s, argc ? argv[0] : NULL, name);
}

int kvm_run_import(int argc, char **argv)
{
	return simple("import", argc, argv);
}

int kvm_run_rekey(int argc, char **argv)
{
	return simple("rekey", argc, argv);
}

int kvm_run_flush(int argc, char **argv)
{
	return simple("flush", argc, argv);
}

int kvm_run_verify(int argc, char **argv)
{
	struct sweep s = { .name = "verify" };
	const char *tier = NULL, *rate = NULL;
	bool stop = false;
	const struct kvm_option options[] = {
		{ "json", &s.json, NULL },
		{ "tier", NULL, &tier },
		{ "rate", NULL, &rate },
		{ "stop", &stop, NULL },
		{ 0 },
	};
	int err = kvm_options(&argc, argv, options);
	uint64_t bytes = 0;
	char words[256], answer[512];

	if (err)
		return err;
	if (rate && kvm_size_arg("--rate", rate, 1, "bytes a second, such as 100M", &bytes))
		return 2;
	if (tier && (!*tier || strlen(tier) > 60 || strpbrk(tier, " \n")))
		return kvm_misused(
			"--tier %s: give a tier such as disk; kvcachectl config lists the tiers",
			kvm_shown(tier));
	if (stop && (tier || rate || s.json))
		return kvm_misused("verify: --stop cannot be combined with other options");
	if (stop)
		return kvm_mount_of(argc ? argv[0] : NULL, s.mnt)
			       ?: kvm_control(s.mnt, "stop verify", answer, sizeof answer);
	snprintf(words, sizeof words, "verify");
	if (tier)
		snprintf(words + strlen(words), 100, " tier=%s", tier);
	if (rate)
		snprintf(words + strlen(words), 100, " rate=%" PRIu64, bytes);
	return run_sweep(&s, argc ? argv[0] : NULL, words);
}
