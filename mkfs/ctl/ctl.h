/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the commands of kvcachectl share. A command returns the exit status: 0, 1 (kvm_fail) where
 * what was asked did not come about, or 2 (kvm_misused) where the words are not what it takes.
 */
#ifndef KVM_CTL_H
#define KVM_CTL_H

#include "tool.h"
#include "util.h"

#include <stdio.h>

#define KVM_PATH 4096

/* Prints "NAME: message" and where to read on, and returns 2. */
int kvm_misused(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* A command: what stands behind its name, and how many words that is without the options. */
struct kvm_command {
	const char *name, *args, *help;
	int min, max;
	int (*run)(int argc, char **argv);
};
/* What --version says. */
void kvm_put_version(FILE *out);
extern const struct kvm_command *kvm_command; /* the one that runs */

struct kvm_option {
	const char *name; /* behind "--", or of one letter behind "-"; NULL ends the table */
	bool *flag;       /* one without a value, or: */
	const char **value;
};
/*
 * Takes the options, which may stand anywhere before "--", out of the words, and looks how many are
 * left. 0, or 2 after the message.
 */
int kvm_options(int *argc, char **argv, const struct kvm_option *options);
/* The same for a command without options. */
int kvm_plain(int *argc, char **argv);

/*
 * Before what destroys, when what will be done has been printed: 0 where `yes`, or who sits at the
 * terminal, agrees; else 1, after the message.
 */
int kvm_confirm(bool yes);

/*
 * A time in seconds, or with s, m, h, d or w behind it: 0, -EINVAL or -ERANGE. And for people, in
 * the largest of them of which it is two at least; at least 32 bytes, which it returns.
 */
int kvm_time_parse(const char *text, uint64_t *seconds);
const char *kvm_time_text(uint64_t seconds, char *buf);

/*
 * Where the root of the kvcachefs is mounted that this path is in; NULL: of the only one that is
 * mounted. 0, or 1 after the message, and mnt is as it was.
 */
int kvm_mount_of(const char *inside, char mnt[KVM_PATH]);
/* A file of its .kvcachefs: a descriptor, or -1 after the message. */
int kvm_mount_open(const char *mnt, const char *name, int flags);

/*
 * All of a file of its .kvcachefs, which is then the caller's to free. 0, or 1 after the message.
 */
int kvm_mount_text(const char *mnt, const char *name, char **text);
/* The slowest operations of the last minutes (slowest.c). */
#define KVM_SLOWEST 64
struct kvm_slow {
	double seconds, ago_seconds;
	char operation[32], tier[32]; /* "-": none */
	char model[1024];             /* as .kvcachefs/models has it; "//": none */
};
struct kvm_json;
/* *n: how many. 0, or 1 after the message. */
int kvm_slowest(const char *mnt, struct kvm_slow v[KVM_SLOWEST], size_t *n);
void kvm_slowest_json(struct kvm_json *j, const struct kvm_slow *v, size_t n);
void kvm_slowest_print(const struct kvm_slow *v, size_t n);

/* The classes of calls of each tier, in the tiers' order (calls.c). */
#define KVM_CALLS 64u
struct kvm_call {
	char tier[24], call[16];
	char state[16];   /* closed, refused, out, probing, hangs */
	char reason[64];  /* "-": none */
	uint64_t next_ms; /* to the next probe; 0: none is waited for */
};
struct kvm_calls {
	struct kvm_call of[KVM_CALLS];
	size_t n;
};
/* 0, or 1 after the message. */
int kvm_calls(const char *mnt, struct kvm_calls *c);
/* Is any class of the tier suspended? Tiers are numbered from 0, without the pool. */
bool kvm_calls_suspended(const struct kvm_calls *c, unsigned tier);
void kvm_calls_json(struct kvm_json *j, const struct kvm_calls *c, unsigned tier);
/* A line for each class that is suspended. */
void kvm_calls_print(const struct kvm_calls *c);

/*
 * Writes a command to .kvcachefs/control, and reads what it answers at once. 0, or 1 after the
 * message.
 */
int kvm_control(const char *mnt, const char *words, char *answer, size_t capacity);

/* Commands in files of their own; the table in ctl.c says what they take. */
int kvm_run_status(int argc, char **argv);
int kvm_run_stats(int argc, char **argv);
int kvm_run_config(int argc, char **argv);
int kvm_run_prefetch(int argc, char **argv);
int kvm_run_lease(int argc, char **argv);
int kvm_run_import(int argc, char **argv);
int kvm_run_rekey(int argc, char **argv);
int kvm_run_log(int argc, char **argv);
int kvm_run_reload(int argc, char **argv);
int kvm_run_dump(int argc, char **argv);

int kvm_run_top(int argc, char **argv);
int kvm_run_flush(int argc, char **argv);
int kvm_run_verify(int argc, char **argv);
int kvm_run_gpus(int argc, char **argv);
int kvm_run_hash(int argc, char **argv);
int kvm_run_newkey(int argc, char **argv);
int kvm_run_events(int argc, char **argv);
int kvm_run_pools(int argc, char **argv);
int kvm_run_ls(int argc, char **argv);
int kvm_run_stat(int argc, char **argv);
int kvm_run_pin(int argc, char **argv);
int kvm_run_unpin(int argc, char **argv);
int kvm_run_ttl(int argc, char **argv);
int kvm_run_quota(int argc, char **argv);
int kvm_run_policy(int argc, char **argv);
int kvm_run_evict(int argc, char **argv);
int kvm_run_replay(int argc, char **argv);
int kvm_run_trace(int argc, char **argv);

#endif
