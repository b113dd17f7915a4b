/* SPDX-License-Identifier: Apache-2.0 */
/* Sets attributes of chunks and models, and reports the result of each path (set.c). */
#ifndef KVM_SET_H
#define KVM_SET_H

#include "item.h"
#include "json.h"

struct kvm_set {
	const char *attr, *value; /* user.kvcachefs.ATTR; value NULL: remove it */
	const char *done;         /* the word for messages, such as pinned */
	bool stops;               /* at the first chunk that a limit refuses */
	bool json;
	struct kvm_json j;
	/* of the present path: changed chunks with their bytes, changed models, and failures */
	uint64_t chunks, bytes, models, failed;
};

/*
 * Calls fn for each path. With json, prints one object that has the counts of each path. Returns 0,
 * or 1 if a call failed.
 */
int kvm_set_paths(struct kvm_set *s, int n, char **paths,
		  int (*fn)(struct kvm_set *s, const char *path));
/* For kvm_set_paths: set the attribute of all chunks at and below the path, or of the path. */
int kvm_set_chunks(struct kvm_set *s, const char *path);
int kvm_set_folder(struct kvm_set *s, const char *path);
/* Prints why the attribute of the path was refused, and returns 1. */
int kvm_set_trouble(const char *path, const char *attr, int err);
/* Counts the chunks at and below the path, and their bytes. Returns 0, or 1 after a message. */
int kvm_set_count(const char *path, uint64_t *chunks, uint64_t *bytes);
/* Begins the line of a question: "PATH: N chunks, SIZE: ". */
void kvm_set_ask(const char *path, uint64_t chunks, uint64_t bytes);

/* For kvm_set_paths: pushes the chunks, and drops those that the node has loaded (move.c). */
int kvm_move_chunks(struct kvm_set *s, const char *path);
/*
 * Parses the value of pin --for, in seconds. Returns 0, or 2 after a message.
 */
int kvm_set_pin_time(const char *time, uint64_t *s);

#endif
