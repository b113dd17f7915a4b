/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The attributes below user.kvcachefs., one row each: virtuals.c makes and takes their values,
 * xattr.c says who may ask and what is stored.
 */
#ifndef KVC_VIRTUALS_H
#define KVC_VIRTUALS_H

#include "cache.h"
#include "node.h"

#define KVC_VIRTUAL "user.kvcachefs."
#define KVC_VIRTUAL_MAX 1024 /* bytes of a value, at most */

/* What an attribute is of. EACH: every one has it, so a list need not look. */
enum on { ON_FILE = 1, ON_CHUNK_FOLDER = 2, ON_MODEL = 4, ON_FOLDER = 8, EACH = 16 };

/* What a virtual attribute is asked about. */
struct kvc_subject {
	struct kvc_node *n;
	unsigned kind; /* enum on */
	uint64_t chunk;
	struct kvc_chunk_row row;
	uint32_t uid; /* who sets it */
	const struct kvc_asker *user;
	struct kvc_wait *w;
	bool relist; /* set by set_layers: what was listed is old */
};

struct kvc_virtual {
	const char *name;
	unsigned on; /* bits of enum on */
	int (*get)(struct kvc *k, struct kvc_subject *s, char *value /* KVC_VIRTUAL_MAX bytes */);
	/*
	 * NULL: read only. Those of a model or a folder take NULL for "take it away". KVC_WAIT: it
	 * is a request, and s->w waits for its end.
	 */
	int (*set)(struct kvc *k, struct kvc_subject *s, const char *value);
};

extern const struct kvc_virtual kvc_virtuals[];
extern const size_t kvc_nvirtuals;

/* The row of this name; where there are several, the one for this kind. NULL: no such name. */
const struct kvc_virtual *kvc_virtual_of(const char *name, unsigned kind);

#endif
