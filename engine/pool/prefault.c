/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Prefaulting. Memory that a virtual machine has never used is slow to get, because the host has to
 * find it first. A thread touches as much memory as the pool may use, once and slowly, and frees
 * it: the kernel hands out the memory that was freed last. If the guest reports freed memory to the
 * host (free page reporting), this effect is lost within seconds. prefault=hold then keeps the
 * memory and releases it piece by piece as other callers reserve bytes.
 *
 * One file on the pool's tmpfs holds all of the memory, so the pool's NUMA policy, huge pages and
 * memory cgroup apply. The file grows and shrinks at its end and has no name, so that the kernel
 * frees it after a kill. (A kill before the unlink leaves a w- file, which recovery removes.) Its
 * bytes are reserved, so the pool's limit holds. The thread must not delay other callers: it
 * reserves only below low=, while no call waits for bytes and the machine has plenty of memory, and
 * it checks often enough that others cannot fill the pool up to high= between two checks.
 *
 * With prefault=auto a trial comes first. It reserves in steps, touches a little at the end of each
 * step, frees those pages and touches them again. The pages are the same, so the difference in time
 * is caused by the host.
 *
 * The thread is not SCHED_IDLE: it takes k->lock, and a lock holder that does not run would stop
 * all other threads.
 */
#include "prefault.h"

#include "kvc.h"
#include "log.h"
#include "memory.h"

#include <fcntl.h>
#include <inttypes.h>
#include <linux/falloc.h>
#include <sched.h>
#include <stdarg.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/uio.h>

#define TOUCH (2ull << 20)      /* touched by one write: a huge page */
#define PART (64u << 10)        /* the size of the data that is written repeatedly */
#define BURST (8ull << 20)      /* touched between two rests */
#define PIECE_MAX (64ull << 20) /* reserved at a time */
#define REST 3                  /* a rest is this many times as long as the work before it */
#define REST_MIN_NS 1000000ull
#define LOOK_MAX_NS 100000000ull
#define FILL_BYTES_A_NS 10 /* assumed maximum rate at which others fill the pool */
#define TRIAL_NS 40000000ull
#define TRIAL_SAMPLES 32
#define TRIAL_FEW 4 /* fewer samples are not conclusive */
#define TRIAL_STEP_MAX (16ull << 20)
/* ratio of first to second touch in tenths; for touched memory it is 11 to 14 */
#define SLOW_TENTHS 16

#define REPORTED "free memory goes back to the host; prefault=hold would keep it"
#define PUNCH (FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE)

struct kvc_prefault {
	struct kvc *k;
	pthread_t thread;
	pthread_cond_t cond;
	int fd;
	uint64_t held; /* size of the file, reserved in k->reservations.used */
	uint64_t bytes, total, piece;
	char *data; /* PART bytes that are written */
	char what[200];
};

static __attribute__((format(printf, 2, 3))) void say_locked(struct kvc_prefault *p,
							     const char *format, ...)
{
	va_list ap;

	va_start(ap, format);
	vsnprintf(p->what, sizeof p->what, format, ap);
	va_end(ap);
}

/* Returns the limit of the account up to which the thread may reserve: `low=` less one piece. */
static uint64_t bound(const struct kvc_prefault *p)
{
	uint64_t low = p->k->pool.bytes / 100 * p->k->opt.low_pct;

	return low - kvc_min(low, p->piece);
}

/* Returns how many bytes the thread must release now. */
static uint64_t needed_locked(const struct kvc_prefault *p)
{
	const struct kvc *k = p->k;
	uint64_t over = k->reservations.used > bound(p) ? k->reservations.used - bound(p) : 0;

	if (!kvc_list_empty(&k->reservations.waiters) || k->stopping)
		return p->held;
	return kvc_min(p->held, kvc_round_up(over, p->piece));
}

/* Drops k->lock for the system call, so that the memory is free before its reservation ends. */
static void give_back_locked(struct kvc_prefault *p, uint64_t bytes)
{
	if (!bytes)
		return;
	kvc_unlock(p->k);
	if (ftruncate(p->fd, (off_t)(p->held - bytes)))
		kvc_warn("prefault: %" PRIu64 " bytes stay held: %s", bytes, strerror(errno));
	kvc_lock(p->k);
	p->held -= bytes;
	kvc_reservation_put_locked(p->k, bytes);
}

static bool take_locked(struct kvc_prefault *p, uint64_t bytes)
{
	struct kvc *k = p->k;

	if (!kvc_list_empty(&k->reservations.waiters) || k->reservations.used + bytes > bound(p) ||
	    kvc_reservation_get_locked(k, bytes, NULL))
		return false;
	p->held += bytes;
	return true;
}

static void rest_locked(struct kvc_prefault *p, uint64_t ns)
{
	struct timespec t = kvc_timespec(kvc_mono_ns() + ns);

	if (!p->k->stopping)
		kvc_lock_wait(&p->k->lock, &p->cond, &t);
}

/*
 * Returns the longest time between two checks: the time in which others can fill the pool from low=
 * to high=.
 */
static uint64_t look_ns(const struct kvc_prefault *p)
{
	const struct kvc_options *o = &p->k->opt;
	uint64_t margin = p->k->pool.bytes / 100 * (o->high_pct - o->low_pct);

	return kvc_max(REST_MIN_NS, kvc_min(LOOK_MAX_NS, margin / FILL_BYTES_A_NS));
}

/* Writes [at, at + TOUCH), which is within the file. Returns 0 or -errno. */
static int touch(struct kvc_prefault *p, uint64_t at)
{
	struct iovec v[TOUCH / PART];
	ssize_t n;

	for (size_t i = 0; i < TOUCH / PART; i++)
		v[i] = (struct iovec){ p->data, PART };
	n = pwritev(p->fd, v, TOUCH / PART, (off_t)at);
	return n == (ssize_t)TOUCH ? 0 : n < 0 ? -errno : -ENOSPC;
}

/*
 * Takes a sample at the file's end, which is reserved: the ns of the first and of the second touch.
 */
static int sample(struct kvc_prefault *p, uint64_t step, uint64_t ns[2])
{
	uint64_t at = p->held - TOUCH;
	int err;

	if (ftruncate(p->fd, (off_t)p->held))
		return -errno;
	if (step > TOUCH && fallocate(p->fd, 0, (off_t)(p->held - step), (off_t)(step - TOUCH)))
		return -errno;
	for (int i = 0; i < 2; i++) {
		if (i && fallocate(p->fd, PUNCH, (off_t)at, TOUCH))
			return -errno;
		uint64_t start = kvc_mono_ns();

		if (fallocate(p->fd, 0, (off_t)at, TOUCH))
			return -errno;
		if ((err = touch(p, at)))
			return err;
		ns[i] = kvc_mono_ns() - start;
	}
	return 0;
}

static int by_value(const void *a, const void *b)
{
	uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

	return x < y ? -1 : x > y;
}

/* Is a first touch slow on this machine? Records the reason. */
static bool trial_locked(struct kvc_prefault *p)
{
	struct kvc *k = p->k;
	uint64_t first[TRIAL_SAMPLES], second[TRIAL_SAMPLES], start = kvc_mono_ns();
	uint64_t part = bound(p) / TRIAL_SAMPLES / TOUCH * TOUCH;
	uint64_t step = kvc_min(TRIAL_STEP_MAX, kvc_max(TOUCH, part));
	unsigned n = 0, slow = 0;
	int err = 0;

	while (n < TRIAL_SAMPLES && (n < TRIAL_FEW || kvc_mono_ns() - start < TRIAL_NS)) {
		uint64_t ns[2];

		if (needed_locked(p) || !take_locked(p, step))
			break;
		kvc_unlock(k);
		err = kvc_memory_spare() < step ? -ENOMEM : sample(p, step, ns);
		kvc_lock(k);
		if (err)
			break;
		first[n] = ns[0];
		second[n] = ns[1];
		slow += ns[0] * 10 > ns[1] * SLOW_TENTHS;
		n++;
	}
	give_back_locked(p, p->held);
	if (n < TRIAL_FEW) {
		say_locked(p, "off: no trial, %s",
			   err ? strerror(-err) : "the pool has no room for one");
		return false;
	}
	qsort(first, n, sizeof first[0], by_value);
	qsort(second, n, sizeof second[0], by_value);
	bool yes = slow >= kvc_max(2, n / 4);

	say_locked(p,
		   "%s: a first touch of 2 MiB takes %" PRIu64 " us, a second %" PRIu64
		   " us (medians; %u of %u slow)",
		   yes ? "on" : "off", first[n / 2] / 1000, second[n / 2] / 1000, slow, n);
	return yes;
}

/* Touches one more piece. Returns 0; -EAGAIN if other callers need the bytes; or another errno. */
static int piece_locked(struct kvc_prefault *p)
{
	struct kvc *k = p->k;
	uint64_t from = p->held, at = from, end = from + p->piece;
	int err;

	if (!take_locked(p, p->piece))
		return -EAGAIN;
	kvc_unlock(k);
	err = kvc_memory_spare() < p->piece ? -ENOMEM : ftruncate(p->fd, (off_t)end) ? -errno : 0;
	while (!err && at < end) {
		uint64_t rest = kvc_mono_ns();

		for (uint64_t to = kvc_min(end, at + BURST); !err && at < to; at += err ? 0 : TOUCH)
			err = touch(p, at);
		rest = REST * (kvc_mono_ns() - rest);
		kvc_lock(k);
		p->bytes += at - from;
		from = at;
		rest_locked(p, kvc_max(REST_MIN_NS, kvc_min(look_ns(p), rest)));
		if (needed_locked(p))
			err = err ?: -EAGAIN;
		kvc_unlock(k);
	}
	kvc_lock(k);
	give_back_locked(p, end - at);
	return err;
}

static void run_locked(struct kvc_prefault *p)
{
	struct kvc *k = p->k;
	bool hold = k->opt.prefault == KVC_PREFAULT_HOLD, all = false;
	char decided[sizeof p->what];
	int err = 0;

	memcpy(decided, p->what, sizeof decided);
	p->total = k->reservations.used < bound(p)
			   ? (bound(p) - k->reservations.used) / p->piece * p->piece
			   : 0;
	while (!k->stopping && !err && (!all || p->held)) {
		uint64_t over = needed_locked(p);

		if (over) {
			give_back_locked(p, over);
		} else if (!kvc_list_empty(&k->reservations.waiters) || (all && hold)) {
			rest_locked(p, look_ns(p));
		} else if (all) {
			give_back_locked(p, kvc_min(p->held, p->piece));
		} else if (p->bytes >= p->total || k->reservations.used + p->piece > bound(p)) {
			all = true;
			p->total = p->bytes; /* other callers have touched the rest */
			if (hold)
				say_locked(p, "%.120s; all is touched and held until it is taken",
					   decided);
		} else {
			err = piece_locked(p);
			err = err == -EAGAIN ? 0 : err;
		}
	}
	give_back_locked(p, p->held);
	if (err)
		say_locked(p, "%.120s; ended early: %s", decided,
			   err == -ENOMEM ? "memory gets short" : strerror(-err));
	else if (all)
		say_locked(p, "%.120s; %s", decided, hold ? "all is taken" : "done");
}

static void *work(void *arg)
{
	struct kvc_prefault *p = arg;
	struct kvc *k = p->k;
	bool reported = kvc_memory_reported(), yes;

	/* SCHED_BATCH: when the thread wakes, it does not preempt a thread that serves a request */
	pthread_setschedparam(pthread_self(), SCHED_BATCH, &(struct sched_param){ 0 });
	kvc_lock(k);
	switch (k->opt.prefault) {
	case KVC_PREFAULT_HOLD:
		yes = true;
		say_locked(p, "hold");
		break;
	case KVC_PREFAULT_ON:
		yes = true;
		say_locked(p, "on%s", reported ? ", though " REPORTED : "");
		break;
	default:
		yes = !reported && trial_locked(p);
		if (reported)
			say_locked(p, "off: " REPORTED);
	}
	if (yes)
		run_locked(p);
	kvc_unlock(k);
	kvc_info("prefault=%s", p->what);
	return NULL;
}

static int open_file(struct kvc_prefault *p)
{
	const struct kvc_segment s = { 'w', UINT64_MAX, 1 };

	p->fd = kvc_pool_segment_open(&p->k->pool, &s, O_RDWR | O_CREAT | O_EXCL);
	return p->fd < 0 ? p->fd : kvc_pool_segment_remove(&p->k->pool, &s);
}

static void free_all(struct kvc_prefault *p)
{
	if (p->fd >= 0)
		close(p->fd);
	pthread_cond_destroy(&p->cond);
	free(p->data);
	free(p);
}

void kvc_prefault_start(struct kvc *k)
{
	struct kvc_prefault *p;
	pthread_condattr_t attr;
	int err;

	if (k->opt.prefault == KVC_PREFAULT_OFF)
		return;
	p = calloc(1, sizeof *p);
	if (!p)
		return;
	p->k = k;
	p->fd = -1;
	p->piece = kvc_min(PIECE_MAX, kvc_max(TOUCH, k->pool.bytes / 32 / TOUCH * TOUCH));
	pthread_condattr_init(&attr);
	pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
	pthread_cond_init(&p->cond, &attr);
	pthread_condattr_destroy(&attr);
	say_locked(p, "being tried");
	p->data = malloc(PART);
	err = p->data ? open_file(p) : -ENOMEM;
	if (!err) {
		memset(p->data, 0xa5, PART); /* not zeros: a host may share pages of zeros */
		kvc_lock(k);
		k->prefault = p;
		kvc_unlock(k);
		err = -pthread_create(&p->thread, NULL, work, p);
	}
	if (err) {
		kvc_warn("prefault: cannot start: %s", strerror(-err));
		kvc_lock(k);
		k->prefault = NULL;
		kvc_unlock(k);
		free_all(p);
	}
}

void kvc_prefault_stop(struct kvc *k)
{
	struct kvc_prefault *p;

	kvc_lock(k);
	p = k->prefault;
	if (p)
		pthread_cond_signal(&p->cond);
	kvc_unlock(k);
	if (!p)
		return;
	pthread_join(p->thread, NULL);
	kvc_lock(k);
	k->prefault = NULL;
	kvc_unlock(k);
	free_all(p);
}

void kvc_prefault_show_locked(struct kvc *k, struct kvc_prefaulted *show)
{
	const struct kvc_prefault *p = k->prefault;

	const char *none = k->opt.prefault == KVC_PREFAULT_OFF ? "off" : "not begun";

	memset(show, 0, sizeof *show);
	if (p)
		*show = (struct kvc_prefaulted){ p->bytes, p->total, p->held, "" };
	snprintf(show->what, sizeof show->what, "%s", p ? p->what : none);
}
