/* SPDX-License-Identifier: Apache-2.0 */
/* Converts the engine's errors to the errnos that applications get (kvcachefs-errors(7)). */
#include "fs.h"

int kvfs_errno(int err)
{
	switch (err) {
	case 0: return 0;
	case -EBADMSG:
	case -EPROTO:
	/*
	 * A tier's connection errors would mislead the caller: ENOTCONN, for example, is the error
	 * of a mount whose daemon is dead.
	 */
	case -ENOTCONN:
	case -ECONNREFUSED:
	case -ECONNRESET:
	case -ECONNABORTED:
	case -EPIPE:
	case -EHOSTUNREACH:
	case -ENETUNREACH: return EIO;
	default: return err < 0 ? -err : EIO;
	}
}
