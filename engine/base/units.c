/* SPDX-License-Identifier: Apache-2.0 */
/* Sizes and times as users write them. See units.h. */
#include "units.h"

#include "util.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>

static const char size_units[] = "KMGT";

/* Returns the unit (from 1) that a letter stands for, or 0. */
static unsigned size_unit(char letter)
{
	const char *u = letter ? strchr(size_units, toupper((unsigned char)letter)) : NULL;

	return u ? (unsigned)(u - size_units) + 1 : 0;
}

int kvc_size_parse(const char *text, uint64_t *bytes)
{
	char *end;
	double v;

	if (*text < '0' || *text > '9')
		return -EINVAL;
	v = strtod(text, &end);
	if (strpbrk(text, "xXpPeE"))
		return -EINVAL;
	if (size_unit(*end)) {
		for (unsigned u = size_unit(*end++); u; u--)
			v *= 1024;
		if (!strcasecmp(end, "i") || !strcasecmp(end, "ib"))
			end += strlen(end);
	}
	if (*end)
		return -EINVAL;
	if (v >= (double)(1ull << 62))
		return -ERANGE;
	*bytes = (uint64_t)v;
	return 0;
}

const char *kvc_size_text(uint64_t bytes, char *buf)
{
	static const char *unit[] = { "B", "KiB", "MiB", "GiB", "TiB" };
	double v = (double)bytes;
	int i = 0;

	while (v >= 1024 && i < 4) {
		v /= 1024;
		i++;
	}
	snprintf(buf, 32, i && v < 100 ? "%.1f %s" : "%.0f %s", v, unit[i]);
	return buf;
}

const char *kvc_size_why(const char *text, char buf[192])
{
	size_t digits = strspn(text, "0123456789."), at = digits + strspn(text + digits, " ");
	const char *rest = text + at;
	unsigned u = digits ? size_unit(*rest) : 0;
	uint64_t bytes;

	if (kvc_size_parse(text, &bytes) == -ERANGE)
		snprintf(buf, 192, "'%.64s' is too large for a size; the limit is 4194304T", text);
	else if (u && (!rest[1] || !strcasecmp(rest + 1, "b") || !strcasecmp(rest + 1, "ib")))
		snprintf(buf, 192, "'%.64s' is not a size; write %.*s%c (%.*s %ciB)", text,
			 (int)kvc_min(digits, 20), text, size_units[u - 1],
			 (int)kvc_min(digits, 20), text, size_units[u - 1]);
	else
		snprintf(buf, 192,
			 "'%.64s' is not a size; give a number with K, M, G or T, such as 16G",
			 text);
	return buf;
}

static const struct {
	uint64_t ms;
	const char *const names[6]; /* the first one is the usual form */
} times[] = {
	{ 1, { "ms", "msec", "msecs", "millisecond", "milliseconds" } },
	{ 1000, { "s", "sec", "secs", "second", "seconds" } },
	{ 60000, { "m", "min", "mins", "minute", "minutes" } },
	{ 3600000, { "h", "hr", "hrs", "hour", "hours" } },
	{ 86400000, { "d", "day", "days" } },
	{ 604800000, { "w", "week", "weeks" } },
};

/* Returns the milliseconds of a unit, or 0 if no unit has this name. */
static uint64_t time_unit(const char *name)
{
	for (size_t i = 0; i < sizeof times / sizeof times[0]; i++)
		for (size_t j = 0; j < 6 && times[i].names[j]; j++)
			if (!strcmp(times[i].names[j], name))
				return times[i].ms;
	return 0;
}

int kvc_time_parse(const char *text, unsigned unit_ms, uint64_t *n)
{
	uint64_t v, ms;
	char *end;

	if (*text < '0' || *text > '9')
		return -EINVAL;
	errno = 0;
	v = strtoull(text, &end, 10);
	ms = *end ? time_unit(end) : unit_ms;
	if (ms < unit_ms)
		return -EINVAL;
	if (errno || __builtin_mul_overflow(v, ms / unit_ms, &v))
		return -ERANGE;
	*n = v;
	return 0;
}

const char *kvc_time_why(const char *text, unsigned unit_ms, char buf[192])
{
	size_t digits = strspn(text, "0123456789");
	const char *rest = text + digits + strspn(text + digits, " ");
	uint64_t ms = digits ? time_unit(rest) : 0, n;

	if (kvc_time_parse(text, unit_ms, &n) == -ERANGE)
		snprintf(buf, 192, "'%.64s' is too large for a time", text);
	else if (ms && ms < unit_ms)
		snprintf(buf, 192, "'%.64s' is not a time; the smallest unit here is a second",
			 text);
	else if (ms)
		snprintf(buf, 192, "'%.64s' is not a time; write %.*s%.16s", text,
			 (int)kvc_min(digits, 20), text, rest);
	else
		snprintf(buf, 192,
			 "'%.64s' is not a time; give a whole number with %ss, m, h, d or w, such "
			 "as 90s or 10m",
			 text, unit_ms == 1 ? "ms, " : "");
	return buf;
}
