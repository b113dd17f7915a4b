/* SPDX-License-Identifier: Apache-2.0 */
/*
 * SQLite's filesystem and memory for tests of the catalog: a VFS over the default one, and malloc,
 * of which the Nth call fails, once or from then on.
 */
#ifndef FAULTY_H
#define FAULTY_H

#include <stdbool.h>

enum fault { NONE, DISK, MEMORY };

extern _Atomic long calls, failures; /* since arm */
extern _Atomic long fail_at;         /* as armed */
extern _Atomic bool for_ever;

/* Call both before SQLite is initialized. */
void shim_register(void);
void mem_register(void);
/*
 * at: the call that fails, from 1; 0: calls are only counted. with: SQLite's error code, for DISK.
 */
void arm(enum fault of, long at, bool ever, int with);

#endif
