/* SPDX-License-Identifier: Apache-2.0 */
/*
 * remote URL [SHIM [NODE]]: the conformance suite of shared tiers (mkfs/tier_suite.c), run against
 * a live one, alone or behind a shim such as one that delays its calls. Prints the failures and
 * exits with
 * 1. With "faults" as SHIM every third call fails; "-": no shim. NODE: the mount of the node that a
 * peers:// URL reads.
 */
#include "registry.h"
#include "tier_suite.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void report(void *arg, bool passed, const char *what)
{
	(void)arg;
	if (!passed)
		printf("failed: %s\n", what);
}

static int listed(void *arg, const struct kvc_where *w, const struct kvc_frame *f)
{
	(void)arg;
	(void)w;
	(void)f;
	return 0;
}

int main(int argc, char **argv)
{
	struct kvc_options *o = calloc(1, sizeof *o);
	struct kvm_tier_suite s = { .lists = true, .report = report };
	struct kvc_tier *t[KVCT_MAX];
	char error[512], text[1500];
	const char *shim = argc > 2 && strcmp(argv[2], "-") != 0 ? argv[2] : NULL;
	bool faults = shim && !strcmp(shim, "faults");
	int failures;
	unsigned n;

	if (argc < 2 || !o)
		return 2;
	kvc_options_init(o);
	snprintf(text, sizeof text, "disk=off,deadline=30000,remote=%s", argv[1]);
	if (shim)
		snprintf(text + strlen(text), sizeof text - strlen(text), ",shim=%s",
			 faults ? "fail-get:3+fail-put:3" : shim);
	if (kvc_options_parse(o, text, error) || kvct_open_all(NULL, o, t, &n, error)) {
		printf("%s\n", error);
		return 1;
	}
	s.t = t[0];
	s.node = argc > 3 ? argv[3] : NULL;
	/* the program of an ext tier may lack this ability */
	s.lists = !s.node && t[0]->ops->list(t[0], listed, NULL) != -EOPNOTSUPP;
	if (!(s.t->ops->caps & KVC_TIER_SHARED) || !*s.t->id)
		return 2;
	failures = faults ? kvm_tier_suite_faults(&s) : kvm_tier_suite_run(&s);
	kvct_close_all(t, n);
	free(o);
	printf("%d failures\n", failures);
	return failures != 0;
}
