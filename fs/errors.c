/* SPDX-License-Identifier: Apache-2.0 */
/* Converts the engine's errors to the errnos that applications get (kvcachefs-errors(7)). */
#include "fs.h"

int kvfs_errno(int err)
{
	switch (err) {
	case 0: return 0;
	case -EBADMSG:
	case -EPROTO:
	/* Connection errors of a tier do not concern the file, and ENOTCONN means a dead daemon. */
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
