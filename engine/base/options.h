/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The mount options. One table feeds the parser, --help, .kvcachefs/config and the test of the
 * manual.
 */
#ifndef KVC_OPTIONS_H
#define KVC_OPTIONS_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

enum kvc_auto { KVC_AUTO, KVC_ON, KVC_OFF };
enum kvc_prefault_mode { KVC_PREFAULT_AUTO, KVC_PREFAULT_ON, KVC_PREFAULT_HOLD, KVC_PREFAULT_OFF };
enum kvc_write_mode { KVC_THROUGH, KVC_BACK };
enum kvc_admission_mode { KVC_ADMISSION_ALL, KVC_ADMISSION_TWICE };
enum kvc_incomplete_mode { KVC_INCOMPLETE_SHOW, KVC_INCOMPLETE_MISS };
enum kvc_atime { KVC_ATIME_OPENS, KVC_ATIME_RELATIVE, KVC_ATIME_NEVER };

#define KVC_UNSET UINT64_MAX

struct kvc_options {
	uint64_t cpu_bytes; /* size of the pool */
	/* limit of the memory budget (budget.h); 0: chosen at the start (kvc_budget_default) */
	uint64_t memory_bytes;
	uint64_t high_pct, low_pct;
	/* percentage of the pool for pins, and for the opens of one user */
	uint64_t pins_pct, share_pct;
	uint64_t policy;                /* index into kvc_policy_table */
	uint64_t disk_policy;           /* 0: the same policy, or 1 + index */
	uint64_t unit;                  /* 0: inferred, or 1 + enum kvc_unit */
	uint64_t partial;               /* enum kvc_incomplete_mode */
	uint64_t write;                 /* enum kvc_write_mode */
	uint64_t disk;                  /* bool */
	uint64_t disk_workers;          /* threads of the disk tier for each device */
	uint64_t admit;                 /* enum kvc_admission_mode of the disk tier */
	uint64_t daily_bytes;           /* bytes written to the disk tier per day; 0: no limit */
	uint64_t passthrough, io_uring; /* enum kvc_auto */
	uint64_t huge;                  /* index into kvc_options_huge_names */
	char numa[64];                  /* mpol= of the tmpfs; empty: the kernel's default */
	uint64_t prefault;              /* enum kvc_prefault_mode */
	uint64_t keep_pool;             /* bool */
	uint64_t settle_ms, deadline_ms, commit_ms, pace_ms, save_s;
	uint64_t log_bytes;     /* maximum of the catalog's log */
	uint64_t catalog_bytes; /* maximum of names and attributes; 0: depends on the disk */
	char remote[1024];      /* remote= options as given, separated by spaces */
	uint64_t compress;      /* index into kvc_codec_names */
	uint64_t level;         /* level of zstd */
	/* owner and mode of files that were found in a remote; or KVC_UNSET */
	uint64_t adopt_uid, adopt_gid, adopt_mode;
	char keyfile[256];
	char metrics[64];            /* ADDR:PORT; empty: no listener */
	char metrics_token[256];     /* path of a file; empty: no token */
	char peer_listen[64];        /* ADDR:PORT; empty: no peer is served */
	char peer_secret[256];       /* path of a file */
	uint64_t peer_control;       /* bool: other nodes may change objects */
	char peer_name[1024];        /* other names of this node, with + between them */
	char logfile[256];           /* path of the log's file; empty: none */
	char shim[128];              /* faults to inject below the engine, for tests */
	char run_dir[256];           /* folder in which pools are mounted */
	uint64_t uid, gid, mode;     /* owner and mode of the root folder; KVC_UNSET: unchanged */
	uint64_t allow_other, debug; /* bool */
	uint64_t protect_mountpoint; /* bool */
	char generic[1024];          /* options for mount(2), comma separated */
	/* atime at an open for reading, which `generic` does not contain */
	enum kvc_atime atime;
};

extern const char *const kvc_options_huge_names[];

/* Sets the defaults. */
void kvc_options_init(struct kvc_options *o);
/*
 * Parses comma-separated options and changes *o accordingly. Returns 0, or -EINVAL or -ENOMEM with
 * one line in error[256] and *o unchanged.
 */
int kvc_options_parse(struct kvc_options *o, const char *text, char *error);
/*
 * Returns the next word of a list that is separated by commas, as mount(8) writes it, or NULL.
 * Commas in quotes do not separate words. Changes the list, and moves *at past the word.
 */
char *kvc_options_next(char **at);
/*
 * Parses options for a live mount. Applies all options, or none if some of them would change values
 * that only a new mount can change; the error then names these options. Writes only fields that
 * change.
 */
int kvc_options_reload(struct kvc_options *o, const char *text, char *error);
/* Prints the names of the options that can be changed on a live mount, separated by spaces. */
void kvc_options_live(FILE *out);
/* Checks combinations of options (such as low < high). Returns as kvc_options_parse does. */
int kvc_options_check(const struct kvc_options *o, char *error);
/* Prints one line "name=value" per option with its current value. */
void kvc_options_print(const struct kvc_options *o, FILE *out);
/* Prints the list of options for --help. */
void kvc_options_help(FILE *out);

#endif
