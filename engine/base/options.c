/* SPDX-License-Identifier: Apache-2.0 */
/* The table of mount options, and its parser (options.h). */
#include "options.h"

#include "budget.h"
#include "codec.h"
#include "help.h"
#include "near.h"
#include "peer_name.h"
#include "policy.h"
#include "util.h"

#include <ctype.h>
#include <string.h>
#include <unistd.h>

const char *const kvc_options_huge_names[] = { "within_size", "always", "never", NULL };
static const char *const write_names[] = { "through", "back", NULL };
static const char *const admit_names[] = { "all", "twice", NULL };
static const char *const auto_names[] = { "auto", "on", "off", NULL };
static const char *const unit_names[] = { "auto", "dir", "file", NULL };
static const char *const partial_names[] = { "show", "miss", NULL };
static const char *const prefault_names[] = { "auto", "on", "hold", "off", NULL };
static const char *const switch_names[] = { "off", "on", NULL };

#define ONE_OF "" /* the value of a CHOICE in --help: its names, separated by | */

enum type {
	SIZE,
	NUMBER,
	CHOICE,
	FLAG,
	TEXT,
	TEXTS, /* may be given several times; the values are separated by spaces */
	ID,    /* a number or KVC_UNSET */
	MODE,  /* a number in octal, or KVC_UNSET */
};

struct row {
	const char *name, *value, *help;
	enum type type;
	size_t at;
	const char *const *names; /* CHOICE */
	uint64_t min, max;        /* SIZE and NUMBER: limits; TEXT: max is the size of the field */
	const char *def;
	/* LIVE: may change on a live mount; read at each use, under the engine's lock */
	enum { FIXED, LIVE } when;
};

#define AT(field) offsetof(struct kvc_options, field)

static const struct row rows[] = {
	{ "cpu", "SIZE", "size of the pool in memory", SIZE, AT(cpu_bytes), NULL, 16 << 20,
	  1ull << 50, "1G", FIXED },
	{ "memory", "SIZE",
	  "limit of the daemon's memory outside the pool; 0: computed from the memory of the "
	  "machine or of the daemon's cgroup",
	  SIZE, AT(memory_bytes), NULL, 0, 1ull << 50, "0", FIXED },
	{ "high", "PCT",
	  "start to evict when this percentage of the pool or the disk tier is in use", NUMBER,
	  AT(high_pct), NULL, 2, 100, "90", LIVE },
	{ "low", "PCT", "stop evicting when only this percentage is in use", NUMBER, AT(low_pct),
	  NULL, 1, 99, "80", LIVE },
	{ "pins", "PCT", "maximum percentage of the pool and of the disk tier for pinned chunks",
	  NUMBER, AT(pins_pct), NULL, 0, 100, "50", LIVE },
	{ "share", "PCT",
	  "maximum percentage of the pool for open, leased and mapped files of one user other "
	  "than root",
	  NUMBER, AT(share_pct), NULL, 1, 100, "90", LIVE },
	{ "policy", "NAME", "eviction policy", CHOICE, AT(policy), kvc_policy_names, 0, 0, "prefix",
	  FIXED },
	{ "disk_policy", "NAME", "eviction policy of the disk tier; same: the value of policy=",
	  CHOICE, AT(disk_policy), kvc_policy_disk_names, 0, 0, "same", FIXED },
	{ "unit", ONE_OF,
	  "unit of eviction; auto: detect which folders are chunks; dir: each folder; file: each "
	  "file",
	  CHOICE, AT(unit), unit_names, 0, 0, "auto", FIXED },
	{ "partial", ONE_OF,
	  "files of a chunk that does not have all its layers yet; show: programs see them; miss: "
	  "they are hidden until the chunk is complete",
	  CHOICE, AT(partial), partial_names, 0, 0, "show", FIXED },
	{ "write", ONE_OF,
	  "through: copy files to the tiers soon after their last close; back: copy them "
	  "when they are evicted, but the oldest ones earlier if a quarter of the pool has no "
	  "copy",
	  CHOICE, AT(write), write_names, 0, 0, "through", FIXED },
	{ "disk", "on|off", "use the store's disk tier", CHOICE, AT(disk), switch_names, 0, 0, "on",
	  FIXED },
	{ "disk_workers", "N", "threads that read and write each device of the disk tier", NUMBER,
	  AT(disk_workers), NULL, 1, 16, "4", FIXED },
	{ "admit", ONE_OF,
	  "copy all chunks to the disk tier, or only chunks requested twice (storing a chunk "
	  "counts as the first request)",
	  CHOICE, AT(admit), admit_names, 0, 0, "all", LIVE },
	{ "daily", "SIZE",
	  "maximum bytes written to the disk tier per day; beyond it, only files that are always "
	  "admitted are written, such as fsynced ones (ADMISSION in kvcachefs(8)); 0: no limit",
	  SIZE, AT(daily_bytes), NULL, 0, 1ull << 50, "0", LIVE },
	{ "remote", "URL",
	  "a tier shared with other nodes: dir://, redis://, rediss://, redis+cluster://, "
	  "rediss+cluster://, s3:// (kvcachefs-tiers(7)), ext:// (kvcachefs-ext(7)) or peers:// "
	  "(kvcachefs-peers(7)); may be repeated",
	  TEXTS, AT(remote), NULL, 0, 1024, "", FIXED },
	{ "compress", "CODEC",
	  "codec of copies in the tiers (kvq-* and fp8 are lossy; see kvcachefs-codecs(7))", CHOICE,
	  AT(compress), kvc_codec_names, 0, 0, "none", LIVE },
	{ "level", "N", "zstd compression level, for compress=zstd", NUMBER, AT(level), NULL, 1, 19,
	  "1", LIVE },
	{ "keyfile", "PATH", "encrypt all copies outside the pool with the keys in this file", TEXT,
	  AT(keyfile), NULL, 0, 256, "", FIXED },
	{ "adopt_uid", "NUMBER",
	  "owner of files from other nodes if keyfile= is not given; default: the mounting user",
	  ID, AT(adopt_uid), NULL, 0, UINT32_MAX - 1, "", FIXED },
	{ "adopt_gid", "NUMBER",
	  "group of files from other nodes if keyfile= is not given; default: the mounting user's "
	  "group",
	  ID, AT(adopt_gid), NULL, 0, UINT32_MAX - 1, "", FIXED },
	{ "adopt_mode", "OCTAL",
	  "permissions of files from other nodes if keyfile= is not given (0600); folders also "
	  "get search permission",
	  MODE, AT(adopt_mode), NULL, 0, 0777, "", FIXED },
	{ "metrics", "ADDR:PORT", "serve metrics and a status page over HTTP on this address", TEXT,
	  AT(metrics), NULL, 0, 64, "", FIXED },
	{ "metrics_token", "FILE", "file whose first line is the access token for metrics=", TEXT,
	  AT(metrics_token), NULL, 0, 256, "", FIXED },
	{ "peer_listen", "ADDR:PORT",
	  "on this address, serve files to the peers:// remotes of other nodes", TEXT,
	  AT(peer_listen), NULL, 0, 64, "", FIXED },
	{ "peer_secret", "FILE",
	  "file whose first line is the secret that all peers share, for peer_listen=", TEXT,
	  AT(peer_secret), NULL, 0, 256, "", FIXED },
	{ "peer_name", "HOST:PORT",
	  "the address of this node in the peers:// URLs of other nodes, if it differs from "
	  "peer_listen=; required if peer_listen= has the address 0.0.0.0 or [::]; join several "
	  "addresses with +",
	  TEXT, AT(peer_name), NULL, 0, 1024, "", FIXED },
	{ "peer_control", NULL,
	  "let nodes that know the secret of peer_listen= pin, unpin, evict and drop chunks "
	  "(kvcachectl cluster)",
	  FLAG, AT(peer_control), NULL, 0, 0, "0", FIXED },
	{ "passthrough", ONE_OF, "let the kernel move data between callers and the pool", CHOICE,
	  AT(passthrough), auto_names, 0, 0, "auto", FIXED },
	{ "io_uring", ONE_OF, "receive requests through io_uring", CHOICE, AT(io_uring), auto_names,
	  0, 0, "auto", FIXED },
	{ "huge", ONE_OF, "use huge pages in the pool, as with huge= of tmpfs(5)", CHOICE, AT(huge),
	  kvc_options_huge_names, 0, 0, "within_size", FIXED },
	{ "numa", "POLICY",
	  "NUMA policy of the pool, as in mpol= of tmpfs(5), with semicolons instead of commas",
	  TEXT, AT(numa), NULL, 0, 64, "", FIXED },
	{ "prefault", ONE_OF,
	  "make the host of a virtual machine allocate the pool's memory before writers need it; "
	  "on: access the memory once and free it; hold: access the memory and keep it for the "
	  "writers; auto: like on, but only if first accesses are slow",
	  CHOICE, AT(prefault), prefault_names, 0, 0, "auto", FIXED },
	{ "keep_pool", NULL, "keep the pool in memory at unmount, for a warm start", FLAG,
	  AT(keep_pool), NULL, 0, 0, "0", LIVE },
	{ "settle", "MS", "delay between the last close of a file and its copy to the tiers",
	  NUMBER, AT(settle_ms), NULL, 0, 3600000, "200", FIXED },
	{ "deadline", "MS", "maximum time to wait for a tier or for free space", NUMBER,
	  AT(deadline_ms), NULL, 1, 3600000, "10000", FIXED },
	{ "pace", "MS",
	  "maximum delay of a writer while copies to the tiers lag behind; if there is still no "
	  "space after this delay, the coldest chunks without a copy are dropped",
	  NUMBER, AT(pace_ms), NULL, 0, 3600000, "100", LIVE },
	{ "log", "SIZE",
	  "intended size of the write-ahead log of the catalog (the list of files); on a busy "
	  "disk it can become larger",
	  SIZE, AT(log_bytes), NULL, 1 << 20, 1ull << 40, "64M", FIXED },
	{ "catalog", "SIZE",
	  "maximum size of names and attributes in the catalog; 0: unlimited with remote=, "
	  "otherwise half of the combined size of the pool and the disk tier, but at least 256M",
	  SIZE, AT(catalog_bytes), NULL, 0, 1ull << 50, "0", FIXED },
	{ "commit", "MS",
	  "maximum time for which changes to the catalog are collected before they are committed",
	  NUMBER, AT(commit_ms), NULL, 1, 40, "10", LIVE },
	{ "save", "SECONDS",
	  "interval at which the learned state of policies is saved; 0: only at unmount", NUMBER,
	  AT(save_s), NULL, 0, 86400, "300", LIVE },
	{ "run", "DIR",
	  "folder in which the pool is mounted as a tmpfs; the folder is created if its parent "
	  "exists; a user without permission to mount must give a folder on an existing tmpfs",
	  TEXT, AT(run_dir), NULL, 0, 256, "/run/kvcachefs", FIXED },
	{ "shim", "SPEC", "for tests: delay operations of tiers or make them fail", TEXT, AT(shim),
	  NULL, 0, 128, "", FIXED },
	{ "allow_other", NULL, "allow access by other users", FLAG, AT(allow_other), NULL, 0, 0,
	  "0", FIXED },
	{ "uid", "NUMBER", "set the owner of the mount's root folder", ID, AT(uid), NULL, 0,
	  UINT32_MAX - 1, "", FIXED },
	{ "gid", "NUMBER", "set the group of the root folder", ID, AT(gid), NULL, 0, UINT32_MAX - 1,
	  "", FIXED },
	{ "mode", "OCTAL", "set the permissions of the root folder, such as 1777", MODE, AT(mode),
	  NULL, 0, 07777, "", FIXED },
	{ "protect_mountpoint", NULL,
	  "make the folder of the mount point immutable, so that nothing is written into it while "
	  "nothing is mounted there",
	  FLAG, AT(protect_mountpoint), NULL, 0, 0, "0", FIXED },
	{ "logfile", "PATH",
	  "append the log to this file instead of syslog; kvcachectl reload opens it again", TEXT,
	  AT(logfile), NULL, 0, 256, "", FIXED },
	{ "debug", NULL, "also log debug messages", FLAG, AT(debug), NULL, 0, 0, "0", FIXED },
};
#define NROWS (sizeof rows / sizeof rows[0])

/* Options of mount(2). */
static const char *const generic[] = {
	"ro",   "rw",         "nosuid", "suid",  "nodev",   "dev", "noexec",
	"exec", "nodiratime", "sync",   "async", "dirsync", NULL,
};
/* Options for atime, of which the last one wins; libfuse does not know all of them. */
static const struct {
	const char *name;
	enum kvc_atime is;
} atimes[] = {
	{ "atime", KVC_ATIME_OPENS },
	{ "relatime", KVC_ATIME_RELATIVE },
	{ "noatime", KVC_ATIME_NEVER },
	{ "strictatime", KVC_ATIME_OPENS },
};
/*
 * Options that are ignored: options of fstab for mount(8) and systemd, and options of mount(2)
 * without effect here, because the filesystem sets times and attributes of folders itself and
 * writes nothing late.
 */
static const char *const ignored[] = {
	"defaults", "auto",     "noauto",     "nofail",        "_netdev",    "_rnetdev",
	"user",     "nouser",   "users",      "nousers",       "owner",      "noowner",
	"group",    "nogroup",  "silent",     "loud",          "lazytime",   "nolazytime",
	"diratime", "iversion", "noiversion", "nostrictatime", "norelatime", NULL,
};
/* Ignored options with a value, or with a name that the user chose. */
static const char *const ignored_prefixes[] = {
	"x-", "X-", "comment=", "helper=", "uhelper=", NULL
};
/* SELinux labels. The kernel accepts them if SELinux is on, and refuses them otherwise. */
static const char *const labels[] = { "context", "fscontext", "defcontext", "rootcontext", NULL };
#define SELINUX "/sys/fs/selinux/enforce"

static bool among(const char *const *list, const char *word)
{
	for (; *list; list++)
		if (!strcmp(*list, word))
			return true;
	return false;
}

static bool begins_as(const char *const *prefixes, const char *word)
{
	for (; *prefixes; prefixes++)
		if (!strncmp(word, *prefixes, strlen(*prefixes)))
			return true;
	return false;
}

static void fail(char *error, const char *format, const char *a, const char *b)
{
	snprintf(error, 256, format, a, b);
}

static void strcat_bounded(char *to, const char *from, size_t capacity)
{
	size_t len = strlen(to);

	snprintf(to + len, capacity - len, "%s", from);
}

static int set_number(const struct row *r, const char *value, uint64_t *n, char *error)
{
	/* the unit of a time, which a number without a suffix has too; 0: not a time */
	unsigned unit_ms = !strcmp(r->value, "MS") ? 1 : !strcmp(r->value, "SECONDS") ? 1000 : 0;
	char a[32], b[32], range[96], why[192], *end;
	uint64_t v = 0;

	value = value ?: "";
	if (r->type == SIZE)
		snprintf(range, sizeof range, "%s to %s", kvc_size_text(r->min, a),
			 kvc_size_text(r->max, b));
	else
		snprintf(range, sizeof range, "%llu to %llu%s", (unsigned long long)r->min,
			 (unsigned long long)r->max,
			 unit_ms == 1 ? " ms"
			 : unit_ms    ? " seconds"
				      : "");
	if (r->type == SIZE || unit_ms) {
		if (r->type == SIZE ? kvc_size_parse(value, &v)
				    : kvc_time_parse(value, unit_ms, &v)) {
			snprintf(error, 256, "option %s: %s", r->name,
				 r->type == SIZE ? kvc_size_why(value, why)
						 : kvc_time_why(value, unit_ms, why));
			return -EINVAL;
		}
	} else {
		v = *value >= '0' && *value <= '9' ? strtoull(value, &end, 10) : 0;
		if (*value < '0' || *value > '9' || *end) {
			snprintf(error, 256,
				 "option %s: '%.64s' is not a number; give a number from %s",
				 r->name, value, range);
			return -EINVAL;
		}
	}
	if (v >= r->min && v <= r->max) {
		*n = v;
		return 0;
	}
	snprintf(error, 256, "option %s: '%.64s' is out of range; give a value from %s", r->name,
		 value, range);
	return -EINVAL;
}

static int set_text(const struct row *r, const char *value, char *to, char *error)
{
	/* an empty value is often an unset variable, such as a key file's */
	if (!value || !*value || strlen(value) >= r->max) {
		snprintf(error, 256, "option %s: give %s with 1 to %llu characters%s", r->name,
			 r->value, (unsigned long long)r->max - 1,
			 value && *value ? "" : ", or leave the option out");
		return -EINVAL;
	}
	if ((!strcmp(r->value, "PATH") || !strcmp(r->value, "DIR") || !strcmp(r->value, "FILE")) &&
	    *value != '/') { /* the daemon changes its folder to / */
		snprintf(error, 256, "option %s: '%.64s' is not an absolute path; begin it with /",
			 r->name, value);
		return -EINVAL;
	}
	memset(to, 0, r->max);
	memcpy(to, value, strlen(value) + 1);
	return 0;
}

static int set(struct kvc_options *o, const struct row *r, const char *value, char *error)
{
	uint64_t *n = (uint64_t *)((char *)o + r->at), v;
	char *end;

	switch (r->type) {
	case FLAG:
		if (value && strcmp(value, "0") && strcmp(value, "1")) {
			fail(error,
			     "option %s does not take a value%s: give its name alone, or leave it "
			     "out",
			     r->name, "");
			return -EINVAL;
		}
		*n = !value || *value == '1';
		return 0;
	case SIZE:
	case NUMBER: return set_number(r, value, n, error);
	case ID:
	case MODE:
		v = value && *value >= '0' && *value <= '9'
			    ? strtoull(value, &end, r->type == MODE ? 8 : 10)
			    : 0;
		if (!value || *value < '0' || *value > '9' || *end || v > r->max) {
			fail(error,
			     r->type == MODE ? "option %s: '%.64s' is not an octal mode; give one "
					       "such as 750"
					     : "option %s: '%.64s' is not the number of a user or "
					       "group; id(1) shows the number",
			     r->name, value ? value : "");
			return -EINVAL;
		}
		*n = v;
		return 0;
	case CHOICE:
		for (uint64_t i = 0; value && r->names[i]; i++)
			if (!strcmp(r->names[i], value)) {
				*n = i;
				return 0;
			}
		snprintf(error, 256, "option %s: '%.64s' is not one of", r->name,
			 value ? value : "");
		for (uint64_t i = 0; r->names[i]; i++)
			snprintf(error + strlen(error), 256 - strlen(error), "%s %s", i ? "," : "",
				 r->names[i]);
		return -EINVAL;
	case TEXTS:
		if (!value || !*value || strpbrk(value, " \t\n") ||
		    strlen((char *)n) + strlen(value) + 2 > r->max) {
			fail(error,
			     "option %s: give a URL without spaces; all URLs together may have %s "
			     "characters",
			     r->name, "1000");
			return -EINVAL;
		}
		if (*(char *)n)
			strcat_bounded((char *)n, " ", r->max);
		strcat_bounded((char *)n, value, r->max);
		return 0;
	case TEXT: return set_text(r, value, (char *)n, error);
	}
	return -EINVAL;
}

/* Adds a word to the options that libfuse passes to mount(2). */
static int add_generic(struct kvc_options *o, const char *word, char *error)
{
	size_t len = strlen(o->generic);

	if (len + strlen(word) + 2 > sizeof o->generic) {
		fail(error, "too many options; leave out '%.64s' or others%s", word, "");
		return -EINVAL;
	}
	snprintf(o->generic + len, sizeof o->generic - len, "%s%s", len ? "," : "", word);
	return 0;
}

/*
 * A SELinux label, with or without quotes. The kernel requires quotes around commas; libfuse splits
 * at commas and removes backslashes.
 */
static int add_label(struct kvc_options *o, const char *name, const char *value, char *error)
{
	size_t len = value ? strlen(value) : 0, n;
	char word[512];

	if (len >= 2 && value[0] == '"' && value[len - 1] == '"') {
		value++;
		len -= 2;
	}
	if (!len || len > 200 || memchr(value, '"', len)) {
		fail(error, "option %s: '%.64s' is not a SELinux label; see selinux(8)", name,
		     value ? value : "");
		return -EINVAL;
	}
	if (access(SELINUX, F_OK)) /* mount(8) ignores labels in this case too */
		return 0;
	n = (size_t)snprintf(word, sizeof word, "%s=\"", name);
	for (size_t i = 0; i < len; i++) {
		if (value[i] == ',' || value[i] == '\\')
			word[n++] = '\\';
		word[n++] = value[i];
	}
	word[n++] = '"';
	word[n] = 0;
	return add_generic(o, word, error);
}

static void try_list(struct kvc_near *near, const char *const *names)
{
	for (; *names; names++)
		kvc_near_try(near, *names);
}

static int unknown(const char *word, char *error)
{
	struct kvc_near near = { .word = word };
	char text[96];

	if (!strcmp(word, "remount")) {
		fail(error,
		     "option remount is for mount -o remount,OPTIONS MOUNTPOINT, which needs the "
		     "helper /sbin/mount.fuse.kvcachefs%s%s; or use kvcachectl reload",
		     "", "");
		return -EINVAL;
	}
	for (size_t i = 0; i < NROWS; i++)
		kvc_near_try(&near, rows[i].name);
	for (size_t i = 0; i < sizeof atimes / sizeof *atimes; i++)
		kvc_near_try(&near, atimes[i].name);
	try_list(&near, generic);
	try_list(&near, labels);
	try_list(&near, ignored);
	fail(error, "unknown option '%.64s'%s; kvcachefs --help lists the options", word,
	     kvc_near_text(&near, text));
	return -EINVAL;
}

static int one(struct kvc_options *o, char *word, char *error)
{
	char *value = strchr(word, '=');

	if (among(ignored, word) || begins_as(ignored_prefixes, word))
		return 0;
	for (unsigned i = 0; !value && i < sizeof atimes / sizeof *atimes; i++)
		if (!strcmp(atimes[i].name, word)) {
			o->atime = atimes[i].is;
			return 0;
		}
	if (!value && among(generic, word))
		return add_generic(o, word, error);
	if (value)
		*value++ = 0;
	if (among(labels, word))
		return add_label(o, word, value, error);
	for (size_t i = 0; i < NROWS; i++)
		if (!strcmp(rows[i].name, word))
			return set(o, &rows[i], value, error);
	return unknown(word, error);
}

void kvc_options_init(struct kvc_options *o)
{
	char error[256];

	memset(o, 0, sizeof *o);
	for (size_t i = 0; i < NROWS; i++)
		if (rows[i].type == ID || rows[i].type == MODE)
			*(uint64_t *)((char *)o + rows[i].at) = KVC_UNSET;
		else if (*rows[i].def)
			set(o, &rows[i], rows[i].def, error);
}

char *kvc_options_next(char **at)
{
	bool quoted = false;
	char *word, *p;

	*at += strspn(*at, ",");
	if (!**at)
		return NULL;
	for (word = p = *at; *p && (quoted || *p != ','); p++)
		quoted ^= *p == '"';
	*at = *p ? p + 1 : p;
	*p = 0;
	return word;
}

int kvc_options_parse(struct kvc_options *o, const char *text, char *error)
{
	struct kvc_options n = *o;
	KVC_MEM char *copy = strdup(text);
	char *at = copy, *w;
	int err;

	if (!copy) {
		fail(error, "out of memory%s%s", "", "");
		return -ENOMEM;
	}
	while ((w = kvc_options_next(&at)))
		if ((err = one(&n, w, error)))
			return err;
	*o = n;
	return 0;
}

static int check_address(const char *name, const char *value, char *error)
{
	const char *port = strrchr(value, ':');
	char *end;

	if (!*value || (port && isdigit((unsigned char)port[1]) &&
			strtoul(port + 1, &end, 10) <= 65535 && !*end))
		return 0;
	fail(error, "option %s: '%s' is not ADDR:PORT such as 127.0.0.1:9464", name, value);
	return -EINVAL;
}

static int check_names(const char *list, char *error)
{
	size_t len;
	const char *wrong = kvc_peer_name_wrong(list, &len);

	if (!wrong)
		return 0;
	snprintf(error, 256, "option peer_name: '%.*s' is not HOST:PORT such as node1:9465",
		 (int)kvc_min(len, (size_t)100), wrong);
	return -EINVAL;
}

int kvc_options_check(const struct kvc_options *o, char *error)
{
	if (o->low_pct >= o->high_pct) {
		snprintf(error, 256, "option low must be below option high: %llu is not below %llu",
			 (unsigned long long)o->low_pct, (unsigned long long)o->high_pct);
		return -EINVAL;
	}
	if (o->memory_bytes && o->memory_bytes < KVC_BUDGET_MIN) {
		snprintf(error, 256,
			 "option memory: give at least %lluM, or 0 for a limit that fits the "
			 "machine",
			 (unsigned long long)(KVC_BUDGET_MIN >> 20));
		return -EINVAL;
	}
	return check_address("metrics", o->metrics, error)
		       ?: check_address("peer_listen", o->peer_listen, error)
		       ?: check_names(o->peer_name, error);
}

static bool same(const struct row *r, const struct kvc_options *a, const struct kvc_options *b)
{
	size_t n = r->type == TEXT || r->type == TEXTS ? r->max : sizeof(uint64_t);

	return !memcmp((const char *)a + r->at, (const char *)b + r->at, n);
}

/* Names of options for a message. The first ones that fit are listed. */
struct names {
	char text[160];
	unsigned n;
};

static void add_name(struct names *names, const char *name)
{
	size_t len = strlen(names->text);

	if (len + strlen(name) + 3 > sizeof names->text)
		return;
	snprintf(names->text + len, sizeof names->text - len, "%s%s", len ? ", " : "", name);
	names->n++;
}

/* Lists the options of mount(8) in `now` that the mount does not have. */
static int add_generic_names(struct names *names, const struct kvc_options *o,
			     const struct kvc_options *now)
{
	KVC_MEM char *words = strdup(now->generic);
	char *at = words, *word;

	if (!words)
		return -ENOMEM;
	while ((word = kvc_options_next(&at))) {
		KVC_MEM char *have = strdup(o->generic);
		char *rest = have, *had = NULL;

		while (have && (had = kvc_options_next(&rest)) && strcmp(had, word) != 0)
			;
		word[strcspn(word, "=")] = 0;
		if (!had)
			add_name(names, word);
	}
	if (o->atime != now->atime)
		add_name(names, atimes[now->atime].name);
	return 0;
}

/* Refuses options that cannot change on a live mount. Names all of them. */
static int check_live(const struct kvc_options *o, const struct kvc_options *now, char *error)
{
	struct names names = { .n = 0 };

	for (size_t i = 0; i < NROWS; i++)
		if (rows[i].when == FIXED && !same(&rows[i], o, now))
			add_name(&names, rows[i].name);
	if (add_generic_names(&names, o, now)) {
		fail(error, "out of memory%s%s", "", "");
		return -ENOMEM;
	}
	if (!names.n)
		return 0;
	snprintf(error, 256,
		 "option%s %s cannot change on a live mount: unmount, and mount with the new "
		 "value%s",
		 names.n > 1 ? "s" : "", names.text, names.n > 1 ? "s" : "");
	return -EINVAL;
}

int kvc_options_reload(struct kvc_options *o, const char *text, char *error)
{
	struct kvc_options n = *o;
	int err;

	/* the values of an option that may be repeated replace the present ones */
	for (size_t i = 0; i < NROWS; i++)
		if (rows[i].type == TEXTS)
			memset((char *)&n + rows[i].at, 0, rows[i].max);
	*n.generic = 0;
	err = kvc_options_parse(&n, text, error);
	for (size_t i = 0; i < NROWS; i++)
		if (rows[i].type == TEXTS && !*((char *)&n + rows[i].at))
			memcpy((char *)&n + rows[i].at, (char *)o + rows[i].at, rows[i].max);
	err = err ?: kvc_options_check(&n, error) ?: check_live(o, &n, error);
	if (err)
		return err;
	/* only these fields: the others are read without the lock */
	for (size_t i = 0; i < NROWS; i++)
		if (rows[i].when == LIVE && !same(&rows[i], o, &n))
			memcpy((char *)o + rows[i].at, (const char *)&n + rows[i].at,
			       sizeof(uint64_t));
	return 0;
}

/* Prints one line per URL, without passwords and tokens. */
static void print_urls(const char *name, const char *urls, FILE *out)
{
	while (*urls) {
		int len = (int)strcspn(urls, " ");
		const char *host = strstr(urls, "://"), *at = memchr(urls, '@', (size_t)len);

		if (host && at && host < at)
			fprintf(out, "%s=%.*s***%.*s\n", name, (int)(host + 3 - urls), urls,
				(int)(urls + len - at), at);
		else
			fprintf(out, "%s=%.*s\n", name, len, urls);
		urls += len + (urls[len] == ' ');
	}
}

void kvc_options_print(const struct kvc_options *o, FILE *out)
{
	for (size_t i = 0; i < NROWS; i++) {
		const struct row *r = &rows[i];
		const uint64_t *n = (const uint64_t *)((const char *)o + r->at);

		if (r->type == TEXTS)
			print_urls(r->name, (const char *)n, out);
		else if (r->type == TEXT)
			fprintf(out, "%s=%s\n", r->name, (const char *)n);
		else if (r->type == CHOICE)
			fprintf(out, "%s=%s\n", r->name, r->names[*n]);
		else if ((r->type == ID || r->type == MODE) && *n == KVC_UNSET)
			fprintf(out, "%s=\n", r->name);
		else if (r->type == MODE)
			fprintf(out, "%s=%04llo\n", r->name, (unsigned long long)*n);
		else
			fprintf(out, "%s=%llu\n", r->name, (unsigned long long)*n);
	}
	fprintf(out, "generic=%s%s%s\n", o->generic, *o->generic && o->atime ? "," : "",
		o->atime ? atimes[o->atime].name : "");
}

/* True if the help of the option lists the names, and its value is a word such as NAME. */
static bool lists_names(const struct row *r)
{
	return r->names == kvc_policy_names || r->names == kvc_codec_names;
}

void kvc_options_help(FILE *out)
{
	for (size_t i = 0; i < NROWS; i++) {
		const char *value = rows[i].value;
		char left[64], help[512];
		size_t at;

		at = (size_t)snprintf(left, sizeof left, "%s%s%s", rows[i].name, value ? "=" : "",
				      value ? value : "");
		for (size_t j = 0; value && !*value && rows[i].names[j] && at < sizeof left; j++)
			at += (size_t)snprintf(left + at, sizeof left - at, "%s%s", j ? "|" : "",
					       rows[i].names[j]);
		at = (size_t)snprintf(help, sizeof help, "%s", rows[i].help);
		for (size_t j = 0; lists_names(&rows[i]) && rows[i].names[j]; j++)
			at += (size_t)snprintf(help + at, sizeof help - at, "%s %s", j ? "," : ":",
					       rows[i].names[j]);
		if (rows[i].value && *rows[i].def)
			snprintf(help + at, sizeof help - at, " (%s)", rows[i].def);
		kvc_help_row(out, left, 33, help);
	}
	fprintf(out,
		"  ro, suid, dev, noexec, noatime and other options of mount(8) (nosuid,nodev)\n");
}

void kvc_options_live(FILE *out)
{
	for (size_t i = 0; i < NROWS; i++)
		if (rows[i].when == LIVE)
			fprintf(out, " %s", rows[i].name);
}
