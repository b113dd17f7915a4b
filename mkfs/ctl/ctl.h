/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Shared by the commands of kvcachectl. Each command returns the exit status: 0, 1 (kvm_fail) if
 * the operation failed, or 2 (kvm_misused) if the arguments are invalid.
 */
#ifndef KVM_CTL_H
#define KVM_CTL_H

#include "tool.h"
#include "util.h"

#include <stdio.h>

#define KVM_PATH 4096
#define KVM_TIME_MAX 7000000000ull /* seconds; now plus this time must fit in a timestamp */

/* Prints "NAME: message" and a hint to the help, and returns 2. */
int kvm_misused(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* A row of the table of commands. min, max: number of arguments, without options. */
struct kvm_command {
	const char *name, *args, *help;
	int min, max;
	int (*run)(int argc, char **argv);
};
/* Prints the command's usage, options, syntax of values, and examples (help.c). */
void kvm_print_help(const struct kvm_command *c);
/* Prints the output of --version. */
void kvm_put_version(FILE *out);
extern const struct kvm_command *kvm_command; /* the running command */

struct kvm_option {
	const char *name; /* after "--", or a single letter after "-"; NULL ends the table */
	bool *flag;       /* set for an option without a value; otherwise: */
	const char **value;
};
/*
 * Parses options, which may be anywhere before "--", removes them from argv, and checks the number
 * of remaining arguments. Returns 0, or 2 after a message.
 */
int kvm_options(int *argc, char **argv, const struct kvm_option *options);
/* The same for a command without options. */
int kvm_plain(int *argc, char **argv);

/*
 * Asks the user on the terminal before a destructive operation; the caller has printed what will
 * happen. Returns 0 if `yes` is set or the user agrees; otherwise 1 after a message.
 */
int kvm_confirm(bool yes);

/*
 * Parse the value of the option or argument `name`: a size of `least` bytes or more, or a time of 1
 * to `most` seconds. `give` names the range in the message, such as "a time from 1s to 1h". Return
 * 0, or 2 after a message.
 */
int kvm_size_arg(const char *name, const char *text, uint64_t least, const char *give,
		 uint64_t *bytes);
int kvm_time_arg(const char *name, const char *text, uint64_t most, const char *give,
		 uint64_t *seconds);

/*
 * kvm_time_parse is kvc_time_parse (units.h) in seconds. kvm_time_text prints a time to buf (at
 * least 32 bytes) in the largest unit of which it is exactly one or at least two, rounded down, and
 * returns buf. kvm_time_exact does not round: it takes the largest unit that divides the time.
 */
int kvm_time_parse(const char *text, uint64_t *seconds);
const char *kvm_time_text(uint64_t seconds, char *buf);
const char *kvm_time_exact(uint64_t seconds, char *buf);

/*
 * Finds the root of the kvcachefs mount that contains the path `inside`. NULL: the only mounted
 * kvcachefs or, if there are several, the one that contains the working directory. Returns 0, or 1
 * after a message; mnt is then unchanged.
 */
int kvm_mount_of(const char *inside, char mnt[KVM_PATH]);
/*
 * True if the path `inside` is, by its name, in a kvcachefs mount whose daemon has ended. Sets mnt
 * to the mount point, and store to the path of the store.
 */
bool kvm_mount_is_dead(const char *inside, char mnt[KVM_PATH], char store[KVM_PATH]);
/* Opens a file of the mount's .kvcachefs folder. Returns a descriptor, or -1 after a message. */
int kvm_mount_open(const char *mnt, const char *name, int flags);
/*
 * Writes a list of `len` bytes to .kvcachefs/lease, and reads the answer to it. fd: the open file;
 * command: the command's name, for messages. *text is NULL before; the caller frees it. Both return
 * 0, or 1 after a message.
 */
int kvm_lease_ask(int fd, const char *command, const char *list, size_t len);
int kvm_lease_read(int fd, const char *command, char **text);

/*
 * Reads a file of the mount's .kvcachefs folder. The caller frees *text. Returns 0, or 1 after a
 * message.
 */
int kvm_mount_text(const char *mnt, const char *name, char **text);
/* The slowest operations of the last minutes (slowest.c). */
#define KVM_SLOWEST 64
struct kvm_slow {
	double seconds, ago_seconds;
	char operation[32], tier[32]; /* "-": none */
	char model[1024];             /* as in .kvcachefs/models; "//": none */
};
struct kvm_json;
/* Fills v and sets *n. Returns 0, or 1 after a message. */
int kvm_slowest(const char *mnt, struct kvm_slow v[KVM_SLOWEST], size_t *n);
void kvm_slowest_json(struct kvm_json *j, const struct kvm_slow *v, size_t n);
void kvm_slowest_print(const struct kvm_slow *v, size_t n);

/* The largest models (models.c). */
#define KVM_MODELS 3u
struct kvm_model {
	uint64_t found, absent; /* chunks that clients asked for since the start */
	uint64_t pool_bytes;
	uint64_t bytes;  /* of its files; UINT64_MAX: not known yet */
	char name[1024]; /* as in .kvcachefs/models */
};
struct kvm_models {
	struct kvm_model v[KVM_MODELS]; /* the largest first */
	size_t n, models;               /* models: number of all models */
	bool counting;                  /* the bytes of some or all are not known yet */
};
/* Reads .kvcachefs/models. Returns 0, or 1 after a message. */
int kvm_models(const char *mnt, struct kvm_models *all);
void kvm_models_json(struct kvm_json *j, const struct kvm_models *all);
void kvm_models_print(const struct kvm_models *all);

/* The state of each class of calls of each tier, in the order of the tiers (calls.c). */
#define KVM_CALLS 64u
struct kvm_call {
	char tier[24], call[16];
	char state[16];   /* closed, refused, out, probing, hangs */
	char reason[64];  /* "-": none */
	uint64_t next_ms; /* until the next probe; 0: no probe is scheduled */
};
struct kvm_calls {
	struct kvm_call of[KVM_CALLS];
	size_t n;
};
/* Reads .kvcachefs/tiers. Returns 0, or 1 after a message. */
int kvm_calls(const char *mnt, struct kvm_calls *c);
/* Returns true if a class of the tier is suspended. Tiers are numbered from 0, without the pool. */
bool kvm_calls_suspended(const struct kvm_calls *c, unsigned tier);
void kvm_calls_json(struct kvm_json *j, const struct kvm_calls *c, unsigned tier);
/* Prints a line for each suspended class. */
void kvm_calls_print(const struct kvm_calls *c);

/*
 * Starts the job `name` in the daemon of the mount around `inside` (NULL: the only mount) with
 * these words, shows its progress on a terminal, and prints its result. Returns the exit status.
 */
int kvm_sweep(const char *name, const char *inside, const char *words, bool json);
/*
 * Writes a command to .kvcachefs/control and reads its immediate answer. Returns 0, or 1 after a
 * message.
 */
int kvm_control(const char *mnt, const char *words, char *answer, size_t capacity);

/* The commands; the table in ctl.c lists their arguments. */
int kvm_run_status(int argc, char **argv);
int kvm_run_stats(int argc, char **argv);
int kvm_run_config(int argc, char **argv);
int kvm_run_prefetch(int argc, char **argv);
int kvm_run_lease(int argc, char **argv);
int kvm_run_push(int argc, char **argv);
int kvm_run_cluster(int argc, char **argv);
int kvm_run_import(int argc, char **argv);
int kvm_run_rekey(int argc, char **argv);
int kvm_run_log(int argc, char **argv);
int kvm_run_reload(int argc, char **argv);
int kvm_run_dump(int argc, char **argv);

int kvm_run_top(int argc, char **argv);
int kvm_run_flush(int argc, char **argv);
int kvm_run_verify(int argc, char **argv);
int kvm_run_devices(int argc, char **argv);
/* Returns the number after "name " at the start of a line of .kvcachefs/control, or 0. */
uint64_t kvm_sweep_value(const char *text, const char *name);
/* Prints the result of a job of devices.c, from .kvcachefs/control. False: it is another job. */
bool kvm_devices_result(const char *name, const char *text);
struct kvm_json;
/*
 * Print the contents of .kvcachefs/devices, which they modify: kvm_devices_json as the member
 * "devices", kvm_devices_print as a line for each device that fails or is being removed.
 */
void kvm_devices_json(struct kvm_json *j, char *text);
void kvm_devices_print(char *text);
int kvm_run_add(int argc, char **argv);
int kvm_run_grow(int argc, char **argv);
int kvm_run_remove(int argc, char **argv);
int kvm_run_gpus(int argc, char **argv);
int kvm_run_codec(int argc, char **argv);
int kvm_run_tier_test(int argc, char **argv);
int kvm_run_hash(int argc, char **argv);
int kvm_run_newkey(int argc, char **argv);
int kvm_run_events(int argc, char **argv);
int kvm_run_pools(int argc, char **argv);
int kvm_run_ls(int argc, char **argv);
int kvm_run_stat(int argc, char **argv);
int kvm_run_pin(int argc, char **argv);
int kvm_run_pins(int argc, char **argv);
int kvm_run_quotas(int argc, char **argv);
int kvm_run_unpin(int argc, char **argv);
int kvm_run_ttl(int argc, char **argv);
int kvm_run_quota(int argc, char **argv);
int kvm_run_policy(int argc, char **argv);
int kvm_run_tenant(int argc, char **argv);
int kvm_run_hint(int argc, char **argv);
int kvm_run_tenants(int argc, char **argv);
int kvm_run_evict(int argc, char **argv);
int kvm_run_replay(int argc, char **argv);
int kvm_run_trace(int argc, char **argv);
int kvm_run_doctor(int argc, char **argv);

#endif
