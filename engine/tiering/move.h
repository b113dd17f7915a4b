/* SPDX-License-Identifier: Apache-2.0 */
/* Moves a frame of the disk tier from one device to another (move.c). */
#ifndef KVC_MOVE_H
#define KVC_MOVE_H

#include "kvc.h"

/*
 * Moves the frame of object `ino`, if it is in device `nr`, which must be leaving
 * (KVC_TIER_LEAVE). On success returns 0 and adds the length of the frame to *bytes. Otherwise the
 * move was not made: -ENOENT (the object has no frame in the device), -EAGAIN (the frame is in use,
 * or the object was changed or deleted during the move; try again later), -ENOSPC (the other
 * devices are full), -EBADMSG (it is damaged), -EREMOTEIO (it cannot be read), or another error of
 * the other devices. Reads and writes the frame: blocks. The caller holds no lock.
 */
int kvc_move_frame(struct kvc *k, uint64_t ino, unsigned nr, uint64_t *bytes);

#endif
