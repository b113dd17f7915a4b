/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The memory of the texts of .kvcachefs/ (virtual.c): lists and answers of leases, and what the
 * other files gave when they were opened. All of it counts to the budget's part for texts
 * (budget.h), and one user who is not root may have half of that part, and 256 MiB at most. Any
 * thread may call these; they take locks that are leaves.
 */
#ifndef KVFS_TEXT_H
#define KVFS_TEXT_H

#include <stddef.h>
#include <stdint.h>

/*
 * A file that the user has open takes `bytes` now; *charged is what it took before, and is changed.
 * 0; -EDQUOT: more than the user or all together may have; -ENOMEM. Taking less always succeeds.
 */
int kvfs_text_charge(uint32_t uid, size_t *charged, size_t bytes);
/* How many bytes more this user may take at most. */
size_t kvfs_text_left(uint32_t uid);

#endif
