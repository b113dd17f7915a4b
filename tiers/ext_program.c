/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The program of an ext tier, as a process; see ext_program.h. Only one thread uses a
 * struct kvct_program.
 *
 * The child is made with clone(CLONE_VM | CLONE_VFORK), because a fork would copy the page tables
 * of the daemon. posix_spawn does the same, but cannot set the signal for the death of the parent.
 * Until execve the child shares the daemon's memory, so it makes only system calls. All signals are
 * blocked until then, so that none of the daemon's handlers runs in the child.
 */
#include "ext_program.h"

#include "log.h"
#include "util.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/close_range.h>
#include <limits.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#define SOCKET 3
#define LINES 20         /* logged lines in a second */
#define FLOOD (1u << 20) /* bytes that are read in a second */
#define WINDOW_NS 1000000000ull
#define STACK (64u << 10)
#ifdef __SANITIZE_THREAD__
/* The thread sanitizer changes its own state in the child, so the memory is not shared. */
#define CHILD_FLAGS SIGCHLD
#else
#define CHILD_FLAGS (CLONE_VM | CLONE_VFORK | SIGCHLD)
#endif

static int refuse_program(char *error, const char *path, const char *why)
{
	snprintf(error, 512, "option remote: %.300s %s", path, why);
	return -EINVAL;
}

/* Can other users change the attributes or the entry of this file? */
static bool is_trusted(const struct stat *st)
{
	return st->st_uid == 0 || st->st_uid == geteuid();
}

/* Checks the folders of the path. `path` is cut at each slash for a moment. */
static int check_folders(char *path, char *error)
{
	bool direct = true;
	struct stat st;

	for (char *slash = strrchr(path, '/'); slash; slash = strrchr(path, '/')) {
		const char *folder = slash == path ? "/" : path;

		*slash = 0;
		if (lstat(folder, &st))
			return refuse_program(error, folder, strerror(errno));
		/* in a sticky folder others can add files, but cannot replace our folder */
		if (!is_trusted(&st) || ((st.st_mode & 022) && (direct || !(st.st_mode & S_ISVTX))))
			return refuse_program(error, folder,
					      "can be changed by other users; give it to root "
					      "(chown root), and chmod go-w, or move the program");
		direct = false;
	}
	return 0;
}

int kvct_program_check(const char *path, char *error)
{
	char real[PATH_MAX], copy[PATH_MAX];
	struct stat st;

	if (!realpath(path, real))
		return refuse_program(error, path,
				      errno == ENOENT ? "does not exist; give the path of a program"
						      : kvc_why(errno));
	if (strcmp(path, real) != 0) {
		snprintf(error, 512,
			 "option remote: %.200s is not the real path of the program; give %.200s",
			 path, real);
		return -EINVAL;
	}
	if (stat(real, &st))
		return refuse_program(error, path, kvc_why(errno));
	if (!S_ISREG(st.st_mode) || access(real, X_OK))
		return refuse_program(error, path,
				      "is not an executable file; chmod +x, or give another path");
	if (!is_trusted(&st) || (st.st_mode & 022))
		return refuse_program(
			error, path,
			"can be changed by other users; give it to root (chown root), "
			"and chmod go-w");
	snprintf(copy, sizeof copy, "%s", real);
	return check_folders(copy, error);
}

/* What the child needs; it shares the daemon's memory until execve. */
struct child {
	const char *path;
	pid_t parent;
	int null, text, sock; /* above SOCKET */
	int err;              /* the errno of the step that failed */
};

/*
 * It never returns. So the address sanitizer must not mark its stack as forbidden: the marks would
 * stay when the daemon maps something else there.
 */
__attribute__((no_sanitize("address"))) static int run_child(void *arg)
{
	static char *const environment[] = {
		(char *)"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
		(char *)"LANG=C.UTF-8", NULL
	};
	const struct sigaction usual = { .sa_handler = SIG_DFL };
	struct child *c = arg;
	char *const argv[] = { (char *)c->path, NULL };
	sigset_t none;

	for (int s = 1; s < _NSIG; s++)
		sigaction(s, &usual, NULL); /* some cannot be set */
	sigemptyset(&none);
	umask(077);
	if (prctl(PR_SET_PDEATHSIG, SIGKILL) || getppid() != c->parent || setpgid(0, 0) ||
	    prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) || chdir("/") || dup2(c->null, 0) < 0 ||
	    dup2(c->text, 1) < 0 || dup2(c->text, 2) < 0 || dup2(c->sock, SOCKET) < 0 ||
	    syscall(SYS_close_range, SOCKET + 1, ~0u, 0) || sigprocmask(SIG_SETMASK, &none, NULL) ||
	    execve(c->path, argv, environment))
		c->err = errno ?: ESRCH;
	_exit(127);
}

/* Makes the child, and waits until it has called execve or failed. */
static int clone_child(struct kvct_program *p, struct child *c)
{
	char *stack = mmap(NULL, STACK, PROT_READ | PROT_WRITE,
			   MAP_PRIVATE | MAP_ANONYMOUS | MAP_STACK, -1, 0);
	sigset_t all, old;
	pid_t pid;
	int err;

	if (stack == MAP_FAILED)
		return -errno;
	sigfillset(&all);
	pthread_sigmask(SIG_BLOCK, &all, &old);
	pid = clone(run_child, stack + STACK, CHILD_FLAGS, c);
	err = pid < 0 ? -errno : -c->err;
	pthread_sigmask(SIG_SETMASK, &old, NULL);
	munmap(stack, STACK);
	if (pid > 0 && !err) {
		p->pidfd = (int)syscall(SYS_pidfd_open, pid, 0);
		err = p->pidfd < 0 ? -errno : 0;
	}
	if (pid > 0 && err) {
		kill(pid, SIGKILL);
		waitpid(pid, NULL, 0);
	}
	if (!err)
		p->pid = pid;
	return err;
}

/* Replaces the descriptor by a higher one, so that the child's dup2 calls overwrite none. */
static int raise_fd(int *fd)
{
	int high = fcntl(*fd, F_DUPFD_CLOEXEC, SOCKET + 1);

	if (high < 0)
		return -errno;
	close(*fd);
	*fd = high;
	return 0;
}

int kvct_program_start(struct kvct_program *p, const char *path)
{
	int sock[2] = { -1, -1 }, text[2] = { -1, -1 };
	KVC_FD int null = open("/dev/null", O_RDONLY | O_CLOEXEC);
	int err = 0;

	memset(p, 0, sizeof *p);
	if (null < 0 || socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, sock) ||
	    pipe2(text, O_CLOEXEC))
		err = -errno;
	err = err ?: raise_fd(&null) ?: raise_fd(&sock[1]) ?: raise_fd(&text[1]);
	if (!err) {
		struct child c = { path, getpid(), null, text[1], sock[1], 0 };

		fcntl(sock[0], F_SETFL, O_NONBLOCK);
		fcntl(text[0], F_SETFL, O_NONBLOCK);
		err = clone_child(p, &c);
	}
	kvc_close_fd(&sock[1]);
	kvc_close_fd(&text[1]);
	if (err) {
		kvc_close_fd(&sock[0]);
		kvc_close_fd(&text[0]);
		memset(p, 0, sizeof *p);
		return err;
	}
	p->sock = sock[0];
	p->text = text[0];
	return 0;
}

/* Starts to count again if a second has passed. */
static void renew_window(struct kvct_program *p)
{
	uint64_t now = kvc_mono_ns();

	if (now - p->window_ns < WINDOW_NS)
		return;
	if (p->skipped)
		kvc_warn("tier ext: the program wrote %u more lines", p->skipped);
	p->window_ns = now;
	p->lines = p->skipped = 0;
	p->bytes = 0;
}

/* Logs the collected line, or counts it. */
static void end_line(struct kvct_program *p)
{
	p->line[p->len] = 0;
	kvc_quote_one_line(p->line);
	if (p->len && p->lines >= LINES)
		p->skipped++;
	else if (p->len)
		kvc_info("tier ext: the program wrote: %s", p->line);
	p->lines += p->len != 0;
	p->len = 0;
}

bool kvct_program_log(struct kvct_program *p)
{
	char buf[16384];

	renew_window(p);
	for (int i = 0; i < 4; i++) {
		ssize_t n = read(p->text, buf, sizeof buf);

		if (n < 0 && (errno == EAGAIN || errno == EINTR))
			return true;
		if (n <= 0) {
			end_line(p);
			return false;
		}
		for (ssize_t at = 0; at < n; at++) {
			if (buf[at] == '\n')
				end_line(p);
			else if (p->len < sizeof p->line - 1)
				p->line[p->len++] = buf[at] ?: '?';
		}
		p->bytes += (size_t)n;
	}
	return true;
}

bool kvct_program_floods(const struct kvct_program *p, uint64_t *until_ns)
{
	*until_ns = p->window_ns + WINDOW_NS;
	return p->bytes >= FLOOD && kvc_mono_ns() < *until_ns;
}

void kvct_program_end(struct kvct_program *p, uint64_t wait_ms, char *why)
{
	struct pollfd ended = { .fd = p->pidfd, .events = POLLIN };
	uint64_t until = kvc_mono_ns() + wait_ms * 1000000, now;
	int status = 0;

	close(p->sock);
	/* its last words are read, too, so that it does not wait for room in the pipe */
	while (!ended.revents && (now = kvc_mono_ns()) < until) {
		poll(&ended, 1, (int)kvc_min((until - now) / 1000000 + 1, 20));
		kvct_program_log(p);
	}
	kill(-p->pid, SIGKILL);
	kill(p->pid, SIGKILL); /* it may have moved to another process group */
	while (waitpid(p->pid, &status, 0) < 0 && errno == EINTR)
		;
	kvct_program_log(p);
	end_line(p);
	if (p->skipped)
		kvc_warn("tier ext: the program wrote %u more lines", p->skipped);
	close(p->text);
	close(p->pidfd);
	if (WIFEXITED(status))
		snprintf(why, 128, "exited with status %d", WEXITSTATUS(status));
	else if (!ended.revents && WTERMSIG(status) == SIGKILL)
		snprintf(why, 128, "%s",
			 wait_ms ? "did not end by itself, and was killed" : "was killed");
	else
		snprintf(why, 128, "was killed by signal %d", WTERMSIG(status));
	memset(p, 0, sizeof *p);
}
