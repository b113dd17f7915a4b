/* SPDX-License-Identifier: Apache-2.0 */
/* A lease in a queue: a copy of the submitted paths, and the result. */
#ifndef KVCACHEFS_ASK_H
#define KVCACHEFS_ASK_H

#include "layout.h"

struct kvcachefs_ask {
	size_t n, per;
	bool prefix, slow; /* slow: objects must be loaded first */
	/* the result */
	struct kvcachefs_lease *lease;
	size_t count;
	uint64_t bytes; /* of the objects that the lease holds */
	int err;
	char error[160];
	const char *paths[];
};

#pragma GCC visibility push(hidden)
/* Copies the arguments of kvcachefs_submit_lease(). Returns 0, -EINVAL or -ENOMEM. */
int kvcachefs_ask_new(struct kvcachefs_ask **out, const char *const *paths, size_t n, size_t per,
		      bool prefix);
/*
 * Takes the lease and sets the result. quick: returns false if objects must be loaded first, and
 * then has only set `slow`. Blocks.
 */
bool kvcachefs_ask_run(struct kvcachefs_ask *a, const char *mount, bool quick);
/* Ends a request with the error `err`; releases its lease. */
void kvcachefs_ask_drop(struct kvcachefs_ask *a, int err, const char *why);
/* Frees a request and a->lease, which is NULL if the lease was taken. */
void kvcachefs_ask_free(struct kvcachefs_ask *a);
#pragma GCC visibility pop

#endif
