/* SPDX-License-Identifier: Apache-2.0 */
/* Inode numbers: none is ever used twice (ino.c). Both locks. */
#ifndef KVC_INO_H
#define KVC_INO_H

#include "kvc.h"

struct kvc_inos {
	uint64_t next;
	/* numbers below were reserved by a commit; by one that is pending */
	uint64_t limit, reserved;
	uint64_t txn; /* that one */
};

/*
 * A number that no inode of this store ever had. 0, -EAGAIN (the catalog cannot write that more are
 * in use) or -ENOMEM.
 */
int kvc_ino_new_both(struct kvc *k, uint64_t *ino);
/* At the start; `clean`: the last daemon ended well. */
int kvc_inos_load_both(struct kvc *k, bool clean);
/* At the end of a clean run: numbers that were reserved and not used are free again. */
void kvc_ino_save_both(struct kvc *k);

#endif
