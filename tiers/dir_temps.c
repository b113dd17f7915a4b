/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Temporary files of a dir tier. A daemon that is killed during a put leaves one behind. So does a
 * put if the server fails before the file is removed. A thread of each tier removes them.
 *
 * Own files: before a file is created, its name is written into a slot of the file
 * STORE/dir-remotes/ID.temps; the slot is cleared afterwards. The next daemon of the store removes
 * the files that the slots name, without listing a folder. The first record holds the identity of
 * the slot file itself, so the notes in a copied store are void and never name another store's
 * files.
 *
 * Files of any node: the folders are listed at the start and once a day, and temporary files not
 * written for a day are removed. A running writer changes the mtime of its file with each block. If
 * its file is removed nevertheless, the rename fails and the copy is made again. Ages are measured
 * by the filesystem's clock: the thread creates a file and takes its mtime as the current time.
 * After a pass over many names the thread leaves such a file as a stamp, and other nodes make no
 * pass for a day.
 *
 * Others write to the folder too. Only regular files with names of temporary files are removed.
 * Only folders are opened, links are not followed, and a pass visits a bounded number of names.
 *
 * The tier's workers call begin and end. The thread may wait for a dead server without end, so it
 * holds a reference to the tier.
 */
#include "dir.h"

#include "log.h"
#include "util.h"

#include <dirent.h>
#include <fcntl.h>
#include <inttypes.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>

#define STAMP KVCT_DIR_MARK "-swept"
#define SLOTS 256u
#define SECOND_NS 1000000000ull
#define DAY_S 86400
#define RETRY_MAX_NS (600 * SECOND_NS)   /* between two attempts to remove an own file */
#define PASS_AGAIN_NS (3600 * SECOND_NS) /* after a pass that failed */
#define STOP_NS (SECOND_NS / 2)          /* how long stop waits for the thread */

/* A pass pauses after each folder, and after NAMES_PAUSE names of a folder. */
#define PAUSE_NS 5000000ull
#define NAMES_PAUSE 1000u
#define NAMES_MAX 4000000u  /* names of one folder that a pass visits */
#define NAMES_STAMP 100000u /* a pass over this many names leaves a stamp */

enum slot_state { SLOT_FREE, SLOT_BUSY, SLOT_LEFT };

struct slot {
	enum slot_state state;
	char name[KVCT_DIR_TEMP]; /* a file to remove; only the thread reads it */
};

struct kvct_dir_temps {
	struct dir *d;
	char run[64]; /* "HOST.RUN.": RUN is a random number of this daemon */
	_Atomic unsigned long count;
	int notes; /* the file with the slots; -1: none */
	pthread_t thread;
	bool running;
	pthread_mutex_t lock; /* guards the members below; no I/O is made while it is held */
	pthread_cond_t cond;
	bool stop;
	unsigned left; /* slots with SLOT_LEFT */
	struct slot slots[SLOTS];
};

/* --- notes --- */

/* Writes a record of the slot file. Record 0 holds the file's own identity. */
static int note_write(struct kvct_dir_temps *t, unsigned at, const char *text)
{
	char record[KVCT_DIR_TEMP] = { 0 };

	snprintf(record, sizeof record, "%s", text);
	return t->notes < 0 ? 0
			    : kvc_pwrite_all(t->notes, record, sizeof record,
					     (off_t)(at * sizeof record));
}

/* Is this the name of a temporary file: 32 hexadecimal digits, ".tmp." and more? */
static bool is_temp(const char *name)
{
	return strspn(name, "0123456789abcdef") == 32 && !strncmp(name + 32, ".tmp.", 5) &&
	       !strchr(name, '/');
}

static void notes_close(struct kvct_dir_temps *t)
{
	kvc_close_fd(&t->notes);
	t->notes = -1;
}

/* Reads the notes of earlier daemons. If the file is a copy the notes are void. */
static void notes_read(struct kvct_dir_temps *t)
{
	char record[KVCT_DIR_TEMP + 1], identity[KVCT_DIR_TEMP];
	struct stat st;

	if (fstat(t->notes, &st) || !S_ISREG(st.st_mode)) {
		notes_close(t);
		return;
	}
	snprintf(identity, sizeof identity, "kvcachefs dir 1 %" PRIx64 " %" PRIx64 "\n",
		 (uint64_t)st.st_dev, (uint64_t)st.st_ino);
	record[KVCT_DIR_TEMP] = 0;
	if (kvc_pread_all(t->notes, record, KVCT_DIR_TEMP, 0) || strcmp(record, identity)) {
		if (ftruncate(t->notes, 0) || note_write(t, 0, identity))
			notes_close(t);
		return;
	}
	for (unsigned i = 0; i < SLOTS; i++) {
		if (kvc_pread_all(t->notes, record, KVCT_DIR_TEMP, (i + 1) * KVCT_DIR_TEMP))
			return;
		record[strcspn(record, "\n")] = 0;
		if (!is_temp(record))
			continue;
		memcpy(t->slots[i].name, record, KVCT_DIR_TEMP);
		t->slots[i].state = SLOT_LEFT;
		t->left++;
	}
}

static void notes_open(struct kvct_dir_temps *t, const char *store, const char *id)
{
	char name[32];
	KVC_FD int dir = kvct_dir_store_file(store, id, "temps", true, name);

	if (dir >= 0)
		t->notes = openat(dir, name, O_RDWR | O_CREAT | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC,
				  0600);
	if (t->notes >= 0)
		notes_read(t);
}

int kvct_dir_temps_begin(struct kvct_dir_temps *t, const char *hex, char name[KVCT_DIR_TEMP])
{
	char text[KVCT_DIR_TEMP + 1];
	int number = -1;

	snprintf(name, KVCT_DIR_TEMP, "%.32s.tmp.%s%lu", hex, t->run,
		 atomic_fetch_add(&t->count, 1));
	pthread_mutex_lock(&t->lock);
	for (unsigned i = 0; i < SLOTS && number < 0; i++)
		if (t->slots[i].state == SLOT_FREE) {
			t->slots[i].state = SLOT_BUSY;
			number = (int)i;
		}
	pthread_mutex_unlock(&t->lock);
	if (number >= 0) { /* without a note the file is removed after a day */
		snprintf(text, sizeof text, "%s\n", name);
		note_write(t, (unsigned)number + 1, text);
	}
	return number;
}

static void slot_free(struct kvct_dir_temps *t, unsigned i)
{
	note_write(t, i + 1, "");
	pthread_mutex_lock(&t->lock);
	t->left -= t->slots[i].state == SLOT_LEFT;
	t->slots[i].state = SLOT_FREE;
	pthread_mutex_unlock(&t->lock);
}

void kvct_dir_temps_end(struct kvct_dir_temps *t, int number, const char *name, bool gone)
{
	if (number < 0)
		return;
	if (gone) {
		slot_free(t, (unsigned)number);
		return;
	}
	pthread_mutex_lock(&t->lock);
	snprintf(t->slots[number].name, KVCT_DIR_TEMP, "%s", name);
	t->slots[number].state = SLOT_LEFT;
	t->left++;
	pthread_cond_signal(&t->cond);
	pthread_mutex_unlock(&t->lock);
}

/* --- own files --- */

static bool temps_stop(struct kvct_dir_temps *t)
{
	bool stop;

	pthread_mutex_lock(&t->lock);
	stop = t->stop;
	pthread_mutex_unlock(&t->lock);
	return stop;
}

/* Removes a file by its name. Returns true if it no longer exists. */
static bool remove_own(int root, const char *name)
{
	char sub[3];

	snprintf(sub, sizeof sub, "%.2s", name);
	KVC_FD int dir = openat(root, sub, O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);

	if (dir >= 0 && !unlinkat(dir, name, 0))
		return true;
	return errno == ENOENT || errno == ENOTDIR || errno == ELOOP || errno == EISDIR;
}

/* Tries to remove the remaining own files. Returns how many remain. */
static unsigned remove_left(struct kvct_dir_temps *t, unsigned long *removed)
{
	KVC_FD int root = -1;
	unsigned left_now;

	for (unsigned i = 0; i < SLOTS; i++) {
		pthread_mutex_lock(&t->lock);
		bool left = t->slots[i].state == SLOT_LEFT && !t->stop;

		pthread_mutex_unlock(&t->lock);
		if (left && root < 0 &&
		    (root = kvct_dir_root(t->d, O_PATH | O_DIRECTORY | O_CLOEXEC)) < 0)
			break;
		if (left && remove_own(root, t->slots[i].name)) {
			slot_free(t, i);
			++*removed;
		}
	}
	pthread_mutex_lock(&t->lock);
	left_now = t->left;
	pthread_mutex_unlock(&t->lock);
	return left_now;
}

/* --- files of any node --- */

/* Waits. Returns true if the tier stops. */
static bool pause_ns(struct kvct_dir_temps *t, uint64_t ns)
{
	struct timespec until = kvc_timespec(kvc_mono_ns() + ns);
	bool stop;

	pthread_mutex_lock(&t->lock);
	while (!t->stop && pthread_cond_timedwait(&t->cond, &t->lock, &until) != ETIMEDOUT)
		;
	stop = t->stop;
	pthread_mutex_unlock(&t->lock);
	return stop;
}

/* A pass over all folders. */
struct pass {
	struct kvct_dir_temps *t;
	int64_t now_s;
	unsigned long seen, removed;
};

static bool is_old(int dir, const char *name, int64_t now_s)
{
	struct stat st;

	return !fstatat(dir, name, &st, AT_SYMLINK_NOFOLLOW) && S_ISREG(st.st_mode) &&
	       st.st_mtim.tv_sec < now_s - DAY_S;
}

/*
 * Is this a temporary name of a mark or a clock file: the mark's name, ".", and 32 hexadecimal
 * digits?
 */
static bool is_mark_temp(const char *name)
{
	const size_t mark = strlen(KVCT_DIR_MARK ".");

	return !strncmp(name, KVCT_DIR_MARK ".", mark) && strlen(name) == mark + 32 &&
	       strspn(name + mark, "0123456789abcdef") == 32;
}

static int sweep_names(struct pass *p, DIR *dp, bool top)
{
	struct dirent *e;

	for (unsigned n = 1; n <= NAMES_MAX && (errno = 0, e = readdir(dp)); n++) {
		p->seen++;
		if ((top ? is_mark_temp(e->d_name) : is_temp(e->d_name)) &&
		    is_old(dirfd(dp), e->d_name, p->now_s) && !unlinkat(dirfd(dp), e->d_name, 0))
			p->removed++;
		if (n % NAMES_PAUSE == 0 && pause_ns(p->t, PAUSE_NS))
			return -ECANCELED;
	}
	return -errno;
}

/*
 * Sweeps one folder; top: the tier's own. Returns 0, -ECANCELED if the tier stops, or another
 * error.
 */
static int sweep_folder(struct pass *p, int root, const char *name, bool top)
{
	int fd = openat(root, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC), err;
	DIR *dp = fd < 0 ? NULL : fdopendir(fd);

	if (!dp) {
		err = -errno;
		kvc_close_fd(&fd);
		return err == -ENOENT || err == -ENOTDIR || err == -ELOOP || err == -EACCES ? 0
											    : err;
	}
	err = sweep_names(p, dp, top);
	closedir(dp);
	return pause_ns(p->t, PAUSE_NS) ? -ECANCELED : err;
}

/* Creates an empty file with a unique name; its mtime is the current time of the filesystem. */
static int clock_make(int root, char name[64], int64_t *now_s)
{
	unsigned char random[16];
	struct stat st;
	int n = snprintf(name, 64, KVCT_DIR_MARK "."), err;

	if (getrandom(random, sizeof random, 0) != sizeof random)
		return -EIO;
	for (size_t i = 0; i < sizeof random; i++)
		n += snprintf(name + n, 3, "%02x", random[i]);
	KVC_FD int fd = openat(root, name, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC,
			       0600);

	if (fd < 0)
		return -errno;
	err = fstat(fd, &st) ? -errno : 0;
	if (err)
		unlinkat(root, name, 0);
	else
		*now_s = st.st_mtim.tv_sec;
	return err;
}

/* Reads the filesystem's clock. If the filesystem is full, uses the local clock, minus a day. */
static int clock_read(struct pass *p, int root)
{
	char name[64];
	int err = clock_make(root, name, &p->now_s);

	if (!err)
		unlinkat(root, name, 0);
	else
		p->now_s = (int64_t)(kvc_now_ns() / SECOND_NS) - DAY_S;
	return err == -ENOSPC || err == -EDQUOT ? 0 : err;
}

static void stamp_make(int root)
{
	char name[64];
	int64_t now_s;

	if (!clock_make(root, name, &now_s) && renameat(root, name, root, STAMP))
		unlinkat(root, name, 0);
}

/* Has another node made a pass over many names in the last day? */
static bool is_swept(const struct pass *p, int root)
{
	struct stat st;

	return !fstatat(root, STAMP, &st, AT_SYMLINK_NOFOLLOW) && S_ISREG(st.st_mode) &&
	       st.st_mtim.tv_sec > p->now_s - DAY_S && st.st_mtim.tv_sec <= p->now_s;
}

/* Makes one pass. Returns 0, or an error, after which the pass is repeated soon. */
static int sweep_all(struct pass *p)
{
	KVC_FD int root = kvct_dir_root(p->t->d, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	int err = root < 0 ? root : clock_read(p, root);
	char sub[3];

	if (err)
		return err;
	if (!is_swept(p, root)) {
		err = sweep_folder(p, root, ".", true);
		for (unsigned i = 0; i < 256 && err != -ECANCELED; i++) {
			snprintf(sub, sizeof sub, "%02x", i);
			err = sweep_folder(p, root, sub, false) ?: err;
		}
	}
	if (!err && p->seen >= NAMES_STAMP)
		stamp_make(root);
	return err;
}

/* --- the thread --- */

/* Waits until there is a file to remove, for retry_ns if some remain, or until the next pass. */
static void wait_for_work(struct kvct_dir_temps *t, uint64_t retry_ns, uint64_t next_ns)
{
	struct timespec until;

	pthread_mutex_lock(&t->lock);
	unsigned left = t->left;

	until = kvc_timespec(left ? kvc_min(kvc_mono_ns() + retry_ns, next_ns) : next_ns);
	while (!t->stop && t->left <= left &&
	       pthread_cond_timedwait(&t->cond, &t->lock, &until) != ETIMEDOUT)
		;
	pthread_mutex_unlock(&t->lock);
}

static void *temps_thread(void *arg)
{
	struct kvct_dir_temps *t = arg;
	uint64_t next_ns = 0, retry_ns = SECOND_NS / 2;

	while (!temps_stop(t)) {
		struct pass p = { .t = t };

		retry_ns = remove_left(t, &p.removed) && !p.removed
				   ? kvc_min(2 * retry_ns, RETRY_MAX_NS)
				   : SECOND_NS / 2;
		if (kvc_mono_ns() >= next_ns) {
			int err = sweep_all(&p);

			next_ns = kvc_mono_ns() + (err ? PASS_AGAIN_NS : DAY_S * SECOND_NS);
		}
		if (p.removed)
			kvc_info("tier dir: removed %lu temporary files of unfinished copies",
				 p.removed);
		wait_for_work(t, retry_ns, next_ns);
	}
	kvct_dir_put(t->d);
	return NULL;
}

struct kvct_dir_temps *kvct_dir_temps_new(struct dir *d)
{
	struct kvct_dir_temps *t = calloc(1, sizeof *t);
	pthread_condattr_t attr;
	char host[33] = "";
	uint64_t random;

	if (!t)
		return NULL;
	t->d = d;
	t->notes = -1;
	pthread_mutex_init(&t->lock, NULL);
	pthread_condattr_init(&attr);
	pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
	pthread_cond_init(&t->cond, &attr);
	pthread_condattr_destroy(&attr);
	if (gethostname(host, sizeof host - 1))
		*host = 0;
	for (char *p = host; *p; p++)
		if (*p <= ' ' || *p == '/' || *p == 127)
			*p = '-';
	if (getrandom(&random, sizeof random, 0) != sizeof random)
		random = kvc_now_ns();
	snprintf(t->run, sizeof t->run, "%s.%016" PRIx64 ".", *host ? host : "node", random);
	return t;
}

void kvct_dir_temps_free(struct kvct_dir_temps *t)
{
	if (!t)
		return;
	kvc_close_fd(&t->notes);
	pthread_cond_destroy(&t->cond);
	pthread_mutex_destroy(&t->lock);
	free(t);
}

int kvct_dir_temps_start(struct kvct_dir_temps *t, const char *store, const char *id)
{
	sigset_t all, old;
	int err;

	if (store)
		notes_open(t, store, id);
	kvct_dir_get(t->d);
	sigfillset(&all); /* signals are for the serving thread */
	pthread_sigmask(SIG_BLOCK, &all, &old);
	err = -pthread_create(&t->thread, NULL, temps_thread, t);
	pthread_sigmask(SIG_SETMASK, &old, NULL);
	t->running = !err;
	if (err)
		kvct_dir_put(t->d);
	return err;
}

void kvct_dir_temps_stop(struct kvct_dir_temps *t)
{
	if (!t->running)
		return;
	pthread_mutex_lock(&t->lock);
	t->stop = true;
	pthread_cond_broadcast(&t->cond);
	pthread_mutex_unlock(&t->lock);
	if (kvc_join(t->thread, kvc_mono_ns() + STOP_NS))
		pthread_detach(t->thread);
	t->running = false;
}
