/* SPDX-License-Identifier: Apache-2.0 */
/* Files that are prepared before a store needs them. Any thread may call these functions. */
#ifndef KVCACHEFS_READY_H
#define KVCACHEFS_READY_H

#include "map.h"

struct kvcachefs_class; /* files of the same length, for the same folder and device */
struct kvcachefs_want {
	const char *mount;
	uint64_t dev;     /* of the mount */
	const char *path; /* below the mount; only its first folder is used */
	size_t len;
	int device;
};

#pragma GCC visibility push(hidden)
/* Returns the length of the folder in `path` in which the file is prepared. */
size_t kvcachefs_folder_len(const char *path);
/* For tests: sets the time after which unused files are removed, and refused ones tried again. */
void kvcachefs_ready_idle(unsigned ms);
/*
 * Takes a prepared file of that length, without a name, open (m->fd) and mapped. Returns true and
 * sets *m, or false if none is prepared. In both cases, if *of is not NULL the caller passes it to
 * kvcachefs_ready_back when the file of its store is finished. Then more files are prepared. The
 * call neither blocks nor allocates if a file is prepared.
 */
bool kvcachefs_ready_take(const struct kvcachefs_want *w, struct kvcachefs_class **of,
			  struct kvcachefs_map **m);
void kvcachefs_ready_back(struct kvcachefs_class *of);
/*
 * A file found no space: removes all prepared files of that mount. Returns false if there were
 * none.
 */
bool kvcachefs_ready_short(uint64_t dev);
/*
 * Removes the prepared files above the limit. When it returns, no file above the limit is being
 * prepared either.
 */
void kvcachefs_ready_trim(void);
/*
 * Waits until n files are prepared. They stay without a store for keep_ms if that is longer than
 * the default. Returns 0; -ENOSPC if the limits or the pool have no space; or the reason why no
 * file can be prepared.
 */
int kvcachefs_ready_warm(const struct kvcachefs_want *w, unsigned n, uint64_t keep_ms);
/* Returns the number of prepared files; for tests. */
unsigned kvcachefs_ready_count(void);

/*
 * prepare.c, for ready.c's thread: creates and maps one file in `folder`, a path that begins with
 * the mount. makes: also creates the folder. *teaches: see prepare.c. Returns 0 and sets *out;
 * -ENOSPC if the pool has no spare space; -ESTALE if another mount is at the path; -EAGAIN if the
 * folder does not exist; or another negative errno.
 */
int kvcachefs_prepare(const char *folder, const struct kvcachefs_want *w, bool makes, bool *teaches,
		      struct kvcachefs_map **out);
/*
 * Reads how many calls have waited for space in that mount or were refused space, and how much of
 * the pool is free. Returns false if the mount does not report it.
 */
bool kvcachefs_prepare_look(const char *mount, uint64_t *waits, uint64_t *spare);
#pragma GCC visibility pop

#endif
