/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A library for LD_PRELOAD into the daemon or a tool. It makes calls on files fail, come short, be
 * late, or be the last action of the process. FAULTS lists the rules:
 *
 *   FAULTS="calls=read,write path=GLOB nth=N count=C at=OFF len=LEN do=WHAT; ..."
 *
 * calls  Any of read, write, sync, open, alloc, truncate, unlink, rename, link, mkdir, list (open a
 *        folder, or read one entry), seek (for data or holes), stat (by name, of a file or its
 *        filesystem), xattr (get by name) and setxattr (set or remove); or change (all calls that
 *        change anything: the points for a kill); or all (except for stat and xattr).
 * path   A glob for fnmatch, matched with the absolute path of the file.
 * at, len  Only calls that touch these bytes of the file match.
 * nth    The first faulty call, counted from 1 over all threads (0: no call fails; calls are only
 *        counted).
 * count  The number of faulty calls from there on (default 1; 0: all).
 * do     An errno name such as EIO; short: half of the bytes are read or written (calls without
 *        bytes do not match the rule); delay:MS; hold: the call waits until the file of counts says
 *        that the rule has met HELD calls; kill: SIGKILL before the call; torn: half of a write,
 *        then SIGKILL.
 *
 * FAULTS_COUNT names a file in which each rule has two 64-bit integers: the calls that it met and
 * the calls that it made faulty. With nth=0, a first run shows how far a sweep must go. With
 * FAULTS_EXE, only a program of that name has faults. Child processes have none.
 *
 * There are at most RULES rules. Every matching rule counts a call, and the first one that fires
 * decides what happens to it. Streams that a program opens (fopen, fdopen) on a file of a rule read
 * and write through the calls here. Other calls inside libc are not seen, and neither are accesses
 * through mappings.
 */
#include "faults_rules.h"

#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

/* ---- opening ---- */

static int open_at(int dir, const char *path, int flags, mode_t mode)
{
	unsigned m = match_at(dir, path);
	const struct rule *r = fires(m, OPEN, 0, 0);
	struct stat st;
	int fd;

	if (!r && (flags & O_CREAT) && m && syscall(SYS_newfstatat, dir, path, &st, 0))
		r = fires(m, MAKE, 0, 0); /* it creates a file, which is a change */
	if (r)
		return (int)failed(r);
	fd = (int)syscall(SYS_openat, dir, path, flags, mode);
	if (fd >= 0 && fd < FDS)
		atomic_store(&mask_of[fd], (uint16_t)m);
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
	if (fd >= 0 && fd < FDS)
		atomic_store(&mask_of[fd], 0);
	return (int)syscall(SYS_close, fd);
}

/* libc closes the descriptor itself. It is forgotten first, because its number is soon reused: an
 * eventfd or a socket must not fail as if it were the folder. */
int closedir(DIR *d)
{
	static int (*real)(DIR *d);
	int fd = dirfd(d);

	if (!real)
		*(void **)&real = dlsym(RTLD_NEXT, "closedir");
	if (fd >= 0 && fd < FDS)
		atomic_store(&mask_of[fd], 0);
	return real(d);
}

static int same_file(int from, int to)
{
	if (to >= 0 && to < FDS)
		atomic_store(&mask_of[to], (uint16_t)mask(from));
	return to;
}

int fcntl64(int fd, int command, ...)
{
	va_list ap;
	void *arg;
	int got;

	va_start(ap, command);
	arg = va_arg(ap, void *);
	va_end(ap);
	got = (int)syscall(SYS_fcntl, fd, command, arg);
	return command == F_DUPFD || command == F_DUPFD_CLOEXEC ? same_file(fd, got) : got;
}

int fcntl(int fd, int command, ...) __attribute__((alias("fcntl64")));

int dup3(int from, int to, int flags)
{
	return same_file(from, (int)syscall(SYS_dup3, from, to, flags));
}

int dup(int fd)
{
	return same_file(fd, (int)syscall(SYS_dup, fd));
}

int dup2(int from, int to)
{
	return from == to ? fcntl(from, F_GETFD) < 0 ? -1 : to : dup3(from, to, 0);
}

/* ---- bytes ---- */

static size_t half(size_t len)
{
	return len >= 8192 ? len / 2 / 4096 * 4096 : (len + 1) / 2;
}

static ssize_t one(int fd, unsigned call, long number, void *buf, size_t len, off_t off, bool here)
{
	unsigned m = mask(fd);
	uint64_t at = m && here ? (uint64_t)lseek(fd, 0, SEEK_CUR) : (uint64_t)off;
	const struct rule *r = fires(m, call, at, len);
	ssize_t done;

	if (r && r->what == FAIL)
		return failed(r);
	if (r)
		len = half(len);
	done = here ? syscall(number, fd, buf, len) : syscall(number, fd, buf, len, off);
	if (r && r->what == TORN)
		syscall(SYS_kill, getpid(), SIGKILL);
	return done;
}

/* To make a call short, it is given the first of several pieces only. */
static ssize_t several(int fd, unsigned call, long number, const struct iovec *v, int n, off_t off,
		       bool here)
{
	unsigned m = mask(fd);
	uint64_t at = m && here ? (uint64_t)lseek(fd, 0, SEEK_CUR) : (uint64_t)off, len = 0;
	const struct rule *r;
	struct iovec first = n > 0 ? *v : (struct iovec){ 0 };
	ssize_t done;

	for (int i = 0; i < n; i++)
		len += v[i].iov_len;
	r = fires(m, call, at, len);
	if (r && r->what == FAIL)
		return failed(r);
	if (r) {
		first.iov_len = n > 1 ? first.iov_len : half(first.iov_len);
		v = &first;
		n = 1;
	}
	done = here ? syscall(number, fd, v, n) : syscall(number, fd, v, n, off, 0);
	if (r && r->what == TORN)
		syscall(SYS_kill, getpid(), SIGKILL);
	return done;
}

ssize_t read(int fd, void *buf, size_t len)
{
	return one(fd, READ, SYS_read, buf, len, 0, true);
}

ssize_t pread64(int fd, void *buf, size_t len, off_t off)
{
	return one(fd, READ, SYS_pread64, buf, len, off, false);
}

ssize_t pread(int fd, void *buf, size_t len, off_t off)
{
	return pread64(fd, buf, len, off);
}

/* With _FORTIFY_SOURCE, the compiler calls these instead. capacity is the size of the buffer. */
ssize_t __read_chk(int fd, void *buf, size_t len, size_t capacity)
{
	if (len > capacity)
		__chk_fail();
	return read(fd, buf, len);
}

ssize_t __pread64_chk(int fd, void *buf, size_t len, off_t off, size_t capacity)
{
	if (len > capacity)
		__chk_fail();
	return pread64(fd, buf, len, off);
}

ssize_t __pread_chk(int fd, void *buf, size_t len, off_t off, size_t capacity)
{
	return __pread64_chk(fd, buf, len, off, capacity);
}

ssize_t preadv64(int fd, const struct iovec *v, int n, off_t off)
{
	return several(fd, READ, SYS_preadv, v, n, off, false);
}

ssize_t preadv(int fd, const struct iovec *v, int n, off_t off)
{
	return preadv64(fd, v, n, off);
}

ssize_t write(int fd, const void *buf, size_t len)
{
	return one(fd, WRITE, SYS_write, (void *)buf, len, 0, true);
}

ssize_t writev(int fd, const struct iovec *v, int n)
{
	return several(fd, WRITE, SYS_writev, v, n, 0, true);
}

ssize_t pwrite64(int fd, const void *buf, size_t len, off_t off)
{
	return one(fd, WRITE, SYS_pwrite64, (void *)buf, len, off, false);
}

ssize_t pwrite(int fd, const void *buf, size_t len, off_t off)
{
	return pwrite64(fd, buf, len, off);
}

ssize_t pwritev64(int fd, const struct iovec *v, int n, off_t off)
{
	return several(fd, WRITE, SYS_pwritev, v, n, off, false);
}

ssize_t pwritev(int fd, const struct iovec *v, int n, off_t off)
{
	return pwritev64(fd, v, n, off);
}

/* Only searches for holes and data can fail. */
off_t lseek64(int fd, off_t off, int whence)
{
	bool looks = whence == SEEK_DATA || whence == SEEK_HOLE;
	const struct rule *r = looks ? fires(mask(fd), SEEK, 0, 0) : NULL;

	return r ? failed(r) : syscall(SYS_lseek, fd, off, whence);
}

off_t lseek(int fd, off_t off, int whence)
{
	return lseek64(fd, off, whence);
}

/* ---- sizes and stable storage ---- */

int ftruncate64(int fd, off_t size)
{
	return BY_NAME(TRUNCATE, mask(fd), SYS_ftruncate, fd, size);
}

int ftruncate(int fd, off_t size)
{
	return ftruncate64(fd, size);
}

int truncate64(const char *path, off_t size)
{
	return BY_NAME(TRUNCATE, match_at(AT_FDCWD, path), SYS_truncate, path, size);
}

int truncate(const char *path, off_t size)
{
	return truncate64(path, size);
}

int fallocate64(int fd, int mode, off_t off, off_t len)
{
	return BY_NAME(ALLOC, mask(fd), SYS_fallocate, fd, mode, off, len);
}

int fallocate(int fd, int mode, off_t off, off_t len)
{
	return fallocate64(fd, mode, off, len);
}

int posix_fallocate64(int fd, off_t off, off_t len)
{
	int saved = errno, err = fallocate64(fd, 0, off, len) ? errno : 0;

	errno = saved;
	return err;
}

int posix_fallocate(int fd, off_t off, off_t len)
{
	return posix_fallocate64(fd, off, len);
}

int fsync(int fd)
{
	return BY_NAME(SYNC, mask(fd), SYS_fsync, fd);
}

int fdatasync(int fd)
{
	return BY_NAME(SYNC, mask(fd), SYS_fdatasync, fd);
}

/* ---- names ---- */

int unlinkat(int dir, const char *path, int flags)
{
	return BY_NAME(UNLINK, match_at(dir, path), SYS_unlinkat, dir, path, flags);
}

int unlink(const char *path)
{
	return unlinkat(AT_FDCWD, path, 0);
}

int rmdir(const char *path)
{
	return unlinkat(AT_FDCWD, path, AT_REMOVEDIR);
}

int renameat2(int from_dir, const char *from, int to_dir, const char *to, unsigned flags)
{
	return BY_NAME(RENAME, match_at(from_dir, from) | match_at(to_dir, to), SYS_renameat2,
		       from_dir, from, to_dir, to, flags);
}

int renameat(int from_dir, const char *from, int to_dir, const char *to)
{
	return renameat2(from_dir, from, to_dir, to, 0);
}

int rename(const char *from, const char *to)
{
	return renameat2(AT_FDCWD, from, AT_FDCWD, to, 0);
}

int linkat(int from_dir, const char *from, int to_dir, const char *to, int flags)
{
	return BY_NAME(LINK, match_at(from_dir, from) | match_at(to_dir, to), SYS_linkat, from_dir,
		       from, to_dir, to, flags);
}

int link(const char *from, const char *to)
{
	return linkat(AT_FDCWD, from, AT_FDCWD, to, 0);
}

int mkdirat(int dir, const char *path, mode_t mode)
{
	return BY_NAME(MKDIR, match_at(dir, path), SYS_mkdirat, dir, path, mode);
}

int mkdir(const char *path, mode_t mode)
{
	return mkdirat(AT_FDCWD, path, mode);
}

int fstatat64(int dir, const char *path, struct stat64 *st, int flags)
{
	return BY_NAME(STAT, match_at(dir, path), SYS_newfstatat, dir, path, st, flags);
}

int fstatat(int dir, const char *path, struct stat *st, int flags)
{
	/* both structs are equal, like dirent */
	return fstatat64(dir, path, (struct stat64 *)st, flags);
}

int stat64(const char *path, struct stat64 *st)
{
	return fstatat64(AT_FDCWD, path, st, 0);
}

int stat(const char *path, struct stat *st)
{
	return fstatat(AT_FDCWD, path, st, 0);
}

int lstat64(const char *path, struct stat64 *st)
{
	return fstatat64(AT_FDCWD, path, st, AT_SYMLINK_NOFOLLOW);
}

int lstat(const char *path, struct stat *st)
{
	return fstatat(AT_FDCWD, path, st, AT_SYMLINK_NOFOLLOW);
}

int statfs64(const char *path, struct statfs64 *st)
{
	return BY_NAME(STAT, match_at(AT_FDCWD, path), SYS_statfs, path, st);
}

int statfs(const char *path, struct statfs *st)
{
	return statfs64(path, (struct statfs64 *)st);
}

/* ---- attributes ---- */

ssize_t getxattr(const char *path, const char *name, void *value, size_t size)
{
	return BY_NAME(XATTR, match_at(AT_FDCWD, path), SYS_getxattr, path, name, value, size);
}

ssize_t lgetxattr(const char *path, const char *name, void *value, size_t size)
{
	return BY_NAME(XATTR, match_at(AT_FDCWD, path), SYS_lgetxattr, path, name, value, size);
}

int setxattr(const char *path, const char *name, const void *value, size_t size, int flags)
{
	return BY_NAME(SETXATTR, match_at(AT_FDCWD, path), SYS_setxattr, path, name, value, size,
		       flags);
}

int removexattr(const char *path, const char *name)
{
	return BY_NAME(SETXATTR, match_at(AT_FDCWD, path), SYS_removexattr, path, name);
}

/* ---- folders ---- */

DIR *opendir(const char *path)
{
	int fd = open_at(AT_FDCWD, path, O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NONBLOCK, 0);
	DIR *d = fd < 0 ? NULL : fdopendir(fd);

	if (!d && fd >= 0)
		close(fd);
	return d;
}

struct dirent64 *readdir64(DIR *d)
{
	static struct dirent64 *(*real)(DIR *d);
	const struct rule *r = fires(mask(dirfd(d)), LIST, 0, 0);

	if (r) {
		errno = r->value;
		return NULL;
	}
	if (!real)
		*(void **)&real = dlsym(RTLD_NEXT, "readdir64");
	return real(d);
}

struct dirent *readdir(DIR *d)
{
	return (struct dirent *)readdir64(d); /* both structs are equal if off_t has 64 bits */
}

/* ---- streams ---- */

/* libc's streams call the kernel inside libc, so files of a rule get streams of our own. */
static struct {
	FILE *f;
	int fd;
} streams[16];

static ssize_t stream_read(void *cookie, char *buf, size_t len)
{
	return read((int)(intptr_t)cookie, buf, len);
}

static ssize_t stream_write(void *cookie, const char *buf, size_t len)
{
	ssize_t n = write((int)(intptr_t)cookie, buf, len);

	return n < 0 ? 0 : n; /* this is how such a stream reports an error */
}

static int stream_seek(void *cookie, off64_t *off, int whence)
{
	off_t at = lseek64((int)(intptr_t)cookie, *off, whence);

	*off = at < 0 ? *off : at;
	return at < 0 ? -1 : 0;
}

static int stream_close(void *cookie)
{
	for (size_t i = 0; i < sizeof streams / sizeof streams[0]; i++)
		if (streams[i].f && streams[i].fd == (int)(intptr_t)cookie)
			streams[i].f = NULL;
	return close((int)(intptr_t)cookie);
}

FILE *fdopen(int fd, const char *mode)
{
	static FILE *(*real)(int fd, const char *mode);
	size_t i = 0;

	if (!real)
		*(void **)&real = dlsym(RTLD_NEXT, "fdopen");
	while (i < sizeof streams / sizeof streams[0] && streams[i].f)
		i++;
	if (!mask(fd) || i == sizeof streams / sizeof streams[0])
		return real(fd, mode);
	streams[i].f = fopencookie((void *)(intptr_t)fd, mode,
				   (cookie_io_functions_t){ stream_read, stream_write, stream_seek,
							    stream_close });
	streams[i].fd = fd;
	return streams[i].f;
}

FILE *fopen(const char *path, const char *mode)
{
	static FILE *(*real)(const char *path, const char *mode);
	int flags = strchr(mode, '+') ? O_RDWR : *mode == 'r' ? O_RDONLY : O_WRONLY, fd;
	FILE *f;

	if (!real)
		*(void **)&real = dlsym(RTLD_NEXT, "fopen");
	if (!match_at(AT_FDCWD, path))
		return real(path, mode);
	flags |= *mode == 'w' ? O_CREAT | O_TRUNC : *mode == 'a' ? O_CREAT | O_APPEND : 0;
	fd = open_at(AT_FDCWD, path, flags | (strchr(mode, 'e') ? O_CLOEXEC : 0), 0666);
	f = fd < 0 ? NULL : fdopen(fd, mode);
	if (!f && fd >= 0)
		close(fd);
	return f;
}

FILE *fopen64(const char *path, const char *mode)
{
	return fopen(path, mode);
}

int fileno(FILE *f)
{
	static int (*real)(FILE *f);

	for (size_t i = 0; f && i < sizeof streams / sizeof streams[0]; i++)
		if (streams[i].f == f)
			return streams[i].fd;
	if (!real)
		*(void **)&real = dlsym(RTLD_NEXT, "fileno");
	return real(f);
}
