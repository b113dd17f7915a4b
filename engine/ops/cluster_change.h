/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Changes that an operator makes on all nodes (POST /change, kvcachectl cluster pin, unpin and
 * evict): sets an attribute of all chunks at and below some paths, as root of this node would. The
 * FUSE side calls these functions, for its own operator, and for other nodes if peer_control= is
 * given and they know the secret.
 */
#ifndef KVC_CLUSTER_CHANGE_H
#define KVC_CLUSTER_CHANGE_H

#include "caller.h"

#include <stdio.h>

#define KVC_CHANGE_CHUNKS 16384u    /* that a path may have */
#define KVC_CHANGE_BYTES (1u << 20) /* maximum memory of a change */

struct kvc;
struct kvc_change;

/*
 * Begins a change. names: the attribute and its value, pin=VALUE or demote=VALUE, and n - 1 paths,
 * each with a zero byte at its end. Returns 0 and *out, which the caller frees with kvc_change_end;
 * -EINVAL: the attribute is another one, or there is no path; or -ENOMEM. Does not wait.
 */
int kvc_change_begin(struct kvc *k, const char *names, size_t n, struct kvc_change **out);
/*
 * Changes the chunks one after another. Returns 0, or KVC_WAIT (caller.h). w: not used for any
 * other call meanwhile. Ends after deadline=, even if chunks are left.
 */
int kvc_change_run(struct kvc_change *c, struct kvc_wait *w);
/*
 * After kvc_change_run: prints a line "CHUNKS FAILED ERRNO" for each path: the chunks that were
 * changed, the chunks that could not be changed, and why the first of these could not be; 0: none.
 * ENOENT with FAILED 0: the node does not have the path. E2BIG: it has more than KVC_CHANGE_CHUNKS
 * chunks, and none was changed. ETIME: the time was over.
 */
void kvc_change_print(const struct kvc_change *c, FILE *out);
/* Must not be called between a KVC_WAIT and its wake. NULL is allowed. */
void kvc_change_end(struct kvc_change *c);

#endif
