/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kvcachectl COMMAND ...: what one asks of a running mount, through the files in its .kvcachefs,
 * and of the machine. One row each in `commands`.
 */
#include "ctl.h"

#include "kvcachefs.h"
#include "replay.h"
#include "trace.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>

/* Copies a file to stdout. */
static int show(const char *inside, const char *name)
{
	char buf[65536], mnt[KVM_PATH];
	int fd = kvm_mount_of(inside, mnt) ? -1 : kvm_mount_open(mnt, name, O_RDONLY);
	ssize_t n = 0;

	if (fd < 0)
		return 1;
	while ((n = read(fd, buf, sizeof buf)) > 0)
		fwrite(buf, 1, (size_t)n, stdout);
	close(fd);
	return n < 0 ? kvm_fail("%s: %s", name, strerror(errno)) : 0;
}

static int run_stats(int argc, char **argv)
{
	return show(argc ? argv[0] : NULL, "stats");
}

static int run_config(int argc, char **argv)
{
	return show(argc ? argv[0] : NULL, "config");
}

/* Starts a sweep and waits for its end. */
static int sweep(const char *inside, const char *word)
{
	char line[256], mnt[KVM_PATH];
	int fd = kvm_mount_of(inside, mnt) ? -1 : kvm_mount_open(mnt, "control", O_WRONLY);

	if (fd < 0)
		return 1;
	if (write(fd, word, strlen(word)) < 0) {
		int err = errno;

		close(fd);
		return kvm_fail("%s: %s", word,
				err == EBUSY ? "another sweep is under way" : strerror(err));
	}
	close(fd);
	for (;;) {
		ssize_t n;

		fd = kvm_mount_open(mnt, "control", O_RDONLY);
		if (fd < 0)
			return 1;
		n = read(fd, line, sizeof line - 1);
		close(fd);
		line[n > 0 ? n : 0] = 0;
		if (!strstr(line, "running:"))
			break;
		usleep(100000);
	}
	fputs(line, stdout);
	return strncmp(line, word, strlen(word)) || strstr(line, "failed: ") ||
	       !strstr(line, " 0 failed");
}

static int run_import(int argc, char **argv)
{
	return sweep(argc ? argv[0] : NULL, "import");
}

static int run_rekey(int argc, char **argv)
{
	return sweep(argc ? argv[0] : NULL, "rekey");
}

/* A path as any program would name it, as seen from the root of its mount. */
static int print_below(FILE *out, const char *mnt, const char *path)
{
	KVC_MEM char *whole = realpath(path, NULL);
	size_t n = strlen(mnt);

	if (!whole)
		return kvm_fail("%s: %s", path, strerror(errno));
	if (strncmp(whole, mnt, n) != 0 || (whole[n] && whole[n] != '/'))
		return kvm_fail("%s: it is not below %s", path, mnt);
	fprintf(out, "%s\n", whole[n] ? whole + n + 1 : "");
	return 0;
}

/* The lines of the paths; the first may be the mount that the others are below of. */
static int print_paths(FILE *out, char mnt[KVM_PATH], int n, char **paths)
{
	struct stat first, root;
	int err = kvm_mount_of(paths[0], mnt);

	if (err)
		return err;
	if (!stat(paths[0], &first) && !stat(mnt, &root) && first.st_ino == root.st_ino &&
	    first.st_dev == root.st_dev) {
		if (n == 1)
			return kvm_misused("%s: behind the mount come the paths in it", paths[0]);
		for (int i = 1; i < n; i++)
			fprintf(out, "%s\n", paths[i]);
		return 0;
	}
	for (int i = 0; i < n && !err; i++)
		err = print_below(out, mnt, paths[i]);
	return err;
}

static int hold_lease(int fd)
{
	char buf[65536];
	ssize_t got;

	while ((got = read(fd, buf, sizeof buf)) > 0)
		fwrite(buf, 1, (size_t)got, stdout);
	if (got < 0)
		return kvm_fail("lease: %s", strerror(errno));
	if (fflush(stdout))
		return kvm_fail("%s", strerror(errno));
	pause();
	return 0;
}

/*
 * prefetch PATH...: asks for them without waiting. lease: prints the lines and holds until a
 * signal.
 */
static int ask(char **paths, int n, bool hold)
{
	KVC_MEM char *list = NULL;
	size_t len = 0, at = 0;
	char mnt[KVM_PATH];
	FILE *text = open_memstream(&list, &len);
	KVC_FD int fd = -1;
	int err;

	if (!text)
		return kvm_fail("out of memory");
	if (!hold)
		fputs("prefetch\n", text);
	err = print_paths(text, mnt, n, paths);
	if (fclose(text))
		return kvm_fail("out of memory");
	if (err)
		return err;
	fd = kvm_mount_open(mnt, "lease", O_RDWR);
	if (fd < 0)
		return 1;
	while (at < len) {
		ssize_t w = write(fd, list + at, len - at);

		if (w < 0)
			return kvm_fail("lease: %s", strerror(errno));
		at += (size_t)w;
	}
	return hold ? hold_lease(fd) : 0;
}

static int run_prefetch(int argc, char **argv)
{
	return ask(argv, argc, false);
}

static int run_lease(int argc, char **argv)
{
	return ask(argv, argc, true);
}

/* A key one above the highest id that is there; *id gets its id. What is secret stays in `text`. */
static int add_key(FILE *f, const char *model, unsigned long *id, char *text, size_t room)
{
	uint8_t key[32];
	unsigned long max = 0, n;
	int err = 0;

	while (fgets(text, (int)room, f))
		if (sscanf(text, "%lu ", &n) == 1 && n > max)
			max = n;
	if (ferror(f) || fseek(f, 0, SEEK_END))
		return -EIO;
	if (max >= UINT32_MAX)
		return -ERANGE;
	if (getrandom(key, sizeof key, 0) != sizeof key)
		return -EIO;
	*id = max + 1;
	for (size_t i = 0; i < sizeof key; i++)
		snprintf(text + 2 * i, room - 2 * i, "%02x", key[i]);
	if (fprintf(f, "%lu %s%s%s\n", *id, text, model ? " " : "", model ? model : "") < 0 ||
	    fflush(f) || fsync(fileno(f)))
		err = -errno;
	explicit_bzero(key, sizeof key);
	return err;
}

/* Adds a random key to a key file, made with mode 0600 where it is missing. */
static int run_newkey(int argc, char **argv)
{
	struct {
		char line[512], stream[4096];
	} secret;
	unsigned long id = 0;
	int fd = open(argv[0], O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC, 0600), err;
	struct stat st;
	FILE *f = fd < 0 ? NULL : fdopen(fd, "a+");

	if (!f)
		return kvm_fail("%s: %s", argv[0], strerror(errno));
	if (fstat(fd, &st) || (st.st_mode & 077)) {
		fclose(f);
		return kvm_fail("%s can be used by others; make it yours alone: chmod 600",
				argv[0]);
	}
	err = setvbuf(f, secret.stream, _IOFBF, sizeof secret.stream) ? -ENOMEM : 0;
	if (!err)
		err = add_key(f, argc > 1 ? argv[1] : NULL, &id, secret.line, sizeof secret.line);
	fclose(f);
	explicit_bzero(&secret, sizeof secret);
	if (err)
		return kvm_fail("no key could be added to %s: %s", argv[0], strerror(-err));
	printf("key %lu added to %s\n", id, argv[0]);
	return 0;
}

struct naming {            /* how a key is printed */
	const char *model; /* NULL: the key alone */
	bool as;           /* as the path of `how`; otherwise MODEL/KEY */
	enum kvcachefs_naming how;
	struct kvcachefs_name name;
};

static int print_key(const struct kvcachefs_hasher *h, const void *key, struct naming *n)
{
	char text[KVCACHEFS_TEXT_MAX], path[KVCACHEFS_PATH_MAX];

	kvcachefs_hasher_text(h, key, text);
	if (n->as) {
		if (kvcachefs_name_set(&n->name, "key", text) ||
		    kvcachefs_name_build(n->how, &n->name, path))
			return kvm_fail("%s", kvcachefs_error());
		puts(path);
	} else {
		printf("%s%s%s\n", n->model ? n->model : "", n->model ? "/" : "", text);
	}
	return 0;
}

/* --as NAMING before, MODEL and MEMBER=VALUE... behind the scheme and the file. */
static int read_naming(struct naming *n, int *argc, char ***argv)
{
	char **v = *argv;
	int left = *argc;

	if (!strcmp(v[0], "--as")) {
		n->as = true;
		if (kvcachefs_naming_find(v[1], &n->how))
			return kvm_fail("%s", kvcachefs_error());
		*argv = v += 2;
		*argc = left -= 2;
		if (left < 3)
			return kvm_fail("--as wants SCHEME FILE MODEL");
	}
	n->model = left > 2 ? v[2] : NULL;
	if (n->model && n->as && kvcachefs_name_set(&n->name, "model", n->model))
		return kvm_fail("%s", kvcachefs_error());
	for (int i = 3; i < left; i++) {
		char *value = strchr(v[i], '=');

		if (!n->as || !value)
			return kvm_fail("%s: it is MEMBER=VALUE, with --as", v[i]);
		*value++ = 0;
		if (kvcachefs_name_set(&n->name, v[i], value))
			return kvm_fail("%s", kvcachefs_error());
	}
	return 0;
}

/*
 * hash [--as NAMING] SCHEME FILE [MODEL [MEMBER=VALUE...]]: keys of a file of token ids (decimal,
 * anything between).
 */
static int run_hash(int argc, char **argv)
{
	struct kvcachefs_keys keys = { .seed = getenv("PYTHONHASHSEED") };
	struct naming naming = { .model = NULL };
	struct kvcachefs_hasher *h;
	char *colon, *end;
	size_t made;
	FILE *f;
	int c, err = read_naming(&naming, &argc, &argv);

	if (err)
		return err;
	colon = strchr(argv[0], ':');
	if (colon) {
		*colon = 0;
		keys.block_tokens = (unsigned)strtoul(colon + 1, &end, 10);
		if (!keys.block_tokens || *end || colon[1] < '0' || colon[1] > '9' ||
		    keys.block_tokens > 1 << 20)
			return kvm_fail("%s: a block has 1 to 1048576 tokens", colon + 1);
	}
	if (kvcachefs_scheme_find(argv[0], &keys.scheme) || kvcachefs_hasher_new(&h, &keys))
		return kvm_fail("%s", kvcachefs_error());
	f = strcmp(argv[1], "-") ? fopen(argv[1], "re") : stdin;
	if (!f) {
		kvcachefs_hasher_free(h);
		return kvm_fail("%s: %s", argv[1], strerror(errno));
	}
	do {
		uint64_t token = 0;
		bool any = false;
		uint8_t key[KVCACHEFS_KEY_MAX];

		while ((c = getc(f)) >= '0' && c <= '9') {
			token = token * 10 + (uint64_t)(c - '0');
			any = true;
			if (token > UINT32_MAX) {
				err = kvm_fail("%s: a token id is larger than 4294967295", argv[1]);
				break;
			}
		}
		if (!any || err)
			continue;
		if (kvcachefs_hasher_feed(h, &(uint32_t){ (uint32_t)token }, 1, key, 1, &made))
			err = kvm_fail("%s", kvcachefs_error());
		else if (made)
			err = print_key(h, key, &naming);
	} while (c != EOF && !err);
	kvcachefs_hasher_free(h);
	if (f != stdin)
		fclose(f);
	return err;
}

/* One number from a file of sysfs. */
static bool read_number(const char *folder, const char *device, const char *name, long *v)
{
	char path[4200], text[32] = "", *end;
	FILE *f;

	snprintf(path, sizeof path, "%s/%s/%s", folder, device, name);
	f = fopen(path, "re");
	if (!f)
		return false;
	bool ok = fgets(text, sizeof text, f);

	fclose(f);
	*v = strtol(text, &end, 0);
	return ok && end != text;
}

/*
 * Memory is nearest to a device on the device's own NUMA node: a pool elsewhere halves the rate of
 * copies on machines with two sockets.
 */
static int run_gpus(int argc, char **argv)
{
	const char *folder = argc ? argv[0] : "/sys/bus/pci/devices";
	DIR *d = opendir(folder);
	struct dirent *e;
	unsigned n = 0;

	if (!d)
		return kvm_fail("%s: %s", folder, strerror(errno));
	while ((e = readdir(d))) {
		long vendor, class, node = -1;

		if (e->d_name[0] == '.' || !read_number(folder, e->d_name, "vendor", &vendor) ||
		    !read_number(folder, e->d_name, "class", &class) || vendor != 0x10de ||
		    class >> 16 != 3) /* NVIDIA; a display or 3D controller */
			continue;
		read_number(folder, e->d_name, "numa_node", &node);
		if (node < 0)
			printf("%s on no particular node\n", e->d_name);
		else
			printf("%s node %ld: mount with numa=bind:%ld\n", e->d_name, node, node);
		n++;
	}
	closedir(d);
	if (!n)
		printf("there is no NVIDIA device\n");
	return 0;
}

static const struct {
	const char *name, *args, *help;
	int min, max;
	int (*run)(int argc, char **argv);
} commands[] = {
	{ "status", "[--interval TIME] [--json] [PATH]", "a mount on one screen", 0, 1000,
	  kvm_run_status },
	{ "stats", "[PATH]", "counters of a mount", 0, 1, run_stats },
	{ "config", "[PATH]", "its options and what was decided", 0, 1, run_config },
	{ "ls", "[--recursive] [--json] [PATH]", "chunks and files: where, size, hits, pin, ttl", 0,
	  1000, kvm_run_ls },
	{ "stat", "[--json] PATH...", "all that is known of them", 1, 1 << 20, kvm_run_stat },
	{ "pin", "[--for TIME] PATH...", "chunks stay in memory, for ever or so long", 1, 1 << 20,
	  kvm_run_pin },
	{ "unpin", "PATH...", "and no more", 1, 1 << 20, kvm_run_unpin },
	{ "ttl", "TIME|never PATH...", "when chunks, or those of a model, are dropped", 2, 1 << 20,
	  kvm_run_ttl },
	{ "quota", "[--yes] SIZE|none MODEL...", "what a model's files may take", 2, 1 << 20,
	  kvm_run_quota },
	{ "policy", "NAME|none MODEL...", "who of a model is evicted first", 2, 1 << 20,
	  kvm_run_policy },
	{ "evict", "[--from TIER] [--yes] PATH...", "out of memory, a tier, or all", 1, 1 << 20,
	  kvm_run_evict },
	{ "prefetch", "PATH...", "load these into the pool; a folder means all files in it", 1,
	  1 << 20, run_prefetch },
	{ "lease", "PATH...", "load them, print a line each, and hold them until a signal", 1,
	  1 << 20, run_lease },
	{ "import", "[PATH]", "take in the listing of the shared tiers", 0, 1, run_import },
	{ "rekey", "[PATH]", "seal again what is not sealed with the newest key", 0, 1, run_rekey },
	{ "gpus", "[PCI-FOLDER]", "NVIDIA devices, and the numa= that puts a pool near each", 0, 1,
	  run_gpus },
	{ "hash", "SCHEME FILE [MODEL]",
	  "chunk keys of a file of token ids, or the paths that engines give them", 2, 40,
	  run_hash },
	{ "pools", "[--json] [FOLDER] | --free [--yes] [POOL...]",
	  "pools left in memory; those of no store are given back", 0, 1000, kvm_run_pools },
	{ "replay", "[OPTION...] TRACE...", "what each policy would have had of a trace's chunks",
	  1, 1000, kvm_run_replay },
	{ "trace", "[OPTION...] [PATH]", "record a mount's requests for replay", 0, 8,
	  kvm_run_trace },
	{ "newkey", "FILE [MODEL]", "add a random key to a key file", 1, 2, run_newkey },
};

static void usage(FILE *out)
{
	fprintf(out, "usage: kvcachectl COMMAND ...\nAsks something of a mounted kvcachefs.\n\n");
	for (size_t i = 0; i < sizeof commands / sizeof commands[0]; i++) {
		char left[80];

		snprintf(left, sizeof left, "%s %s", commands[i].name, commands[i].args);
		if (strlen(left) > 24)
			fprintf(out, "  %s\n%26s %s\n", left, "", commands[i].help);
		else
			fprintf(out, "  %-24s %s\n", left, commands[i].help);
	}
	fprintf(out, "\nA PATH is anything in the mount; without one it is the only mount.\n"
		     "\n  -h, --help  this\n  -V, --version  the version\n");
}

int main(int argc, char **argv)
{
	kvm_name = "kvcachectl";
	if (argc > 1 && (!strcmp(argv[1], "-h") || !strcmp(argv[1], "--help"))) {
		usage(stdout);
		return 0;
	}
	if (argc > 1 && (!strcmp(argv[1], "-V") || !strcmp(argv[1], "--version"))) {
		printf("kvcachectl %s\n", KVC_VERSION);
		return 0;
	}
	for (size_t i = 0; argc > 1 && i < sizeof commands / sizeof commands[0]; i++) {
		if (strcmp(commands[i].name, argv[1]) != 0)
			continue;
		if (argc == 3 && !strcmp(argv[2], "--help")) {
			printf("usage: kvcachectl %s %s\n%s\n", commands[i].name, commands[i].args,
			       commands[i].help);
			return 0;
		}
		if (argc - 2 >= commands[i].min && argc - 2 <= commands[i].max)
			return commands[i].run(argc - 2, argv + 2);
		kvm_fail("usage: kvcachectl %s %s", commands[i].name, commands[i].args);
		return 2;
	}
	return argc > 1 ? kvm_misused("there is no command %s", argv[1])
			: kvm_misused("a command is missing");
}
