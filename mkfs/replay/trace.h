/* SPDX-License-Identifier: Apache-2.0 */
/* From the uses of chunks that a mount tells (engine/report/trace.c) to requests, for replay. */
#ifndef KVM_TRACE_H
#define KVM_TRACE_H

#include "util.h"

#include <stdio.h>

struct kvm_join;

struct kvm_use {
	uint64_t ns, id, file, bytes, parent;
	uint32_t client;
	bool made, leased, learned, told; /* told: what it follows, where there is one */
};

struct kvm_joined {
	uint64_t requests, uses, lost, left_out; /* left_out: requests that lacked what was lost */
};

/*
 * paths: they are written too, and models by their names. Lines go to `to`, which stays the
 * caller's. 0 or -ENOMEM.
 */
int kvm_join_open(struct kvm_join **out, FILE *to, bool paths);
void kvm_join_close(struct kvm_join *j);
/* This chunk's path, as the mount writes it. 0 or -ENOMEM, and so all that follow. */
int kvm_join_name(struct kvm_join *j, uint64_t id, const char *path);
int kvm_join_use(struct kvm_join *j, const struct kvm_use *u);
/* The client makes no use any more. */
void kvm_join_end(struct kvm_join *j, uint32_t client);
/* So many uses are not known. */
void kvm_join_lost(struct kvm_join *j, uint64_t n);
/* Writes the requests of which nothing more is to come by then, or (UINT64_MAX) all. */
void kvm_join_write(struct kvm_join *j, uint64_t now_ns);
void kvm_join_show(const struct kvm_join *j, struct kvm_joined *to);
/* A model's name, by its number in what is written, and its requests; NULL: there are no more. */
const char *kvm_join_model(const struct kvm_join *j, size_t nr, uint64_t *requests);

#endif
