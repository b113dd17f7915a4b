/* SPDX-License-Identifier: Apache-2.0 */
/* Reads /proc/self/mountinfo, whose format is in proc(5). See mounts.h. */
#include "mounts.h"

#include "util.h"

#include <stdio.h>
#include <string.h>
#include <sys/sysmacros.h>

/*
 * Copies the next word of the line and decodes its octal escapes. Returns a pointer past the
 * word.
 */
static const char *copy_word(const char *at, char *to, size_t capacity)
{
	size_t len = strcspn(at, " \n"), n = 0;

	for (size_t i = 0; i < len && n + 1 < capacity; i++) {
		unsigned c = (unsigned char)at[i];

		if (c == '\\' && i + 3 < len && sscanf(at + i + 1, "%3o", &c) == 1)
			i += 3;
		to[n++] = (char)c;
	}
	to[n] = 0;
	return at + len + (at[len] == ' ');
}

static bool parse(const char *line, struct kvm_mounted *m)
{
	unsigned major, minor;
	int end = 0;
	const char *at;

	if (sscanf(line, "%*u %*u %u:%u %n", &major, &minor, &end) != 2 || !end)
		return false;
	m->dev = makedev(major, minor);
	at = copy_word(line + end, m->root, sizeof m->root);
	at = strstr(copy_word(at, m->path, sizeof m->path), " - ");
	if (!at)
		return false;
	at = copy_word(at + 3, m->type, sizeof m->type);
	copy_word(at, m->source, sizeof m->source);
	return true;
}

int kvm_mounts_each(int (*fn)(void *arg, const struct kvm_mounted *m), void *arg)
{
	FILE *f = fopen("/proc/self/mountinfo", "re");
	KVC_MEM struct kvm_mounted *m = malloc(sizeof *m);
	KVC_MEM char *line = NULL;
	size_t capacity = 0;
	int got = f ? 0 : -errno;

	if (!m && !got)
		got = -ENOMEM;
	while (!got && getline(&line, &capacity, f) > 0)
		if (parse(line, m))
			got = fn(arg, m);
	if (!got && ferror(f)) /* the list is incomplete */
		got = -EIO;
	if (f)
		fclose(f);
	return got;
}
