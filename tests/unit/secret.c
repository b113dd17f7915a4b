/* SPDX-License-Identifier: Apache-2.0 */
/* Files with keys, passwords and tokens: their owners, and the users that may read them. */
#include "secret.h"

#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#define OTHER 4444u

static bool is_private(mode_t mode, uid_t uid, gid_t gid)
{
	struct stat st = { .st_mode = mode, .st_uid = uid, .st_gid = gid };

	return kvc_secret_is_private(&st);
}

static void rule(void **state)
{
	uid_t own = geteuid();
	gid_t group = getegid();

	(void)state;
	assert_true(is_private(S_IFREG | 0600, own, group));
	assert_true(is_private(S_IFREG | 0400, 0, OTHER));
	assert_true(is_private(S_IFREG | 0440, 0, group));
	assert_true(is_private(S_IFREG | 0640, 0, group));
	assert_true(is_private(S_IFREG | 0640, 0, OTHER));
	assert_false(is_private(S_IFREG | 0660, 0, group));
	assert_false(is_private(S_IFREG | 0604, own, group));
	assert_false(is_private(S_IFREG | 0644, 0, group));
	assert_false(is_private(S_IFREG | 0600, own + 1, group));
	assert_false(is_private(S_IFIFO | 0600, own, group));
	assert_false(is_private(S_IFDIR | 0700, own, group));
	if (own) /* an ordinary user's group may include all users */
		assert_false(is_private(S_IFREG | 0640, own, group));
}

static void reasons(void **state)
{
	char path[] = "/tmp/kvc-secret-XXXXXX", why[KVC_SECRET_WHY];
	struct stat st;
	int fd = mkstemp(path);

	(void)state;
	assert_true(fd >= 0);
	close(fd);
	fd = kvc_secret_open(path, &st, why);
	assert_true(fd >= 0);
	close(fd);
	assert_int_equal(chmod(path, 0644), 0);
	assert_int_equal(kvc_secret_open(path, &st, why), -EACCES);
	assert_non_null(strstr(why, "chmod 600"));
	assert_int_equal(unlink(path), 0);
	assert_int_equal(kvc_secret_open(path, &st, why), -ENOENT);
	assert_int_equal(mkfifo(path, 0600), 0);
	assert_int_equal(kvc_secret_open(path, &st, why), -EACCES); /* and does not block */
	assert_non_null(strstr(why, "regular"));
	unlink(path);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(rule),
		cmocka_unit_test(reasons),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
