/* SPDX-License-Identifier: Apache-2.0 */
/* Names that go, for who reads the news (objects/news.h). Both locks. */
#ifndef KVC_TELL_H
#define KVC_TELL_H

#include "news.h"

/*
 * The node had this name: it is dropped, or now has another one (what). Nothing where nobody
 * reads.
 */
void kvc_tell_both(struct kvc *k, enum kvc_news_what what, const struct kvc_node *n,
		   uint64_t parent, const char *name);

#endif
