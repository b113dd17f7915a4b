/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The mount options: one table, which feeds the parser, --help, .kvcachefs/config and the test of
 * the manual.
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
	uint64_t cpu_bytes;    /* size of the pool */
	uint64_t memory_bytes; /* limit of the memory budget (budget.h); 0: by the machine */
	uint64_t high_pct, low_pct;
	uint64_t pins_pct, share_pct;   /* of what pins, and of what one user's opens may keep */
	uint64_t policy;                /* index into kvc_policy_table */
	uint64_t disk_policy;           /* 0 the same, or 1 + index */
	uint64_t unit;                  /* 0: by behaviour; 1 + enum kvc_unit */
	uint64_t partial;               /* enum kvc_incomplete_mode */
	uint64_t write;                 /* enum kvc_write_mode */
	uint64_t disk;                  /* bool */
	uint64_t admit;                 /* enum kvc_admission_mode: what the disk tier takes */
	uint64_t daily_bytes;           /* that are written to it a day; 0: no bound */
	uint64_t passthrough, io_uring; /* enum kvc_auto */
	uint64_t huge;                  /* index into kvc_options_huge_names */
	char numa[64];                  /* tmpfs mpol=, empty: the kernel's default */
	uint64_t prefault;              /* enum kvc_prefault_mode */
	uint64_t keep_pool;             /* bool */
	uint64_t settle_ms, deadline_ms, commit_ms, pace_ms, save_s;
	uint64_t log_bytes;     /* of the catalog */
	uint64_t catalog_bytes; /* what names and attributes may take; 0: by the disk */
	char remote[1024];      /* remote= as given, one after the other, separated by spaces */
	uint64_t compress;      /* enum kvc_codec */
	uint64_t level;         /* of zstd */
	uint64_t adopt_uid, adopt_gid, adopt_mode; /* of what a remote has; or KVC_UNSET */
	char keyfile[256];
	char metrics[64];            /* ADDR:PORT, empty: none */
	char metrics_token[256];     /* a file; empty: no token */
	char shim[128];              /* faults to inject below the engine, for tests */
	char run_dir[256];           /* where pools are mounted */
	uint64_t uid, gid, mode;     /* of the root folder; KVC_UNSET: as it is */
	uint64_t allow_other, debug; /* bool */
	char generic[1024];          /* options for mount(2), comma separated */
	/* what an open for reading does, of which generic has nothing */
	enum kvc_atime atime;
};

extern const char *const kvc_options_huge_names[];

/* Fills in the defaults. */
void kvc_options_init(struct kvc_options *o);
/*
 * Parses comma-separated options over what is there. 0, or -EINVAL or -ENOMEM with one line for
 * people in error[] (256 bytes) and *o unchanged.
 */
int kvc_options_parse(struct kvc_options *o, const char *text, char *error);
/*
 * The same on a live mount: all of them, or none where one of them would have to change that cannot
 * without a new mount. Only what changes is written.
 */
int kvc_options_reload(struct kvc_options *o, const char *text, char *error);
/* The names of those that can, with spaces between. */
void kvc_options_live(FILE *out);
/* Checks what only makes sense together (low < high); as above. */
int kvc_options_check(const struct kvc_options *o, char *error);
/* One "name=value" line per option, as in effect. */
void kvc_options_print(const struct kvc_options *o, FILE *out);
/* The list for --help. */
void kvc_options_help(FILE *out);

#endif
