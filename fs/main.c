/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kvcachefs STORE MOUNTPOINT [-f] [-o OPTIONS]. A child does all the work with stderr still here,
 * so that every refusal is one line for who started it; the parent returns when the mount answers,
 * or with the child's error.
 */
#include "fs.h"

#include "log.h"
#include "registry.h"

#include <fcntl.h>
#include <getopt.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/statvfs.h>
#include <sys/wait.h>

static void usage(FILE *out)
{
	fprintf(out, "usage: kvcachefs STORE MOUNTPOINT [-f] [-o OPTION[,OPTION...]]\n"
		     "Mounts a store made by mkfs.kvcachefs.\n\n"
		     "  -f, --foreground  stay in the foreground, log to stderr\n"
		     "  -o OPTIONS        mount options, below\n"
		     "  -h, --help        this\n"
		     "  -V, --version     the version\n\noptions (default):\n");
	kvc_options_help(out);
	fprintf(out, "\nkvcachefs(8) has the whole story.\n");
}

static int fail(const char *format, const char *a, const char *b)
{
	fprintf(stderr, "kvcachefs: ");
	fprintf(stderr, format, a, b);
	fprintf(stderr, "\n");
	return 1;
}

static bool is_dead(const char *path)
{
	struct statvfs v;
	int err = 0;

	do /* a daemon's death cancels what it was asked last; who asks again is told */
		err = statvfs(path, &v) ? errno : 0;
	while (err == ECANCELED && !usleep(1000));
	return err == ENOTCONN || err == ECONNABORTED;
}

static int check_mountpoint(const char *path)
{
	struct stat st;

	if (is_dead(path)) /* of the store's last daemon, perhaps: who has the lock knows */
		return 0;
	if (stat(path, &st))
		return fail("mount point %s: %s", path, strerror(errno));
	if (!S_ISDIR(st.st_mode))
		return fail("mount point %s is not a folder%s", path, "");
	return 0;
}

/*
 * What a dead daemon left mounted answers ENOTCONN; it goes, so that mounting again needs no
 * cleaning by hand.
 */
static int clear_mountpoint(const char *path)
{
	int err;

	if (!is_dead(path))
		return 0;
	err = umount2(path, MNT_DETACH) ? errno : 0;
	if (!err)
		kvc_info("detached the mount that a dead daemon left on %s", path);
	else if (is_dead(path)) /* and not just unmounted by its daemon, which was ending */
		return fail("%s is the mount of a daemon that has died, and cannot be detached: %s",
			    path, strerror(err));
	return check_mountpoint(path);
}

static int run(const struct kvc_options *o, const char *store_path, const char *mountpoint,
	       int ready_fd)
{
	struct kvfs f = { 0 };
	struct kvc_store store;
	struct kvc_tier *tiers[KVCT_MAX];
	char error[512] = "";
	unsigned n = 0;
	int err;

	if (check_mountpoint(mountpoint))
		return 1;
	if (access("/dev/fuse", R_OK | W_OK))
		return fail("/dev/fuse: %s; FUSE is needed (modprobe fuse, or give the container "
			    "the device)%s",
			    strerror(errno), "");
	if (kvc_store_open(&store, store_path, error))
		return fail("%s%s", error, "");
	if ((err = kvc_store_keyed(&store))) {
		kvc_store_close(&store);
		return fail("the superblock of %s cannot be written: %s", store_path,
			    strerror(-err));
	}
	if (clear_mountpoint(mountpoint)) {
		kvc_store_close(&store);
		return 1;
	}
	kvfs_notify("STATUS=taking over what is in the pool");
	err = kvct_open_all(&store, o, tiers, &n, error);
	if (!err) {
		err = kvc_open(&f.k, o, &store, tiers, n, error);
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
	if (f.left) /* exit(3) would end what the threads that were left behind still use */
		_exit(err != 0);
	return err != 0;
}

/* Waits for the child's word, then for the mount to answer. */
static int parent(int fd, pid_t child, const char *mountpoint)
{
	struct statvfs v;
	char ok;
	int status;

	if (read(fd, &ok, 1) != 1) {
		waitpid(child, &status, 0);
		return WIFEXITED(status) && WEXITSTATUS(status) ? WEXITSTATUS(status) : 1;
	}
	for (int i = 0; i < 500; i++) {
		if (!statvfs(mountpoint, &v))
			return 0;
		usleep(10000);
	}
	return fail("the mount on %s does not answer%s", mountpoint, "");
}

/* realpath fails on the mount of a dead daemon. */
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

int main(int argc, char **argv)
{
	static const struct option longs[] = {
		{ "foreground", 0, 0, 'f' }, { "help", 0, 0, 'h' }, { "version", 0, 0, 'V' }, { 0 }
	};
	struct kvc_options o;
	char error[256], *store, *mountpoint;
	bool foreground = false;
	int c, fd[2];
	pid_t child;

	kvc_options_init(&o);
	while ((c = getopt_long(argc, argv, "fo:hVsnv", longs, NULL)) != -1)
		switch (c) {
		case 'f': foreground = true; break;
		case 'o':
			if (kvc_options_parse(&o, optarg, error))
				return fail("%s%s", error, "");
			break;
		case 'h': usage(stdout); return 0;
		case 'V': printf("kvcachefs %s\n", KVC_VERSION); return 0;
		case 's':
		case 'n':
		case 'v': break; /* what mount(8) hands on */
		default:
			fprintf(stderr, "kvcachefs: kvcachefs --help shows what it takes\n");
			return 1;
		}
	if (argc - optind != 2)
		return fail("it takes a store and a mount point; kvcachefs --help shows all%s%s",
			    "", "");
	if (kvc_options_check(&o, error))
		return fail("%s%s", error, "");
	store = absolute(argv[optind]);
	mountpoint = absolute(argv[optind + 1]);
	if (!store || !mountpoint)
		return fail("out of memory%s%s", "", "");
	kvc_log_setup(false, o.debug);
	if (*o.keyfile)
		prctl(PR_SET_DUMPABLE, 0); /* keys are for nobody's core dump or debugger */
	signal(SIGPIPE, SIG_IGN);
	signal(SIGIO, SIG_IGN); /* a lease probe that meets an open is told by its result */
	/* Descriptors 0 to 2 must be taken, or a segment could get one of them. */
	for (c = open("/dev/null", O_RDWR); c >= 0 && c < 3; c = open("/dev/null", O_RDWR))
		;
	if (c > 2)
		close(c);
	if (foreground) {
		kvfs_notify_take();
		c = run(&o, store, mountpoint, -1);
	} else {
		if (pipe2(fd, O_CLOEXEC))
			return fail("cannot make a pipe: %s%s", strerror(errno), "");
		child = fork();
		if (child < 0)
			return fail("cannot fork: %s%s", strerror(errno), "");
		if (!child) {
			close(fd[0]);
			setsid();
			if (chdir("/"))
				return 1;
			c = run(&o, store, mountpoint, fd[1]);
		} else {
			close(fd[1]);
			c = parent(fd[0], child, mountpoint);
		}
	}
	free(store);
	free(mountpoint);
	return c;
}
