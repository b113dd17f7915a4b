/* SPDX-License-Identifier: Apache-2.0 */
/* Frames that leave a shared tier (remove.c). */
#ifndef KVC_REMOVE_H
#define KVC_REMOVE_H

struct kvc;
struct kvc_job;

/* Removes what the job names, if it still is that, and not needed. Without locks. */
int kvc_remove_shared(struct kvc *k, const struct kvc_job *j);

#endif
