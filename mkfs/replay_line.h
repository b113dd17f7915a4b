/* SPDX-License-Identifier: Apache-2.0 */
/* One line of a trace (replay.h), read without a parser of all JSON. */
#ifndef KVM_REPLAY_LINE_H
#define KVM_REPLAY_LINE_H

#include "util.h"

struct kvm_line {
	double ms;        /* 0: not told */
	uint64_t *number; /* of its hash_ids, as two's complement; its own, freed by fini */
	uint64_t n, room;
};

void kvm_line_fini(struct kvm_line *l);
/* One more number: 0 or -ENOMEM. */
int kvm_line_add(struct kvm_line *l, uint64_t number);
/*
 * Reads a line of the form that traces have: one object, of keys without escapes, each there once,
 * whose values are numbers of up to 18 digits, but "hash_ids", which has a list of such. 0;
 * -ENOMEM; -EINVAL: it is none, and may be JSON for all that, and a request: the caller asks a
 * parser. text ends with a 0.
 */
int kvm_line_read(struct kvm_line *l, const char *text);

#endif
