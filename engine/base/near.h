/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Finds the name that a mistyped word probably means, for messages about unknown options and
 * commands. The caller gives all known names, usually the rows of a table.
 */
#ifndef KVC_NEAR_H
#define KVC_NEAR_H

#include <stddef.h>

struct kvc_near {
	/* set by the caller, who zeroes the other fields: */
	const char *word;   /* as typed */
	const char *prefix; /* printed before the name, such as "--"; may be NULL */
	const char *best;   /* the nearest name so far; NULL: none is near */
	size_t distance;    /* of best */
};

/*
 * Compares one more name with the word. A name is near if at most a third of its letters, or one
 * letter of a short name, differ: missing, added, changed, or two exchanged. Case does not count,
 * and - equals _. A word of three letters or more is also near to a longer name that begins with
 * it. If two names are equally near, the first one wins. The name must stay valid while *n is used.
 */
void kvc_near_try(struct kvc_near *n, const char *name);
/* Writes " (did you mean 'NAME'?)", or nothing if no name is near, to text, and returns text. */
const char *kvc_near_text(const struct kvc_near *n, char text[96]);

#endif
