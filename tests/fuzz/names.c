/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The library's names on disk: a path that parses is built again identically, and a name that can
 * be built parses again and gives the same path. Also names of schemes, namings and formats.
 *
 * Input: a line with a path, then lines of MEMBER=VALUE.
 * Longest input: 2048
 * Covers: gpu/names.c
 */
#include "fuzz.h"
#include "kvcachefs_layout.h"
#include "kvcachefs_names.h"

static void path_and_back(enum kvcachefs_naming as, const char *path)
{
	struct kvcachefs_name n;
	char again[KVCACHEFS_PATH_MAX];

	if (kvcachefs_name_parse(as, path, &n))
		return;
	fuzz_must(!kvcachefs_name_build(as, &n, again) && !strcmp(path, again));
}

static void name_and_back(enum kvcachefs_naming as, const struct kvcachefs_name *n)
{
	char path[KVCACHEFS_PATH_MAX], again[KVCACHEFS_PATH_MAX];
	struct kvcachefs_name back;

	if (kvcachefs_name_build(as, n, path))
		return;
	fuzz_must(strlen(path) < sizeof path && !kvcachefs_name_parse(as, path, &back));
	fuzz_must(!kvcachefs_name_build(as, &back, again) && !strcmp(path, again));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct fuzz_in in = { data, size };
	struct kvcachefs_name n = { .model = "" };
	char *path = fuzz_text(&in, '\n');
	enum kvcachefs_naming naming;
	enum kvcachefs_scheme scheme;
	enum kvcachefs_format format;

	if (!kvcachefs_naming_find(path, &naming))
		fuzz_must(!strcmp(kvcachefs_naming_name(naming), path));
	if (!kvcachefs_scheme_find(path, &scheme))
		fuzz_must(!strcmp(kvcachefs_scheme_name(scheme), path));
	if (!kvcachefs_format_find(path, &format))
		fuzz_must(!strcmp(kvcachefs_format_name(format), path));
	while (in.n) {
		char *member = fuzz_text(&in, '\n'), *value = strchr(member, '=');

		if (value) {
			*value++ = 0;
			kvcachefs_name_set(&n, member, value);
		}
		free(member);
	}
	for (int as = 0; as < KVCACHEFS_NAMINGS; as++) {
		path_and_back((enum kvcachefs_naming)as, path);
		name_and_back((enum kvcachefs_naming)as, &n);
	}
	free(path);
	return 0;
}
