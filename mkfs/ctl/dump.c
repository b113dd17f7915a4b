/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kvcachectl dump: writes a tar file (ustar) of diagnostics for a bug report, with a member for
 * each row of `members`. It never contains file contents or keys. Credentials in URLs are removed,
 * and names of models are replaced by numbers that have no meaning elsewhere, unless --names is
 * given. The daemon's log contains no names.
 *
 * If the daemon of the mount has ended, its files in .kvcachefs are gone. The dump then has what
 * the store and the machine still know: the superblock, the files of the store, the configuration
 * files that name the store, and the end of its log file.
 */
#include "atomic_file.h"
#include "ctl.h"
#include "json.h"
#include "mounts.h"
#include "store.h"

#include <dirent.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/utsname.h>

#define BLOCK 512
#define CONF "/etc/kvcachefs"
#define LOG_END (256 << 10) /* bytes of a log file */

struct dump {
	char mnt[KVM_PATH], store[KVM_PATH]; /* store: "" if not known */
	bool dead;                           /* its daemon has ended */
	bool names;
	uint8_t salt[16];
	FILE *out;
	time_t now;
};

/* Copies a text without the credentials in its URLs. */
static void put_redacted(FILE *out, const char *text)
{
	const char *url;

	while ((url = strstr(text, "://"))) {
		const char *at = url + 3 + strcspn(url + 3, "/@? \t\n\"',");

		fwrite(text, 1, (size_t)(url + 3 - text), out);
		text = url + 3;
		if (*at == '@') {
			fputs("***", out);
			text = at;
		}
	}
	fputs(text, out);
}

/* Copies a file of the machine, or the reason why it cannot be read. */
static void put_file(FILE *out, const char *path)
{
	KVC_MEM char *text = NULL;
	size_t capacity = 0;
	FILE *f = fopen(path, "re");

	fprintf(out, "%s:\n", path);
	if (f && getdelim(&text, &capacity, 0, f) > 0)
		put_redacted(out, text);
	if (!f || ferror(f))
		fprintf(out, "(%s)\n", strerror(errno));
	else if (!text || !*text)
		fprintf(out, "(empty)\n");
	if (f)
		fclose(f);
}

static void put_inside(FILE *out, const struct dump *d, const char *name)
{
	char path[KVM_PATH + 64];

	if (d->dead) {
		fprintf(out, "(the daemon of this mount has ended)\n");
		return;
	}
	snprintf(path, sizeof path, "%s/.kvcachefs/%s", d->mnt, name);
	put_file(out, path);
}

/* Prints the superblock of the store of a dead mount. */
static void put_superblock(const struct dump *d, FILE *out)
{
	KVC_MEM struct kvc_store *s = calloc(1, sizeof *s);
	bool known;
	int err = s ? 0 : -ENOMEM;

	if (s) {
		snprintf(s->dir, sizeof s->dir, "%s", d->store);
		err = kvc_super_load(s, KVC_STORE_SUPER, &known);
	}
	if (err)
		fprintf(out, "superblock: %s\n", kvc_why(-err));
	else
		fprintf(out, "store=%s\nuuid=%s\nversion=%u\n", s->dir, s->uuid_text, s->version);
	for (unsigned i = 0; i < KVC_DEVICES && !err; i++)
		if (s->dev[i].kind)
			fprintf(out, "device_%u=%s\ndevice_%u_size=%" PRIu64 "%s\n", i,
				s->dev[i].path, i, s->dev[i].size,
				s->dev[i].leaving ? "\ndevice_leaves=1" : "");
}

/*
 * Calls fn for each /etc/kvcachefs/NAME.conf that names the store. Its OPTIONS= line has the
 * options of the dead daemon, unless they were given in another way.
 */
static void each_conf(const struct dump *d, FILE *out,
		      void (*fn)(const struct dump *d, FILE *out, const char *path,
				 const char *text))
{
	DIR *all = opendir(CONF);
	struct dirent *e;

	while (all && (e = readdir(all))) {
		KVC_MEM char *text = NULL;
		size_t capacity = 0, n = strlen(e->d_name);
		char path[320];
		FILE *f;

		if (n < 5 || strcmp(e->d_name + n - 5, ".conf") != 0)
			continue;
		snprintf(path, sizeof path, "%s/%s", CONF, e->d_name);
		f = fopen(path, "re");
		if (f && getdelim(&text, &capacity, 0, f) > 0 && strstr(text, d->store))
			fn(d, out, path, text);
		if (f)
			fclose(f);
	}
	if (all)
		closedir(all);
}

static void put_conf(const struct dump *d, FILE *out, const char *path, const char *text)
{
	(void)d;
	fprintf(out, "%s:\n", path);
	put_redacted(out, text);
}

/* Prints the end of the log file that the options in text name. */
static void put_logfile(const struct dump *d, FILE *out, const char *conf, const char *text)
{
	const char *at = strstr(text, "logfile=");
	char path[KVM_PATH], *data = NULL;
	struct stat st;
	KVC_FD int fd = -1;
	ssize_t n;
	(void)d;

	if (!at)
		return;
	snprintf(path, sizeof path, "%.*s", (int)strcspn(at + 8, ",\"' \n"), at + 8);
	fprintf(out, "the end of %s (%s):\n", path, conf);
	fd = open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC);
	if (fd < 0 || fstat(fd, &st) || !S_ISREG(st.st_mode)) {
		fprintf(out, "(it cannot be read)\n");
		return;
	}
	data = malloc(LOG_END + 1);
	n = data ? pread(fd, data, LOG_END, st.st_size > LOG_END ? st.st_size - LOG_END : 0) : 0;
	if (n > 0) {
		data[n] = 0;
		put_redacted(out, data);
	}
	free(data);
}

static void put_config(struct dump *d, FILE *out)
{
	if (!d->dead) {
		put_inside(out, d, "config");
		return;
	}
	fprintf(out, "The daemon of the mount %s has ended.\n", d->mnt);
	put_superblock(d, out);
	each_conf(d, out, put_conf);
}

static void put_counters(struct dump *d, FILE *out)
{
	put_inside(out, d, "stats");
	put_inside(out, d, "control");
}

static void put_policies(struct dump *d, FILE *out)
{
	put_inside(out, d, "policies");
}

static void put_log(struct dump *d, FILE *out)
{
	put_inside(out, d, "log");
	if (!d->dead)
		return;
	each_conf(d, out, put_logfile);
	fprintf(out, "Without logfile=, the log is in syslog: journalctl -t kvcachefs\n");
}

/* Prints a number for a name: a hash with a secret that is discarded, so it cannot be reversed. */
static void put_name(const struct dump *d, FILE *out, const char *name)
{
	char salted[1024], text[33];
	int n = snprintf(salted + sizeof d->salt, sizeof salted - sizeof d->salt, "%s", name);
	struct kvc_sum sum;

	memcpy(salted, d->salt, sizeof d->salt);
	sum = kvc_sum_of(salted, sizeof d->salt + kvc_min((uint64_t)n, 900));
	fprintf(out, "model-%.12s", kvc_sum_text(&sum, text));
}

/* In each line, the name is the last column. The first line has the column names. */
static void put_models(struct dump *d, FILE *out)
{
	KVC_MEM char *text = NULL;
	size_t len = 0;
	FILE *whole = open_memstream(&text, &len);
	char *save = NULL;
	int nr = 0;

	if (!whole)
		return;
	put_inside(whole, d, "models");
	if (fclose(whole))
		return;
	for (char *l = strtok_r(text, "\n", &save); l; l = strtok_r(NULL, "\n", &save)) {
		char *name = strrchr(l, ' ');

		if (d->names || nr++ < 2 || !name || name[1] == '/') {
			fprintf(out, "%s\n", l);
			continue;
		}
		fprintf(out, "%.*s", (int)(name + 1 - l), l);
		put_name(d, out, name + 1);
		fputc('\n', out);
	}
}

static int put_mount(void *arg, const struct kvm_mounted *m)
{
	FILE *out = arg;

	if (!strcmp(m->type, "fuse.kvcachefs"))
		fprintf(out, "%s: %s of %s\n", m->path, m->root, m->source);
	return 0;
}

static void put_machine(struct dump *d, FILE *out)
{
	struct utsname u;
	(void)d;

	kvm_put_version(out);
	if (!uname(&u))
		fprintf(out, "%s %s %s %s, %ld CPUs\n", u.sysname, u.release, u.version, u.machine,
			sysconf(_SC_NPROCESSORS_ONLN));
	kvm_mounts_each(put_mount, out);
	put_file(out, "/etc/os-release");
	put_file(out, "/proc/meminfo");
	put_file(out, "/proc/loadavg");
	put_file(out, "/proc/self/cgroup");
	put_file(out, "/sys/module/fuse/parameters/enable_uring");
	put_file(out, "/sys/kernel/mm/transparent_hugepage/shmem_enabled");
}

/*
 * Prints the sizes of the store's files, including the catalog's, and the free space of their
 * filesystem.
 */
static void put_store(struct dump *d, FILE *out)
{
	KVC_MEM char *config = NULL;
	char dir[KVM_PATH], *at = NULL;
	struct statvfs fs;
	struct dirent *e;
	struct stat st;
	DIR *all;

	snprintf(dir, sizeof dir, "%s", d->store);
	if (!d->dead && !kvm_mount_text(d->mnt, "config", &config) &&
	    (at = strstr(config, "\nstore=")))
		snprintf(dir, sizeof dir, "%.*s", (int)strcspn(at + 7, "\n"), at + 7);
	all = *dir ? opendir(dir) : NULL;
	if (!all) {
		fprintf(out, "the store %s: %s\n", dir, *dir ? strerror(errno) : "not known");
		return;
	}
	while ((errno = 0, e = readdir(all)))
		if (!fstatat(dirfd(all), e->d_name, &st, AT_SYMLINK_NOFOLLOW) &&
		    e->d_name[0] != '.')
			fprintf(out, "%-24s %14lld bytes, %14lld on disk, mode %o\n", e->d_name,
				(long long)st.st_size, (long long)st.st_blocks * 512,
				st.st_mode & 07777);
	if (errno)
		fprintf(out, "(the list ends with an error: %s)\n", strerror(errno));
	if (!fstatvfs(dirfd(all), &fs))
		fprintf(out, "free: %llu bytes and %llu files\n",
			(unsigned long long)fs.f_bavail * fs.f_frsize,
			(unsigned long long)fs.f_favail);
	closedir(all);
}

static const struct {
	const char *name;
	void (*put)(struct dump *d, FILE *out);
} members[] = {
	{ "machine", put_machine }, { "config", put_config }, { "counters", put_counters },
	{ "models", put_models },   { "store", put_store },   { "policies", put_policies },
	{ "log", put_log },
};

struct header { /* ustar */
	char name[100], mode[8], uid[8], gid[8], size[12], mtime[12], sum[8], type, link[100];
	char magic[6], version[2], user[32], group[32], major[8], minor[8], prefix[155], pad[12];
};
_Static_assert(sizeof(struct header) == BLOCK, "a block");

static void put_member(struct dump *d, const char *name, const char *text, size_t len)
{
	static const char zeros[BLOCK];
	struct header h = { .type = '0' };
	unsigned sum = 0;

	snprintf(h.name, sizeof h.name, "kvcachefs-dump/%s.txt", name);
	snprintf(h.mode, sizeof h.mode, "%07o", 0600);
	snprintf(h.uid, sizeof h.uid, "%07o", 0);
	snprintf(h.gid, sizeof h.gid, "%07o", 0);
	snprintf(h.size, sizeof h.size, "%011zo", len);
	snprintf(h.mtime, sizeof h.mtime, "%011llo", (unsigned long long)d->now);
	memcpy(h.magic, "ustar", 6);
	memcpy(h.version, "00", 2);
	memset(h.sum, ' ', sizeof h.sum);
	for (size_t i = 0; i < sizeof h; i++)
		sum += ((const unsigned char *)&h)[i];
	/* followed by a space, which is already there */
	snprintf(h.sum, sizeof h.sum, "%06o", sum);
	fwrite(&h, 1, sizeof h, d->out);
	fwrite(text, 1, len, d->out);
	fwrite(zeros, 1, -len % BLOCK, d->out);
}

static int put_all(struct dump *d)
{
	static const char end[2 * BLOCK];

	for (size_t i = 0; i < sizeof members / sizeof members[0]; i++) {
		KVC_MEM char *text = NULL;
		size_t len = 0;
		FILE *m = open_memstream(&text, &len);

		if (!m)
			return kvm_fail("out of memory");
		members[i].put(d, m);
		if (fclose(m))
			return kvm_fail("out of memory");
		put_member(d, members[i].name, text, len);
	}
	fwrite(end, 1, sizeof end, d->out);
	return 0;
}

/* Writes the tar file to stdout or to a new file. Returns 0, or 1 after a message. */
static int write_dump(struct dump *d, const char *file)
{
	struct kvm_atomic_file b;
	int fd, told, err;

	if (!strcmp(file, "-")) {
		fd = dup(STDOUT_FILENO);
		d->out = fd < 0 ? NULL : fdopen(fd, "w");
		if (!d->out)
			return kvm_fail("%s: %s", file, kvc_why(errno));
		told = put_all(d);
		err = ferror(d->out) | fclose(d->out) ? -errno : 0;
	} else {
		if ((err = kvm_atomic_file_open(&b, file, 0600, true)))
			return kvm_fail("%s: %s", kvm_shown(file), kvm_atomic_file_why(-err));
		d->out = b.f;
		told = put_all(d);
		err = kvm_atomic_file_close(&b, told ? -ENOMEM : 0);
	}
	return told ?: err ? kvm_fail("%s: %s", file, kvm_atomic_file_why(-err)) : 0;
}

int kvm_run_dump(int argc, char **argv)
{
	struct dump d = { .now = time(NULL) };
	bool json = false;
	const char *given = NULL;
	const struct kvm_option options[] = {
		{ "names", &d.names, NULL }, { "o", NULL, &given }, { "json", &json, NULL }, { 0 }
	};
	struct kvm_json j = { stdout, false };
	char made[64];
	const char *file = made;
	struct tm tm;
	int err = kvm_options(&argc, argv, options);

	if (err)
		return err;
	d.dead = kvm_mount_is_dead(argc ? argv[0] : ".", d.mnt, d.store);
	if (!d.dead && (err = kvm_mount_of(argc ? argv[0] : NULL, d.mnt)))
		return err;
	(void)strftime(made, sizeof made, "kvcachefs-dump-%Y%m%d-%H%M%S.tar",
		       gmtime_r(&d.now, &tm));
	if (given)
		file = given;
	if (getrandom(d.salt, sizeof d.salt, 0) != sizeof d.salt)
		return kvm_fail("cannot get random bytes: %s", kvc_why(errno));
	err = write_dump(&d, file);
	if (err || !strcmp(file, "-"))
		return err;
	if (!json) {
		puts(file);
		return 0;
	}
	kvm_json_begin(&j, NULL, '{');
	kvm_json_text(&j, "mount", d.mnt);
	kvm_json_text(&j, "file", file);
	kvm_json_end(&j, '}');
	putchar('\n');
	return 0;
}
