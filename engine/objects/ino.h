/* SPDX-License-Identifier: Apache-2.0 */
/* Inode numbers (ino.c). No number is ever used twice. Under both locks. */
#ifndef KVC_INO_H
#define KVC_INO_H

#include "kvc.h"

struct kvc_inos {
	uint64_t next;
	/*
	 * numbers below `limit` were reserved by a commit; numbers below `reserved` by a pending
	 * one
	 */
	uint64_t limit, reserved;
	uint64_t txn; /* the transaction that commits `reserved` */
};

/*
 * Sets *ino to an unused number. Returns 0, -EAGAIN (no number is left, because the catalog could
 * not commit the reservation of more) or -ENOMEM.
 */
int kvc_ino_new_both(struct kvc *k, uint64_t *ino);
/* At mount. clean: the previous daemon unmounted cleanly. Returns 0 or a negative errno. */
int kvc_inos_load_both(struct kvc *k, bool clean);
/* At a clean unmount: releases the numbers that were reserved and not used. */
void kvc_ino_save_both(struct kvc *k);

#endif
