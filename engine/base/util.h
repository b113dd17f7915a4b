/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Small functions that all layers need: lists, time, hashes, cleanup at the end of a scope.
 */
#ifndef KVC_UTIL_H
#define KVC_UTIL_H

#include "units.h"

#include <errno.h>
#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>
#include <time.h>
#include <unistd.h>

#define KVC_PAGE 4096ull

static inline uint64_t kvc_round_up(uint64_t n, uint64_t to)
{
	return (n + to - 1) / to * to;
}

/*
 * The smaller and the larger of two unsigned numbers. A negative number, such as an error, would be
 * the larger one of two, so a signed variable as an argument does not compile.
 */
#define kvc_min(a, b) kvc_min_unsigned(KVC_UNSIGNED(a), KVC_UNSIGNED(b))
#define kvc_max(a, b) kvc_max_unsigned(KVC_UNSIGNED(a), KVC_UNSIGNED(b))

#define KVC_UNSIGNED(x)                                                                  \
	((__builtin_constant_p(x) || (typeof(x))-1 > 0 ? (void)0 : kvc_min_of_signed()), \
	 (uint64_t)(x))

void kvc_min_of_signed(void) __attribute__((error("kvc_min and kvc_max are for unsigned numbers")));

static inline uint64_t kvc_min_unsigned(uint64_t a, uint64_t b)
{
	return a < b ? a : b;
}

static inline uint64_t kvc_max_unsigned(uint64_t a, uint64_t b)
{
	return a > b ? a : b;
}

/* A doubly linked ring. An unlinked element points to itself. */
struct kvc_list {
	struct kvc_list *next, *prev;
};

static inline void kvc_list_init(struct kvc_list *l)
{
	l->next = l->prev = l;
}

static inline bool kvc_list_empty(const struct kvc_list *l)
{
	return l->next == l;
}

static inline void kvc_list_add_tail(struct kvc_list *head, struct kvc_list *e)
{
	e->prev = head->prev;
	e->next = head;
	head->prev->next = e;
	head->prev = e;
}

static inline void kvc_list_add_head(struct kvc_list *head, struct kvc_list *e)
{
	kvc_list_add_tail(head->next, e);
}

static inline void kvc_list_del(struct kvc_list *e)
{
	e->prev->next = e->next;
	e->next->prev = e->prev;
	kvc_list_init(e);
}

/* Moves all of `from` to the end of `to`. */
static inline void kvc_list_splice(struct kvc_list *to, struct kvc_list *from)
{
	if (kvc_list_empty(from))
		return;
	from->next->prev = to->prev;
	to->prev->next = from->next;
	from->prev->next = to;
	to->prev = from->prev;
	kvc_list_init(from);
}

#define kvc_of(ptr, type, member) ((type *)((char *)(ptr) - offsetof(type, member)))
#define kvc_list_each(pos, head) \
	for (struct kvc_list *pos = (head)->next; pos != (head); pos = pos->next)
#define kvc_list_each_safe(pos, head)                                                     \
	for (struct kvc_list *pos = (head)->next, *pos##_next = pos->next; pos != (head); \
	     pos = pos##_next, pos##_next = pos->next)

/*
 * The current time in ns: calendar time, as in a file's times; and monotonic time, for deadlines.
 */
uint64_t kvc_now_ns(void);
uint64_t kvc_mono_ns(void);

/* Returns the number of CPUs that the calling thread may run on; at least 1. */
unsigned kvc_cpus(void);

/*
 * Waits for a thread to end, until the time `until_ns` (kvc_mono_ns). Returns 0, or -ETIMEDOUT;
 * then the thread still must be joined or detached.
 */
int kvc_join(pthread_t thread, uint64_t until_ns);

static inline struct timespec kvc_timespec(uint64_t ns)
{
	return (struct timespec){ .tv_sec = (time_t)(ns / 1000000000u),
				  .tv_nsec = (long)(ns % 1000000000u) };
}

/*
 * Times of files may be before 1970: the 64 bits are a signed number of ns, for the years 1677 to
 * 2262. A time outside that range becomes the nearest time in it. kvc_later returns the later of
 * two times.
 */
static inline struct timespec kvc_file_time(uint64_t ns)
{
	int64_t t = (int64_t)ns, s = t / 1000000000 - (t % 1000000000 < 0);

	return (struct timespec){ .tv_sec = s, .tv_nsec = (long)(ns - (uint64_t)s * 1000000000u) };
}

static inline uint64_t kvc_ns(struct timespec t)
{
	int64_t ns;

	if (__builtin_mul_overflow((int64_t)t.tv_sec, 1000000000, &ns))
		return t.tv_sec < 0 ? (uint64_t)INT64_MIN : INT64_MAX;
	return __builtin_add_overflow(ns, (int64_t)t.tv_nsec, &ns) ? INT64_MAX : (uint64_t)ns;
}

static inline uint64_t kvc_later(uint64_t a, uint64_t b)
{
	return (int64_t)a > (int64_t)b ? a : b;
}

/* Returns strerror(3) of err and, if the user can do something about the error, a hint. */
const char *kvc_why(int err);
/*
 * True if something is mounted on this path (such as a bind mount), so that no file can replace it.
 */
bool kvc_is_mounted(const char *path);
/*
 * Turns text that may be from outside into one line for a message: control characters and bytes
 * that are not UTF-8 become ? (quote.c).
 */
void kvc_quote_one_line(char *text);
struct option;
/*
 * Explains an error of getopt_long(), whose option string begins with ':' so that it prints
 * nothing. `got` is its result, : or ?; `longs` are its long options. Writes one line to error that
 * names the option, a similar one if the option is unknown, and `program`'s --help.
 */
void kvc_getopt_error(int got, char *const argv[], const struct option *longs, const char *program,
		      char error[256]);
/* Writes a name or path of `len` bytes, with %XX for bytes that are not plain characters. */
void kvc_put_plain(FILE *out, const char *name, size_t len);

/*
 * Returns the position of a name in its directory, which is also the cookie of readdir: a 62-bit
 * hash (XXH3), never below 16.
 */
uint64_t kvc_name_hash(const char *name);

struct kvc_sum { /* an XXH3-128, in canonical (big endian) order */
	uint8_t b[16];
};
struct kvc_sum kvc_sum_of(const void *data, size_t len);
/* Returns the checksum of the data that was added to a state of xxhash.h. */
struct XXH3_state_s;
struct kvc_sum kvc_sum_digest(const struct XXH3_state_s *x);
const char *kvc_sum_text(const struct kvc_sum *s, char *buf /* 33 bytes */);
/* A checksum of zeros means "not known" in many places. */
static inline bool kvc_sum_is_zero(const struct kvc_sum *s)
{
	static const struct kvc_sum zero;

	return !memcmp(s->b, zero.b, sizeof zero.b);
}

/* pread and pwrite of all bytes. Return 0, a negative errno, or -ENODATA if the file ends first. */
int kvc_pread_all(int fd, void *buf, size_t len, off_t off);
int kvc_pwrite_all(int fd, const void *buf, size_t len, off_t off);

/*
 * Opens a file of a store or of a pool. The last component must not be a symbolic link; the file
 * must be regular and, for writing, must belong to root or to this process's user. O_CREAT makes it
 * with mode 0600; O_TRUNC empties it after these checks. Returns a descriptor (close-on-exec);
 * -ELOOP (a symbolic link), -EISDIR or -EINVAL (not a regular file), -EPERM (another user's) or
 * another negative errno. Never blocks on a pipe.
 */
int kvc_open_own(const char *path, int flags);
/*
 * Applies the same rule to a file that other code opens by its path. Returns 0 if the file follows
 * the rule or does not exist; otherwise the error of kvc_open_own. Does not open the file: closing
 * it would release SQLite's locks on it.
 */
int kvc_check_own(const char *path, bool writes);

static inline void kvc_close_fd(int *fd)
{
	if (*fd >= 0)
		close(*fd);
}
static inline void kvc_free_ptr(void *p)
{
	free(*(void **)p);
}
#define KVC_FD __attribute__((cleanup(kvc_close_fd)))
#define KVC_MEM __attribute__((cleanup(kvc_free_ptr)))

/* A stack of numbers. Zero it before the first use; the owner frees v. */
struct kvc_stack {
	uint64_t *v;
	size_t n, capacity;
};
int kvc_stack_push(struct kvc_stack *s, uint64_t v); /* 0 or -ENOMEM */
bool kvc_stack_pop(struct kvc_stack *s, uint64_t *v);

/*
 * Makes room for element n in a growing array of pointers or plain values, whose elements have
 * `elem` bytes. *capacity is the number of allocated elements. Returns 0 or -ENOMEM.
 */
int kvc_grow(void *array, size_t n, size_t *capacity, size_t elem);

/*
 * Write n as %x and %u do, without a terminating 0, and return the end. They are for text that
 * every call on a file writes, where printf would take a fifth of the call. At most 16 and 20
 * bytes.
 */
char *kvc_put_hex(char *to, uint64_t n);
char *kvc_put_dec(char *to, uint64_t n);

#endif
