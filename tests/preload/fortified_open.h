/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The functions that fortified programs call for open() without a mode. A preloaded library
 * includes this after its own open functions; otherwise it would not see the calls of a fortified
 * program.
 */
#ifndef FORTIFIED_OPEN_H
#define FORTIFIED_OPEN_H

/* libc's function that ends the process after a buffer overrun in a fortified call */
void __chk_fail(void) __attribute__((noreturn));

static int flags_without_mode(int flags)
{
	if (flags & O_CREAT || (flags & O_TMPFILE) == O_TMPFILE)
		__chk_fail();
	return flags;
}

int __open_2(const char *path, int flags)
{
	return open(path, flags_without_mode(flags));
}

int __open64_2(const char *path, int flags)
{
	return open64(path, flags_without_mode(flags));
}

int __openat_2(int dir, const char *path, int flags)
{
	return openat(dir, path, flags_without_mode(flags));
}

int __openat64_2(int dir, const char *path, int flags)
{
	return openat64(dir, path, flags_without_mode(flags));
}

#endif
