/* SPDX-License-Identifier: Apache-2.0 */
/* See registry.h. */
#include "registry.h"

#include <string.h>

void kvct_close_all(struct kvc_tier **tiers, unsigned n)
{
	for (unsigned t = 0; t < n; t++)
		tiers[t]->ops->close(tiers[t]);
}

int kvct_open_all(const struct kvc_store *s, const struct kvc_options *o, struct kvc_tier *tiers[KVCT_MAX], unsigned *n, char *error)
{
	int err;

	*n = 0;
	if (o->disk) {
		if ((err = kvct_disk_open(s, &tiers[*n], error)))
			return err;
		++*n;
	}
	for (unsigned t = 0; t < *n && *o->shim; t++)
		if ((err = kvct_shim_open(tiers[t], o->shim, &tiers[t], error))) {
			kvct_close_all(tiers, *n);
			return err;
		}
	return 0;
}
