/* SPDX-License-Identifier: Apache-2.0 */
/*
 * JSON on a stream, as it comes. A name is NULL in an array. Text is UTF-8; a byte that is none,
 * as file names may have, becomes a lone surrogate, U+DC00 and the byte: so nothing is lost, and
 * Python's os.fsencode() makes it the byte again.
 */
#ifndef KVM_JSON_H
#define KVM_JSON_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

struct kvm_json {
	FILE *out;
	bool more; /* something stands before, on this level */
};

/* what: an opening brace or bracket; and its end, the closing one. */
void kvm_json_begin(struct kvm_json *j, const char *name, char what);
void kvm_json_end(struct kvm_json *j, char what);
void kvm_json_text(struct kvm_json *j, const char *name, const char *text); /* NULL: null */
void kvm_json_number(struct kvm_json *j, const char *name, uint64_t v);
void kvm_json_share(struct kvm_json *j, const char *name, double v); /* to six digits */
void kvm_json_bool(struct kvm_json *j, const char *name, bool v);

#endif
