/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The pool's tmpfs and its segments: one file for each object in memory. The functions need no
 * lock: kvc_pool_open sets the fields (recovery sets `warm`), and they are only read afterwards.
 */
#ifndef KVC_POOL_H
#define KVC_POOL_H

#include "options.h"
#include "store.h"

#include <stdatomic.h>
#include <sys/stat.h>

struct kvc_pool {
	char path[512];
	int mark;       /* locked file with the mark of its owner (base/owner.h) */
	int dir;        /* O_PATH descriptor of the folder with the segments */
	uint64_t size;  /* size limit of the tmpfs, cpu= */
	uint64_t bytes; /* bytes that the account grants; the rest is for growth */
	bool mounted;   /* a tmpfs of our own, not a folder of another tmpfs */
	bool found;     /* the pool existed before, and stays if the start fails */
	/* huge, noswap: granted by the kernel; warm: segments of an earlier daemon were found */
	bool huge, noswap, warm;
	bool large; /* the tmpfs still holds more than `size`; used by the quota keeper */
	_Atomic bool unsynced; /* see kvc_pool_set_unsynced() */
};

int kvc_pool_open(struct kvc_pool *p, const struct kvc_options *o, const struct kvc_store *s,
		  char *error);
/*
 * For a pool that held more than cpu= when it was opened: sets the tmpfs to cpu= once it holds no
 * more than that. Only one thread may call it.
 */
void kvc_pool_shrink(struct kvc_pool *p);
/* Returns the bytes that the tmpfs holds, including growth; 0 if the tmpfs is not our own. */
uint64_t kvc_pool_real_used(const struct kvc_pool *p);
void kvc_pool_close(struct kvc_pool *p, bool keep);
/*
 * A file in the pool says that copies of its objects may be lost, because a sync of the disk tier
 * has failed. It tells the next daemon if this one is killed. It lasts as long as the pool: until a
 * power failure, or until all objects in the pool have copies on stable storage.
 * kvc_pool_set_unsynced makes or removes the file. A failure is logged. Any thread may call it.
 */
void kvc_pool_set_unsynced(struct kvc_pool *p, bool on);
/* Returns whether the file exists. */
bool kvc_pool_is_unsynced(const struct kvc_pool *p);
struct kvc_segment {
	char kind; /* the state, and what a start does with it (objects/node.h) */
	uint64_t ino, gen;
};
bool kvc_pool_segment_parse(const char *name, struct kvc_segment *s);
/* Returns a descriptor or -errno. */
int kvc_pool_segment_open(struct kvc_pool *p, const struct kvc_segment *s, int flags);
/*
 * A mark on a segment, in the mode of its file: its bytes returned from a copy that was coded with
 * loss, and may have been changed since. kvc_pool_segment_mark sets or removes it, and returns 0 or
 * -errno.
 */
#define KVC_SEGMENT_DECODED ((mode_t)S_ISVTX)
int kvc_pool_segment_mark(struct kvc_pool *p, const struct kvc_segment *s, bool decoded);
/* Returns 0 or -errno. Does not follow a symbolic link. */
int kvc_pool_segment_stat(struct kvc_pool *p, const struct kvc_segment *s, struct stat *st);
int kvc_pool_segment_rename(struct kvc_pool *p, const struct kvc_segment *from,
			    const struct kvc_segment *to);
int kvc_pool_segment_remove(struct kvc_pool *p, const struct kvc_segment *s);
/*
 * Does any other process have the segment open or mapped: for writing, or at all? Returns true also
 * if lack of descriptors or memory prevents an answer.
 */
bool kvc_pool_segment_in_use(struct kvc_pool *p, const struct kvc_segment *s, bool for_writing);

#endif
