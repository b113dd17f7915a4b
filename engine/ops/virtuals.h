/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The attributes whose names begin with user.kvcachefs., one table row each. virtuals.c reads and
 * sets their values; xattr.c checks permissions and stores the results.
 */
#ifndef KVC_VIRTUALS_H
#define KVC_VIRTUALS_H

#include "cache.h"
#include "node.h"

#define KVC_VIRTUAL "user.kvcachefs."
#define KVC_VIRTUAL_MAX 1024             /* bytes of a value, including the final 0 */
#define KVC_VIRTUAL_LIST_MAX (64u << 10) /* of a value that has a list of paths */

/* Kinds of inodes that have an attribute. TAKES_LIST: its value may have a list of paths. */
enum on {
	ON_FILE = 1,
	ON_CHUNK_FOLDER = 2,
	ON_MODEL = 4,
	ON_FOLDER = 8,
	ON_ROOT = 16,
	TAKES_LIST = 32
};

/* The inode that an attribute is read from or set on. */
struct kvc_subject {
	struct kvc_node *n;
	unsigned kind; /* enum on */
	uint64_t chunk;
	struct kvc_chunk_row row;
	uint32_t uid; /* the caller that sets it */
	const struct kvc_asker *user;
	struct kvc_wait *w;
	bool relist; /* output of set_layers: cached listings are out of date */
};

struct kvc_virtual {
	const char *name;
	unsigned on; /* bits of enum on */
	int (*get)(struct kvc *k, struct kvc_subject *s, char *value /* KVC_VIRTUAL_MAX bytes */);
	/*
	 * NULL: read only. value is NULL if the attribute of a model or folder is removed.
	 * KVC_WAIT: the attribute is a request, and s->w waits for its end.
	 */
	int (*set)(struct kvc *k, struct kvc_subject *s, const char *value);
};

extern const struct kvc_virtual kvc_virtuals[];
extern const size_t kvc_nvirtuals;

/*
 * Finds an attribute by its full name. If several kinds of inodes have one of this name, prefers
 * the one for `kind`. NULL: unknown name.
 */
const struct kvc_virtual *kvc_virtual_of(const char *name, unsigned kind);

#endif
