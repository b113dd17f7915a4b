/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The driver of one device: frames in a preallocated file or a block device, each in one extent of
 * whole pages. Free extents are kept in memory and rebuilt from the placements at mount (claim).
 * I/O is direct if the file supports it, so that the page cache does not hold everything twice;
 * loads are read into the segment's own pages.
 *
 * If a write fails, the extent is excluded, so that the next frame is not written to the same
 * place. A header that could not be cleared is excluded too. Later, the tier writes zeros over
 * excluded extents: pages that accept them are free again, and the others wait, longer after each
 * attempt.
 *
 * `where.at` is the byte offset of the frame, `where.len` the length of the extent. The lock guards
 * the extents, the excluded extents and the spare buffers; no I/O is done while it is held. The
 * tier's workers and the syncer enter.
 */
#include "disk.h"

#include "extent.h"
#include "label.h"
#include "log.h"
#include "pipeline.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <linux/fs.h>

#define PIECE KVCT_PIPELINE_PIECE
#define BUFFER (KVC_FRAME_HEADER + PIECE)
_Static_assert(BUFFER >= KVCT_PIPELINE_BUFFER, "a put and a load use the same buffers");
#define SPARES 8
#define READS 3                 /* attempts to read a page before it counts as unreadable */
#define WANTED_NS 1000000000ull /* how long after a refusal the same frame is expected again */
#define EXCLUDED 64             /* excluded extents; others wait for the next mount */
#define EXCLUDED_NS 5000000000ull
#define EXCLUDED_MAX_NS 600000000000ull

static const uint8_t no_header[KVC_FRAME_HEADER] __attribute__((aligned(4096)));

/* An extent that could not be written. */
struct excluded {
	struct kvc_where w;
	uint64_t due_ns, wait_ns;
};

struct disk {
	struct kvc_tier tier;
	pthread_mutex_t lock;
	struct kvct_extents *free;
	/*
	 * the length of a frame that was refused because no extent was large enough, and until when
	 * it is expected again
	 */
	uint64_t wanted, wanted_until_ns;
	struct excluded excluded[EXCLUDED];
	unsigned nexcluded;
	uint64_t size;
	/* bytes of `size` around the label, at both ends; they hold no frames */
	uint64_t label_bytes;
	uint64_t lost_from; /* the data from this offset on is lost */
	int fd;
	/* buffers of BUFFER bytes for the next put; new memory would cost a page fault per page */
	uint8_t *spare[SPARES];
	unsigned nspare;
	struct kvct_pipeline *pipeline; /* of all devices */
	unsigned nr;                    /* its number in the store */
	void (*unread)(void *arg, uint64_t at, uint64_t len, int err);
	void *unread_arg;
};

static struct disk *disk_of(struct kvc_tier *t)
{
	return kvc_of(t, struct disk, tier);
}

static bool valid(const struct disk *d, const struct kvc_where *w)
{
	return w->at % KVC_PAGE == 0 && w->len % KVC_PAGE == 0 && w->len >= KVC_FRAME_HEADER &&
	       w->len <= d->size && w->at <= d->size - w->len;
}

/* Can a frame be at this place? */
static bool can_hold_frame(const struct disk *d, const struct kvc_where *w)
{
	return valid(d, w) && w->at + w->len <= d->lost_from;
}

static int disk_claim(struct kvc_tier *t, const struct kvc_where *w)
{
	struct disk *d = disk_of(t);
	int err;

	if (!can_hold_frame(d, w))
		return -ERANGE;
	pthread_mutex_lock(&d->lock);
	err = kvct_extents_claim(d->free, w->at, w->len);
	pthread_mutex_unlock(&d->lock);
	return err;
}

static int free_extent(struct disk *d, const struct kvc_where *w)
{
	int err;

	pthread_mutex_lock(&d->lock);
	err = kvct_extents_give(d->free, w->at, w->len);
	pthread_mutex_unlock(&d->lock);
	return err == -EEXIST ? -ENOENT : err;
}

/*
 * Maps an error of the data file to an error of tier.h, in which some of these errno values are
 * statements about a frame or about a put that was cancelled.
 */
static int disk_error(int err)
{
	switch (err) {
	case -EBADMSG:
	case -ENOENT:
	case -ENOSPC:
	case -EDQUOT:
	case -ESTALE:
	case -EPROTO:
	case -ENOKEY:
	case -ENAMETOOLONG:
	case -E2BIG:
	case -EFBIG:
	case -EALREADY:
	case -ECANCELED: return -EIO;
	default: return err;
	}
}

static uint8_t *buffer_get(struct disk *d)
{
	uint8_t *buf = NULL;

	pthread_mutex_lock(&d->lock);
	if (d->nspare)
		buf = d->spare[--d->nspare];
	pthread_mutex_unlock(&d->lock);
	return buf ? buf : aligned_alloc(KVC_PAGE, BUFFER);
}

static void buffer_put(struct disk *d, uint8_t *buf)
{
	pthread_mutex_lock(&d->lock);
	bool keep = buf && d->nspare < SPARES;

	if (keep)
		d->spare[d->nspare++] = buf;
	pthread_mutex_unlock(&d->lock);
	if (!keep)
		free(buf);
}

static void exclude(struct disk *d, uint64_t at, uint64_t len, uint64_t wait_ns)
{
	pthread_mutex_lock(&d->lock);
	bool fits = d->nexcluded < EXCLUDED;

	if (fits && len)
		d->excluded[d->nexcluded++] = (struct excluded){
			{ .at = at, .len = len },
			kvc_mono_ns() + wait_ns,
			wait_ns,
		};
	pthread_mutex_unlock(&d->lock);
	if (!fits && len)
		kvc_warn("tier disk: cannot write %llu bytes at %llu; this space is not used until "
			 "the next mount",
			 (unsigned long long)len, (unsigned long long)at);
}

/*
 * Writes zeros over a piece of an excluded extent. Runs of pages that accept them are freed, and
 * the others are excluded again. Returns true if any page accepted them.
 */
static bool reclaim_piece(struct disk *d, const uint8_t *zeros, uint64_t at, uint64_t len,
			  uint64_t wait_ns)
{
	bool takes[PIECE / KVC_PAGE], any = false;
	uint64_t n = len / KVC_PAGE, from = 0;

	if (!kvc_pwrite_all(d->fd, zeros, len, (off_t)at)) {
		free_extent(d, &(struct kvc_where){ .at = at, .len = len });
		return true;
	}
	for (uint64_t i = 0; i < n; i++) {
		takes[i] = !kvc_pwrite_all(d->fd, zeros, KVC_PAGE, (off_t)(at + i * KVC_PAGE));
		any |= takes[i];
	}
	for (uint64_t i = 0; i < n; i++) {
		struct kvc_where run = {
			.at = at + from * KVC_PAGE,
			.len = (i + 1 - from) * KVC_PAGE,
		};

		if (i + 1 < n && takes[i + 1] == takes[i])
			continue;
		if (takes[i])
			free_extent(d, &run);
		else
			exclude(d, run.at, run.len, wait_ns);
		from = i + 1;
	}
	return any;
}

static void reclaim(struct disk *d, const struct excluded *a)
{
	uint64_t wait_ns = kvc_min(a->wait_ns * 2, EXCLUDED_MAX_NS), o = 0;
	uint8_t *zeros = buffer_get(d);
	bool any = zeros;

	if (zeros)
		memset(zeros, 0, PIECE);
	while (o < a->w.len && any) {
		uint64_t len = kvc_min(a->w.len - o, PIECE);

		any = reclaim_piece(d, zeros, a->w.at + o, len, wait_ns);
		o += len;
	}
	/* no further attempt after a piece without a good page */
	exclude(d, a->w.at + o, a->w.len - o, wait_ns);
	buffer_put(d, zeros);
}

/* Reclaims one excluded extent that is due. Returns false if none is. */
static bool reclaim_one(struct disk *d, uint64_t due_ns)
{
	struct excluded a = { 0 };

	pthread_mutex_lock(&d->lock);
	for (unsigned i = 0; i < d->nexcluded && !a.w.len; i++)
		if (d->excluded[i].due_ns <= due_ns) {
			a = d->excluded[i];
			d->excluded[i] = d->excluded[--d->nexcluded];
		}
	pthread_mutex_unlock(&d->lock);
	if (a.w.len)
		reclaim(d, &a);
	return a.w.len;
}

static void disk_close(struct kvc_tier *t)
{
	struct disk *d = disk_of(t);

	/* tried once more, so that a rebuild finds no header of a removed frame */
	for (unsigned n = d->nexcluded; n && reclaim_one(d, UINT64_MAX); n--)
		;
	kvct_extents_free(d->free);
	while (d->nspare)
		free(d->spare[--d->nspare]);
	close(d->fd);
	pthread_mutex_destroy(&d->lock);
	free(d);
}

static int disk_remove(struct kvc_tier *t, const struct kvc_where *w)
{
	struct disk *d = disk_of(t);
	int err;

	if (!valid(d, w))
		return -ENOENT;
	/* clears the header, so that a rebuild does not bring back a removed frame */
	if ((err = kvc_pwrite_all(d->fd, no_header, KVC_FRAME_HEADER, (off_t)w->at))) {
		struct kvc_where rest = {
			.at = w->at + KVC_FRAME_HEADER,
			.len = w->len - KVC_FRAME_HEADER,
		};

		exclude(d, w->at, KVC_FRAME_HEADER, EXCLUDED_NS);
		if (rest.len)
			free_extent(d, &rest);
		return disk_error(err);
	}
	return free_extent(d, w);
}

static int write_at(struct disk *d, const uint8_t *buf, size_t len, uint64_t at, bool *medium)
{
	int err = kvc_pwrite_all(d->fd, buf, len, (off_t)at);

	*medium = err;
	return disk_error(err);
}

/* Writes a small frame with one call. If a power loss tears it, the payload's checksum is wrong. */
static int write_small(struct disk *d, const struct kvc_put *p, uint64_t at, uint8_t *buf,
		       bool *medium)
{
	size_t len = p->stored_len, padded = kvc_round_up(len, KVC_PAGE);
	int err = len ? p->read(p->arg, buf + KVC_FRAME_HEADER, len, 0) : 0;

	if (err)
		return err;
	memset(buf + KVC_FRAME_HEADER + len, 0, padded - len);
	if ((err = p->head(p->arg, buf)))
		return err;
	return write_at(d, buf, KVC_FRAME_HEADER + padded, at, medium);
}

/* A frame while it is written. */
struct writing {
	struct disk *d;
	const struct kvc_put *p;
	uint64_t at; /* offset of the payload in the file or device */
};

static int writing_begin(void *arg, struct kvc_part *part)
{
	const struct writing *w = arg;
	size_t len = part->len;
	const void *bytes;
	int err;

	if (w->p->bytes && len % KVC_PAGE == 0) {
		if (!(err = w->p->bytes(w->p->arg, &bytes, len, part->off)))
			part->p = (uint8_t *)bytes;
		return err;
	}
	err = w->p->read(w->p->arg, part->p, len, part->off);
	memset(part->p + len, 0, kvc_round_up(len, KVC_PAGE) - len);
	return err;
}

static int writing_move(void *arg, const struct kvc_part *part)
{
	const struct writing *w = arg;

	return kvc_pwrite_all(w->d->fd, part->p, kvc_round_up(part->len, KVC_PAGE),
			      (off_t)(w->at + part->off));
}

/* Writes the payload in pieces, then the header. The last piece is padded to a page with zeros. */
static int write_pieces(struct disk *d, const struct kvc_put *p, uint64_t at, uint8_t *buf,
			bool *medium)
{
	struct writing w = { d, p, at + KVC_FRAME_HEADER };
	struct kvct_transfer t = {
		.len = p->stored_len,
		.arg = &w,
		.begin = writing_begin,
		.move = writing_move,
		.device = d->nr,
	};
	int err;

	if (p->stored_len <= PIECE)
		return write_small(d, p, at, buf, medium);
	err = kvct_pipeline_run(d->pipeline, &t, buf, medium);
	if (err == -EFAULT && *medium) {
		*medium = false; /* a client has truncated the file: p->bytes lost its pages */
		return -ECANCELED;
	}
	if (err)
		return *medium ? disk_error(err) : err;
	if ((err = p->head(p->arg, buf)))
		return err;
	return write_at(d, buf, KVC_FRAME_HEADER, at, medium);
}

static int disk_write_frame(struct disk *d, const struct kvc_put *p, uint64_t at, bool *medium)
{
	uint8_t *buf = buffer_get(d);
	int err = buf ? write_pieces(d, p, at, buf, medium) : -ENOMEM;

	buffer_put(d, buf);
	return err;
}

/*
 * While a refused frame waits for a large extent, smaller frames do not take from extents that are
 * large enough for it. They are stored more often and would use up the space that was freed for it.
 */
static int alloc_extent_locked(struct disk *d, uint64_t len, uint64_t *at)
{
	uint64_t now = kvc_mono_ns(), wanted = now < d->wanted_until_ns ? d->wanted : 0;
	int err = len < wanted ? kvct_extents_take_apart(d->free, len, wanted, at)
			       : kvct_extents_take(d->free, len, at);

	if (err == -ENOSPC) {
		d->wanted = kvc_max(wanted, len);
		d->wanted_until_ns = now + WANTED_NS;
	} else if (!err && len >= wanted) {
		d->wanted = d->wanted_until_ns = 0;
	}
	return err;
}

static int disk_put(struct kvc_tier *t, const struct kvc_put *p, struct kvc_where *out)
{
	struct disk *d = disk_of(t);
	struct kvc_where w = { .len = KVC_FRAME_HEADER + kvc_round_up(p->stored_len, KVC_PAGE) };
	bool medium = false; /* the device failed to write this extent */
	int err;

	reclaim_one(d, kvc_mono_ns());
	pthread_mutex_lock(&d->lock);
	err = alloc_extent_locked(d, w.len, &w.at);
	pthread_mutex_unlock(&d->lock);
	if (err)
		return err;
	err = disk_write_frame(d, p, w.at, &medium);
	if (err && medium)
		exclude(d, w.at, w.len, EXCLUDED_NS);
	else if (err)
		disk_remove(t, &w);
	if (err)
		/* the tier had space: something else is full */
		return err == -ENOSPC ? -EIO : err;
	*out = w;
	return 0;
}

static int disk_get(struct kvc_tier *t, const struct kvc_where *w, uint64_t off,
		    const struct iovec *iov, int n)
{
	struct disk *d = disk_of(t);
	struct iovec left[8];
	uint64_t len = 0, at = w->at + off;

	for (int i = 0; i < n; i++)
		len += iov[i].iov_len;
	if (n > 8 || !valid(d, w) || off > w->len || len > w->len - off)
		return -EBADMSG;
	memcpy(left, iov, (size_t)n * sizeof *iov);
	for (int i = 0; i < n;) {
		ssize_t got = preadv(d->fd, left + i, n - i, (off_t)at);

		if (got < 0 && errno == EINTR)
			continue;
		if (got < 0)
			return disk_error(-errno);
		if (!got)
			return -EBADMSG; /* the file became shorter */
		at += (uint64_t)got;
		for (; i < n && (size_t)got >= left[i].iov_len; i++)
			got -= (ssize_t)left[i].iov_len;
		if (i < n) {
			left[i].iov_base = (char *)left[i].iov_base + got;
			left[i].iov_len -= (size_t)got;
		}
	}
	return 0;
}

/* A frame while it is read. */
struct loading {
	struct disk *d;
	const struct kvc_where *w;
	const struct kvc_load *l;
};

static int loading_begin(void *arg, struct kvc_part *part)
{
	const struct loading *l = arg;
	uint8_t *buf = part->p;
	int err;

	part->p = NULL;
	if ((err = l->l->part(l->l->arg, part)))
		return err;
	part->p = part->p ?: buf;
	return part->len > KVC_TIER_PART || part->off > l->w->len ||
			       part->len > l->w->len - part->off
		       ? -EBADMSG
		       : 0;
}

static int loading_move(void *arg, const struct kvc_part *part)
{
	const struct loading *l = arg;
	int err = kvc_pread_all(l->d->fd, part->p, part->len, (off_t)(l->w->at + part->off));

	if (err)
		/* -ENODATA: the file became shorter */
		return err == -ENODATA ? -EBADMSG : disk_error(err);
	return l->l->arrived ? l->l->arrived(l->l->arg, part) : 0;
}

static int loading_end(void *arg, const struct kvc_part *part)
{
	const struct loading *l = arg;

	return l->l->ended(l->l->arg, part);
}

static int disk_load(struct kvc_tier *t, const struct kvc_where *w, const struct kvc_load *load)
{
	struct disk *d = disk_of(t);
	struct loading l = { d, w, load };
	struct kvct_transfer transfer = {
		.n = load->n,
		.arg = &l,
		.begin = loading_begin,
		.move = loading_move,
		.end = loading_end,
		.urgent = true,
		.device = d->nr,
	};
	uint8_t *buf;
	int err;

	if (!valid(d, w))
		return -EBADMSG;
	buf = buffer_get(d);
	err = buf ? kvct_pipeline_run(d->pipeline, &transfer, buf, NULL) : -ENOMEM;
	buffer_put(d, buf);
	return err;
}

static int disk_rehead(struct kvc_tier *t, const struct kvc_where *w,
		       const uint8_t page[KVC_FRAME_HEADER])
{
	struct disk *d = disk_of(t);
	KVC_MEM uint8_t *buf = aligned_alloc(KVC_PAGE, KVC_FRAME_HEADER);

	if (!buf)
		return -ENOMEM;
	memcpy(buf, page, KVC_FRAME_HEADER);
	return valid(d, w) ? disk_error(kvc_pwrite_all(d->fd, buf, KVC_FRAME_HEADER, (off_t)w->at))
			   : -ENOENT;
}

void kvct_disk_clear(struct kvc_tier *t)
{
	struct disk *d = disk_of(t);

	for (unsigned n = d->nexcluded; n && reclaim_one(d, UINT64_MAX); n--)
		;
}

void kvct_disk_unread(struct kvc_tier *t, void (*fn)(void *arg, uint64_t at, uint64_t len, int err),
		      void *arg)
{
	disk_of(t)->unread = fn;
	disk_of(t)->unread_arg = arg;
}

/*
 * Reads a piece page by page after reading it as a whole failed. Unreadable pages are reported and
 * read as zeros.
 */
static int read_pages(struct disk *d, uint8_t *buf, size_t len, uint64_t at)
{
	for (size_t o = 0; o < len; o += KVC_PAGE) {
		size_t n = kvc_min(len - o, KVC_PAGE);
		int err = -EIO;

		for (int i = 0; i < READS && err && err != -ENODATA; i++)
			err = kvc_pread_all(d->fd, buf + o, n, (off_t)(at + o));
		if (!err)
			continue;
		if (!d->unread)
			return err;
		d->unread(d->unread_arg, at + o, n, err);
		memset(buf + o, 0, n);
	}
	return 0;
}

/*
 * Returns the next page from `at` on that is not in a hole or in preallocated space, which read as
 * zeros and so hold no frame. Devices and filesystems that do not know return `at`.
 */
static uint64_t next_data(const struct disk *d, uint64_t at)
{
	off_t next = lseek(d->fd, (off_t)at, SEEK_DATA);

	if (next < 0)
		return errno == ENXIO ? d->size : at;
	return kvc_max(at, (uint64_t)next / KVC_PAGE * KVC_PAGE);
}

static int disk_list(struct kvc_tier *t,
		     int (*fn)(void *arg, const struct kvc_where *w, const struct kvc_frame *f),
		     void *arg)
{
	struct disk *d = disk_of(t);
	KVC_MEM uint8_t *buf = aligned_alloc(KVC_PAGE, PIECE);
	KVC_MEM struct kvc_frame *f = malloc(sizeof *f);
	uint64_t skip = 0;
	int err = 0;

	if (!buf || !f)
		return -ENOMEM;
	for (uint64_t at = 0; (at = next_data(d, at)) < d->size && !err;) {
		size_t len = kvc_min(d->size - at, PIECE);

		if (kvc_pread_all(d->fd, buf, len, (off_t)at) &&
		    (err = read_pages(d, buf, len, at)))
			break;
		for (uint64_t o = 0; o < len && !err; o += KVC_PAGE) {
			struct kvc_where w = { .at = at + o };

			if (at + o < skip || kvc_frame_decode(buf + o, f))
				continue;
			w.len = KVC_FRAME_HEADER + kvc_round_up(f->stored_len, KVC_PAGE);
			if (!can_hold_frame(d, &w))
				continue;
			err = fn(arg, &w, f);
			if (err == 1) { /* accepted: anything inside is payload */
				skip = w.at + w.len;
				err = 0;
			}
		}
		at += len;
	}
	return err;
}

static int disk_sync(struct kvc_tier *t)
{
	struct disk *d = disk_of(t);

	for (unsigned n = d->nexcluded; n && reclaim_one(d, kvc_mono_ns()); n--)
		;
	return fdatasync(disk_of(t)->fd) ? disk_error(-errno) : 0;
}

static void disk_usage(struct kvc_tier *t, struct kvc_tier_usage *u)
{
	struct disk *d = disk_of(t);

	pthread_mutex_lock(&d->lock);
	u->total = d->size - d->label_bytes;
	u->used = u->stored = u->total - kvct_extents_total_free(d->free);
	u->uncleared = 0;
	for (unsigned i = 0; i < d->nexcluded; i++)
		u->uncleared += d->excluded[i].w.len;
	pthread_mutex_unlock(&d->lock);
}

static const struct kvc_tier_ops disk_ops = {
	.name = "disk",
	.caps = KVC_TIER_DURABLE | KVC_TIER_BOUNDED | KVC_TIER_MEDIA,
	.close = disk_close,
	.claim = disk_claim,
	.put = disk_put,
	.get = disk_get,
	.load = disk_load,
	.rehead = disk_rehead,
	.remove = disk_remove,
	.list = disk_list,
	.sync = disk_sync,
	.usage = disk_usage,
};

int kvct_disk_grow(struct kvc_tier *t, uint64_t size)
{
	struct disk *d = disk_of(t);
	uint64_t old;
	int err;

	pthread_mutex_lock(&d->lock);
	old = d->size;
	err = kvct_extents_grow(d->free, size);
	if (!err && d->label_bytes && size > old) {
		/* neither call needs memory: both ranges touch the new space, a free extent */
		kvct_extents_claim(d->free, size - KVC_LABEL_ROOM, KVC_LABEL_ROOM);
		kvct_extents_give(d->free, old - (d->label_bytes - KVC_LABEL_ROOM),
				  d->label_bytes - KVC_LABEL_ROOM);
		d->label_bytes = 2 * KVC_LABEL_ROOM;
	}
	if (!err)
		d->size = size;
	pthread_mutex_unlock(&d->lock);
	return err;
}

/* Opens the store's own file. */
static int open_own_file(struct disk *d, const struct kvc_device *dev, int mode, uint64_t *size,
			 char *error)
{
	struct stat st;
	int err = 0;

	d->fd = kvc_open_own(dev->path, mode | O_DIRECT);
	if (d->fd < 0 && errno == EINVAL) {
		d->fd = kvc_open_own(dev->path, mode);
		if (d->fd >= 0)
			kvc_info("%s does not support direct I/O: the disk tier uses the page "
				 "cache",
				 dev->path);
	}
	if (d->fd < 0 || fstat(d->fd, &st)) {
		err = -errno;
		snprintf(error, 512, "cannot open the disk tier %s: %s", dev->path, strerror(-err));
	} else {
		*size = (uint64_t)st.st_size;
	}
	return err;
}

/* Opens the file or device and reads its size. */
static int open_data(struct disk *d, const struct kvc_store *s, unsigned nr, uint64_t *size,
		     char *error)
{
	int mode = s->read_only ? O_RDONLY : O_RDWR;

	if (s->dev[nr].kind == KVC_DEVICE_OWN)
		return open_own_file(d, &s->dev[nr], mode, size, error);
	d->fd = kvc_label_device_open(s, nr, mode | O_DIRECT, size, error);
	return d->fd < 0 ? d->fd : kvc_label_check(s, nr, d->fd, error);
}

/* Excludes the label and the space beside it from the extents. Returns 0 or -ENOMEM. */
static int claim_label(struct disk *d, const struct kvc_device *dev)
{
	uint64_t end = dev->size - KVC_LABEL_ROOM;
	int err = kvct_extents_claim(d->free, 0, KVC_LABEL_ROOM);

	d->label_bytes = KVC_LABEL_ROOM;
	if (!err && end < d->size) {
		d->label_bytes += d->size - end;
		err = kvct_extents_claim(d->free, end, d->size - end);
	}
	return err;
}

int kvct_disk_open(const struct kvc_store *s, unsigned nr, struct kvct_pipeline *pipeline,
		   struct kvc_tier **out, char *error)
{
	const struct kvc_device *dev = &s->dev[nr];
	struct disk *d = calloc(1, sizeof *d);
	char a[32], b[32];
	uint64_t size = 0;
	int err = 0;

	if (!d) {
		snprintf(error, 512, "out of memory");
		return -ENOMEM;
	}
	d->tier.ops = &disk_ops;
	d->pipeline = pipeline;
	d->nr = nr;
	snprintf(d->tier.id, sizeof d->tier.id, "disk");
	err = open_data(d, s, nr, &size, error);
	d->lost_from = size < dev->size ? size : dev->lost_from ?: UINT64_MAX;
	if (!err && size < dev->size) {
		kvc_warn("the disk tier %s is shorter than at its creation (%s of %s): data beyond "
			 "its end is lost, all other data is intact",
			 dev->path, kvc_size_text(size, a), kvc_size_text(dev->size, b));
		/* otherwise the remaining part would count as too full and be trimmed */
		if (dev->kind != KVC_DEVICE_BLOCK && !s->read_only &&
		    !posix_fallocate(d->fd, 0, (off_t)dev->size))
			size = dev->size;
	}
	d->size = kvc_min(kvc_min(size, dev->size), KVC_DEVICE_MOST) / KVC_PAGE * KVC_PAGE;
	if (!err && (!(d->free = kvct_extents_new(d->size)) ||
		     (dev->kind != KVC_DEVICE_OWN && claim_label(d, dev)))) {
		err = -ENOMEM;
		snprintf(error, 512, "out of memory");
	}
	if (err) {
		if (d->fd >= 0)
			close(d->fd);
		kvct_extents_free(d->free);
		free(d);
		return err;
	}
	pthread_mutex_init(&d->lock, NULL);
	*out = &d->tier;
	return 0;
}
