/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Hints about a prompt's chunks: one command of .kvcachefs/lease, whose answer has one line per
 * path.
 */
#include "priv.h"

#include <stdio.h>
#include <string.h>

#define WORDS_MAX 4600

static bool is_word(const char *s)
{
	return *s && !strpbrk(s, " \n");
}

int kvcachefs_hint(const char *mount, const struct kvcachefs_hint *h, const char *const *paths,
		   size_t n, size_t *errors)
{
	static const char *const priorities[] = {
		"",
		" priority=low",
		" priority=normal",
		" priority=high",
	};
	struct kvcachefs_lease *l;
	char words[WORDS_MAX];
	size_t failed = 0;
	int len, err;

	if ((unsigned)h->priority >= sizeof priorities / sizeof priorities[0])
		return kvcachefs_fail(-EINVAL, "%d is not a priority", (int)h->priority);
	if (h->ended && strcmp(h->ended, "tool") != 0 && strcmp(h->ended, "turn") != 0 &&
	    strcmp(h->ended, "closed") != 0)
		return kvcachefs_fail(-EINVAL, "ended is '%s'; give tool, turn or closed",
				      h->ended);
	if (h->tenant && !is_word(h->tenant))
		return kvcachefs_fail(-EINVAL, "'%s' is not the name of a tenant", h->tenant);
	if (h->superseded_by && (!*h->superseded_by || strchr(h->superseded_by, '\n')))
		return kvcachefs_fail(-EINVAL, "superseded_by is not a path");
	len = snprintf(words, sizeof words, "hint%s%s%s%s", h->finished ? " finished" : "",
		       h->prefetch ? " prefetch" : "", h->demote ? " demote" : "",
		       priorities[h->priority]);
	if (h->pause_s)
		len += snprintf(words + len, sizeof words - (size_t)len, " pause=%u", h->pause_s);
	if (h->ended && len < WORDS_MAX)
		len += snprintf(words + len, sizeof words - (size_t)len, " %s%s",
				strcmp(h->ended, "closed") != 0 ? "ended=" : "", h->ended);
	if (h->returns_s && len < WORDS_MAX)
		len += snprintf(words + len, sizeof words - (size_t)len, " returns=%u",
				h->returns_s);
	if (h->tenant && len < WORDS_MAX)
		len += snprintf(words + len, sizeof words - (size_t)len, " tenant=%s", h->tenant);
	if (h->superseded_by && len < WORDS_MAX)
		len += snprintf(words + len, sizeof words - (size_t)len, " superseded=%s",
				h->superseded_by);
	if (len >= WORDS_MAX - 1)
		return kvcachefs_fail(-ENAMETOOLONG, "the hint is too long");
	if (len == 4)
		return kvcachefs_fail(-EINVAL, "the hint is empty");
	words[len++] = '\n';
	words[len] = 0;
	if ((err = kvcachefs_lease_command(&l, mount, words, paths, n)))
		return err;
	for (size_t i = 0; i < kvcachefs_lease_count(l); i++)
		failed += *kvcachefs_lease_object(l, i)->state == 'E';
	if (errors)
		*errors = failed;
	kvcachefs_lease_free(l);
	return 0;
}
