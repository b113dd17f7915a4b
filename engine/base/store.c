/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Opening, locking and closing a store (store.h).
 *
 * A store's folder and files are checked before any of them is used. A store can come from an
 * untrusted place (an unpacked archive, another user's folder), and its daemon often runs as root.
 * So no name in a store may lead elsewhere, and no other user may be able to change a name later:
 * the folder belongs to root or to this process's user and others cannot write in it, and each file
 * is a regular file of one of these two. kvc_open_own checks each file again when it is opened.
 */
#include "store.h"

#include "holder.h"
#include "log.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#define LOOK_US 10000
#define SAY_NS 1000000000ull /* a longer wait is logged */
/* wait for a holder whose mount is not visible: it may be about to notice the unmount */
#define UNSEEN_NS 3000000000ull
#define ENDING_NS 60000000000ull /* wait for a holder that is ending, since its last progress */

/*
 * Locks the superblock. Does not wait for a holder that serves its mount. Waits for a holder that
 * has unlocked KVC_STORE_SERVING (store.h) as long as it makes progress, and for a moment for a
 * holder whose mount is not visible: umount(8) returns before the daemon notices.
 */
static int lock_store(int fd, const char *dir, short type, char *error)
{
	uint64_t start = kvc_mono_ns(), since = start, stamp = 0;
	bool said = false;

	for (;;) {
		struct flock all = { .l_type = type, .l_whence = SEEK_SET };
		struct flock byte = {
			.l_type = F_WRLCK,
			.l_whence = SEEK_SET,
			.l_start = KVC_STORE_SERVING,
			.l_len = 1,
		};
		uint64_t now = kvc_mono_ns();
		struct kvc_holder h;
		struct stat st;

		if (!fcntl(fd, F_OFD_SETLK, &all))
			return 0;
		if (errno != EAGAIN && errno != EACCES) {
			int err = -errno;

			snprintf(error, 512, "cannot lock the store %s: %s", dir, strerror(-err));
			return err;
		}
		if (!fcntl(fd, F_OFD_GETLK, &byte) && byte.l_type == F_UNLCK) {
			if (!fstat(fd, &st) && kvc_ns(st.st_mtim) != stamp) {
				stamp = kvc_ns(st.st_mtim);
				since = now;
			}
			if (now - since > ENDING_NS) {
				kvc_holder_find(fd, dir, &h);
				snprintf(error, 512,
					 "the store %.300s is in use by a daemon (pid %d; 0: not "
					 "known) that is shutting down but makes no progress; kill "
					 "this daemon",
					 dir, (int)h.pid);
				return -EBUSY;
			}
		} else if (now - start > UNSEEN_NS || kvc_holder_mount("self", dir, NULL)) {
			kvc_holder_find(fd, dir, &h);
			kvc_holder_why(&h, dir, error);
			return -EBUSY;
		}
		if (!said && now - start > SAY_NS) {
			kvc_warn("waiting for another process that uses the store %s", dir);
			said = true;
		}
		usleep(LOOK_US);
	}
}

void kvc_store_ending(const struct kvc_store *s)
{
	struct flock byte = {
		.l_type = F_UNLCK, .l_whence = SEEK_SET, .l_start = KVC_STORE_SERVING, .l_len = 1
	};

	if (s->lock_fd >= 0)
		fcntl(s->lock_fd, F_OFD_SETLK, &byte);
}

void kvc_store_alive(const struct kvc_store *s)
{
	if (s->lock_fd >= 0)
		futimens(s->lock_fd, NULL);
}

/*
 * True if the error of reading a file means that there is no such file, or that it is not the
 * expected kind of file. After other errors this is not known.
 */
static bool is_missing(int err)
{
	return err == -ENOENT || err == -EBADMSG || err == -ENODATA || err == -EISDIR ||
	       err == -ENOTDIR || err == -ELOOP;
}

/* True if a file of the store begins like a database, or if it exists and cannot be read. */
static bool is_database(const struct kvc_store *s, const char *name)
{
	char path[1280], head[16];
	KVC_FD int fd = kvc_open_own(kvc_super_path(s, name, path), O_RDONLY);
	int err = fd < 0 ? -errno : kvc_pread_all(fd, head, sizeof head, 0);

	if (err)
		return !is_missing(err);
	return !memcmp(head, "SQLite format 3", sizeof head);
}

bool kvc_store_signs(const struct kvc_store *s)
{
	KVC_MEM struct kvc_store *there = calloc(1, sizeof *there);
	bool known = false;
	int err;

	if (!there)
		return true; /* not known, so the answer is not "no" */
	memcpy(there->dir, s->dir, sizeof there->dir);
	err = kvc_super_load(there, KVC_STORE_SUPER, &known);
	if (!known && is_missing(err))
		err = kvc_super_load(there, KVC_STORE_COPY, &known);
	if (known || (err && !is_missing(err)))
		return true;
	return is_database(s, KVC_STORE_CATALOG) &&
	       (kvc_super_exists(s, KVC_STORE_DATA) || kvc_super_exists(s, KVC_STORE_RESERVE));
}

/* Writes one line about a superblock that cannot be used; returns the error. */
static int refuse_superblock(const struct kvc_store *s, int err, char *error)
{
	if (err == -EPROTO)
		snprintf(error, 512,
			 "%s has format %u, but this kvcachefs supports formats up to %d; use a "
			 "newer kvcachefs",
			 s->dir, s->version, KVC_STORE_VERSION);
	else if (err != -EBADMSG && err != -ENOENT)
		snprintf(error, 512, "cannot read %s/%s: %s", s->dir, KVC_STORE_SUPER,
			 strerror(-err));
	if (err != -EBADMSG && err != -ENOENT)
		return err;
	if (!kvc_store_signs(s)) {
		snprintf(error, 512, "%s is not a kvcachefs store; create one with mkfs.kvcachefs",
			 s->dir);
		return -EINVAL;
	}
	snprintf(error, 512, "the superblock of %s is %s; fsck.kvcachefs -y repairs it", s->dir,
		 err == -ENOENT ? "missing" : "damaged");
	return -EBADMSG;
}

static bool is_store_file(const char *name)
{
	static const char *const stems[] = {
		KVC_STORE_SUPER,   KVC_STORE_CATALOG,  KVC_STORE_DATA,
		KVC_STORE_RESERVE, KVC_STORE_POLICIES, KVC_STORE_MAKING,
	};

	for (size_t i = 0; i < sizeof stems / sizeof stems[0]; i++) {
		size_t n = strlen(stems[i]);

		if (!strncmp(name, stems[i], n) &&
		    (!name[n] || name[n] == '.' || name[n] == '-' || name[n - 1] == '.'))
			return true;
	}
	return false;
}

int kvc_store_folder_check(const char *dir, const struct stat *st, char *error)
{
	if (st->st_uid && st->st_uid != geteuid()) {
		snprintf(error, 512,
			 "the folder %.300s belongs to uid %u, and this user could change the "
			 "store; run the command as this user, or chown the store to root",
			 dir, (unsigned)st->st_uid);
		return -EPERM;
	}
	if (st->st_mode & 022) {
		snprintf(error, 512,
			 "other users can write to the folder %.300s: check the files in it, then "
			 "run chmod go-w on it",
			 dir);
		return -EPERM;
	}
	return 0;
}

static int refuse_file(const char *path, int err, char *error)
{
	if (err == -ELOOP)
		snprintf(error, 512,
			 "%.300s is a symbolic link, and kvcachefs does not follow links in a "
			 "store: move the file there, or bind-mount it",
			 path);
	else if (err == -EPERM)
		snprintf(error, 512,
			 "%.300s belongs to another user: chown it to root or to the user that "
			 "mounts the store",
			 path);
	else if (err == -EISDIR || err == -EINVAL)
		snprintf(error, 512, "%.300s is not a regular file: remove it", path);
	else
		snprintf(error, 512, "cannot examine %.300s: %s", path, kvc_why(-err));
	return err;
}

int kvc_store_files_check(const struct kvc_store *s, bool writes, char *error)
{
	DIR *d = opendir(s->dir);
	struct dirent *e;
	char path[1280];
	int err = 0;

	if (!d) {
		err = -errno;
		snprintf(error, 512, "cannot list %.300s: %s", s->dir, kvc_why(-err));
		return err;
	}
	while (!err && (errno = 0, e = readdir(d)))
		if (is_store_file(e->d_name)) {
			snprintf(path, sizeof path, "%s/%.250s", s->dir, e->d_name);
			if ((err = kvc_check_own(path, writes)))
				refuse_file(path, err, error);
		}
	if (!err && errno) {
		err = -errno;
		snprintf(error, 512, "cannot list %.300s: %s", s->dir, kvc_why(-err));
	}
	closedir(d);
	return err;
}

/*
 * Removes the permissions of other users. Older daemons created the files with the modes that the
 * umask allowed. Files whose mode cannot be changed stay as they are. The folder keeps its mode: it
 * may hold other files, whose users need it.
 */
static void close_to_others(const struct kvc_store *s)
{
	static const char *const names[] = {
		KVC_STORE_SUPER,
		KVC_STORE_COPY,
		KVC_STORE_CATALOG,
		KVC_STORE_CATALOG "-wal",
		KVC_STORE_CATALOG "-shm",
		KVC_STORE_CATALOG "-mark",
		KVC_STORE_CATALOG ".old",
		KVC_STORE_CATALOG ".old-wal",
		KVC_STORE_CATALOG ".old-shm",
		KVC_STORE_DATA,
		KVC_STORE_RESERVE,
		KVC_STORE_POLICIES,
	};
	char path[1280];
	struct stat st;

	for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
		kvc_super_path(s, names[i], path);
		if (!lstat(path, &st) && (st.st_mode & 077) && !S_ISLNK(st.st_mode) &&
		    chmod(path, st.st_mode & 0700))
			kvc_debug("%s stays readable by others: %s", path, strerror(errno));
	}
}

static int check_folder(struct kvc_store *s, const char *dir, bool read_only, char *error)
{
	struct stat st;
	int err;

	memset(s, 0, sizeof *s);
	s->lock_fd = -1;
	if (!*dir || strlen(dir) >= sizeof s->dir) {
		snprintf(error, 512, "the path of the store is %s; give the folder of a store",
			 *dir ? "too long" : "empty");
		return *dir ? -ENAMETOOLONG : -ENOENT;
	}
	errno = ENOTDIR;
	if (stat(dir, &st) || !S_ISDIR(st.st_mode)) {
		err = -errno;
		if (err == -ENOENT || err == -ENOTDIR)
			snprintf(error, 512,
				 "no store at %s: no such folder; create a store with "
				 "mkfs.kvcachefs",
				 dir);
		else
			snprintf(error, 512, "no store at %s: %s", dir, kvc_why(-err));
		return err;
	}
	snprintf(s->dir, sizeof s->dir, "%s", dir);
	return (read_only ? 0 : kvc_store_folder_check(dir, &st, error))
		       ?: kvc_store_files_check(s, !read_only, error);
}

static int open_locked(struct kvc_store *s, const char *dir, bool read_only, char *error)
{
	char path[1280];
	KVC_FD int fd = -1;
	bool known;
	int err = check_folder(s, dir, read_only, error);

	if (err)
		return err;
	fd = kvc_open_own(kvc_super_path(s, KVC_STORE_SUPER, path), read_only ? O_RDONLY : O_RDWR);
	if (fd < 0 && errno != ENOENT) {
		err = -errno;
		snprintf(error, 512, "cannot open %s: %s", path, kvc_why(-err));
		return err;
	}
	err = fd < 0 ? -ENOENT : kvc_super_read(s, fd, &known);
	if (err)
		return refuse_superblock(s, err, error);
	if ((err = lock_store(fd, dir, read_only ? F_RDLCK : F_WRLCK, error)))
		return err;
	if ((err = kvc_super_read(s, fd, &known))) /* again, with the lock */
		return refuse_superblock(s, err, error);
	s->lock_fd = fd;
	fd = -1;
	s->read_only = read_only;
	return 0;
}

/* Completes opening a store for use, and changes that an interrupted tool has left. */
static int complete_open(struct kvc_store *s, char *error)
{
	int err = kvc_store_finish(s);

	if (err) {
		if (!kvc_store_bound(s, error))
			snprintf(error, 512,
				 "cannot finish an interrupted change of the store %s: %s", s->dir,
				 kvc_why(-err));
		kvc_store_close(s);
		return err;
	}
	close_to_others(s);
	if (!kvc_store_unproven(s) && (err = kvc_super_save_copy(s)))
		kvc_warn("cannot write the copy of the superblock %s/%s: %s", s->dir,
			 KVC_STORE_COPY, strerror(-err));
	return 0;
}

int kvc_store_open(struct kvc_store *s, const char *dir, char *error)
{
	return open_locked(s, dir, false, error) ?: complete_open(s, error);
}

int kvc_store_open_read(struct kvc_store *s, const char *dir, char *error)
{
	bool known;
	int err = open_locked(s, dir, true, error);

	/*
	 * a mkfs --force was killed when its files were complete: the store is the new one already
	 */
	if (!err && kvc_super_exists(s, KVC_STORE_CATALOG_NEXT) &&
	    kvc_super_exists(s, KVC_STORE_SUPER_NEXT) &&
	    (err = kvc_super_load(s, KVC_STORE_SUPER_NEXT, &known))) {
		refuse_superblock(s, err, error);
		kvc_store_close(s);
	}
	return err;
}

int kvc_store_repair(struct kvc_store *s, char *error)
{
	KVC_MEM struct kvc_store *there = calloc(1, sizeof *there);
	char path[1280];
	KVC_FD int fd = -1;
	bool known;
	int err;

	if (!there)
		return -ENOMEM;
	memcpy(there->dir, s->dir, sizeof there->dir);
	fd = kvc_open_own(kvc_super_path(s, KVC_STORE_SUPER, path), O_RDWR | O_CREAT);
	if (fd < 0) {
		err = -errno;
		snprintf(error, 512, "cannot open %s: %s", path, kvc_why(-err));
		return err;
	}
	if ((err = lock_store(fd, s->dir, F_WRLCK, error)))
		return err;
	err = kvc_super_read(there, fd, &known);
	if (err != -EBADMSG)
		return err ? refuse_superblock(there, err, error) : -EEXIST;
	err = kvc_super_name(s);
	if (!err && !kvc_store_unproven(s))
		err = kvc_super_write(s, fd);
	err = err ?: kvc_super_sync_dir(s);
	if (err) {
		snprintf(error, 512, "cannot write %s: %s", path, kvc_why(-err));
		return err;
	}
	s->lock_fd = fd;
	fd = -1;
	return complete_open(s, error);
}

void kvc_store_close(struct kvc_store *s)
{
	if (s->lock_fd >= 0)
		close(s->lock_fd);
	s->lock_fd = -1;
	explicit_bzero(s->secret, sizeof s->secret);
}
