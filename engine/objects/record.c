/* SPDX-License-Identifier: Apache-2.0 */
/* See record.h. */
#include "record.h"

#include "used.h"

int kvc_record_open_locked(struct kvc *k, uint64_t *at)
{
	struct kvc_record **r = &k->used->record;

	if (!*r && !(*r = calloc(1, sizeof **r)))
		return -ENOMEM;
	(*r)->readers++;
	*at = (*r)->n;
	return 0;
}

void kvc_record_close_locked(struct kvc *k)
{
	struct kvc_record **r = &k->used->record;

	if (--(*r)->readers)
		return;
	free(*r);
	*r = NULL;
}

void kvc_record_put_locked(struct kvc *k, const struct kvc_use_seen *u)
{
	struct kvc_record *r = k->used->record;

	r->v[r->n++ % KVC_RECORDED] = *u;
}

size_t kvc_record_take_locked(struct kvc *k, uint64_t *at, struct kvc_use_seen *v, size_t most,
			      uint64_t *lost)
{
	const struct kvc_record *r = k->used->record;
	uint64_t first = r->n > KVC_RECORDED ? r->n - KVC_RECORDED : 0;
	size_t n = 0;

	*lost = *at < first ? first - *at : 0;
	*at += *lost;
	while (n < most && *at < r->n)
		v[n++] = r->v[(*at)++ % KVC_RECORDED];
	return n;
}
