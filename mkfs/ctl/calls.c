/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Part of kvcachectl status: the state of the classes of calls of each tier, from .kvcachefs/tiers.
 * The text output lists only suspended classes.
 */
#include "ctl.h"

#include "json.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

int kvm_calls(const char *mnt, struct kvm_calls *c)
{
	char *text = NULL, *save, *line;

	c->n = 0;
	if (kvm_mount_text(mnt, "tiers", &text))
		return 1;
	line = strtok_r(text, "\n", &save); /* column names */
	while (line && c->n < KVM_CALLS && (line = strtok_r(NULL, "\n", &save))) {
		struct kvm_call *v = &c->of[c->n];

		*v = (struct kvm_call){ .tier = "" };
		c->n += sscanf(line, "%23s %15s %15s %" SCNu64 " %63[^\n]", v->tier, v->call,
			       v->state, &v->next_ms, v->reason) == 5;
	}
	free(text);
	return 0;
}

/*
 * Returns the index of the first class of the i-th tier (from 0), or c->n if there is no such tier.
 */
static size_t first_of(const struct kvm_calls *c, unsigned i)
{
	size_t at = 0;

	for (; at < c->n && i; i--) {
		const char *tier = c->of[at].tier;

		while (at < c->n && !strcmp(c->of[at].tier, tier))
			at++;
	}
	return at;
}

static bool suspended(const struct kvm_call *v)
{
	return strcmp(v->state, "closed") != 0;
}

bool kvm_calls_suspended(const struct kvm_calls *c, unsigned tier)
{
	size_t first = first_of(c, tier);

	for (size_t i = first; i < c->n && !strcmp(c->of[i].tier, c->of[first].tier); i++)
		if (suspended(&c->of[i]))
			return true;
	return false;
}

void kvm_calls_json(struct kvm_json *j, const struct kvm_calls *c, unsigned tier)
{
	size_t first = first_of(c, tier);

	kvm_json_begin(j, "calls", '{');
	for (size_t i = first; i < c->n && !strcmp(c->of[i].tier, c->of[first].tier); i++) {
		const struct kvm_call *v = &c->of[i];

		kvm_json_begin(j, v->call, '{');
		kvm_json_text(j, "state", v->state);
		kvm_json_text(j, "reason", strcmp(v->reason, "-") ? v->reason : "");
		kvm_json_number(j, "next_ms", v->next_ms);
		kvm_json_end(j, '}');
	}
	kvm_json_end(j, '}');
}

/* Prints lines such as "redis: write calls are refused (read-only); next probe in 4.1 s". */
void kvm_calls_print(const struct kvm_calls *c)
{
	for (size_t i = 0; i < c->n; i++) {
		const struct kvm_call *v = &c->of[i];

		if (!suspended(v))
			continue;
		printf("%s: %s calls ", v->tier, v->call);
		if (!strcmp(v->state, "refused"))
			printf("are refused");
		else if (!strcmp(v->state, "out"))
			printf("fail");
		else if (!strcmp(v->state, "probing"))
			printf("are being probed");
		else
			printf("hang");
		if (strcmp(v->reason, "-") != 0)
			printf(" (%s)", v->reason);
		if (v->next_ms)
			printf("; next probe in %" PRIu64 ".%" PRIu64 " s", v->next_ms / 1000,
			       v->next_ms % 1000 / 100);
		putchar('\n');
	}
}
