/* SPDX-License-Identifier: Apache-2.0 */
/* What applications are told: the engine's errors as the errnos of kvcachefs(8). */
#include "fs.h"

int kvfs_errno(int err)
{
	switch (err) {
	case 0: return 0;
	case -EBADMSG:
	case -EPROTO:
	/* how a tier is reached is nothing that a file says, and ENOTCONN is a dead daemon's */
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
