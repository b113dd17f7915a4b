/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Writes JSON to a stream. The name of a value is NULL in an array. Text is UTF-8. A byte that is
 * not valid UTF-8, which file names may contain, is written as the lone surrogate U+DC00 plus the
 * byte; Python's os.fsencode() converts it back to the byte.
 */
#ifndef KVM_JSON_H
#define KVM_JSON_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

struct kvm_json {
	FILE *out;
	bool more; /* the current level already has a value */
};

/* begin: `what` is '{' or '['. end: `what` is '}' or ']'. */
void kvm_json_begin(struct kvm_json *j, const char *name, char what);
void kvm_json_end(struct kvm_json *j, char what);
void kvm_json_text(struct kvm_json *j, const char *name, const char *text); /* NULL writes null */
void kvm_json_number(struct kvm_json *j, const char *name, uint64_t v);
void kvm_json_share(struct kvm_json *j, const char *name, double v); /* with six decimals */
void kvm_json_bool(struct kvm_json *j, const char *name, bool v);

#endif
