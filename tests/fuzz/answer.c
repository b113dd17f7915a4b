/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reads a mount's answer to a lease, as the library does. The mount is a folder with a plain file
 * in the place of .kvcachefs/lease. The file's first line equals the request, so that writing the
 * request changes nothing, and the library reads the input as the answer.
 *
 * Input: the answer.
 * Longest input: 8192
 * Covers: gpu/lease.c
 */
#include "fuzz.h"
#include "kvcachefs_layout.h"

#include <sys/stat.h>

static void look_at(struct kvcachefs_lease *l, size_t size)
{
	size_t n = kvcachefs_lease_count(l);

	fuzz_must(!kvcachefs_lease_object(l, n));
	for (size_t i = 0; i < n; i++) {
		const struct kvcachefs_object *o = kvcachefs_lease_object(l, i);

		fuzz_must(o && o->err <= 0 && strlen(o->path) < size && strlen(o->state) < size);
		fuzz_must(!strchr(o->path, '\n') && !strchr(o->state, ' '));
	}
}

int LLVMFuzzerInitialize(int *argc, char ***argv)
{
	char path[600];

	(void)argc;
	(void)argv;
	snprintf(path, sizeof path, "%s/.kvcachefs", fuzz_folder());
	fuzz_must(!mkdir(path, 0700));
	return 0;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct fuzz_in in = { data, size };
	char *first = fuzz_text(&in, '\n');
	const char *paths[1] = { first };
	struct kvcachefs_lease *l;
	int err;

	fuzz_file(".kvcachefs/lease", data, size);
	err = kvcachefs_lease_new(&l, fuzz_folder(), paths, 1);
	fuzz_must(!err || (err < 0 && *kvcachefs_error()));
	if (!err) {
		look_at(l, size + 1);
		kvcachefs_lease_free(l);
	}
	fuzz_file(".kvcachefs/lease", data, size);
	if (!kvcachefs_look(&l, fuzz_folder(), NULL, 0)) {
		look_at(l, size + 6);
		kvcachefs_lease_free(l);
	}
	free(first);
	return 0;
}
