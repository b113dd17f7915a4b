/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Part of kvcachectl status: the slowest operations of the last minutes, from .kvcachefs/slowest.
 * If an older daemon lacks this file, or the user may not read it, the list is empty.
 */
#include "ctl.h"

#include "json.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define SHOWN 3u

int kvm_slowest(const char *mnt, struct kvm_slow v[KVM_SLOWEST], size_t *n)
{
	char path[KVM_PATH + 32], *text = NULL, *save, *line;

	*n = 0;
	snprintf(path, sizeof path, "%s/.kvcachefs/slowest", mnt);
	if (access(path, R_OK))
		return 0;
	if (kvm_mount_text(mnt, "slowest", &text))
		return 1;
	line = strtok_r(text, "\n", &save); /* column names */
	while (line && *n < KVM_SLOWEST && (line = strtok_r(NULL, "\n", &save)))
		*n += sscanf(line, "%lf %lf %31s %31s %1023s", &v[*n].seconds, &v[*n].ago_seconds,
			     v[*n].operation, v[*n].tier, v[*n].model) == 5;
	free(text);
	return 0;
}

void kvm_slowest_json(struct kvm_json *j, const struct kvm_slow *v, size_t n)
{
	kvm_json_begin(j, "slowest", '[');
	for (size_t i = 0; i < n; i++) {
		kvm_json_begin(j, NULL, '{');
		kvm_json_text(j, "operation", v[i].operation);
		kvm_json_text(j, "tier", strcmp(v[i].tier, "-") ? v[i].tier : NULL);
		kvm_json_text(j, "model", strcmp(v[i].model, "//") ? v[i].model : NULL);
		kvm_json_share(j, "seconds", v[i].seconds);
		kvm_json_share(j, "ago_seconds", v[i].ago_seconds);
		kvm_json_end(j, '}');
	}
	kvm_json_end(j, ']');
}

/* Prints a line such as "load disk 45 ms, commit 12 ms": operation, tier and duration. */
void kvm_slowest_print(const struct kvm_slow *v, size_t n)
{
	for (size_t i = 0; i < n && i < SHOWN; i++) {
		bool ms = v[i].seconds < 1;

		printf("%s%s%s%s %.3g %s",
		       i ? ", " : "slowest of the last ten minutes: ", v[i].operation,
		       strcmp(v[i].tier, "-") ? " " : "", strcmp(v[i].tier, "-") ? v[i].tier : "",
		       v[i].seconds * (ms ? 1e3 : 1), ms ? "ms" : "s");
	}
	if (n)
		putchar('\n');
}
