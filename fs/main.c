/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The program: kvcachefs STORE MOUNTPOINT [-f] [-o OPTIONS]. A child process does all the work and
 * keeps stderr until the mount is served, so every refusal is one line on the caller's stderr. The
 * parent returns when the mount answers, or with the child's exit status.
 */
#include "fs.h"

#include "http.h"
#include "log.h"
#include "protect.h"
#include "registry.h"
#include "rights.h"

#include <dirent.h>
#include <fcntl.h>
#include <getopt.h>
#include <libgen.h>
#include <limits.h>
#include <linux/magic.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/statvfs.h>
#include <sys/vfs.h>
#include <sys/wait.h>

static void usage(FILE *out)
{
	fprintf(out,
		"usage: kvcachefs STORE MOUNTPOINT [-f] [-o OPTION[,OPTION...]]\nMounts STORE, a "
		"folder created by mkfs.kvcachefs, on the folder MOUNTPOINT.\n\n  -f, --foreground "
		" "
		"stay in the foreground, and log to stderr\n  -o OPTIONS        mount options, as "
		"listed below. A SIZE is in bytes, or takes a suffix K, M,\n                    "
		"G or T. MS is in milliseconds and SECONDS in seconds; both take a suffix s, m,"
		"\n                    h, d or w, and MS also takes ms.\n  "
		"-h, --help        show "
		"this help\n  "
		"-V, --version     show the version\n\nexamples:\n"
		"  kvcachefs /var/lib/kvcache /mnt/kv -o cpu=64G,keep_pool\n"
		"  kvcachefs /var/lib/kvcache /mnt/kv -o "
		"cpu=64G,remote=redis://cache.example:6379,deadline=2s\n\n"
		"options (default):\n");
	kvc_options_help(out);
	fprintf(out, "\nSee kvcachefs(8) for details.\n");
}

static int fail(const char *format, const char *a, const char *b)
{
	char text[2048];

	snprintf(text, sizeof text, format, a, b);
	kvc_quote_one_line(text);
	fprintf(stderr, "kvcachefs: %s\n", text);
	return 1;
}

static bool is_dead_mount(const char *path)
{
	struct statvfs v;
	int err = 0;

	do /* A dying daemon cancels its last request. The next request gets the final error. */
		err = statvfs(path, &v) ? errno : 0;
	while (err == ECANCELED && !usleep(1000));
	return err == ENOTCONN || err == ECONNABORTED;
}

static int check_mountpoint(const char *path)
{
	struct stat st;

	/*
	 * It may be the mount of the store's last daemon. clear_mountpoint detaches it when this
	 * process has the store's lock.
	 */
	if (is_dead_mount(path))
		return 0;
	if (stat(path, &st))
		return errno == ENOENT
			       ? fail("mount point %s does not exist; create it with mkdir%s", path,
				      "")
			       : fail("mount point %s: %s", path, kvc_why(errno));
	if (!S_ISDIR(st.st_mode))
		return fail("mount point %s is not a folder; give a folder%s", path, "");
	return 0;
}

/*
 * True if a kvcachefs store is mounted on path. A second mount would hide the first, while the
 * first daemon would keep running.
 */
static bool is_served(const char *path)
{
	char config[PATH_MAX + 32];
	struct statfs st;

	snprintf(config, sizeof config, "%s/.kvcachefs/config", path);
	return !statfs(path, &st) && st.f_type == FUSE_SUPER_MAGIC && !access(config, F_OK);
}

/* Warns of files in the mount point's folder, which an engine may have stored without the mount. */
static void warn_of_hidden(const char *path)
{
	DIR *d = opendir(path);
	const struct dirent *e;
	bool any = false;

	while (d && !any && (e = readdir(d)))
		any = strcmp(e->d_name, ".") != 0 && strcmp(e->d_name, "..") != 0;
	if (d)
		closedir(d);
	if (any)
		kvc_warn("mount point %s is not empty: its files are hidden until the unmount",
			 path);
}

/*
 * Detaches the mount of a dead daemon, which answers ENOTCONN, so that mounting again needs no
 * manual cleanup. Returns 0, or 1 after a message.
 */
static int clear_mountpoint(const char *path)
{
	int err;

	if (is_served(path))
		return fail("mount point %s: another store is mounted there; unmount it first, or "
			    "give another folder%s",
			    path, "");
	if (!is_dead_mount(path))
		return 0;
	err = -kvfs_detach(path);
	if (!err)
		kvc_info("detached the mount that a dead daemon left on %s", path);
	/* not detached, and its daemon has not just unmounted it either */
	else if (is_dead_mount(path))
		return fail("%s is the mount of a dead daemon and cannot be detached: %s", path,
			    strerror(err));
	return check_mountpoint(path);
}

/* Makes the mount point ready for the mount. Returns 0, or 1 after a message. */
static int prepare_mountpoint(const struct kvc_options *o, const char *path)
{
	char error[512] = "";

	if (clear_mountpoint(path))
		return 1;
	warn_of_hidden(path);
	if (o->protect_mountpoint && kvfs_protect_mountpoint(path, error))
		return fail("%s%s", error, "");
	return 0;
}

static const char *logfile_why(int err)
{
	return err == ELOOP    ? "it is a symbolic link; give the path of a file"
	       : err == EINVAL ? "it is not a regular file; give the path of a file"
	       : err == EPERM  ? "it belongs to another user; chown it, or give another path"
	       : err == EISDIR ? "it is a folder; give the path of a file"
	       : err == ENOENT ? "its folder does not exist; create it with mkdir"
			       : kvc_why(err);
}

static int run_daemon(const struct kvc_options *o, const char *store_path, const char *mountpoint,
		      int ready_fd)
{
	struct kvfs f = { 0 };
	struct kvc_store store;
	struct kvc_tier *tiers[KVCT_MAX];
	char error[512] = "";
	unsigned n = 0;
	int err;

	if (*o->logfile && (err = kvc_log_file_open(o->logfile)))
		return fail("option logfile: cannot open %s: %s", o->logfile, logfile_why(-err));
	if (check_mountpoint(mountpoint))
		return 1;
	if (access("/dev/fuse", R_OK | W_OK))
		return fail("/dev/fuse: %s; FUSE is needed (%s)", strerror(errno),
			    errno == EACCES ? "as root, or after chmod 666 /dev/fuse"
					    : "modprobe fuse, or give the container the device");
	if (kvfs_may_mount(o->allow_other, mountpoint, error))
		return fail("%s%s", error, "");
	if (kvc_store_open(&store, store_path, error))
		return fail("%s%s", error, "");
	if ((err = kvc_super_add_secret(&store))) {
		kvc_store_close(&store);
		return fail("cannot write the superblock of %s: %s", store_path, strerror(-err));
	}
	if (prepare_mountpoint(o, mountpoint)) {
		kvc_store_close(&store);
		return 1;
	}
	kvfs_service_notify("STATUS=recovering the pool");
	err = kvct_open_all(&store, o, tiers, &n, error);
	if (!err) {
		kvfs_choose_modes(&f, o, kvc_cache_memory_least(o, tiers, n));
		err = kvc_cache_open(&f.k, o, &store, tiers, n, f.request_bytes, error);
		if (err)
			kvct_close_all(tiers, n);
	}
	if (err) {
		kvc_store_close(&store);
		return fail("%s%s", error, "");
	}
	f.store = &store;
	err = kvfs_serve(&f, o, store_path, mountpoint, ready_fd);
	kvc_store_close(&store);
	if (f.threads_left) /* exit(3) would free memory that the remaining threads still use */
		_exit(err != 0);
	return err != 0;
}

/* Copies the first word of a line of .kvcachefs/config, such as passthrough. */
static bool config_word(const char *text, const char *name, char *word, size_t capacity)
{
	const char *at = strstr(text, name);

	if (!at || (at != text && at[-1] != '\n'))
		return false;
	at += strlen(name);
	snprintf(word, capacity, "%.*s", (int)strcspn(at, " (,;\n"), at);
	return *word;
}

/* The one line of a successful mount, with the modes in use if the user may read them. */
static void print_mounted(const char *store, const char *mountpoint)
{
	char path[PATH_MAX + 32], text[16384], served[32], by[32], line[2 * PATH_MAX + 128];
	ssize_t n = -1;
	KVC_FD int fd = -1;

	snprintf(path, sizeof path, "%s/.kvcachefs/config", mountpoint);
	fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd >= 0)
		n = pread(fd, text, sizeof text - 1, 0);
	text[n > 0 ? n : 0] = 0;
	snprintf(line, sizeof line, "mounted %s on %s", store, mountpoint);
	if (config_word(text, "served_by=", served, sizeof served) &&
	    config_word(text, "requests_by=", by, sizeof by))
		snprintf(line + strlen(line), sizeof line - strlen(line), " (%s%s, %s)", served,
			 strcmp(served, "plain") ? "" : " requests", by);
	kvc_quote_one_line(line);
	puts(line);
	(void)fflush(stdout);
}

/* Waits until the child reports that it serves, and then until the mount answers. */
static int wait_for_child(int fd, pid_t child, const char *store, const char *mountpoint)
{
	struct statvfs v;
	char ok;
	int status;

	if (read(fd, &ok, 1) != 1) {
		waitpid(child, &status, 0);
		return WIFEXITED(status) && WEXITSTATUS(status) ? WEXITSTATUS(status) : 1;
	}
	for (int i = 0; i < 500; i++) {
		if (!statvfs(mountpoint, &v)) {
			print_mounted(store, mountpoint);
			return 0;
		}
		usleep(10000);
	}
	return fail("the mount on %s does not answer%s", mountpoint, "");
}

static bool is_below(const char *path, const char *folder)
{
	size_t n = strlen(folder);

	return !strncmp(path, folder, n) && (!path[n] || path[n] == '/' || folder[n - 1] == '/');
}

/*
 * If the store or the mount point contained the other, files that the daemon opens while it serves
 * would be looked up in its own mount.
 */
static int check_apart(const char *store, const char *mountpoint)
{
	if (!is_below(store, mountpoint) && !is_below(mountpoint, store))
		return 0;
	return fail("mount point %s contains the store %s or is inside it; give another folder",
		    mountpoint, store);
}

/*
 * Returns the absolute path, from malloc. realpath fails on the mount of a dead daemon; then the
 * path is taken as it is, below the working directory.
 */
static char *absolute(const char *path)
{
	char *p = realpath(path, NULL), cwd[4096];

	if (!p && *path != '/' && getcwd(cwd, sizeof cwd)) {
		if (asprintf(&p, "%s/%s", cwd, path) < 0)
			p = NULL;
		return p;
	}
	return p ?: strdup(path);
}

/*
 * Takes store and mount point from the arguments after the options. The results are absolute paths;
 * the caller frees them.
 */
static int parse_paths(int n, char **words, char **store, char **mountpoint)
{
	if (n > 2)
		return fail("unexpected argument %s; give a store, a mount point, and mount "
			    "options after -o; see kvcachefs --help%s",
			    words[2], "");
	if (n != 2)
		return fail("give a store and a mount point; see kvcachefs --help%s%s", "", "");
	if (!*words[0] || !*words[1])
		return fail("the path of the %s is empty; check that the shell variable is set%s",
			    *words[0] ? "mount point" : "store", "");
	*store = absolute(words[0]);
	*mountpoint = absolute(words[1]);
	if (!*store || !*mountpoint)
		return fail("out of memory%s%s", "", "");
	return check_apart(*store, *mountpoint);
}

/* In the daemon's own mount, a line of the log would wait for the daemon that writes the line. */
static int check_logfile(const char *path, const char *mountpoint)
{
	KVC_MEM char *copy = strdup(path), *folder = NULL;

	if (*path && copy)
		folder = realpath(dirname(copy), NULL);
	if (!*path || (!is_below(path, mountpoint) && !(folder && is_below(folder, mountpoint))))
		return 0;
	return fail("option logfile: %s is inside the mount point %s; give another folder", path,
		    mountpoint);
}

/*
 * The folder of a dir:// remote: a copy that is stored in the daemon's own mount would be a file
 * that is copied again. Only the paths are compared, because a call for the folder may hang if it
 * is on a network filesystem.
 */
static int check_remotes(const char *remotes, const char *mountpoint)
{
	for (const char *at = remotes; *at; at += strspn(at, " ")) {
		size_t n = strcspn(at, " ");
		KVC_MEM char *url = strndup(at, n);

		at += n;
		if (!url || strncmp(url, "dir://", 6) != 0)
			continue;
		url[strcspn(url, "?")] = 0;
		if (is_below(url + 6, mountpoint))
			return fail("option remote: the folder %s is inside the mount point %s; "
				    "give another folder",
				    url + 6, mountpoint);
	}
	return 0;
}

/* Runs the daemon in a child process without a terminal. Returns when its mount answers. */
static int run_in_background(const struct kvc_options *o, const char *store, const char *mountpoint)
{
	pid_t child;
	int fd[2];

	if (pipe2(fd, O_CLOEXEC))
		return fail("cannot make a pipe: %s%s", kvc_why(errno), "");
	child = fork();
	if (child < 0)
		return fail("cannot fork: %s%s", kvc_why(errno), "");
	if (child) {
		close(fd[1]);
		return wait_for_child(fd[0], child, store, mountpoint);
	}
	close(fd[0]);
	setsid();
	return chdir("/") ? 1 : run_daemon(o, store, mountpoint, fd[1]);
}

static void put_version(void)
{
	const struct kvc_library own[] = {
		kvc_catalog_library(),
		{ "libfuse", fuse_pkgversion(), (const void *)fuse_pkgversion },
		kvfs_library_microhttpd(),
	};

	kvct_put_version(stdout, "kvcachefs", own, 3);
}

int main(int argc, char **argv)
{
	static const struct option longs[] = {
		{ "foreground", 0, 0, 'f' }, { "help", 0, 0, 'h' }, { "version", 0, 0, 'V' }, { 0 }
	};
	struct kvc_options o;
	KVC_MEM char *store = NULL, *mountpoint = NULL;
	char error[256];
	bool foreground = false;
	int c;

	kvc_options_init(&o);
	while ((c = getopt_long(argc, argv, ":fo:hVsnv", longs, NULL)) != -1)
		switch (c) {
		case 'f': foreground = true; break;
		case 'o':
			if (kvc_options_parse(&o, optarg, error))
				return fail("%s%s", error, "");
			break;
		case 'h': usage(stdout); return 0;
		case 'V': put_version(); return 0;
		case 's':
		case 'n':
		case 'v': break; /* mount(8) passes these */
		default:
			kvc_getopt_error(c, argv, longs, "kvcachefs", error);
			return fail("%s%s", error,
				    c == '?' && !strstr(error, "did you mean")
					    ? "; mount options follow -o"
					    : "");
		}
	if (argc - optind == 2 && kvc_options_check(&o, error))
		return fail("%s%s", error, "");
	if (parse_paths(argc - optind, argv + optind, &store, &mountpoint) ||
	    check_logfile(o.logfile, mountpoint) || check_remotes(o.remote, mountpoint))
		return 1;
	kvc_log_setup(foreground ? KVC_LOG_STDERR : KVC_LOG_STARTING, o.debug);
	if (*o.keyfile)
		prctl(PR_SET_DUMPABLE, 0); /* no core dump or debugger may show the keys */
	signal(SIGPIPE, SIG_IGN);
	/* sent if a file lease is broken; the engine takes leases only as probes, for a moment */
	signal(SIGIO, SIG_IGN);
	/* Keep descriptors 0 to 2 in use, so that no segment gets one of them. */
	for (c = open("/dev/null", O_RDWR); c >= 0 && c < 3; c = open("/dev/null", O_RDWR))
		;
	if (c > 2)
		close(c);
	if (foreground)
		kvfs_service_init();
	return foreground ? run_daemon(&o, store, mountpoint, -1)
			  : run_in_background(&o, store, mountpoint);
}
