/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kvcachectl hint: tells the mount whether the chunks of a prompt will be needed, by the command
 * "hint" of .kvcachefs/lease. The paths are in the order of the prompt.
 */
#include "ctl.h"

#include "json.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#define PAUSE_MOST 3600u /* seconds */

/* Prints a path relative to the root of its mount. */
static int print_hinted_path(FILE *out, const char *mnt, const char *path, const char *end)
{
	KVC_MEM char *whole = realpath(path, NULL);
	size_t n = strlen(mnt);

	if (!whole)
		return kvm_fail("%s: %s", kvm_shown(path), kvc_why(errno));
	if (!strcmp(whole, mnt))
		return kvm_fail("%s is the root of the mount; give chunks in the mount", path);
	if (strncmp(whole, mnt, n) != 0 || whole[n] != '/')
		return kvm_fail("%s is not in the mount %s", path, mnt);
	if (strchr(whole, '\n'))
		return kvm_fail("a path with a newline cannot have hints");
	fprintf(out, "%s%s", whole + n + 1, end);
	return 0;
}

/*
 * The paths of the command line, and the request (`list`), which has a line for each, relative to
 * the mount.
 */
struct hinted {
	const char *mnt, *list;
	char **paths;
	int n;
};

/* Reports an error of a path of the answer, under the name that the user gave it. */
static void print_error(const struct hinted *h, const char *below, const char *says)
{
	const char *line = h->list;

	for (int i = 0; i < h->n && (line = strchr(line, '\n')); i++) {
		size_t n = strcspn(++line, "\n");

		if (!strncmp(line, below, n) && (!below[n] || below[n] == '/')) {
			kvm_fail("%s%s: %s", kvm_shown(h->paths[i]), below + n, says);
			return;
		}
	}
	kvm_fail("%s/%s: %s", h->mnt, below, says);
}

/* Reports the lines of the answer that have an error. Returns their number. */
static unsigned print_errors(const struct hinted *h, char *text)
{
	static const struct {
		const char *name, *text;
	} why[] = {
		{ "EPERM", "it or the tenant belongs to another user" },
		{ "EINVAL", "the tenant does not exist; kvcachectl tenants lists the tenants" },
		{ "ENOENT", "No such file or directory" },
		{ "EACCES", "Permission denied" },
		{ "EDQUOT", "the loads exceed the user's share of the pool (share=)" },
	};
	char *save = NULL;
	unsigned failed = 0;

	for (char *l = strtok_r(text, "\n", &save); l; l = strtok_r(NULL, "\n", &save)) {
		char *state = strrchr(l, ' ');
		const char *says = state ? state + 1 : l;

		if (!state || state[1] != 'E')
			continue;
		for (size_t i = 0; i < sizeof why / sizeof why[0]; i++)
			if (!strcmp(state + 1, why[i].name))
				says = why[i].text;
		for (int i = 0; i < 3 && state; i++) { /* the path precedes inode, size and state */
			*state = 0;
			state = strrchr(l, ' ');
		}
		print_error(h, l, says);
		failed++;
	}
	return failed;
}

static void print_hinted(const char *mnt, int paths, unsigned failed)
{
	struct kvm_json j = { stdout, false };

	kvm_json_begin(&j, NULL, '{');
	kvm_json_text(&j, "mount", mnt);
	kvm_json_number(&j, "paths", (uint64_t)paths);
	kvm_json_number(&j, "failed", failed);
	kvm_json_end(&j, '}');
	putchar('\n');
}

/* Returns 0, or 1 after a message. *failed: the number of refused paths. */
static int send_hint(const struct hinted *h, size_t len, unsigned *failed)
{
	KVC_FD int fd = kvm_mount_open(h->mnt, "lease", O_RDWR);
	KVC_MEM char *text = NULL;

	if (fd < 0 || kvm_lease_ask(fd, "hint", h->list, len) || kvm_lease_read(fd, "hint", &text))
		return 1;
	*failed = print_errors(h, text);
	return *failed > 0;
}

/* The hints of a command line, as given; NULL or false: not given. */
struct hints {
	const char *priority, *pause, *superseded, *tenant, *ended, *returns;
	bool finished, prefetch, demote;
	uint64_t pause_s, returns_s;
	bool leaves, keeps; /* the chunks should leave sooner; or stay longer */
};

/* Refuses hints that contradict each other: to evict the chunks sooner, and to keep them longer. */
static int check_agreement(const struct hints *h)
{
	const char *leaves = h->finished     ? "--finished"
			     : h->superseded ? "--superseded"
			     : h->demote     ? "--demote"
					     : "--priority low";
	const char *keeps = h->pause ? "--pause" : h->prefetch ? "--prefetch" : NULL;
	char priority[32];

	snprintf(priority, sizeof priority, "--priority %s", h->priority ?: "");
	if (h->leaves && h->keeps)
		return kvm_misused("%s and %s contradict each other: give one of them", leaves,
				   keeps ?: priority);
	if (h->pause && h->priority)
		return kvm_misused("--pause and %s contradict each other: give one of them",
				   priority);
	return 0;
}

/* Checks the hints. Returns 0, or the exit status after a message. */
static int check_hints(struct hints *h)
{
	const char *p = h->priority, *e = h->ended;
	int err;

	if (p && strcmp(p, "low") && strcmp(p, "normal") && strcmp(p, "high"))
		return kvm_misused("--priority %s: give low, normal or high", kvm_shown(p));
	if (h->pause && (err = kvm_time_arg("--pause", h->pause, PAUSE_MOST, "a time from 1s to 1h",
					    &h->pause_s)))
		return err;
	if (e && strcmp(e, "tool") && strcmp(e, "turn") && strcmp(e, "closed"))
		return kvm_misused("--ended %s: give tool, turn or closed", kvm_shown(e));
	if (h->returns && (err = kvm_time_arg("--returns", h->returns, PAUSE_MOST,
					      "a time from 1s to 1h", &h->returns_s)))
		return err;
	if (e && h->returns)
		return kvm_misused("give one of --ended and --returns");
	if (h->tenant && (!*h->tenant || strchr(h->tenant, ' ') || strchr(h->tenant, '\n')))
		return kvm_misused("--tenant %s: give the name of a tenant, or none",
				   kvm_shown(h->tenant));
	h->leaves = h->finished || h->superseded || h->demote || (p && *p == 'l');
	h->keeps = h->pause || h->prefetch || (p && *p != 'l');
	return check_agreement(h);
}

/* Prints the first line of the command. Returns 0, or 1 after a message. */
static int print_hints(FILE *out, const struct hints *h, const char *mnt)
{
	int err = 0;

	fprintf(out, "hint%s%s%s", h->finished ? " finished" : "", h->prefetch ? " prefetch" : "",
		h->demote ? " demote" : "");
	if (h->priority)
		fprintf(out, " priority=%s", h->priority);
	if (h->pause)
		fprintf(out, " pause=%llu", (unsigned long long)h->pause_s);
	if (h->ended)
		fprintf(out, " %s%s", strcmp(h->ended, "closed") ? "ended=" : "", h->ended);
	if (h->returns)
		fprintf(out, " returns=%llu", (unsigned long long)h->returns_s);
	if (h->tenant)
		fprintf(out, " tenant=%s", h->tenant);
	if (h->superseded) {
		fputs(" superseded=", out);
		err = print_hinted_path(out, mnt, h->superseded, "");
	}
	fputc('\n', out);
	return err;
}

int kvm_run_hint(int argc, char **argv)
{
	struct hints h = { NULL };
	bool json = false;
	const struct kvm_option options[] = {
		{ "finished", &h.finished, NULL },
		{ "superseded", NULL, &h.superseded },
		{ "pause", NULL, &h.pause },
		{ "priority", NULL, &h.priority },
		{ "prefetch", &h.prefetch, NULL },
		{ "demote", &h.demote, NULL },
		{ "tenant", NULL, &h.tenant },
		{ "ended", NULL, &h.ended },
		{ "returns", NULL, &h.returns },
		{ "json", &json, NULL },
		{ 0 },
	};
	KVC_MEM char *list = NULL;
	size_t len = 0;
	unsigned failed = 0;
	char mnt[KVM_PATH];
	FILE *out;
	int err = kvm_options(&argc, argv, options);

	err = err ?: check_hints(&h);
	if (err)
		return err;
	if (kvm_mount_of(argv[0], mnt))
		return 1;
	if (!h.leaves && !h.keeps && !h.tenant && !h.ended && !h.returns)
		return kvm_misused("give a hint, such as --finished");
	if (!(out = open_memstream(&list, &len)))
		return kvm_fail("out of memory");
	err = print_hints(out, &h, mnt);
	for (int i = 0; i < argc && !err; i++)
		err = print_hinted_path(out, mnt, argv[i], "\n");
	if (fclose(out))
		return kvm_fail("out of memory");
	if (err)
		return err;
	err = send_hint(&(struct hinted){ mnt, list, argv, argc }, len, &failed);
	if (json && (!err || failed))
		print_hinted(mnt, argc, failed);
	return err;
}
