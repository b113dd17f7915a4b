/* SPDX-License-Identifier: Apache-2.0 */
/* kvcachectl tier-test: the conformance suite of shared tiers over a program of an ext tier. */
#include "ctl.h"

#include "json.h"
#include "log.h"
#include "registry.h"
#include "tier_suite.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define DEADLINE_MS 30000        /* of a call; a slow machine is not the program's fault */
#define REMOTE "option remote: " /* messages of kvct_open_all start with it */

struct test_output {
	struct kvm_json json;
	bool as_json;
	unsigned checks, failed;
};

static void report_check(void *arg, bool passed, const char *what)
{
	struct test_output *out = arg;

	out->checks++;
	out->failed += !passed;
	if (out->as_json) {
		kvm_json_begin(&out->json, NULL, '{');
		kvm_json_text(&out->json, "check", what);
		kvm_json_bool(&out->json, "passed", passed);
		kvm_json_end(&out->json, '}');
	} else {
		printf("%s  %s\n", passed ? "ok  " : "FAIL", what);
		(void)fflush(stdout);
	}
}

/*
 * Makes the URL from PROGRAM[?OPTIONS]; the path may be relative. Returns 0, or 1 after a message.
 */
static int test_url(const char *program, char *url, size_t capacity)
{
	KVC_MEM char *path = strndup(program, strcspn(program, "?")), *real = NULL;
	int n;

	if (!path)
		return kvm_fail("out of memory");
	real = realpath(path, NULL);
	if (!real)
		return kvm_fail("'%s': %s", path, kvc_why(errno));
	n = snprintf(url, capacity, "ext://%s%s", real, program + strlen(path));
	if ((size_t)n >= capacity || strchr(url, ' '))
		return kvm_fail("%s: the path and the options have at most %zu bytes and no spaces",
				program, capacity - 1);
	return 0;
}

static int print_checked(struct test_output *out, int err)
{
	if (out->as_json) {
		kvm_json_end(&out->json, ']');
		kvm_json_number(&out->json, "failed", out->failed);
		kvm_json_end(&out->json, '}');
		putchar('\n');
	} else if (err >= 0) {
		printf("%u checks, %u failed\n", out->checks, out->failed);
	}
	if (err < 0)
		return kvm_fail("%s", kvc_why(-err));
	return out->failed != 0;
}

int kvm_run_tier_test(int argc, char **argv)
{
	struct test_output out = { .json = { stdout, false } };
	const struct kvm_option options[] = { { "json", &out.as_json, NULL }, { 0 } };
	struct kvm_tier_suite s = { .lists = true, .report = report_check, .arg = &out };
	int err = kvm_options(&argc, argv, options);
	KVC_MEM struct kvc_options *o = calloc(1, sizeof *o);
	struct kvc_tier *t[KVCT_MAX];
	char error[512];
	unsigned n;

	if (err)
		return err;
	if (!o)
		return kvm_fail("out of memory");
	kvc_options_init(o);
	o->disk = false;
	o->deadline_ms = DEADLINE_MS;
	if ((err = test_url(argv[0], o->remote, sizeof o->remote)))
		return err;
	kvc_log_setup(KVC_LOG_STDERR, false);
	kvc_log_level_set(out.as_json ? "error" : "info");
	if (kvct_open_all(NULL, o, t, &n, error))
		return kvm_fail("%s: %s", argv[0],
				error + (strncmp(error, REMOTE, strlen(REMOTE)) ? 0
										: strlen(REMOTE)));
	s.t = t[0];
	s.lists = kvct_ext_lists(t[0]);
	if (out.as_json) {
		kvm_json_begin(&out.json, NULL, '{');
		kvm_json_text(&out.json, "program", argv[0]);
		kvm_json_begin(&out.json, "checks", '[');
	}
	err = kvm_tier_suite_run(&s);
	kvct_close_all(t, n);
	return print_checked(&out, err);
}
