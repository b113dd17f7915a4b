/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The help of one command: a line for each of its options and operands, the syntax of the values
 * that it takes, and examples. The options and operands of a command are those of its usage in the
 * table of commands (ctl.c); the tables here explain them.
 */
#include "ctl.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>

static const struct {
	const char *command; /* NULL: every command that does not have a row of its own */
	const char *option, *value, *text;
} options[] = {
	{ NULL, "--json", NULL, "print JSON; kvcachectl(8) lists the members" },
	{ NULL, "--yes", NULL, "do not ask for confirmation, for example in a script" },
	{ "top", "--interval", "TIME", "time between two tables, from 1s to 1h (default 2s)" },
	{ "top", "--count", "N", "end after this number of tables" },
	{ "doctor", "--for", "TIME", "record requests for this time, from 1s to 1d (default 10s)" },
	{ "doctor", "--trace", "FILE",
	  "replay this trace of the mount instead of recording requests" },
	{ "top", "--sort", "COLUMN",
	  "order of the models: use (opens, requests for names that do not\n"
	  "exist, and creates; default), asked (chunks requested), found (the\n"
	  "percentage of these that were found, lowest first), memory (the\n"
	  "percentage of opens that found the file in memory, lowest first),\n"
	  "opens, creates, loaded or copied (bytes from or to the tiers),\n"
	  "pool (bytes in it) or name" },
	{ "status", "--interval", "TIME",
	  "show the state and the activity after each interval, from 1s to 1h" },
	{ "status", "--count", "N", "end after this number of intervals" },
	{ "reload", "-o", "OPTIONS",
	  "options that kvcachefs(8) marks \"Live\", with their new values,\n"
	  "separated by commas" },
	{ "reload", "--save", "FILE",
	  "also write the new values to the OPTIONS= line of FILE,\n"
	  "a file such as /etc/kvcachefs/NAME.conf" },
	{ "reload", "--file", "FILE",
	  "take the options from the OPTIONS= line of FILE, a file such as\n"
	  "/etc/kvcachefs/NAME.conf, and the mount from its MOUNTPOINT= line\n"
	  "unless PATH is given" },
	{ "ls", "--recursive", NULL, "list the chunks in all folders below PATH; the same as -r" },
	{ "ls", "-r", NULL, "list the chunks in all folders below PATH" },
	{ "ls", "-l", NULL, "no effect: ls always prints one line for each file or chunk" },
	{ "trace", "--json", NULL, "no effect: the output is always JSON" },
	{ "events", "--json", NULL,
	  "no effect, because the output is always JSON; refused with --zmq" },
	{ "ttl", "--chunks", NULL, "set the ttl of the present chunks at and below PATH" },
	{ "cluster", "--for", "TIME", "pin: remove the pin after this time, at least 2s" },
	{ "cluster", "--from", "TIER",
	  "evict: tier to remove the copies from: cpu (the pool; default), all\n"
	  "(delete the chunks), or the name of another tier, such as disk" },
	{ "push", "--remove", NULL,
	  "when the node has loaded a chunk, drop it on this node, as evict\n"
	  "--from all does" },
	{ "pin", "--for", "TIME", "remove the pin after this time, at least 2s (default: never)" },
	{ "tenant", "--quota", "SIZE|none",
	  "maximum size of the tenant's chunks, in the pool or in a tier; a\n"
	  "chunk with several copies counts once" },
	{ "tenant", "--share", "SIZE|none",
	  "the tenant's part of the pool; chunks beyond it are evicted first" },
	{ "tenant", "--user", "UID|none", "user who may assign chunks to the tenant" },
	{ "tenant", "--folder", "FOLDER",
	  "new chunks in this folder belong to the tenant; without PATH,\n"
	  "the mount is the one that contains FOLDER" },
	{ "tenant", "--remove", NULL, "remove the tenant; its chunks stay" },
	{ "evict", "--from", "TIER",
	  "tier to remove the copies from: cpu (the pool; default), disk,\n"
	  "dir, redis, s3 or ext (the first remote of that kind); all: delete\n"
	  "the chunks from the pool and all tiers" },
	{ "hint", "--finished", NULL,
	  "the prompt will not be continued: evict its chunks before others,\n"
	  "except for those that other prompts share" },
	{ "hint", "--superseded", "FOLDER",
	  "a newer prompt, whose last chunk is FOLDER, replaces this one:\n"
	  "evict the chunks that are not in the newer prompt before others" },
	{ "hint", "--priority", "low|normal|high",
	  "evict these chunks before others (low), or after others for one\n"
	  "hour (high); normal: end earlier hints about them" },
	{ "hint", "--pause", "TIME",
	  "the session pauses: evict its chunks after others for this time,\n"
	  "at most 1h, or until they are used again" },
	{ "hint", "--ended", "tool|turn|closed",
	  "how the request ended: with a tool call, with an answer, or\n"
	  "with the end of the session" },
	{ "hint", "--returns", "TIME",
	  "the session's next request is expected after this time, at most\n"
	  "1h; not with --ended" },
	{ "hint", "--prefetch", NULL, "load the chunks into the pool" },
	{ "hint", "--demote", NULL,
	  "copy the chunks to the tiers now, and evict them before others" },
	{ "hint", "--tenant", "NAME|none", "assign the chunks to this tenant; none: to no tenant" },
	{ "lease", "--wait", "TIME",
	  "wait this time, 1s to 60s, for files that do not exist yet; give\n"
	  "the root of the mount first, and the files relative to it" },
	{ "dump", "-o", "FILE",
	  "the new tar file; - means stdout (default: a file in the current\n"
	  "folder, kvcachefs-dump-DATE-TIME.tar; its name is printed)" },
	{ "dump", "--names", NULL, "keep the names of models; default: numbers replace them" },
	{ "verify", "--tier", "TIER", "read only the copies in tiers of this kind, such as disk" },
	{ "verify", "--rate", "SIZE", "maximum bytes to read per second (default: no limit)" },
	{ "verify", "--stop", NULL, "end the verification that is running" },
	{ "add", "--size", "SIZE",
	  "bytes to use; required for a file (default: the whole device)" },
	{ "add", "--force", NULL, "overwrite a filesystem or another store on the device" },
	{ "grow", "--device", "DEVICE", "grow only this device; give its path or number" },
	{ "grow", "--size", "SIZE",
	  "new size of the device, or of each device without --device:\n"
	  "extends a data file, and must fit on a block device (default: all\n"
	  "the space that it has now; to enlarge the block device itself, use\n"
	  "a tool such as lvextend first)" },
	{ "remove", "--force", NULL, "drop files that cannot be read from the device" },
	{ "remove", "--cancel", NULL, "cancel a removal that was not completed: keep the device" },
	{ "remove", "--stop", NULL,
	  "interrupt the running removal, even of another device: DEVICE is\n"
	  "ignored. No more files are moved; the device still gets no new\n"
	  "files" },
	{ "codec", "--layout", "LAYOUT",
	  "data type and axes of the attention keys and values, such as\n"
	  "'bf16 k2 l32 t256 h8 d128'; kvcachefs-codecs(7) explains layouts\n"
	  "(default: the layout attribute of the file or of a folder above it;\n"
	  "without a layout, only "
	  "lossless codecs are tried)" },
	{ "hash", "--as", "NAMING",
	  "print the names of an engine's files; NAMING is lmcache-fs, vllm-fs\n"
	  "or another value that kvcachectl(8) lists" },
	{ "pools", "--free", NULL,
	  "free all pools whose stores are deleted, or only the given pools.\n"
	  "Some pools are freed only if they are given: those whose store is\n"
	  "not known, and those outside /run/kvcachefs that are not mounts" },
	{ "replay", "--policy", "NAME,...",
	  "policies to compare (default: all); NAME:DISK uses the policy\n"
	  "DISK for the disk tier, which --tiers or --capacity adds" },
	{ "replay", "--model", "NAME=POLICY,...", "set the policies of these models in the trace" },
	{ "replay", "--capacity", "CHUNKS,...",
	  "sizes of the pool: numbers of chunks (K is 1000 here: 5K means\n"
	  "5000), or bytes such as 8GiB; CHUNKS:DISK adds a disk tier of the\n"
	  "size DISK (default: 1K,5K,10K,20K)" },
	{ "replay", "--tiers", NULL, "add a disk tier of ten times the size of the pool" },
	{ "replay", "--chain", "told|learned|none",
	  "how the policies know which chunk precedes another in a prompt.\n"
	  "told: as in the trace (default); learned: inferred from the\n"
	  "requests; none: not at all" },
	{ "replay", "--clients", "N", "prompts that run at the same time (1 to 64; default 1)" },
	{ "replay", "--threads", "N",
	  "with --chain learned: threads of the simulated engine (1 to 64;\n"
	  "default 1)" },
	{ "replay", "--seed", "N", "seed of the random numbers that policies use (default 1)" },
	{ "replay", "--jobs", "N",
	  "number of replays that run in parallel (default: the number of\n"
	  "CPUs)" },
	{ "replay", "--svg", "FILE", "draw a chart of the hit ratios" },
	{ "replay", "--verbose", NULL, "also print speeds and the policies' own reports" },
	{ "trace", "-o", "FILE", "write the trace to FILE (default: stdout)" },
	{ "trace", "--paths", NULL, "also record the paths of chunks and the names of models" },
	{ "trace", "--for", "TIME", "end after this time (default: at a signal)" },
	{ "trace", "--seconds", "N", "the same as --for, as a number of seconds" },
	{ "events", "--for", "TIME", "end after this time (default: at a signal)" },
	{ "events", "--zmq", "ADDRESS",
	  "publish to routers by ZeroMQ, for example on tcp://*:5557" },
	{ "events", "--topic", "TEXT", "topic of the messages (default: empty)" },
	{ "events", "--arrays", NULL,
	  "encode events as lists, as vLLM up to 0.23 did; llm-d needed this\n"
	  "until June 2026" },
	{ "events", "--bytes", NULL, "send whole hashes, not their last 8 bytes as a number" },
	{ "events", "--tokens", "N", "number of tokens in a file (default: not known)" },
};

/* Operands that need more than the common paragraphs about PATH, MODEL, SIZE and TIME. */
static const struct {
	const char *command, *operand, *text;
} operands[] = {
	{ "log", "error|warn|info|debug", "the new level; without it, show the level" },
	{ "ls", "PATH", "the folder or file to list (default: the root of the mount)" },
	{ "stat", "PATH", "a file, a chunk, the folder of a model, or another folder" },
	{ "pin", "PATH",
	  "a chunk, a file (its whole chunk), or a folder (all its present\n"
	  "chunks)" },
	{ "pins", "PATH", "list only the pinned chunks at and below this path" },
	{ "unpin", "PATH", "a chunk, a file (its whole chunk), or a folder (all its chunks)" },
	{ "ttl", "TIME|never", "time until the chunks are dropped; never: no ttl" },
	{ "ttl", "PATH",
	  "a chunk, a file (its whole chunk), the folder of a model, or the\n"
	  "mount (all its models); with --chunks, also any other folder" },
	{ "quota", "SIZE|none", "the new limit, at least 1M; none: remove the quota" },
	{ "policy", "NAME|none",
	  "a policy that kvcachefs-policies(7) describes, such as\n"
	  "prefix or lru" },
	{ "tenant", "NAME",
	  "name of the tenant; with --folder, the name \"none\" removes the\n"
	  "folder's assignment to a tenant" },
	{ "evict", "PATH", "a chunk, a file (its whole chunk), or a folder (all its chunks)" },
	{ "prefetch", "PATH",
	  "files or folders; if the first is the root of the mount, the\n"
	  "others are relative to the root" },
	{ "hint", "PATH", "the chunks of one prompt, in order from its beginning" },
	{ "push", "NODE", "HOST:PORT of the node, as in nodes= of the peers:// remote" },
	{ "push", "PATH", "a chunk, a file (only this file), or a folder (all its chunks)" },
	{ "cluster", "where|pin|unpin|evict",
	  "where: print which nodes have the chunks or files at each PATH; the\n"
	  "others do on all nodes what the command of this name does on one.\n"
	  "Other nodes allow them only with their option peer_control" },
	{ "cluster", "PATH",
	  "any path in the mount; after one of these words a chunk, a file or a\n"
	  "folder, which need not exist on this node" },
	{ "lease", "PATH",
	  "files or folders; if the first is the root of the mount, the\n"
	  "others are relative to the root" },
	{ "add", "DEVICE", "path of a block device, or of the data file to create" },
	{ "remove", "DEVICE", "path or number of the device; kvcachectl devices lists both" },
	{ "gpus", "PCI-FOLDER", "folder to read instead of /sys/bus/pci/devices" },
	{ "codec", "FILE", "a file with keys and values, on any filesystem" },
	{ "tier-test", "PROGRAM",
	  "path of the program, and its options as in the URL of remote=ext://,\n"
	  "such as './driver?folder=/srv/values'" },
	{ "dump", "PATH",
	  "any path in the mount; needed if its daemon was killed, unless\n"
	  "the working directory is in the mount" },
	{ "hash", "SCHEME",
	  "how an engine computes keys, such as vllm-sha256; libkvcachefs(3)\n"
	  "lists the schemes. A suffix such as :32 sets the number of tokens\n"
	  "in a chunk" },
	{ "hash", "FILE", "the token ids as decimal numbers; - means stdin" },
	{ "hash", "MODEL",
	  "name of the model; without --as, it is printed before each key, as\n"
	  "MODEL/KEY; with --as, it is required as a part of the file names" },
	{ "hash", "MEMBER=VALUE", "with --as: another part of the file names, such as rank=0" },
	{ "pools", "FOLDER",
	  "also list the pools in this folder that are not mounts; give the\n"
	  "value of run= of a daemon that is not permitted to mount a tmpfs\n"
	  "(default: /run/kvcachefs)" },
	{ "pools", "POOL", "path of a pool, as kvcachectl pools prints it" },
	{ "replay", "TRACE", "file written by kvcachectl trace; kvcachectl(8) has the format" },
	{ "newkey", "FILE", "the key file, as in keyfile=; if it is missing, it is created" },
	{ "newkey", "MODEL", "name of a model that gets an encryption key of its own" },
	{ "help", "COMMAND", "the command to explain; without it, list the commands" },
};

/* Two for each command, without the program's name. */
static const struct {
	const char *command, *first, *second;
} examples[] = {
	{ "doctor", "doctor /mnt/kv", "doctor --for 10m --json /mnt/kv" },
	{ "status", "status /mnt/kv", "status --interval 10s --count 1" },
	{ "top", "top /mnt/kv", "top --sort found --interval 5s --count 12 --json" },
	{ "stats", "stats /mnt/kv", "stats --json" },
	{ "config", "config /mnt/kv", "config --json" },
	{ "reload", "reload -o high=95,low=85 /mnt/kv", "reload /mnt/kv" },
	{ "log", "log /mnt/kv", "log debug /mnt/kv" },
	{ "ls", "ls /mnt/kv", "ls -r /mnt/kv/llama-70b" },
	{ "stat", "stat /mnt/kv/llama-70b", "stat --json /mnt/kv/llama-70b/chunk-1" },
	{ "pin", "pin /mnt/kv/llama-70b/system-prompt", "pin --for 2h /mnt/kv/llama-70b/chunk-1" },
	{ "unpin", "unpin /mnt/kv/llama-70b/system-prompt", "unpin /mnt/kv/llama-70b/*" },
	{ "pins", "pins /mnt/kv", "pins --json" },
	{ "ttl", "ttl 7d /mnt/kv/llama-70b", "ttl --chunks --yes 1d /mnt/kv/llama-70b" },
	{ "quota", "quota 500G /mnt/kv/llama-70b", "quota --yes none /mnt/kv/llama-70b" },
	{ "quotas", "quotas /mnt/kv", "quotas --json" },
	{ "policy", "policy lru /mnt/kv/llama-70b", "policy --yes none /mnt/kv" },
	{ "tenants", "tenants /mnt/kv", "tenants --json" },
	{ "tenant", "tenant --quota 500G --share 16G acme /mnt/kv",
	  "tenant --folder /mnt/kv/acme acme" },
	{ "evict", "evict /mnt/kv/llama-70b/chunk-1", "evict --from all --yes /mnt/kv/old-model" },
	{ "prefetch", "prefetch /mnt/kv/llama-70b/chunk-1",
	  "prefetch /mnt/kv/m/chunk-1 /mnt/kv/m/chunk-2" },
	{ "hint", "hint --finished /mnt/kv/m/chunk-1 /mnt/kv/m/chunk-2",
	  "hint --pause 10m /mnt/kv/m/chunk-1 /mnt/kv/m/chunk-2" },
	{ "push", "push b:9465 /mnt/kv/llama-70b/chunk-1", "push --json b:9465 /mnt/kv/llama-70b" },
	{ "cluster", "cluster /mnt/kv", "cluster where /mnt/kv/llama-70b/chunk-1" },
	{ "lease", "lease /mnt/kv/llama-70b/chunk-1", "lease --wait 30s /mnt/kv m/chunk-1/layer" },
	{ "dump", "dump /mnt/kv", "dump -o bug.tar --names /mnt/kv" },
	{ "flush", "flush /mnt/kv", "flush --json" },
	{ "verify", "verify --tier disk --rate 100M /mnt/kv", "verify --stop /mnt/kv" },
	{ "devices", "devices /mnt/kv", "devices --json" },
	{ "add", "add /dev/disk/by-id/nvme-B /mnt/kv", "add --size 1T /srv/b/kv.data /mnt/kv" },
	{ "grow", "grow /mnt/kv", "grow --device /srv/b/kv.data --size 2T /mnt/kv" },
	{ "remove", "remove /dev/disk/by-id/nvme-B /mnt/kv", "remove --cancel 1 /mnt/kv" },
	{ "import", "import /mnt/kv", "import --json" },
	{ "rekey", "rekey /mnt/kv", "rekey --json" },
	{ "gpus", "gpus", "gpus --json" },
	{ "codec", "codec --layout 'bf16 k2 l2 t64 h2 d64' chunk.bin", "codec --json chunk.bin" },
	{ "tier-test", "tier-test '/usr/local/lib/kvtier/folder.py?folder=/srv/values'",
	  "tier-test --json '/usr/local/lib/kvtier/folder.py?folder=/srv/values'" },
	{ "hash", "hash vllm-sha256 tokens.txt",
	  "hash --as vllm-fs vllm-sha256 tokens.txt llama config=1a2b3c4d5e6f" },
	{ "pools", "pools", "pools --free" },
	{ "replay", "replay --policy lru,prefix --capacity 1K,10K trace.jsonl",
	  "replay --tiers --svg chart.svg trace.jsonl" },
	{ "trace", "trace -o trace.jsonl /mnt/kv", "trace --for 10m /mnt/kv > trace.jsonl" },
	{ "events", "events --for 1m /mnt/kv", "events --zmq 'tcp://*:5557' --tokens 256 /mnt/kv" },
	{ "newkey", "newkey /etc/kvcachefs/keys", "newkey /etc/kvcachefs/keys llama-70b" },
	{ "help", "help", "help status" },
};

/* Finds a word of the usage: an option, SIZE or TIME. */
static bool usage_has(const char *usage, const char *word)
{
	size_t n = strlen(word);

	for (const char *at = usage; (at = strstr(at, word)); at += n)
		if ((at == usage || strchr("[ |", at[-1])) && (!at[n] || strchr("] |", at[n])))
			return true;
	return false;
}

/* True if row i explains an option of the command. The command's own row hides a general one. */
static bool applies(const struct kvm_command *c, size_t i)
{
	if (!usage_has(c->args, options[i].option))
		return false;
	if (options[i].command)
		return !strcmp(options[i].command, c->name);
	for (size_t j = 0; j < sizeof options / sizeof options[0]; j++)
		if (options[j].command && !strcmp(options[j].command, c->name) &&
		    !strcmp(options[j].option, options[i].option))
			return false;
	return true;
}

/* Prints a row of the help. Further lines of its text are indented to the column of the first. */
static void print_help_row(bool *any, const char *left, const char *text)
{
	int n = (int)strcspn(text, "\n");

	printf("%s  %-27s %.*s\n", *any ? "" : "\n", left, n, text);
	while (*(text += n)) {
		n = (int)strcspn(++text, "\n");
		printf("%30s%.*s\n", "", n, text);
	}
	*any = true;
}

void kvm_print_help(const struct kvm_command *c)
{
	bool any = false;

	printf("usage: kvcachectl %s %s\n%c%s.\n", c->name, c->args, toupper(c->help[0]),
	       c->help + 1);
	for (size_t i = 0; i < sizeof options / sizeof options[0]; i++) {
		char left[64];

		if (!applies(c, i))
			continue;
		snprintf(left, sizeof left, "%s%s%s", options[i].option,
			 options[i].value ? " " : "", options[i].value ?: "");
		print_help_row(&any, left, options[i].text);
	}
	for (size_t i = 0; i < sizeof operands / sizeof operands[0]; i++)
		if (!strcmp(operands[i].command, c->name))
			print_help_row(&any, operands[i].operand, operands[i].text);
	putchar('\n');
	if (usage_has(c->args, "SIZE"))
		puts("A SIZE is a number of bytes, or takes a suffix K, M, G or T (powers of "
		     "1024), such as 500G.");
	if (usage_has(c->args, "TIME"))
		puts("A TIME is a whole number of seconds, or takes a suffix s, m, h, d or w, such "
		     "as 10m.");
	if (usage_has(c->args, "[PATH]"))
		puts("PATH is any path in the mount. Without it, the command uses the only mount "
		     "or, if there are\nseveral, the one that contains the working directory.");
	if (usage_has(c->args, "MODEL..."))
		puts("MODEL is the path of a folder directly under the mount. The path of the "
		     "mount stands for all\nmodels that exist now.");
	for (size_t i = 0; i < sizeof examples / sizeof examples[0]; i++)
		if (!strcmp(examples[i].command, c->name))
			printf("Examples:\n  kvcachectl %s\n  kvcachectl %s\n", examples[i].first,
			       examples[i].second);
	puts("See kvcachectl(8) for details.");
}
