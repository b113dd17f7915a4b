/* SPDX-License-Identifier: Apache-2.0 */
/* Parses one line of a trace (replay.h) without a complete JSON parser. */
#ifndef KVM_REPLAY_LINE_H
#define KVM_REPLAY_LINE_H

#include "util.h"

struct kvm_numbers {
	uint64_t *v; /* as two's complement */
	uint64_t n, capacity;
};

struct kvm_line {
	double ms;                    /* 0: no timestamp */
	char model[1024];             /* "": no model */
	char ended[8];                /* "": not known */
	double returns;               /* seconds; 0: not known */
	struct kvm_numbers id, bytes; /* hash_ids and their sizes; freed by kvm_line_fini */
};

void kvm_line_fini(struct kvm_line *l);
/* Appends a number. Returns 0 or -ENOMEM. */
int kvm_numbers_add(struct kvm_numbers *l, uint64_t number);
/*
 * Parses a line of the usual form: one object whose keys have no escapes and occur once. The values
 * are numbers of up to 18 digits, except for the arrays of numbers "hash_ids" and "bytes"
 * (optional) and for "model" and "ended", which may be text without escapes. Returns 0, -ENOMEM, or
 * -EINVAL if the line has another form; it may still be valid JSON, so the caller then uses a
 * parser. text is zero-terminated.
 */
int kvm_line_read(struct kvm_line *l, const char *text);

#endif
