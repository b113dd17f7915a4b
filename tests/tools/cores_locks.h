/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Waits for the daemon's locks, as .kvcachefs/locks of a mount counts them: read, subtracted, added
 * and printed by cores.c.
 */
#ifndef CORES_LOCKS_H
#define CORES_LOCKS_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* One line of .kvcachefs/locks, and the difference of two. */
struct wait_line {
	char name[96];
	unsigned long long v[4];
};
#define LINES 512
/* Places of the same name are one: a function in a header has a place in each file. */
static unsigned merge(struct wait_line *all, unsigned n)
{
	for (unsigned i = 0; i < n; i++)
		if (!strcmp(all[i].name, all[n].name)) {
			for (int c = 0; c < 4; c++)
				all[i].v[c] += all[n].v[c];
			return n;
		}
	return n + 1;
}

/* Reads the file of the mount. Returns the number of lines, 0 if it cannot be read. */
static unsigned read_locks(const char *mount, struct wait_line *all)
{
	char path[512], line[256];
	unsigned n = 0;
	FILE *f;

	snprintf(path, sizeof path, "%s/.kvcachefs/locks", mount);
	f = fopen(path, "re");
	while (f && n < LINES && fgets(line, sizeof line, f)) {
		unsigned long long *v = all[n].v;

		if (*line != '#' && sscanf(line, "%95s %llu %llu %llu %llu", all[n].name, v, v + 1,
					   v + 2, v + 3) == 5)
			n = merge(all, n);
	}
	if (f)
		fclose(f);
	return n;
}

/* The figures of now, less those of before. */
static void subtract(struct wait_line *now, unsigned n, const struct wait_line *before,
		     unsigned nbefore)
{
	for (unsigned i = 0; i < n; i++)
		for (unsigned j = 0; j < nbefore; j++)
			if (!strcmp(now[i].name, before[j].name))
				for (int c = 0; c < 4; c++)
					now[i].v[c] -= before[j].v[c];
}

/* Adds lines to those of the same names. */
static void add_lines(struct wait_line *sum, unsigned *nsum, const struct wait_line *more,
		      unsigned n)
{
	for (unsigned i = 0; i < n; i++) {
		unsigned j = 0;

		while (j < *nsum && strcmp(sum[j].name, more[i].name))
			j++;
		if (j == *nsum && j < LINES)
			sum[(*nsum)++] = (struct wait_line){ .name = "" };
		if (j == LINES)
			continue;
		memcpy(sum[j].name, more[i].name, sizeof sum[j].name);
		for (int c = 0; c < 4; c++)
			sum[j].v[c] += more[i].v[c];
	}
}

static int by_waited(const void *a, const void *b)
{
	const struct wait_line *x = a, *y = b;
	unsigned long long wx = x->v[1] + x->v[3], wy = y->v[1] + y->v[3];

	return wx < wy ? 1 : wx > wy ? -1 : 0;
}

#define PLACES 6
/* Prints each lock, and the places that waited longest. time_s: of the measurement */
static void print_locks(const char *mode, struct wait_line *l, unsigned n, double time_s)
{
	int shown = 0;

	qsort(l, n, sizeof *l, by_waited);
	for (unsigned i = 0; i < n; i++)
		if (!strchr(l[i].name, ':'))
			printf("  %s: lock %s: %llu holds, held %.0f %% of the time, %llu waits "
			       "(%.1f %%) of %.1f us\n",
			       mode, l[i].name, l[i].v[0], 100 * (double)l[i].v[1] / 1e6 / time_s,
			       l[i].v[2],
			       l[i].v[0] ? 100 * (double)l[i].v[2] / (double)l[i].v[0] : 0,
			       l[i].v[2] ? (double)l[i].v[3] / (double)l[i].v[2] : 0);
	for (unsigned i = 0; i < n && shown < PLACES; i++)
		if (strchr(l[i].name, ':') && l[i].v[1] + l[i].v[3]) {
			printf("    %-52s waited %9llu us, made others wait %9llu us\n", l[i].name,
			       l[i].v[1], l[i].v[3]);
			shown++;
		}
}

#endif
