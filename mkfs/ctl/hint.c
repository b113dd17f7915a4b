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
	if (strncmp(whole, mnt, n) != 0 || whole[n] != '/')
		return kvm_fail("%s is not a file or folder in the mount %s", path, mnt);
	if (strchr(whole, '\n'))
		return kvm_fail("a path with a newline cannot have hints");
	fprintf(out, "%s%s", whole + n + 1, end);
	return 0;
}

/* Reports the lines of the answer that have an error. Returns their number. */
static unsigned print_errors(char *text)
{
	static const struct {
		const char *name, *text;
	} why[] = {
		{ "EPERM", "it belongs to another user, or the tenant does" },
		{ "EINVAL", "the tenant does not exist; kvcachectl tenants lists them" },
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
		kvm_fail("%s: %s", l, says);
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
static int send_hint(const char *mnt, const char *list, size_t len, unsigned *failed)
{
	KVC_FD int fd = kvm_mount_open(mnt, "lease", O_RDWR);
	KVC_MEM char *text = NULL;

	if (fd < 0 || kvm_lease_ask(fd, "hint", list, len) || kvm_lease_read(fd, "hint", &text))
		return 1;
	*failed = print_errors(text);
	return *failed > 0;
}

int kvm_run_hint(int argc, char **argv)
{
	const char *priority = NULL, *pause = NULL, *newer = NULL, *tenant = NULL;
	const char *ended = NULL, *returns = NULL;
	bool finished = false, prefetch = false, demote = false, json = false;
	const struct kvm_option options[] = {
		{ "finished", &finished, NULL },
		{ "superseded", NULL, &newer },
		{ "pause", NULL, &pause },
		{ "priority", NULL, &priority },
		{ "prefetch", &prefetch, NULL },
		{ "demote", &demote, NULL },
		{ "tenant", NULL, &tenant },
		{ "ended", NULL, &ended },
		{ "returns", NULL, &returns },
		{ "json", &json, NULL },
		{ 0 },
	};
	KVC_MEM char *list = NULL;
	size_t len = 0;
	uint64_t seconds = 0, returns_s = 0;
	unsigned failed = 0;
	char mnt[KVM_PATH];
	FILE *out;
	int err = kvm_options(&argc, argv, options);
	bool leaves, keeps;

	if (err)
		return err;
	if (priority && strcmp(priority, "low") && strcmp(priority, "normal") &&
	    strcmp(priority, "high"))
		return kvm_misused("--priority %s: give low, normal or high", kvm_shown(priority));
	if (pause &&
	    (err = kvm_time_arg("--pause", pause, PAUSE_MOST, "a time from 1s to 1h", &seconds)))
		return err;
	if (ended && strcmp(ended, "tool") && strcmp(ended, "turn") && strcmp(ended, "closed"))
		return kvm_misused("--ended %s: give tool, turn or closed", kvm_shown(ended));
	if (returns && (err = kvm_time_arg("--returns", returns, PAUSE_MOST, "a time from 1s to 1h",
					   &returns_s)))
		return err;
	if (ended && returns)
		return kvm_misused("give one of --ended and --returns");
	if (tenant && (!*tenant || strchr(tenant, ' ') || strchr(tenant, '\n')))
		return kvm_misused("--tenant %s: give the name of a tenant, or none",
				   kvm_shown(tenant));
	leaves = finished || newer || demote || (priority && *priority == 'l');
	keeps = pause || prefetch || (priority && *priority != 'l');
	if ((leaves && keeps) || (pause && priority))
		return kvm_misused("these hints contradict each other");
	if (kvm_mount_of(argv[0], mnt))
		return 1;
	if (!leaves && !keeps && !tenant && !ended && !returns)
		return kvm_misused("give a hint, such as --finished");
	if (!(out = open_memstream(&list, &len)))
		return kvm_fail("out of memory");
	fprintf(out, "hint%s%s%s", finished ? " finished" : "", prefetch ? " prefetch" : "",
		demote ? " demote" : "");
	if (priority)
		fprintf(out, " priority=%s", priority);
	if (pause)
		fprintf(out, " pause=%llu", (unsigned long long)seconds);
	if (ended)
		fprintf(out, " %s%s", strcmp(ended, "closed") ? "ended=" : "", ended);
	if (returns)
		fprintf(out, " returns=%llu", (unsigned long long)returns_s);
	if (tenant)
		fprintf(out, " tenant=%s", tenant);
	if (newer) {
		fputs(" superseded=", out);
		err = print_hinted_path(out, mnt, newer, "");
	}
	fputc('\n', out);
	for (int i = 0; i < argc && !err; i++)
		err = print_hinted_path(out, mnt, argv[i], "\n");
	if (fclose(out))
		return kvm_fail("out of memory");
	if (err)
		return err;
	err = send_hint(mnt, list, len, &failed);
	if (json && (!err || failed))
		print_hinted(mnt, argc, failed);
	return err;
}
