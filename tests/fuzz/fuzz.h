/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the fuzzers share: taking an input apart, a folder of their own, the mending of sums. A
 * fuzzer is a file here with one LLVMFuzzerTestOneInput; its first comment says what it is about,
 * its longest input and the files that it covers (tests/fuzz/run reads both lines).
 *
 * fuzz_must() is for what has to hold for every input; the sanitizers see to the rest.
 */
#ifndef FUZZ_H
#define FUZZ_H

#include "frame.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerInitialize(int *argc, char ***argv);
size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t capacity, unsigned seed);
size_t LLVMFuzzerMutate(uint8_t *data, size_t size, size_t capacity);

#define fuzz_must(condition)                                                                    \
	do {                                                                                    \
		if (!(condition)) {                                                             \
			fprintf(stderr, "%s:%d: not so: %s\n", __FILE__, __LINE__, #condition); \
			abort();                                                                \
		}                                                                               \
	} while (0)

/* Its lines would be all that one sees. The linker puts this in place of kvc_log. */
void __wrap_kvc_log(int level, const char *format, ...);
void __wrap_kvc_log(int level, const char *format, ...)
{
	(void)level;
	(void)format;
}

/* What is left of an input. */
struct fuzz_in {
	const uint8_t *p;
	size_t n;
};

/* The next `bytes` (at most 8) as a number, little endian; zeros behind the end. */
static inline uint64_t fuzz_number(struct fuzz_in *in, size_t bytes)
{
	uint64_t v = 0;
	size_t n = in->n < bytes ? in->n : bytes;

	for (size_t i = 0; i < n; i++)
		v |= (uint64_t)in->p[i] << 8 * i;
	in->p += n;
	in->n -= n;
	return v;
}

/* The next n bytes to memory of exactly that size, zeros behind the end; the caller frees. */
static inline uint8_t *fuzz_bytes(struct fuzz_in *in, size_t n)
{
	size_t have = in->n < n ? in->n : n;
	uint8_t *p = calloc(n ? n : 1, 1);

	fuzz_must(p);
	if (have)
		memcpy(p, in->p, have);
	in->p += have;
	in->n -= have;
	return p;
}

/* The text up to the byte `end` or the input's, which is taken too; the caller frees. */
static inline char *fuzz_text(struct fuzz_in *in, char end)
{
	const uint8_t *stop = in->n ? memchr(in->p, end, in->n) : NULL;
	size_t len = stop ? (size_t)(stop - in->p) : in->n;
	char *text = strndup((const char *)in->p, len);

	fuzz_must(text);
	in->p += len + (stop != NULL);
	in->n -= len + (stop != NULL);
	return text;
}

/* A folder for this process. Not removed where it is killed: tests/fuzz/run sets TMPDIR. */
static inline const char *fuzz_folder(void)
{
	static char path[512];

	if (!*path) {
		snprintf(path, sizeof path, "%s/kvc-fuzz-XXXXXX",
			 getenv("TMPDIR") ? getenv("TMPDIR") : "/tmp");
		fuzz_must(mkdtemp(path));
	}
	return path;
}

/* A file below that folder, of mode 0600, made anew with these bytes. */
static inline const char *fuzz_file(const char *name, const void *data, size_t len)
{
	static char path[1024];
	int fd;

	snprintf(path, sizeof path, "%s/%s", fuzz_folder(), name);
	fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
	fuzz_must(fd >= 0 && !kvc_pwrite_all(fd, data, len, 0));
	close(fd);
	return path;
}

/* All files of a folder go. */
static inline void fuzz_empty(const char *folder)
{
	DIR *d = opendir(folder);
	struct dirent *e;

	while (d && (e = readdir(d)))
		unlinkat(dirfd(d), e->d_name, 0);
	if (d)
		closedir(d);
}

/* Puts the sum of [from, to) of a page behind it, where page and input have room for that. */
static inline void fuzz_mend(uint8_t *data, size_t size, size_t from, size_t to)
{
	struct kvc_sum s;

	if (size < to + sizeof s.b)
		return;
	s = kvc_sum_of(data + from, to - from);
	memcpy(data + to, s.b, sizeof s.b);
}

/* The two sums of a frame's header at `data`, so that a changed one is still looked at. */
static inline void fuzz_mend_header(uint8_t *data, size_t size)
{
	fuzz_mend(data, size, 0, KVC_FRAME_IDENTITY - 16);
	fuzz_mend(data, size, KVC_FRAME_IDENTITY, KVC_FRAME_HEADER - 16);
}

#endif
