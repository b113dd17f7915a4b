/* SPDX-License-Identifier: Apache-2.0 */
/* The tenants as figures (tenants.c). */
#ifndef KVC_REPORT_TENANTS_H
#define KVC_REPORT_TENANTS_H

#include "tenant.h"

/*
 * Returns copies of all tenants, the oldest first, and their number *n. The caller frees them; only
 * figures and names are valid. NULL: out of memory.
 */
struct kvc_tenant *kvc_tenants_copy(struct kvc *k, size_t *n);

#endif
