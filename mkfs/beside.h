/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A file that a tool makes, or makes anew: it is written beside its place, as FILE.PID.new, and
 * takes it by a rename when it is whole. Who is killed leaves what was there before. What is no
 * file (a device, a pipe) is written to as it is.
 */
#ifndef KVM_BESIDE_H
#define KVM_BESIDE_H

#include <stdbool.h>
#include <stdio.h>
#include <sys/stat.h>

struct kvm_beside {
	FILE *f;       /* to write to */
	char *path;    /* where it is to be, with no link in it */
	char *own;     /* where it is written; NULL: there */
	bool only_new; /* what is there is never replaced */
};

/*
 * Opens it. Made anew it keeps owner and mode of what was there; else it has `mode`. 0 or -errno:
 * -EEXIST with only_new where there is anything by that name, -EBUSY where nothing can take the
 * place of what is there; then nothing is to be ended.
 */
int kvm_beside_open(struct kvm_beside *b, const char *path, mode_t mode, bool only_new);
/*
 * The end of it: with err 0 what was written is brought to stable storage and takes its place, else
 * it goes. err, or what failed here: then what was there before is there.
 */
int kvm_beside_end(struct kvm_beside *b, int err);
/* As kvc_why, of what the two above answer. */
const char *kvm_beside_why(int err);
/* The name of a file that has just taken its place outlives a power failure too. 0 or -errno. */
int kvm_beside_keep(const char *path);

#endif
