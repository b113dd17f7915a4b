/* SPDX-License-Identifier: Apache-2.0 */
/* The pool if no tmpfs can be mounted: a folder on another tmpfs, which is left as it was. */
#include "pool.h"

#include "log.h"
#include "options.h"
#include "store.h"

#include <fcntl.h>
#include <inttypes.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include <cmocka.h>

static const struct kvc_segment seg = { 'p', 7, 1 };

/* Opens a pool without the right to mount. Returns 0, or the line that failed. */
static int without_root(const char *run, bool keep)
{
	struct kvc_options o;
	struct kvc_store s = { 0 };
	struct kvc_pool p;
	char error[512] = "";
	int fd;

	if (setresgid(65534, 65534, 65534) || setresuid(65534, 65534, 65534))
		return __LINE__;
	kvc_options_init(&o);
	o.cpu_bytes = 16 << 20;
	snprintf(o.run_dir, sizeof o.run_dir, "%s", run);
	snprintf(s.uuid_text, sizeof s.uuid_text, "a-store");
	if (kvc_pool_open(&p, &o, &s, error) || p.mounted)
		return __LINE__;
	fd = kvc_pool_segment_open(&p, &seg, O_RDWR | O_CREAT | O_EXCL);
	if (fd < 0 || write(fd, "x", 1) != 1)
		return __LINE__;
	close(fd);
	kvc_pool_close(&p, keep);
	return 0;
}

static void folder_of_a_tmpfs(void **state)
{
	char run[] = "/dev/shm/kvc-unit-XXXXXX", path[64], file[80];
	struct stat st;
	int status;

	(void)state;
	if (geteuid() || !mkdtemp(run))
		skip();
	assert_int_equal(chmod(run, 0777), 0);
	snprintf(path, sizeof path, "%s/a-store", run);
	snprintf(file, sizeof file, "%s/p-7-1", path);
	for (int keep = 1; keep >= 0; keep--) {
		pid_t child = fork();

		if (!child) {
			unlink(file);
			_exit(without_root(run, keep) & 127);
		}
		assert_int_equal(waitpid(child, &status, 0), child);
		assert_int_equal(status, 0);
		assert_int_equal(stat(file, &st), keep ? 0 : -1);
		assert_int_equal(stat(path, &st), keep ? 0 : -1);
	}
	assert_int_equal(rmdir(run), 0);
}

/* Names of segments are equal to the output of printf, and no other name is a segment. */
static void names_of_segments(void **state)
{
	static const uint64_t n[] = {
		0,          1,   9,        10,         15,
		16,         255, 0x100000, 0xfedcba98, UINT64_C(0x8000000000000000),
		UINT64_MAX,
	};
	static const char *const none[] = {
		"p-7", "p-7-", "p-07-1", "p-7-1 ", "p-7-A", "x-7-1", "p-7-1-1", "p--7-1", "",
	};
	struct kvc_segment s;
	char name[48], *end;

	(void)state;
	for (size_t i = 0; i < sizeof n / sizeof *n; i++)
		for (size_t j = 0; j < sizeof n / sizeof *n; j++) {
			snprintf(name, sizeof name, "w-%" PRIx64 "-%" PRIx64, n[i], n[j]);
			assert_true(kvc_pool_segment_parse(name, &s));
			assert_true(s.kind == 'w' && s.ino == n[i] && s.gen == n[j]);
			*kvc_put_dec(name, n[i]) = 0;
			assert_true(strtoull(name, &end, 10) == n[i] && !*end);
			assert_true(*name != '0' || !n[i]);
		}
	for (size_t i = 0; i < sizeof none / sizeof *none; i++)
		assert_false(kvc_pool_segment_parse(none[i], &s));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(folder_of_a_tmpfs),
		cmocka_unit_test(names_of_segments),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
