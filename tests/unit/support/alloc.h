/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Failing allocations. In a program that is linked with these functions in place of malloc and its
 * relatives (Makefile, wrap_memory), the Nth allocation of the project's own code fails, once or
 * from then on. Allocations of libraries do not count, except the contexts that the project
 * requests from zstd and OpenSSL.
 */
#ifndef ALLOC_H
#define ALLOC_H

#include <stdbool.h>

extern _Atomic long alloc_met, alloc_failed; /* counted since alloc_arm */

/* at: the allocation that fails, from 1; 0: none fails, they are only counted. */
void alloc_arm(long at, bool ever);
void alloc_disarm(void);
/*
 * True if err is -ENOMEM. Fails the test on any other error, and on -ENOMEM if no allocation
 * failed.
 */
bool alloc_none(int err);
/* Returns the number of allocations made between arm and disarm and not freed yet. */
long alloc_left(void);

/*
 * Runs the work with each allocation failing, once and from there on; every `step`th if it makes
 * more than `most` allocations (0: all). The work calls alloc_disarm before it checks its results.
 * With `leaks` it must free all its memory.
 */
void alloc_sweep(const char *what, void (*work)(void), long most, bool leaks);

#endif
