/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Helpers of the fuzzers: they split an input, provide a private folder, and repair sums. A fuzzer
 * is a file in this folder with one LLVMFuzzerTestOneInput. Its first comment describes what it
 * tests, its input, its longest input and the files that it covers (tests/fuzz/run reads the last
 * two).
 *
 * fuzz_must() states what must hold for every input; the sanitizers find the other errors.
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

/* Drops log lines, which would hide everything else. The linker puts this in place of kvc_log. */
void __wrap_kvc_log(int level, const char *format, ...);
void __wrap_kvc_log(int level, const char *format, ...)
{
	(void)level;
	(void)format;
}

/* The rest of an input. */
struct fuzz_in {
	const uint8_t *p;
	size_t n;
};

/* Returns the next `bytes` bytes (at most 8) as a little-endian number; missing bytes are zero. */
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

/*
 * Returns the next n bytes in memory of exactly that size; missing bytes are zero. The caller frees
 * it.
 */
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

/*
 * Returns the text up to the byte `end` or the end of the input, and skips that byte. The caller
 * frees it.
 */
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

/*
 * Returns a folder of this process. It stays if the process is killed: tests/fuzz/run sets TMPDIR.
 */
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

/* Creates a file in that folder with these bytes and mode 0600, and returns its path. */
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

/* Removes all files of a folder. */
static inline void fuzz_empty(const char *folder)
{
	DIR *d = opendir(folder);
	struct dirent *e;

	while (d && (e = readdir(d)))
		unlinkat(dirfd(d), e->d_name, 0);
	if (d)
		closedir(d);
}

/* Writes the sum of bytes [from, to) of the page after them, if the input is long enough. */
static inline void fuzz_mend(uint8_t *data, size_t size, size_t from, size_t to)
{
	struct kvc_sum s;

	if (size < to + sizeof s.b)
		return;
	s = kvc_sum_of(data + from, to - from);
	memcpy(data + to, s.b, sizeof s.b);
}

/*
 * Repairs the two sums of the frame header at `data`, so that a changed header is still processed.
 */
static inline void fuzz_mend_header(uint8_t *data, size_t size)
{
	fuzz_mend(data, size, 0, KVC_FRAME_IDENTITY - 16);
	fuzz_mend(data, size, KVC_FRAME_IDENTITY, KVC_FRAME_HEADER - 16);
}

#endif
