/* SPDX-License-Identifier: Apache-2.0 */
/* One line of a trace (replay.h), read without a parser of all JSON. */
#ifndef KVM_REPLAY_LINE_H
#define KVM_REPLAY_LINE_H

#include "util.h"

struct kvm_numbers {
	uint64_t *v; /* as two's complement */
	uint64_t n, capacity;
};

struct kvm_line {
	double ms;                    /* 0: not told */
	char model[1024];             /* "": not told */
	struct kvm_numbers id, bytes; /* its hash_ids and their sizes; its own, freed by fini */
};

void kvm_line_fini(struct kvm_line *l);
/* One more number: 0 or -ENOMEM. */
int kvm_numbers_add(struct kvm_numbers *l, uint64_t number);
/*
 * Reads a line of the form that traces have: one object, of keys without escapes, each there once,
 * whose values are numbers of up to 18 digits, but "hash_ids", and maybe "bytes", lists of such,
 * and "model", which may be text without escapes. 0; -ENOMEM; -EINVAL: it is none, and may be JSON
 * for all that, and a request: the caller asks a parser. text ends with a 0.
 */
int kvm_line_read(struct kvm_line *l, const char *text);

#endif
