/* SPDX-License-Identifier: Apache-2.0 */
/* Makes the requests of a trace from the accesses that a mount reports (engine/report/trace.c). */
#ifndef KVM_TRACE_H
#define KVM_TRACE_H

#include "util.h"

#include <stdio.h>

struct kvm_join;

struct kvm_use {
	uint64_t ns, id, file, bytes, parent;
	uint32_t client;
	bool made, leased, learned, told; /* told: the client declared the parent, if any */
};

struct kvm_joined {
	uint64_t requests, uses, lost, left_out; /* left_out: requests with lost accesses */
};

/*
 * Opens a recorder that writes lines to `to`, which the caller closes. paths: also write paths, and
 * names of models instead of numbers. Returns 0 or -ENOMEM.
 */
int kvm_join_open(struct kvm_join **out, FILE *to, bool paths);
void kvm_join_close(struct kvm_join *j);
/*
 * kvm_join_name sets the path of a chunk, as the mount reports it; kvm_join_use adds a use. Both
 * return 0 or -ENOMEM.
 */
int kvm_join_name(struct kvm_join *j, uint64_t id, const char *path);
int kvm_join_use(struct kvm_join *j, struct kvm_use *u);
/* The client has ended. */
void kvm_join_end(struct kvm_join *j, uint32_t client);
/* n accesses were lost. */
void kvm_join_lost(struct kvm_join *j, uint64_t n);
/* Writes the requests that have ended at that time; UINT64_MAX: all. */
void kvm_join_write(struct kvm_join *j, uint64_t now_ns);
void kvm_join_show(const struct kvm_join *j, struct kvm_joined *to);
/*
 * Returns the name of the model that has the number nr in the output, and its requests; NULL: no
 * such model.
 */
const char *kvm_join_model(const struct kvm_join *j, size_t nr, uint64_t *requests);

/*
 * Records the requests to the mount for this time, and writes them to `to`. *out has the names of
 * the models then; the caller closes it. Returns 0, or 1 after a message.
 */
int kvm_trace_record(const char *mnt, uint64_t seconds, FILE *to, struct kvm_join **out);

#endif
