/* SPDX-License-Identifier: Apache-2.0 */
/* Small functions that all layers need (util.h). */
#include "util.h"

#include "library.h"
#include "near.h"

#include <fcntl.h>
#include <getopt.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <xxhash.h>

static uint64_t clock_ns(clockid_t id)
{
	struct timespec t;

	clock_gettime(id, &t);
	return kvc_ns(t);
}

uint64_t kvc_now_ns(void)
{
	return clock_ns(CLOCK_REALTIME);
}

uint64_t kvc_mono_ns(void)
{
	return clock_ns(CLOCK_MONOTONIC);
}

unsigned kvc_cpus(void)
{
	cpu_set_t set;
	long n = sched_getaffinity(0, sizeof set, &set) ? sysconf(_SC_NPROCESSORS_ONLN)
							: CPU_COUNT(&set);

	return n > 0 ? (unsigned)n : 1;
}

int kvc_join(pthread_t thread, uint64_t until_ns)
{
	uint64_t step = 100000; /* ns, doubled to 20 ms */

	/*
	 * pthread_timedjoin_np uses calendar time, and not every libc has the variant with a clock
	 */
	while (pthread_tryjoin_np(thread, NULL)) {
		uint64_t now = kvc_mono_ns();
		struct timespec t;

		if (now >= until_ns)
			return -ETIMEDOUT;
		t = kvc_timespec(kvc_min(step, until_ns - now));
		nanosleep(&t, NULL);
		step = kvc_min(step * 2, 20000000);
	}
	return 0;
}

void kvc_put_plain(FILE *out, const char *name, size_t len)
{
	for (const unsigned char *p = (const void *)name; len--; p++)
		if (*p > ' ' && *p < 0x7f && *p != '%' && *p != '"' && *p != '\\')
			fputc(*p, out);
		else
			fprintf(out, "%%%02X", *p);
}

uint64_t kvc_name_hash(const char *name)
{
	uint64_t h = XXH3_64bits(name, strlen(name)) >> 2;

	return h < 16 ? h + 16 : h;
}

struct kvc_sum kvc_sum_of(const void *data, size_t len)
{
	XXH128_canonical_t c;
	struct kvc_sum s;

	XXH128_canonicalFromHash(&c, XXH3_128bits(data, len));
	memcpy(s.b, c.digest, sizeof s.b);
	return s;
}

struct kvc_sum kvc_sum_digest(const XXH3_state_t *x)
{
	XXH128_canonical_t c;
	struct kvc_sum s;

	XXH128_canonicalFromHash(&c, XXH3_128bits_digest(x));
	memcpy(s.b, c.digest, sizeof s.b);
	return s;
}

const char *kvc_sum_text(const struct kvc_sum *s, char *buf)
{
	for (int i = 0; i < 16; i++)
		snprintf(buf + 2 * i, 3, "%02x", s->b[i]);
	return buf;
}

static int is_own(const struct stat *st, bool writes)
{
	if (S_ISLNK(st->st_mode))
		return -ELOOP;
	if (!S_ISREG(st->st_mode))
		return S_ISDIR(st->st_mode) ? -EISDIR : -EINVAL;
	return writes && st->st_uid && st->st_uid != geteuid() ? -EPERM : 0;
}

int kvc_open_own(const char *path, int flags)
{
	bool cut = flags & O_TRUNC;
	int fd = open(path, (flags & ~O_TRUNC) | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC, 0600), err;
	struct stat st;

	if (fd < 0)
		return errno == ENXIO ? -EINVAL : -errno; /* a pipe, or a socket */
	err = fstat(fd, &st) ? -errno : is_own(&st, (flags & O_ACCMODE) != O_RDONLY);
	if (!err && cut && ftruncate(fd, 0))
		err = -errno;
	if (!err)
		return fd;
	close(fd);
	errno = -err;
	return err;
}

int kvc_check_own(const char *path, bool writes)
{
	struct stat st;

	if (lstat(path, &st))
		return errno == ENOENT ? 0 : -errno;
	return is_own(&st, writes);
}

int kvc_pread_all(int fd, void *buf, size_t len, off_t off)
{
	while (len) {
		ssize_t n = pread(fd, buf, len, off);

		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0)
			return -errno;
		if (!n)
			return -ENODATA;
		buf = (char *)buf + n;
		len -= (size_t)n;
		off += n;
	}
	return 0;
}

int kvc_pwrite_all(int fd, const void *buf, size_t len, off_t off)
{
	while (len) {
		ssize_t n = pwrite(fd, buf, len, off);

		if (n < 0 && errno == EINTR)
			continue;
		if (n <= 0)
			return n ? -errno : -EIO;
		buf = (const char *)buf + n;
		len -= (size_t)n;
		off += n;
	}
	return 0;
}

int kvc_grow(void *array, size_t n, size_t *capacity, size_t elem)
{
	void **a = array;

	if (n < *capacity)
		return 0;
	size_t more = *capacity ? *capacity * 2 : 16;
	void *p = reallocarray(*a, more, elem);

	if (!p)
		return -ENOMEM;
	*a = p;
	*capacity = more;
	return 0;
}

int kvc_stack_push(struct kvc_stack *s, uint64_t v)
{
	if (kvc_grow(&s->v, s->n, &s->capacity, sizeof *s->v))
		return -ENOMEM;
	s->v[s->n++] = v;
	return 0;
}

bool kvc_stack_pop(struct kvc_stack *s, uint64_t *v)
{
	if (!s->n)
		return false;
	*v = s->v[--s->n];
	return true;
}

bool kvc_is_mounted(const char *path)
{
	struct statx x;

	return !statx(AT_FDCWD, path, AT_SYMLINK_NOFOLLOW, STATX_TYPE, &x) &&
	       (x.stx_attributes & STATX_ATTR_MOUNT_ROOT);
}

const char *kvc_why(int err)
{
	static const struct {
		int err;
		const char *text;
	} all[] = {
		{ ENOENT, "No such file or directory; check the path" },
		{ ENOTDIR, "Not a directory; give the path of a folder" },
		{ EISDIR, "Is a directory; give the path of a file" },
		{ EEXIST, "File exists; give another name, or remove it" },
		{ EACCES, "Permission denied; run as root or as the owner" },
		{ EPERM, "Operation not permitted; run as root or as the owner" },
		{ EROFS, "Read-only file system; remount it read-write" },
		{ ENOSPC, "No space left on device; free space there" },
		{ EDQUOT, "Disk quota exceeded; free space, or raise the quota" },
		{ ENOTCONN, "Transport endpoint is not connected; unmount the dead mount" },
		{ EIO, "Input/output error; see the kernel's log (dmesg)" },
		{ EMFILE, "Too many open files; raise the limit (ulimit -n)" },
		{ ENFILE, "Too many open files in system; raise fs.file-max" },
		{ ENOMEM, "Cannot allocate memory; free memory, or raise the memory limit" },
		{ EBUSY, "Device or resource busy; stop the program that uses it" },
	};

	for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
		if (all[i].err == err)
			return all[i].text;
	return strerror(err);
}

void kvc_getopt_error(int got, char *const argv[], const struct option *longs, const char *program,
		      char error[256])
{
	const char *word = argv[optind - 1];
	char letter[3] = { '-', (char)optopt, 0 };
	/* a long option, known by its short character */
	bool known = optopt && !strncmp(word, "--", 2);
	char name[64], text[96];
	struct kvc_near near = { .word = name, .prefix = "--" };

	if (!known && optopt)
		word = letter;
	if (got == ':')
		snprintf(error, 256, "%.64s needs a value; see %s --help", word, program);
	else if (known)
		snprintf(error, 256, "%.*s does not take a value; see %s --help",
			 (int)kvc_min(strcspn(word, "="), 64), word, program);
	else {
		bool is_long = !strncmp(word, "--", 2);

		snprintf(name, sizeof name, "%.*s", is_long ? (int)strcspn(word + 2, "=") : 0,
			 word + 2);
		for (; longs->name; longs++)
			kvc_near_try(&near, longs->name);
		snprintf(error, 256, "unknown option %.64s%s; see %s --help", word,
			 kvc_near_text(&near, text), program);
	}
}

char *kvc_put_hex(char *to, uint64_t n)
{
	unsigned digits = n ? (67u - (unsigned)__builtin_clzll(n)) / 4 : 1;

	for (unsigned i = digits; i--; n >>= 4)
		to[i] = "0123456789abcdef"[n & 15];
	return to + digits;
}

char *kvc_put_dec(char *to, uint64_t n)
{
	char text[20];
	unsigned at = sizeof text;

	do
		text[--at] = (char)('0' + n % 10);
	while (n /= 10);
	memcpy(to, text + at, sizeof text - at);
	return to + (sizeof text - at);
}

struct kvc_library kvc_util_library(void)
{
	static char text[32];
	unsigned v = XXH_versionNumber();

	snprintf(text, sizeof text, "%u.%u.%u", v / 10000, v / 100 % 100, v % 100);
	return (struct kvc_library){ "xxHash", text, (const void *)XXH_versionNumber };
}
