/* SPDX-License-Identifier: Apache-2.0 */
/* Lines of what happens, made when they are read: what trace.c and events.c have in common. */
#ifndef KVC_STREAM_H
#define KVC_STREAM_H

#include "cache.h"

struct kvc_stream_ops {
	/* Some more lines. False: there is nothing to tell at the moment. */
	bool (*tell)(struct kvc *k, struct kvc_stream *s, FILE *out);
	/* Frees it. */
	void (*close)(struct kvc *k, struct kvc_stream *s);
};

struct kvc_stream {
	const struct kvc_stream_ops *ops;
	char *text; /* lines that are not read yet, from `from` on */
	size_t len, from;
};

#endif
