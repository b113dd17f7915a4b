/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory that runs out: in a program that is linked with these in place of malloc and its like
 * (Makefile, wrap_memory), the Nth call of the project's own code gets none, once or from then on.
 * What the libraries allocate by themselves is not counted, but for the contexts that we ask zstd
 * and OpenSSL for.
 */
#ifndef ALLOC_H
#define ALLOC_H

#include <stdbool.h>

extern _Atomic long alloc_met, alloc_failed; /* since alloc_arm */

/* at: the call that gets none, from 1; 0: they are only counted. */
void alloc_arm(long at, bool ever);
void alloc_disarm(void);
/* Is it -ENOMEM? Any other error fails, and so does this one where there was memory. */
bool alloc_none(int err);
/* Of what was allocated between arm and disarm: so many pieces were not freed by now. */
long alloc_left(void);

/*
 * Does the work with each call getting none, once and from there on; every `step`th where it makes
 * more than `most` calls (0: all). The work disarms by itself where it looks at what has come of
 * it. With `leaks` it frees all it has.
 */
void alloc_sweep(const char *what, void (*work)(void), long most, bool leaks);

#endif
