/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The sweeps "grow", "add", "remove" and "stay" change the devices of the store while it is in use.
 * The superblock always describes a store that can be mounted, so a kill loses nothing and the
 * command can be repeated. If an add is killed before the superblock names the device, the new file
 * must be deleted before the add is repeated; for a block device, --force may be needed.
 *
 *   add      The file or the label is made. Then the superblock names the device. Then the tier
 *            uses the device.
 *   grow     A file is extended; a block device has its new size already. If the device has a
 *            label, the copy of the label is written at the new end. Then the new size is written
 *            to the superblock, and then to the label itself. Then the tier uses the new size.
 *   remove   The superblock marks the device as leaving, so that the device gets no new frames. Its
 *            frames are moved (tiering/move.c). When the device has no frames, it is removed from
 *            the superblock. Then the device is closed, and its label is cleared or its file
 *            deleted.
 *   stay     A remove that has not completed is cancelled.
 *
 * Only the thread of a sweep changes k->store->dev, and one sweep runs at a time.
 */
#include "ops.h"
#include "committer.h"
#include "label.h"
#include "load.h"
#include "log.h"
#include "move.h"
#include "pin.h"
#include "sweep.h"
#include "tier_queue.h"

#include <fcntl.h>
#include <inttypes.h>
#include <linux/fs.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/stat.h>

#define FULL_TRIES 100 /* how often a move is tried while the trimmer makes space */
#define FULL_US 50000
#define BUSY_US 20000
#define EMPTY_TRIES 1500 /* how often to check whether an empty device has freed all extents */

int kvc_devices_words(struct kvc_sweep *s, char *words, FILE *answer)
{
	unsigned kind, force;
	uint64_t size;
	int at = 0;

	if (sscanf(words, "%u %" SCNu64 " %u %n", &kind, &size, &force, &at) != 3 || !at ||
	    kind >= KVC_DEVICE_KINDS || strlen(words + at) >= 1024) {
		fprintf(answer, "the arguments are not those of this daemon; use the kvcachectl of "
				"its version\n");
		return -EINVAL;
	}
	if (!s->k->tier[KVC_DISK].t) {
		fprintf(answer, "this mount has no disk tier (disk=off)\n");
		return -EINVAL;
	}
	s->device.kind = (enum kvc_device_kind)kind;
	s->device.size = size / KVC_PAGE * KVC_PAGE;
	s->force = force;
	snprintf(s->device.path, sizeof s->device.path, "%s", words + at);
	return 0;
}

static int why(struct kvc_sweep *s, int err, const char *what)
{
	snprintf(s->why, sizeof s->why, "%s: %s", what, kvc_why(-err));
	return err;
}

/* Returns a copy of the store, which the caller changes and frees; NULL: out of memory. */
static struct kvc_store *store_copy(const struct kvc_store *s)
{
	struct kvc_store *next = malloc(sizeof *next);

	if (next)
		*next = *s;
	return next;
}

/*
 * Writes the superblock of `next`, which differs from k->store in device nr. Then copies this
 * device to k->store, and stores the text of the superblock in the catalog. If the write fails,
 * writes the old superblock again.
 */
static int store_save(struct kvc *k, const struct kvc_store *next, unsigned nr)
{
	KVC_MEM char *text = malloc(KVC_STORE_TEXT);
	int err = text ? kvc_super_write(next, next->lock_fd) : -ENOMEM;

	if (err && text && kvc_super_write(k->store, next->lock_fd))
		kvc_error("the superblock of %s cannot be written: check the filesystem, then run "
			  "fsck.kvcachefs",
			  k->store->dir);
	if (err)
		return err;
	if (kvc_super_save_copy(next))
		kvc_warn("cannot write the copy of the superblock; the next mount writes it");
	k->store->dev[nr] = next->dev[nr];
	k->store->version = next->version;
	kvc_catalog_lock(k->cat);
	kvc_meta_set(k->cat, "store", kvc_super_text(k->store, text));
	kvc_catalog_unlock(k->cat);
	return 0;
}

/* Tells pins, waiting copies and the trimmer that the size of the disk tier has changed. */
static void size_changed(struct kvc *k)
{
	struct kvc_tier *t = k->tier[KVC_DISK].t;
	struct kvc_tier_usage u;

	t->ops->usage(t, &u);
	kvc_lock(k);
	k->pins->disk_size = u.total;
	kvc_tier_freed_locked(k, KVC_DISK);
	kvc_tier_trim_wake_locked(k, KVC_DISK);
	kvc_unlock(k);
}

/* Sets *nr to the device that the user named by its path or number. */
static int find(struct kvc_sweep *s, unsigned *nr)
{
	const struct kvc_store *st = s->k->store;
	const char *path = s->device.path;
	unsigned long x;
	char *end;

	*nr = kvc_super_find(st, path);
	x = *path >= '0' && *path <= '9' ? strtoul(path, &end, 10) : KVC_DEVICES;
	if (*nr == KVC_DEVICES && x < KVC_DEVICES && !*end && st->dev[x].kind)
		*nr = (unsigned)x;
	if (*nr < KVC_DEVICES)
		return 0;
	snprintf(s->why, sizeof s->why,
		 "%.300s is not a device of this store; kvcachectl devices lists the devices",
		 path);
	return -ENOENT;
}

/* ---- add ---- */

/* Labels a block device that is not in use. Its contents were checked by kvcachectl. */
static int make_block(struct kvc_sweep *s, struct kvc_store *next, unsigned nr)
{
	struct kvc_device *d = &next->dev[nr];
	struct kvc_label l;
	uint64_t size, whole[2] = { 0 };
	KVC_FD int fd = kvc_label_device_open(next, nr, O_RDWR, &size, s->why);
	int err;

	if (fd < 0)
		return fd;
	d->size = d->size ?: size / KVC_PAGE * KVC_PAGE;
	if (d->size > size || d->size < KVC_STORE_MIN_SIZE || d->size > KVC_DEVICE_MOST) {
		snprintf(s->why, sizeof s->why,
			 "%.300s has %" PRIu64 " bytes; give a size from 16M to that", d->path,
			 size);
		return -EINVAL;
	}
	err = kvc_label_read(fd, &l);
	if (err != -ENODATA && !s->force) {
		snprintf(s->why, sizeof s->why,
			 "%.300s has the data of a kvcachefs store; --force overwrites it",
			 d->path);
		return -EEXIST;
	}
	/* a rebuild must not find frames that this store once had on the device */
	whole[1] = size;
	if (err != -ENODATA && ioctl(fd, BLKDISCARD, whole))
		kvc_debug("%s: cannot discard its old contents: %s", d->path, strerror(errno));
	err = kvc_label_make(next, nr, fd, size);
	return err ? why(s, err, "cannot label the device") : 0;
}

static int make_device(struct kvc_sweep *s, struct kvc_store *next, unsigned nr)
{
	struct kvc_device *d = &next->dev[nr];

	if (d->kind == KVC_DEVICE_BLOCK)
		return make_block(s, next, nr);
	if (d->size < KVC_STORE_MIN_SIZE || d->size > KVC_DEVICE_MOST) {
		snprintf(s->why, sizeof s->why, "give the size of the new file, at least 16M");
		return -EINVAL;
	}
	return kvc_label_file_make(next, nr, s->why);
}

static void unmake_device(const struct kvc_store *next, unsigned nr)
{
	char error[512];
	uint64_t size;
	KVC_FD int fd = kvc_label_device_again(next, nr, O_RDWR, &size, error);

	/* the path may lead to another disk or file by now */
	if (fd < 0 || kvc_label_check(next, nr, fd, error))
		kvc_warn("%s; nothing was written to it", error);
	else if (next->dev[nr].kind == KVC_DEVICE_FILE)
		unlink(next->dev[nr].path);
	else if (kvc_label_clear(next, nr, fd))
		kvc_warn("%s: cannot clear its label", next->dev[nr].path);
}

int kvc_devices_add(struct kvc_sweep *s)
{
	struct kvc_tier *t = s->k->tier[KVC_DISK].t;
	KVC_MEM struct kvc_store *next = store_copy(s->k->store);
	unsigned nr = 0;
	int err;

	s->seen = 1;
	if (!next)
		return -ENOMEM;
	if (kvc_super_find(next, s->device.path) < KVC_DEVICES) {
		snprintf(s->why, sizeof s->why, "%.300s is a device of this store already",
			 s->device.path);
		return -EEXIST;
	}
	while (nr < KVC_DEVICES && next->dev[nr].kind)
		nr++;
	if (nr == KVC_DEVICES) {
		snprintf(s->why, sizeof s->why, "a store has at most %d devices", KVC_DEVICES);
		return -E2BIG;
	}
	next->dev[nr] = s->device;
	err = kvc_super_fits(next, s->why) ?: kvc_label_distinct(next, s->why);
	err = err ?: make_device(s, next, nr);
	if (err)
		return err;
	if ((err = store_save(s->k, next, nr))) {
		why(s, err, "cannot write the superblock");
	} else if ((err = t->ops->change(t, KVC_TIER_ADD, next, nr, s->why))) {
		next->dev[nr].kind = KVC_DEVICE_NONE;
		if (store_save(s->k, next, nr))
			return err; /* the superblock names the device: the next mount uses it */
		next->dev[nr].kind = s->device.kind;
	}
	if (err) {
		unmake_device(next, nr);
		return err;
	}
	s->changed = 1;
	s->bytes = s->all_bytes = next->dev[nr].size;
	size_changed(s->k);
	kvc_info("device %u was added: %s", nr, next->dev[nr].path);
	return 0;
}

/* ---- grow ---- */

/* Extends the file to `size` bytes. On failure, restores its length. */
static int extend(struct kvc_sweep *s, const struct kvc_device *d, int fd, uint64_t size)
{
	struct stat st;
	int err = fstat(fd, &st) ? -errno : 0;
	char what[400];
	uint64_t has = err ? size : (uint64_t)st.st_blocks * 512;

	if (has < size && (err = kvc_label_room(fd, d->path, size - has, s->why)))
		return err;
	err = err ?: -posix_fallocate(fd, 0, (off_t)size) ?: fsync(fd) ? -errno : 0;
	if (!err)
		return 0;
	if ((uint64_t)st.st_size < size &&
	    ftruncate(fd, (off_t)kvc_max((uint64_t)st.st_size, d->size)))
		kvc_warn("%s: cannot restore its length: %s", d->path, strerror(errno));
	snprintf(what, sizeof what, "cannot extend %.300s", d->path);
	return why(s, err, what);
}

/* Grows one device to `size` bytes; 0: to the size that its file or block device has now. */
static int grow_one(struct kvc_sweep *s, unsigned nr, uint64_t size)
{
	struct kvc_tier *t = s->k->tier[KVC_DISK].t;
	KVC_MEM struct kvc_store *next = store_copy(s->k->store);
	struct kvc_device *d;
	bool labelled;
	uint64_t has;
	int err;

	if (!next)
		return -ENOMEM;
	d = &next->dev[nr];
	labelled = d->kind != KVC_DEVICE_OWN;
	KVC_FD int fd = kvc_label_device_again(next, nr, O_RDWR, &has, s->why);

	if (fd < 0)
		return fd;
	/* the path may lead to another disk or file by now */
	if (labelled && (err = kvc_label_check(s->k->store, nr, fd, s->why)))
		return err;
	if (!size)
		size = kvc_max(has / KVC_PAGE * KVC_PAGE, d->size);
	if (size < d->size || size > KVC_DEVICE_MOST ||
	    (d->kind == KVC_DEVICE_BLOCK && size > has)) {
		char a[32], b[32];

		snprintf(s->why, sizeof s->why, "%.300s: the new size must be from %s to %s%s",
			 d->path, kvc_size_text(d->size, a),
			 kvc_size_text(d->kind == KVC_DEVICE_BLOCK ? has : KVC_DEVICE_MOST, b),
			 size < d->size
				 ? "; to use less space, add a smaller device and remove this "
				   "one"
				 : "");
		return -EINVAL;
	}
	if (size == d->size) /* an earlier grow may have failed after it wrote the superblock */
		return t->ops->change(t, KVC_TIER_GROW, next, nr, s->why);
	if (d->kind != KVC_DEVICE_BLOCK && (err = extend(s, d, fd, size)))
		return err;
	d->size = size;
	err = labelled ? kvc_label_write_copy(next, nr, fd) : 0;
	if ((err = err ?: store_save(s->k, next, nr))) {
		if (d->kind != KVC_DEVICE_BLOCK && ftruncate(fd, (off_t)has))
			kvc_warn("%s: cannot restore its length: %s", d->path, strerror(errno));
		return why(s, err, "cannot write the label or the superblock");
	}
	err = labelled ? kvc_label_write(next, nr, fd) : 0;
	if (err)
		kvc_warn("%s: cannot write the new size to its label: %s; fsck.kvcachefs -y does "
			 "it",
			 d->path, strerror(-err));
	if ((err = t->ops->change(t, KVC_TIER_GROW, next, nr, s->why)))
		return err; /* the next mount uses the new size */
	s->changed++;
	s->bytes += size;
	kvc_info("device %u, %s, has grown to %" PRIu64 " bytes", nr, d->path, size);
	return 0;
}

int kvc_devices_grow(struct kvc_sweep *s)
{
	unsigned nr = 0;
	int err = *s->device.path ? find(s, &nr) : 0;

	if (err)
		return err;
	for (unsigned i = 0; i < KVC_DEVICES && !err && !s->stop; i++) {
		if (!s->k->store->dev[i].kind || (*s->device.path && i != nr))
			continue;
		s->seen++;
		err = grow_one(s, i, s->device.size);
	}
	if (s->changed)
		size_changed(s->k);
	return err;
}

/* ---- remove ---- */

static int set_leaving(struct kvc_sweep *s, unsigned nr, bool leaving)
{
	struct kvc_tier *t = s->k->tier[KVC_DISK].t;
	KVC_MEM struct kvc_store *next = store_copy(s->k->store);
	int err = next ? 0 : -ENOMEM;

	if (err || next->dev[nr].leaving == leaving)
		return err;
	next->dev[nr].leaving = leaving;
	if ((err = store_save(s->k, next, nr)))
		return why(s, err, "cannot write the superblock");
	err = t->ops->change(t, KVC_TIER_LEAVE, next, nr, s->why);
	size_changed(s->k);
	return err;
}

int kvc_devices_stay(struct kvc_sweep *s)
{
	unsigned nr;
	int err = find(s, &nr);

	s->seen = 1;
	if (err)
		return err;
	s->changed = s->k->store->dev[nr].leaving;
	return set_leaving(s, nr, false);
}

/* The state of a walk over the frames of the device. */
struct drain {
	unsigned nr;
	uint64_t left; /* frames that are still on the device after a walk */
	uint64_t unreadable;
	int err; /* why frames could not be moved */
};

/*
 * Forgets a damaged or unreadable frame. If it is the last copy of a file, drops the file. Returns
 * false if the frame stays.
 */
static bool drop_unreadable(struct kvc_sweep *s, uint64_t ino)
{
	bool lost = false;
	int err;

	kvc_lock_both(s->k);
	err = kvc_load_bad_copy_both(s->k, ino, KVC_DISK, &lost);
	kvc_unlock_both(s->k);
	s->lost += lost;
	return !err;
}

static int move_placed(struct kvc_sweep *s, const struct kvc_placed *p, void *arg)
{
	struct drain *d = arg;
	struct kvc *k = s->k;
	uint64_t bytes = 0;
	int err = -ENOSPC;

	if (p->tier != KVC_DISK || p->place.where.at >> KVC_DEVICE_BITS != d->nr)
		return 0;
	for (int i = 0; i < FULL_TRIES && err == -ENOSPC && !s->stop; i++) {
		err = kvc_move_frame(k, p->ino, d->nr, &bytes);
		if (err != -ENOSPC)
			break;
		kvc_lock(k);
		kvc_tier_refused_locked(k, KVC_DISK, p->place.where.len);
		kvc_unlock(k);
		usleep(FULL_US);
	}
	s->seen += err != -ENOENT && err != -EAGAIN;
	s->changed += !err;
	s->bytes += bytes;
	if (err == -EBADMSG || (err == -EREMOTEIO && s->force)) {
		kvc_warn("device %u: the frame of inode %" PRIx64 " is %s and is dropped", d->nr,
			 p->ino, err == -EBADMSG ? "damaged" : "unreadable");
		err = drop_unreadable(s, p->ino) ? 0 : -EAGAIN;
	}
	d->left += err && err != -ENOENT;
	d->unreadable += err == -EREMOTEIO;
	if (err && err != -ENOENT && err != -EAGAIN)
		d->err = err;
	return 0;
}

/* Waits until the extents of moved and deleted frames are free; false: they stay in use. */
static bool is_empty(struct kvc_sweep *s, unsigned nr)
{
	struct kvc *k = s->k;
	struct kvc_tier *t = k->tier[KVC_DISK].t;
	struct kvc_tier_device d;

	for (int i = 0; i < EMPTY_TRIES && !s->stop; i++) {
		/* do not wait for headers of removed frames that a failing device cannot clear */
		if (t->ops->device(t, nr, &d) || d.used <= d.uncleared ||
		    (s->force && d.write_fails))
			return true;
		kvc_lock(k);
		kvc_committer_wake_locked(k, true);
		kvc_unlock(k);
		usleep(BUSY_US);
	}
	return false;
}

static int drain(struct kvc_sweep *s, unsigned nr)
{
	struct kvc_tier *t = s->k->tier[KVC_DISK].t;
	struct kvc_tier_device d;
	struct drain x;
	int err = 0, walks = 0;
	bool empty;

	if (!t->ops->device(t, nr, &d))
		s->all_bytes = d.used;
	do {
		x = (struct drain){ .nr = nr };
		err = kvc_sweeper_commit(s) ?: kvc_sweeper_each_placed(s, move_placed, &x);
		if (err || s->stop)
			return err ?: -ECANCELED;
		if (x.err) {
			s->failed = x.left;
			snprintf(s->why, sizeof s->why,
				 "%" PRIu64 " files could not be moved from the device: %s", x.left,
				 x.unreadable ? "they cannot be read; --force drops them"
				 : x.err == -ENOSPC
					 ? "the other devices are full, and nothing there can be "
					   "evicted; add a device, or unpin or delete files"
					 : kvc_why(-x.err));
			return x.err;
		}
		if (x.left)
			usleep(BUSY_US); /* these frames are in use: try them again */
		/* if space is in use but no frame is left, a write has failed or has not ended */
		empty = !x.left && is_empty(s, nr);
	} while (x.left || (!empty && ++walks < 3));
	if (!empty && !s->force && !s->stop) {
		snprintf(s->why, sizeof s->why,
			 "a write to the device does not end; give the command again, or use "
			 "--force");
		return -EBUSY;
	}
	/* the superblock may forget the device only after the catalog has */
	return kvc_sweeper_commit(s) ?: s->stop ? -ECANCELED : 0;
}

static bool others_stay(const struct kvc_store *s, unsigned nr)
{
	for (unsigned i = 0; i < KVC_DEVICES; i++)
		if (i != nr && s->dev[i].kind && !s->dev[i].leaving)
			return true;
	return false;
}

int kvc_devices_remove(struct kvc_sweep *s)
{
	struct kvc *k = s->k;
	struct kvc_tier *t = k->tier[KVC_DISK].t;
	KVC_MEM struct kvc_store *next = NULL;
	uint64_t evicted = k->stats.evicted_for[KVC_FOR_tier];
	struct kvc_device old;
	unsigned nr;
	int err = find(s, &nr);

	if (err)
		return err;
	if (!others_stay(k->store, nr)) {
		snprintf(s->why, sizeof s->why,
			 "%.300s is the last device of the store; add another one first",
			 k->store->dev[nr].path);
		return -EBUSY;
	}
	err = set_leaving(s, nr, true) ?: drain(s, nr) ?: kvc_catalog_sync(k->cat);
	s->evicted = k->stats.evicted_for[KVC_FOR_tier] - evicted;
	if (err)
		return err;
	next = store_copy(k->store);
	if (!next)
		return -ENOMEM;
	old = next->dev[nr];
	next->dev[nr] = (struct kvc_device){ .kind = KVC_DEVICE_NONE };
	if ((err = store_save(k, next, nr)))
		return why(s, err, "cannot write the superblock");
	t->ops->change(t, KVC_TIER_REMOVE, next, nr, s->why);
	next->dev[nr] = old;
	if (old.kind == KVC_DEVICE_OWN)
		unlink(old.path);
	else
		unmake_device(next, nr);
	size_changed(k);
	kvc_info("device %u was removed: %s", nr, old.path);
	return 0;
}
