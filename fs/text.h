/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory of the texts in .kvcachefs/ (virtual.c): lists and answers of leases, and the contents
 * that the other files had when they were opened. All texts count against the budget for texts
 * (budget.h). A user other than root may have at most half of that budget, and at most 256 MiB. Any
 * thread may call these functions; their locks are leaves.
 */
#ifndef KVFS_TEXT_H
#define KVFS_TEXT_H

#include <stddef.h>
#include <stdint.h>

/*
 * Changes the charge of an open file of this user from *charged to `bytes` bytes, and updates
 * *charged. Returns 0, -EDQUOT (over the limit of the user or of all users) or -ENOMEM. A smaller
 * charge always succeeds.
 */
int kvfs_text_charge(uint32_t uid, size_t *charged, size_t bytes);
/* Returns how many more bytes this user may have. */
size_t kvfs_text_left(uint32_t uid);

#endif
