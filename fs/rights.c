/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The daemon's rights to mount. Root mounts directly. Other users mount through fusermount3, which
 * is set-uid root and has its own rules. fusermount3 prints its refusals on stderr, in
 * addition to the daemon's own message. So its rules are checked here first, and the user gets one
 * line that names the fix. Only the thread that starts the daemon calls these functions. See
 * rights.h.
 */
#include "rights.h"

#include <errno.h>
#include <linux/capability.h>
#include <spawn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define HELPER "fusermount3"
#define HELPER_FIRST "/usr/bin/" HELPER  /* libfuse tries it before $PATH */
#define FIRST_USER_NAMESPACE 0xeffffffdu /* inode number: PROC_USER_INIT_INO of the kernel */

extern char **environ;

bool kvfs_admin_here(void)
{
	struct __user_cap_header_struct head = { .version = _LINUX_CAPABILITY_VERSION_3 };
	struct __user_cap_data_struct data[_LINUX_CAPABILITY_U32S_3] = { 0 };

	if (syscall(SYS_capget, &head, data))
		return geteuid() == 0;
	return data[CAP_TO_INDEX(CAP_SYS_ADMIN)].effective & CAP_TO_MASK(CAP_SYS_ADMIN);
}

bool kvfs_admin_of_all(void)
{
	struct stat st;

	return kvfs_admin_here() &&
	       (stat("/proc/self/ns/user", &st) || st.st_ino == FIRST_USER_NAMESPACE);
}

static bool is_program(const char *path, struct stat *st)
{
	return !stat(path, st) && S_ISREG(st->st_mode) && !access(path, X_OK);
}

/* Finds fusermount3 the way libfuse does. Returns false if there is none. */
static bool find_helper(char *path, size_t capacity, struct stat *st)
{
	const char *p = getenv("PATH") ?: "/usr/bin:/bin";

	snprintf(path, capacity, "%s", HELPER_FIRST);
	if (is_program(path, st))
		return true;
	while (*p) {
		int n = (int)strcspn(p, ":");

		snprintf(path, capacity, "%.*s/" HELPER, n, p);
		if (n && is_program(path, st))
			return true;
		p += n + (p[n] == ':');
	}
	return false;
}

/*
 * Searches /etc/fuse.conf for user_allow_other. On some systems only root can read that file; then
 * this returns true, and fusermount3 decides.
 */
static bool others_allowed(void)
{
	FILE *f = fopen("/etc/fuse.conf", "re");
	char line[256], word[32];
	bool yes = !f && errno != ENOENT;

	while (f && !yes && fgets(line, sizeof line, f))
		yes = sscanf(line, " %31s", word) == 1 && !strcmp(word, "user_allow_other");
	if (f)
		fclose(f);
	return yes;
}

/* Returns why fusermount3 would not become root, or NULL. */
static const char *no_setuid(const struct stat *helper)
{
	if (geteuid() == 0 || prctl(PR_CAPBSET_READ, CAP_SYS_ADMIN) == 0)
		return "the process lacks CAP_SYS_ADMIN: grant it (in a container, add the "
		       "capability)";
	if (prctl(PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0) == 1)
		return "no_new_privs is set: clear it (allowPrivilegeEscalation of a container, "
		       "NoNewPrivileges= of systemd)";
	if (!(helper->st_mode & S_ISUID) || helper->st_uid)
		return HELPER " is not set-uid root: chmod u+s it";
	return NULL;
}

int kvfs_may_mount(bool allow_other, const char *mountpoint, char *error)
{
	const char *why;
	char path[1024];
	struct stat st;

	if (kvfs_admin_here())
		return 0;
	if (!find_helper(path, sizeof path, &st))
		snprintf(error, 512,
			 "mounting requires root or " HELPER
			 ": install it (apt-get install fuse3)");
	else if ((why = no_setuid(&st)))
		snprintf(error, 512, "no permission to mount: %s", why);
	else if (allow_other && !others_allowed())
		snprintf(error, 512,
			 "allow_other requires root or the line user_allow_other in "
			 "/etc/fuse.conf: add that line as root");
	else if (!stat(mountpoint, &st) &&
		 (access(mountpoint, W_OK) || (st.st_mode & S_ISVTX && st.st_uid != getuid())))
		snprintf(error, 512,
			 "mount point %.400s belongs to another user: without root, give a folder "
			 "that you own",
			 mountpoint);
	else
		return 0;
	return -EPERM;
}

int kvfs_detach(const char *mountpoint)
{
	char path[1024], dashes[] = "-uzq", end[] = "--", *point = strdup(mountpoint);
	char *argv[] = { path, dashes, end, point, NULL };
	struct stat st;
	pid_t child;
	int err = umount2(mountpoint, MNT_DETACH) ? -errno : 0, status;

	if (err == -EPERM && point && find_helper(path, sizeof path, &st) &&
	    !posix_spawn(&child, path, NULL, NULL, argv, environ) &&
	    waitpid(child, &status, 0) == child && status == 0)
		err = 0;
	free(point);
	return err;
}
