/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kvcachectl COMMAND ...: what one asks of a running mount, through the files in its .kvcachefs,
 * and of the machine. One row each in `commands`.
 */
#include "tool.h"

#include "kvcachefs.h"
#include "pools.h"
#include "replay.h"
#include "util.h"

#include <dirent.h>
#include <fcntl.h>
#include <getopt.h>
#include <libgen.h>
#include <linux/magic.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/vfs.h>

static int open_in(const char *mnt, const char *name, int flags)
{
	char path[4200];
	struct statfs fs;
	int fd = -1;

	snprintf(path, sizeof path, "%s/.kvcachefs/%s", mnt, name);
	if (!statfs(path, &fs)) {
		errno = ENOENT; /* somebody's own files of that name are left alone */
		if (fs.f_type == FUSE_SUPER_MAGIC)
			fd = open(path, flags | O_CLOEXEC);
	}
	if (fd < 0)
		kvm_fail("%s: %s", path,
			 errno == ENOENT ? "this is no kvcachefs mount" : strerror(errno));
	return fd;
}

/* Copies a file to stdout. */
static int show(const char *mnt, const char *name)
{
	int fd = open_in(mnt, name, O_RDONLY);
	char buf[65536];
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
	(void)argc;
	return show(argv[0], "stats");
}

static int run_config(int argc, char **argv)
{
	(void)argc;
	return show(argv[0], "config");
}

/* Starts a sweep and waits for its end. */
static int sweep(const char *mnt, const char *word)
{
	int fd = open_in(mnt, "control", O_WRONLY);
	char line[256];

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

		fd = open_in(mnt, "control", O_RDONLY);
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
	(void)argc;
	return sweep(argv[0], "import");
}

static int run_rekey(int argc, char **argv)
{
	(void)argc;
	return sweep(argv[0], "rekey");
}

/*
 * prefetch MOUNT PATH...: asks for them without waiting. lease: prints the lines and holds until a
 * signal.
 */
static int ask(const char *mnt, char **paths, int n, bool hold)
{
	int fd = open_in(mnt, "lease", O_RDWR);
	char buf[65536];
	ssize_t got;
	FILE *text;
	char *list = NULL;
	size_t len = 0, at = 0;

	if (fd < 0)
		return 1;
	text = open_memstream(&list, &len);
	if (!text)
		return kvm_fail("out of memory");
	if (!hold)
		fputs("prefetch\n", text);
	for (int i = 0; i < n; i++)
		fprintf(text, "%s\n", paths[i]);
	fclose(text);
	while (at < len) {
		ssize_t w = write(fd, list + at, len - at);

		if (w < 0)
			return kvm_fail("lease: %s", strerror(errno));
		at += (size_t)w;
	}
	free(list);
	if (!hold) {
		close(fd);
		return 0;
	}
	while ((got = read(fd, buf, sizeof buf)) > 0)
		fwrite(buf, 1, (size_t)got, stdout);
	if (got < 0)
		return kvm_fail("lease: %s", strerror(errno));
	if (fflush(stdout))
		return kvm_fail("%s", strerror(errno));
	pause();
	return 0;
}

static int run_prefetch(int argc, char **argv)
{
	return ask(argv[0], argv + 1, argc - 1, false);
}

static int run_lease(int argc, char **argv)
{
	return ask(argv[0], argv + 1, argc - 1, true);
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

struct pools {
	bool free;   /* those of no store, or: */
	char **only; /* these */
	int nonly, failed;
	unsigned n, freed;
};

static int show_pool(void *arg, const struct kvm_pool *p)
{
	struct pools *all = arg;
	char size[32];
	bool free_it = all->free && p->marked && !p->lives && !p->wanted && !all->nonly;
	int err = 0;

	for (int i = 0; i < all->nonly; i++)
		if (all->only[i] && !strcmp(all->only[i], p->path)) {
			all->only[i] = NULL;
			free_it = true;
		}
	all->n++;
	if (free_it)
		err = kvm_pool_free(p);
	printf("%s %s %s%s%s\n", p->path, kvc_size_text(p->bytes, size),
	       p->lives     ? "in use by the store "
	       : !p->marked ? "of an older daemon, or not a pool"
	       : p->wanted  ? "kept for the store "
			    : "of no store: what was ",
	       p->marked ? p->owner.dir : "",
	       !free_it   ? !p->marked || p->lives || p->wanted ? "" : " is no more"
	       : !err     ? ", freed"
	       : p->lives ? ", not freed"
			  : ", cannot be freed");
	all->freed += free_it && !err;
	all->failed += err != 0;
	return 0;
}

/*
 * pools [--free [POOL...]]: what daemons left in memory; and gives back what belongs to no store
 * any more, or the pools that are named.
 */
static int run_pools(int argc, char **argv)
{
	struct pools all = { .free = argc && !strcmp(argv[0], "--free") };
	const char *folder = argc && !all.free ? argv[0] : NULL;
	KVC_MEM char *beside = NULL;
	int err;

	if (all.free) {
		all.only = argv + 1;
		all.nonly = argc - 1;
		beside = argc > 1 ? strdup(argv[1]) : NULL;
		folder = beside ? dirname(beside) : NULL;
	} else if (argc > 1) {
		return kvm_fail("usage: kvcachectl pools [FOLDER | --free [POOL...]]");
	}
	err = kvm_pools_each(folder, show_pool, &all);
	if (err)
		return kvm_fail("cannot look for pools in %s: %s", folder ?: "/proc/self/mountinfo",
				strerror(-err));
	for (int i = 0; i < all.nonly; i++)
		if (all.only[i])
			all.failed += kvm_fail("%s is not a pool", all.only[i]);
	if (!all.n)
		printf("there is no pool\n");
	return all.failed != 0;
}

static const struct {
	const char *name, *args, *help;
	int min, max;
	int (*run)(int argc, char **argv);
} commands[] = {
	{ "stats", "MOUNT", "counters of a mount", 1, 1, run_stats },
	{ "config", "MOUNT", "its options and what was decided", 1, 1, run_config },
	{ "prefetch", "MOUNT PATH...", "load these into the pool; a folder means all files in it",
	  2, 1 << 20, run_prefetch },
	{ "lease", "MOUNT PATH...", "load them, print a line each, and hold them until a signal", 2,
	  1 << 20, run_lease },
	{ "import", "MOUNT", "take in the listing of the shared tiers", 1, 1, run_import },
	{ "rekey", "MOUNT", "seal again what is not sealed with the newest key", 1, 1, run_rekey },
	{ "gpus", "[PCI-FOLDER]", "NVIDIA devices, and the numa= that puts a pool near each", 0, 1,
	  run_gpus },
	{ "hash", "SCHEME FILE [MODEL]",
	  "chunk keys of a file of token ids, or the paths that engines give them", 2, 40,
	  run_hash },
	{ "pools", "[FOLDER | --free]", "pools left in memory; those of no store are given back", 0,
	  1000, run_pools },
	{ "replay", "[OPTION...] TRACE...", "what each policy would have had of a trace's chunks",
	  1, 1000, kvm_run_replay },
	{ "newkey", "FILE [MODEL]", "add a random key to a key file", 1, 2, run_newkey },
};

static void usage(FILE *out)
{
	fprintf(out, "usage: kvcachectl COMMAND ...\nAsks something of a mounted kvcachefs.\n\n");
	for (size_t i = 0; i < sizeof commands / sizeof commands[0]; i++) {
		char left[64];

		snprintf(left, sizeof left, "%s %s", commands[i].name, commands[i].args);
		fprintf(out, "  %-24s %s\n", left, commands[i].help);
	}
	fprintf(out, "\n  -h, --help  this\n  -V, --version  the version\n");
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
	for (size_t i = 0; argc > 1 && i < sizeof commands / sizeof commands[0]; i++)
		if (!strcmp(commands[i].name, argv[1])) {
			if (argc - 2 < commands[i].min || argc - 2 > commands[i].max)
				return kvm_fail("usage: kvcachectl %s %s", commands[i].name,
						commands[i].args);
			return commands[i].run(argc - 2, argv + 2);
		}
	return kvm_fail("%s; kvcachectl --help lists the commands",
			argc > 1 ? "there is no such command" : "a command is missing");
}
