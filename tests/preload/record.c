/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A library for LD_PRELOAD into the daemon. It records the daemon's operations on files below a
 * folder, so that a test can simulate a power failure at any point (tests/lib/replay.py reads the
 * records).
 *
 * RECORD_UNDER names the folder, RECORD_LOG the file of the records, and RECORD_STATE a page shared
 * with the test, which has the number of the last record and a request to kill the daemon.
 *
 * An operation has two records: one before it is passed to the kernel, with its bytes, and one
 * after it has returned. A sync covers exactly the operations that had returned before the sync was
 * called. The records are appended under a lock, and the operation runs outside of it. Operations
 * on names run one at a time: otherwise an open and a rename of the same name could be recorded in
 * one order and done in the other, and later writes would be attributed to the wrong file. A kill
 * (state.kill) happens when no operation is running, so that each operation is known to be done or
 * not done.
 *
 * The recorded files are those of a store, except for its -shm file, which is rebuilt, and the
 * reserve. Writes through mappings are not seen; at the end, the test compares the files with the
 * records.
 */
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#define FDS 4096

enum op {
	OP_OPEN = 1, /* payload: path; off: 1 if created */
	OP_WRITE,    /* off, payload */
	OP_TRUNCATE, /* off: the size */
	OP_SYNC,
	OP_SYNC_DIR,
	OP_UNLINK, /* payload: path */
	OP_RENAME, /* payload: from, a zero byte, to */
	OP_MKDIR,  /* payload: path */
	OP_CLOSE,
	OP_END = 16, /* id: of the first record; off: the result, or minus errno */
};

struct record {
	uint64_t seq, id, off, len;
	uint32_t op, pid;
	int32_t fd;
	uint32_t tid;
};
_Static_assert(sizeof(struct record) == 48, "record");

struct state {
	_Atomic uint64_t seq;
	_Atomic uint32_t kill;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_mutex_t names = PTHREAD_MUTEX_INITIALIZER; /* held by an operation on names */
static pthread_rwlock_t busy = PTHREAD_RWLOCK_INITIALIZER;
static struct state *state;
static char under[PATH_MAX];
static size_t under_len;
static int log_fd = -1;
static _Atomic unsigned char kind_of[FDS]; /* 0 not recorded, 1 a file, 2 a folder */

static void die(const char *what)
{
	dprintf(2, "record: %s: %s\n", what, strerror(errno));
	abort();
}

static uint64_t append(struct record r, const struct iovec *v, int n)
{
	struct iovec all[17] = { { &r, sizeof r } };
	size_t total = sizeof r;

	pthread_mutex_lock(&lock);
	r.seq = atomic_load(&state->seq) + 1;
	r.pid = (uint32_t)getpid();
	r.tid = (uint32_t)syscall(SYS_gettid);
	for (int i = 0; i < n; i++) {
		all[i + 1] = v[i];
		r.len += v[i].iov_len;
	}
	total += r.len;
	if (syscall(SYS_writev, log_fd, all, n + 1) != (long)total)
		die("the log");
	atomic_store(&state->seq, r.seq);
	pthread_mutex_unlock(&lock);
	return r.seq;
}

static uint64_t begin(enum op op, int fd, uint64_t off, const struct iovec *v, int n)
{
	int saved = errno;
	uint64_t id;

	pthread_rwlock_rdlock(&busy);
	id = append((struct record){ .op = op, .fd = fd, .off = off }, v, n);
	errno = saved;
	return id;
}

static long end(uint64_t id, long result)
{
	int saved = errno;

	append((struct record){ .op = OP_END,
				.id = id,
				.off = (uint64_t)(result < 0 ? -(long)saved : result) },
	       NULL, 0);
	pthread_rwlock_unlock(&busy);
	errno = saved;
	return result;
}

/* An operation on names. `name_end` ends it. */
static uint64_t name_begin(enum op op, const struct iovec *v, int n)
{
	int saved = errno;

	pthread_mutex_lock(&names);
	errno = saved;
	return begin(op, -1, 0, v, n);
}

static long name_end(uint64_t id, long result)
{
	int saved;

	result = end(id, result);
	saved = errno;
	pthread_mutex_unlock(&names);
	errno = saved;
	return result;
}

static void *killer(void *arg)
{
	(void)arg;
	while (!atomic_load(&state->kill))
		usleep(500);
	pthread_rwlock_wrlock(&busy);
	kill(getpid(), SIGKILL);
	return NULL;
}

__attribute__((constructor)) static void start(void)
{
	const char *folder = getenv("RECORD_UNDER"), *log = getenv("RECORD_LOG");
	const char *page = getenv("RECORD_STATE");
	pthread_rwlockattr_t attr;
	pthread_t thread;
	int fd;

	if (!folder || !log || !page)
		return;
	if (!realpath(folder, under))
		die(folder);
	under_len = strlen(under);
	pthread_rwlockattr_init(&attr); /* the killer must not starve */
	pthread_rwlockattr_setkind_np(&attr, PTHREAD_RWLOCK_PREFER_WRITER_NONRECURSIVE_NP);
	pthread_rwlock_init(&busy, &attr);
	log_fd = (int)syscall(SYS_openat, AT_FDCWD, log, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC,
			      0600);
	fd = (int)syscall(SYS_openat, AT_FDCWD, page, O_RDWR | O_CLOEXEC);
	if (log_fd < 0 || fd < 0)
		die("cannot open the log");
	state = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	syscall(SYS_close, fd);
	if (state == MAP_FAILED)
		die("cannot map the state");
	if (pthread_create(&thread, NULL, killer, NULL))
		die("cannot start a thread");
	/* Do not record child processes. */
	unsetenv("LD_PRELOAD");
}

static bool ends(const char *s, const char *tail)
{
	size_t a = strlen(s), b = strlen(tail);

	return a >= b && !strcmp(s + a - b, tail);
}

/* Returns the path below the folder ("" for the folder itself), or NULL if it is not recorded. */
static const char *ours(int dir, const char *path, char *full)
{
	char base[PATH_MAX], link[64];
	ssize_t n = 0;

	if (log_fd < 0 || !path)
		return NULL;
	if (*path != '/') {
		if (dir == AT_FDCWD) {
			if (!getcwd(base, sizeof base))
				return NULL;
		} else {
			snprintf(link, sizeof link, "/proc/self/fd/%d", dir);
			n = readlink(link, base, sizeof base - 1);
			if (n < 0)
				return NULL;
			base[n] = 0;
		}
		if (snprintf(full, PATH_MAX, "%s/%s", base, path) >= PATH_MAX)
			return NULL;
	} else if (snprintf(full, PATH_MAX, "%s", path) >= PATH_MAX) {
		return NULL;
	}
	if (strncmp(full, under, under_len) || (full[under_len] && full[under_len] != '/'))
		return NULL;
	full += under_len + (full[under_len] == '/');
	return ends(full, "-shm") || ends(full, "reserve") ? NULL : full;
}

static int kind(int fd)
{
	return fd >= 0 && fd < FDS ? atomic_load(&kind_of[fd]) : 0;
}

/* ---- opening ---- */

static int open_at(int dir, const char *path, int flags, mode_t mode)
{
	char full[PATH_MAX];
	int saved = errno;
	const char *name = ours(dir, path, full);
	struct stat st;
	uint64_t id;
	int fd;

	errno = saved;
	if (!name || (flags & O_TMPFILE) == O_TMPFILE)
		return (int)syscall(SYS_openat, dir, path, flags, mode);
	struct iovec v = { (char *)name, strlen(name) };

	pthread_mutex_lock(&names);
	bool made = (flags & O_CREAT) && fstatat(dir, path, &st, 0);

	errno = saved;
	id = begin(OP_OPEN, -1, made, &v, 1);
	fd = (int)syscall(SYS_openat, dir, path, flags, mode);
	if (fd >= FDS)
		die("too many descriptors");
	if (fd >= 0)
		atomic_store(&kind_of[fd], fstat(fd, &st) || S_ISDIR(st.st_mode) ? 2 : 1);
	name_end(id, fd);
	if (fd >= 0 && flags & O_TRUNC && !made) {
		id = begin(OP_TRUNCATE, fd, 0, NULL, 0);
		end(id, 0);
	}
	return fd;
}

#define MODE_OF(flags, last)                                                   \
	({                                                                     \
		mode_t m = 0;                                                  \
		if ((flags) & O_CREAT || ((flags) & O_TMPFILE) == O_TMPFILE) { \
			va_list ap;                                            \
			va_start(ap, last);                                    \
			m = va_arg(ap, mode_t);                                \
			va_end(ap);                                            \
		}                                                              \
		m;                                                             \
	})

int open(const char *path, int flags, ...)
{
	return open_at(AT_FDCWD, path, flags, MODE_OF(flags, flags));
}

int open64(const char *path, int flags, ...)
{
	return open_at(AT_FDCWD, path, flags | O_LARGEFILE, MODE_OF(flags, flags));
}

int openat(int dir, const char *path, int flags, ...)
{
	return open_at(dir, path, flags, MODE_OF(flags, flags));
}

int openat64(int dir, const char *path, int flags, ...)
{
	return open_at(dir, path, flags | O_LARGEFILE, MODE_OF(flags, flags));
}

#include "fortified_open.h"

int close(int fd)
{
	if (kind(fd)) {
		uint64_t id = begin(OP_CLOSE, fd, 0, NULL, 0);

		atomic_store(&kind_of[fd], 0);
		return (int)end(id, syscall(SYS_close, fd));
	}
	return (int)syscall(SYS_close, fd);
}

/* libc closes the descriptor itself, so it is unregistered here before its number is reused. */
int closedir(DIR *d)
{
	static int (*real)(DIR *);
	int fd = dirfd(d), result;
	uint64_t id;

	if (!real)
		*(void **)&real = dlsym(RTLD_NEXT, "closedir");
	if (!kind(fd))
		return real(d);
	id = begin(OP_CLOSE, fd, 0, NULL, 0);
	atomic_store(&kind_of[fd], 0);
	result = real(d);
	return (int)end(id, result);
}

/* ---- bytes ---- */

static ssize_t write_at(int fd, const struct iovec *v, int n, off_t off, bool at_end)
{
	uint64_t id;

	if (!kind(fd))
		return at_end ? syscall(SYS_writev, fd, v, n)
			      : syscall(SYS_pwritev, fd, v, n, off, 0);
	if (n > 16)
		die("too many pieces");
	if (at_end)
		off = lseek(fd, 0, SEEK_CUR);
	id = begin(OP_WRITE, fd, (uint64_t)off, v, n);
	return end(id, syscall(SYS_pwritev, fd, v, n, off, 0));
}

/* A write at the descriptor's position advances the position. */
static ssize_t write_here(int fd, const struct iovec *v, int n)
{
	ssize_t done = write_at(fd, v, n, 0, true);

	if (done > 0 && kind(fd))
		lseek(fd, done, SEEK_CUR);
	return done;
}

ssize_t write(int fd, const void *buf, size_t len)
{
	struct iovec v = { (void *)buf, len };

	return kind(fd) ? write_here(fd, &v, 1) : syscall(SYS_write, fd, buf, len);
}

ssize_t writev(int fd, const struct iovec *v, int n)
{
	return write_here(fd, v, n);
}

ssize_t pwrite64(int fd, const void *buf, size_t len, off_t off)
{
	struct iovec v = { (void *)buf, len };

	return kind(fd) ? write_at(fd, &v, 1, off, false)
			: syscall(SYS_pwrite64, fd, buf, len, off);
}

ssize_t pwrite(int fd, const void *buf, size_t len, off_t off)
{
	return pwrite64(fd, buf, len, off);
}

ssize_t pwritev64(int fd, const struct iovec *v, int n, off_t off)
{
	return write_at(fd, v, n, off, false);
}

ssize_t pwritev(int fd, const struct iovec *v, int n, off_t off)
{
	return write_at(fd, v, n, off, false);
}

int ftruncate64(int fd, off_t size)
{
	uint64_t id;

	if (!kind(fd))
		return (int)syscall(SYS_ftruncate, fd, size);
	id = begin(OP_TRUNCATE, fd, (uint64_t)size, NULL, 0);
	return (int)end(id, syscall(SYS_ftruncate, fd, size));
}

int ftruncate(int fd, off_t size)
{
	return ftruncate64(fd, size);
}

/* Aborts on operations that would change a file but are not recorded. */
int truncate64(const char *path, off_t size)
{
	char full[PATH_MAX];

	if (ours(AT_FDCWD, path, full))
		die("truncate by name");
	return (int)syscall(SYS_truncate, path, size);
}

int truncate(const char *path, off_t size)
{
	return truncate64(path, size);
}

int fallocate64(int fd, int mode, off_t off, off_t len)
{
	if (kind(fd))
		die("fallocate");
	return (int)syscall(SYS_fallocate, fd, mode, off, len);
}

int fallocate(int fd, int mode, off_t off, off_t len)
{
	return fallocate64(fd, mode, off, len);
}

/* ---- stable storage ---- */

static int sync_fd(int fd, long call)
{
	uint64_t id;

	if (!kind(fd))
		return (int)syscall(call, fd);
	id = begin(kind(fd) == 2 ? OP_SYNC_DIR : OP_SYNC, fd, 0, NULL, 0);
	return (int)end(id, syscall(call, fd));
}

int fsync(int fd)
{
	return sync_fd(fd, SYS_fsync);
}

int fdatasync(int fd)
{
	return sync_fd(fd, SYS_fdatasync);
}

/* ---- names ---- */

int unlinkat(int dir, const char *path, int flags)
{
	char full[PATH_MAX];
	const char *name = ours(dir, path, full);
	uint64_t id;

	if (!name)
		return (int)syscall(SYS_unlinkat, dir, path, flags);
	struct iovec v = { (char *)name, strlen(name) };

	id = name_begin(OP_UNLINK, &v, 1);
	return (int)name_end(id, syscall(SYS_unlinkat, dir, path, flags));
}

int unlink(const char *path)
{
	return unlinkat(AT_FDCWD, path, 0);
}

int renameat(int from_dir, const char *from, int to_dir, const char *to)
{
	char full_from[PATH_MAX], full_to[PATH_MAX];
	const char *a = ours(from_dir, from, full_from), *b = ours(to_dir, to, full_to);
	uint64_t id;

	if (!a && !b)
		return (int)syscall(SYS_renameat2, from_dir, from, to_dir, to, 0);
	if (!a || !b)
		die("a rename into or out of the folder");
	struct iovec v[2] = { { (char *)a, strlen(a) + 1 }, { (char *)b, strlen(b) } };

	id = name_begin(OP_RENAME, v, 2);
	return (int)name_end(id, syscall(SYS_renameat2, from_dir, from, to_dir, to, 0));
}

int rename(const char *from, const char *to)
{
	return renameat(AT_FDCWD, from, AT_FDCWD, to);
}

int mkdir(const char *path, mode_t mode)
{
	char full[PATH_MAX];
	const char *name = ours(AT_FDCWD, path, full);
	uint64_t id;

	if (!name)
		return (int)syscall(SYS_mkdirat, AT_FDCWD, path, mode);
	struct iovec v = { (char *)name, strlen(name) };

	id = name_begin(OP_MKDIR, &v, 1);
	return (int)name_end(id, syscall(SYS_mkdirat, AT_FDCWD, path, mode));
}
