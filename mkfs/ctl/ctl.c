/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kvcachectl COMMAND ...: inspects and controls a running mount through the files in its .kvcachefs
 * folder, and shows some state of the machine. The table `commands` has a row for each command.
 */
#include "ctl.h"

#include "help.h"
#include "near.h"
#include "publish.h"
#include "registry.h"

#include <stdio.h>
#include <string.h>

#define MANY (1 << 20)

static int run_help(int argc, char **argv);

static const struct kvm_command commands[] = {
	{ "status", "[--interval TIME [--count N]] [--json] [PATH]",
	  "show the state of a mount on one screen", 0, 1, kvm_run_status },
	{ "top", "[--interval TIME] [--count N] [--sort COLUMN] [--json] [PATH]",
	  "show the current activity of each model", 0, 1, kvm_run_top },
	{ "doctor", "[--for TIME | --trace FILE] [--json] [PATH]",
	  "explain the hit ratio of a mount, and say which options to change", 0, 1,
	  kvm_run_doctor },
	{ "stats", "[--json] [PATH]", "show the counters of a mount", 0, 1, kvm_run_stats },
	{ "config", "[--json] [PATH]",
	  "show the options of a mount and the daemon's automatic choices", 0, 1, kvm_run_config },
	{ "reload", "[-o OPTIONS [--save FILE] | --file FILE] [--json] [PATH]",
	  "change the mount's options; without -o and --file, read its key file again and reopen "
	  "its log",
	  0, 1, kvm_run_reload },
	{ "log", "[--json] [error|warn|info|debug] [PATH]",
	  "show or set the log level of the daemon", 0, 2, kvm_run_log },
	{ "ls", "[--recursive] [-r] [-l] [--json] [PATH]",
	  "list chunks and files: size, tiers, state, hits, pin, ttl", 0, 1, kvm_run_ls },
	{ "stat", "[--json] PATH...", "show the details of files and chunks", 1, MANY,
	  kvm_run_stat },
	{ "pin", "[--for TIME] [--json] PATH...",
	  "protect chunks from eviction, for a time or until they are unpinned", 1, MANY,
	  kvm_run_pin },
	{ "unpin", "[--json] PATH...", "remove pins from chunks", 1, MANY, kvm_run_unpin },
	{ "pins", "[--json] [PATH]", "list the pinned chunks", 0, 1, kvm_run_pins },
	{ "ttl", "[--chunks] [--yes] [--json] TIME|never PATH...",
	  "drop chunks after TIME; for a model, set the ttl of chunks that are created later", 2,
	  MANY, kvm_run_ttl },
	{ "quota", "[--yes] [--json] SIZE|none MODEL...", "limit the size of a model's files", 2,
	  MANY, kvm_run_quota },
	{ "quotas", "[--json] [PATH]", "list the models with a quota", 0, 1, kvm_run_quotas },
	{ "policy", "[--yes] [--json] NAME|none MODEL...",
	  "set the eviction policy of a model; none: use the policy of the mount", 2, MANY,
	  kvm_run_policy },
	{ "tenants", "[--json] [PATH]",
	  "list the tenants (customers or teams with limits) and their counters", 0, 1,
	  kvm_run_tenants },
	{ "tenant",
	  "[--quota SIZE|none] [--share SIZE|none] [--user UID|none] [--folder FOLDER] [--remove] "
	  "[--json] NAME [PATH]",
	  "create, change or remove a tenant (a customer or team with limits), or assign a folder "
	  "to it",
	  1, 2, kvm_run_tenant },
	{ "evict", "[--from TIER] [--yes] [--json] PATH...",
	  "evict chunks from the pool or a tier, or delete them", 1, MANY, kvm_run_evict },
	{ "prefetch", "[--json] PATH...",
	  "start to load files, or all files of a chunk, folder or model, into the pool", 1, MANY,
	  kvm_run_prefetch },
	{ "hint",
	  "[--finished] [--superseded FOLDER] [--priority low|normal|high] [--pause TIME] "
	  "[--ended tool|turn|closed] [--returns TIME] "
	  "[--prefetch] [--demote] [--tenant NAME|none] [--json] PATH...",
	  "tell the mount whether the chunks of a prompt will be needed", 1, MANY, kvm_run_hint },
	{ "push", "[--remove] [--json] NODE PATH...",
	  "offer chunks to another node, which loads them into its pool", 2, MANY, kvm_run_push },
	{ "cluster",
	  "[--for TIME] [--from TIER] [--yes] [--json] [where|pin|unpin|evict] [PATH...]",
	  "show all nodes, or where chunks are; pin, unpin or evict chunks on all nodes", 0, MANY,
	  kvm_run_cluster },
	{ "lease", "[--wait TIME] [--json] PATH...",
	  "load files, print a line for each, and keep them in the pool until a signal ends the "
	  "command",
	  1, MANY, kvm_run_lease },
	{ "dump", "[-o FILE] [--names] [--json] [PATH]",
	  "write a tar file with diagnostics for a bug report, even if the daemon was killed", 0, 1,
	  kvm_run_dump },
	{ "flush", "[--json] [PATH]",
	  "copy closed files to all tiers that lack and admit them, and wait for the copies", 0, 1,
	  kvm_run_flush },
	{ "verify", "[--tier TIER] [--rate SIZE] [--json] [PATH] | --stop [PATH]",
	  "read and check every copy in the tiers", 0, 1, kvm_run_verify },
	{ "devices", "[--json] [PATH]", "list the devices of the store: state, size, use, errors",
	  0, 1, kvm_run_devices },
	{ "add", "[--size SIZE] [--force] [--json] DEVICE [PATH]",
	  "add a block device, or a new data file, to the store", 1, 2, kvm_run_add },
	{ "grow", "[--device DEVICE] [--size SIZE] [--json] [PATH]",
	  "use all the space that the devices have now, or extend a data file", 0, 1,
	  kvm_run_grow },
	{ "remove", "[--force | --cancel | --stop] [--yes] [--json] DEVICE [PATH]",
	  "move the files of a device to the other devices, and remove the device from the store",
	  1, 2, kvm_run_remove },
	{ "import", "[--json] [PATH]",
	  "add the names of the files in the shared tiers to the catalog, so that ls(1) shows them",
	  0, 1, kvm_run_import },
	{ "rekey", "[--json] [PATH]",
	  "read the key file again, and encrypt all copies with the newest key", 0, 1,
	  kvm_run_rekey },
	{ "gpus", "[--json] [PCI-FOLDER]",
	  "list NVIDIA devices, each with the numa= option that places the pool near it", 0, 1,
	  kvm_run_gpus },
	{ "codec", "[--layout LAYOUT] [--json] FILE",
	  "encode a sample of a file with each codec: ratio, error and speed", 1, 1,
	  kvm_run_codec },
	{ "tier-test", "[--json] PROGRAM",
	  "test a program that implements a shared tier (remote=ext://)", 1, 1, kvm_run_tier_test },
	{ "hash", "[--as NAMING] [--json] SCHEME FILE [MODEL [MEMBER=VALUE...]]",
	  "compute chunk keys, or the file names that an engine uses, from a file of token ids", 2,
	  40, kvm_run_hash },
	{ "pools", "[--json] [FOLDER] | --free [--yes] [POOL...]",
	  "list pools in memory, or free the pools of deleted stores", 0, 1000, kvm_run_pools },
	{ "replay",
	  "[--policy NAME[:DISK],...] [--model NAME=POLICY,...] [--capacity CHUNKS[:DISK],...] "
	  "[--tiers] "
	  "[--chain told|learned|none] [--clients N] [--threads N] [--seed N] [--jobs N] [--svg "
	  "FILE] "
	  "[--verbose] [--json] "
	  "TRACE...",
	  "compute the hit ratio of each eviction policy on a trace", 1, 1000, kvm_run_replay },
	{ "trace", "[-o FILE] [--paths] [--for TIME | --seconds N] [--json] [PATH]",
	  "record the requests to a mount, for kvcachectl replay", 0, 1, kvm_run_trace },
	{ "events",
	  "[--for TIME] [--zmq ADDRESS [--topic TEXT] [--arrays] [--bytes] "
	  "[--tokens N]] [--json] [PATH]",
	  "print file events, one per line, or publish them to programs that route prompts", 0, 1,
	  kvm_run_events },
	{ "newkey", "[--json] FILE [MODEL]", "add a random encryption key to a key file", 1, 2,
	  kvm_run_newkey },
	{ "help", "[COMMAND]", "show the list of commands, or the help of one command", 0, 1,
	  run_help },
};

static void usage(FILE *out)
{
	fprintf(out,
		"usage: kvcachectl COMMAND ...\nInspects and controls a mounted kvcachefs.\n\n");
	for (size_t i = 0; i < sizeof commands / sizeof commands[0]; i++) {
		char left[384];

		snprintf(left, sizeof left, "%s %s", commands[i].name, commands[i].args);
		kvc_help_row(out, left, 27, commands[i].help);
	}
	fprintf(out,
		"\nPATH is any path in a mount. Without [PATH], the command uses the only "
		"mounted kvcachefs\nor, if there are several, the one that contains the working "
		"directory.\nMODEL is the path of a folder "
		"directly under the mount; for hash and "
		"newkey, only its name.\nA SIZE is in bytes, or takes a suffix K, M, G or T;\na "
		"TIME is in seconds, or takes a suffix s, m, h, d or w.\nSee kvcachectl(8) for "
		"details.\n\n "
		" -h, --help     "
		"show this help; COMMAND --help shows the help "
		"of one command\n  -V, --version  show the version\n");
}

/* Returns true if the words before "--" ask for help. */
static bool asks_for_help(int n, char **words)
{
	for (int i = 0; i < n && strcmp(words[i], "--") != 0; i++)
		if (!strcmp(words[i], "--help") || !strcmp(words[i], "-h"))
			return true;
	return false;
}

static int print_command_help(const struct kvm_command *c)
{
	kvm_print_help(c);
	return 0;
}

static const struct kvm_command *command_of(const char *name)
{
	for (size_t i = 0; i < sizeof commands / sizeof commands[0]; i++)
		if (!strcmp(commands[i].name, name))
			return &commands[i];
	return NULL;
}

static int run_command(const struct kvm_command *c, int n, char **words)
{
	kvm_command = c;
	return asks_for_help(n, words) ? print_command_help(c) : c->run(n, words);
}

/*
 * Returns rc, or 1 after a message if stdout could not be written (for example, the disk is full).
 */
static int check_stdout(int rc)
{
	if (!ferror(stdout) && !fflush(stdout))
		return rc;
	return rc ?: kvm_fail("stdout: %s", kvc_why(errno));
}

void kvm_put_version(FILE *out)
{
	struct kvc_library own[] = {
		kvc_catalog_library(),
		kvm_library_zmq(),
		kvm_library_msgpack(),
	};

	kvct_put_version(out, "kvcachectl", own, 3);
}

static int refuse_command(const char *name)
{
	struct kvc_near near = { .word = name };
	char text[96];

	if (*name == '-')
		return kvm_misused("%s is not a command; give the command first, then its options",
				   name);
	for (size_t i = 0; i < sizeof commands / sizeof commands[0]; i++)
		kvc_near_try(&near, commands[i].name);
	return kvm_misused("unknown command '%s'%s", name, kvc_near_text(&near, text));
}

static int run_help(int argc, char **argv)
{
	const struct kvm_command *c;
	int err = kvm_plain(&argc, argv);

	if (err)
		return err;
	if (argc) {
		kvm_command = NULL; /* a message refers to the list of commands */
		c = command_of(argv[0]);
		return c ? print_command_help(c) : refuse_command(argv[0]);
	}
	usage(stdout);
	return 0;
}

int main(int argc, char **argv)
{
	const struct kvm_command *c;

	kvm_name = "kvcachectl";
	if (argc < 2)
		return kvm_misused("no command given");
	if (asks_for_help(1, argv + 1)) {
		usage(stdout);
		return check_stdout(0);
	}
	if (!strcmp(argv[1], "-V") || !strcmp(argv[1], "--version")) {
		kvm_put_version(stdout);
		return check_stdout(0);
	}
	c = command_of(argv[1]);
	return c ? check_stdout(run_command(c, argc - 2, argv + 2)) : refuse_command(argv[1]);
}
