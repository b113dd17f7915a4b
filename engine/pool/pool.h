/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The pool's tmpfs and its segments: one file for each object that is in memory. No lock needed:
 * the fields are set by kvc_pool_open (`warm` by recovery) and only read after it.
 */
#ifndef KVC_POOL_H
#define KVC_POOL_H

#include "options.h"
#include "store.h"

#include <sys/stat.h>

struct kvc_pool {
	char path[512];
	int mark;                /* its owner's mark, locked: base/owner.h */
	int dir;                 /* O_PATH descriptor of the folder with the segments */
	uint64_t size;           /* of the tmpfs: the bound, cpu= */
	uint64_t bytes;          /* what the account gives out; the rest is for growth */
	bool mounted;            /* a tmpfs of our own, not a folder of another one */
	bool found;              /* it was there already, and stays where the start fails */
	bool huge, noswap, warm; /* what the kernel gave; found segments of an earlier daemon */
	bool large;              /* the tmpfs has more than `size` yet; the keeper's */
};

int kvc_pool_open(struct kvc_pool *p, const struct kvc_options *o, const struct kvc_store *s,
		  char *error);
/*
 * Of a pool that held more than cpu= when it was opened: makes the tmpfs as large as that once no
 * more is in it. Whoever calls it does so alone.
 */
void kvc_pool_shrink(struct kvc_pool *p);
/* Bytes that the tmpfs holds, growth included; 0 where it is not our own. */
uint64_t kvc_pool_real_used(const struct kvc_pool *p);
void kvc_pool_close(struct kvc_pool *p, bool keep);
struct kvc_segment {
	char kind; /* which, and what a start makes of it: objects/node.h */
	uint64_t ino, gen;
};
bool kvc_pool_segment_parse(const char *name, struct kvc_segment *s);
/* a descriptor or -errno */
int kvc_pool_segment_open(struct kvc_pool *p, const struct kvc_segment *s, int flags);
/* 0 or -errno; a symbolic link is not followed. */
int kvc_pool_segment_stat(struct kvc_pool *p, const struct kvc_segment *s, struct stat *st);
int kvc_pool_segment_rename(struct kvc_pool *p, const struct kvc_segment *from,
			    const struct kvc_segment *to);
int kvc_pool_segment_remove(struct kvc_pool *p, const struct kvc_segment *s);
/*
 * Whether anybody but the caller has it open or mapped: for writing, or at all. True also where
 * that cannot be told now, for want of descriptors or memory.
 */
bool kvc_pool_segment_in_use(struct kvc_pool *p, const struct kvc_segment *s, bool for_writing);

#endif
