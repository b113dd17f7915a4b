/* SPDX-License-Identifier: Apache-2.0 */
/* Streams of lines that are made when they are read: the common part of trace.c and events.c. */
#ifndef KVC_STREAM_H
#define KVC_STREAM_H

#include "cache.h"

struct kvc_stream_ops {
	/* Prints the next lines. Returns false if none are ready. */
	bool (*print)(struct kvc *k, struct kvc_stream *s, FILE *out);
	/* Frees the stream. */
	void (*close)(struct kvc *k, struct kvc_stream *s);
};

struct kvc_stream {
	const struct kvc_stream_ops *ops;
	char *text; /* lines that are not read yet begin at `from` */
	size_t len, from;
};

#endif
