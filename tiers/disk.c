/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The disk tier: frames in the store's preallocated data file or block device, each in one extent
 * of whole pages. Free extents are in memory and are rebuilt from the placements at start (claim).
 * Direct I/O where the file takes it, so that the page cache does not hold everything a second
 * time; loads land in the segment's own pages.
 *
 * `where.at` is the byte offset of the frame, `where.len` the extent's length. The lock guards the
 * extents only; I/O is done without it.
 */
#include "registry.h"

#include "extent.h"
#include "log.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <linux/fs.h>

#define PIECE (1u << 20)
#define BUFFER (KVC_FRAME_HEADER + PIECE)
#define SPARES 8

static const uint8_t no_header[KVC_FRAME_HEADER] __attribute__((aligned(4096)));

struct disk {
	struct kvc_tier tier;
	pthread_mutex_t lock;
	struct kvct_extents *free;
	uint64_t size;
	int fd;
	/* buffers of BUFFER bytes for the next put: new ones would cost a fault a page */
	uint8_t *spare[SPARES];
	unsigned nspare;
};

static struct disk *of(struct kvc_tier *t)
{
	return kvc_of(t, struct disk, tier);
}

static void disk_close(struct kvc_tier *t)
{
	struct disk *d = of(t);

	kvct_extents_free(d->free);
	while (d->nspare)
		free(d->spare[--d->nspare]);
	close(d->fd);
	pthread_mutex_destroy(&d->lock);
	free(d);
}

static bool valid(const struct disk *d, const struct kvc_where *w)
{
	return w->at % KVC_PAGE == 0 && w->len % KVC_PAGE == 0 && w->len >= KVC_FRAME_HEADER &&
	       w->len <= d->size && w->at <= d->size - w->len;
}

static int disk_claim(struct kvc_tier *t, const struct kvc_where *w)
{
	struct disk *d = of(t);
	int err;

	if (!valid(d, w))
		return -ERANGE;
	pthread_mutex_lock(&d->lock);
	err = kvct_extents_claim(d->free, w->at, w->len);
	pthread_mutex_unlock(&d->lock);
	return err;
}

static int disk_remove(struct kvc_tier *t, const struct kvc_where *w)
{
	struct disk *d = of(t);
	int err;

	if (!valid(d, w))
		return -ENOENT;
	/* The header goes, so that a rebuild does not bring back what was deleted. */
	if ((err = kvc_pwrite_all(d->fd, no_header, KVC_FRAME_HEADER, (off_t)w->at)))
		return err;
	pthread_mutex_lock(&d->lock);
	err = kvct_extents_give(d->free, w->at, w->len);
	pthread_mutex_unlock(&d->lock);
	return err == -EEXIST ? -ENOENT : err;
}

static uint8_t *take_buffer(struct disk *d)
{
	uint8_t *buf = NULL;

	pthread_mutex_lock(&d->lock);
	if (d->nspare)
		buf = d->spare[--d->nspare];
	pthread_mutex_unlock(&d->lock);
	return buf ? buf : aligned_alloc(KVC_PAGE, BUFFER);
}

static void give_buffer(struct disk *d, uint8_t *buf)
{
	pthread_mutex_lock(&d->lock);
	bool keep = buf && d->nspare < SPARES;

	if (keep)
		d->spare[d->nspare++] = buf;
	pthread_mutex_unlock(&d->lock);
	if (!keep)
		free(buf);
}

/*
 * All of a small frame by one call: should it be torn by a power loss, the payload's checksum
 * tells.
 */
static int write_small(struct disk *d, const struct kvc_put *p, uint64_t at, uint8_t *buf)
{
	size_t len = p->stored_len, padded = kvc_round_up(len, KVC_PAGE);
	int err = len ? p->read(p->arg, buf + KVC_FRAME_HEADER, len, 0) : 0;

	if (err)
		return err;
	memset(buf + KVC_FRAME_HEADER + len, 0, padded - len);
	if ((err = p->head(p->arg, buf)))
		return err;
	return kvc_pwrite_all(d->fd, buf, KVC_FRAME_HEADER + padded, (off_t)at);
}

/* Pieces of the payload, then the header. The last piece is padded to a page with zeros. */
static int write_pieces(struct disk *d, const struct kvc_put *p, uint64_t at, uint8_t *buf)
{
	uint64_t off = 0;
	int err;

	if (p->stored_len <= PIECE)
		return write_small(d, p, at, buf);
	while (off < p->stored_len) {
		size_t len = kvc_min(p->stored_len - off, PIECE),
		       padded = kvc_round_up(len, KVC_PAGE);

		if ((err = p->read(p->arg, buf, len, off)))
			return err;
		memset(buf + len, 0, padded - len);
		if ((err = kvc_pwrite_all(d->fd, buf, padded,
					  (off_t)(at + KVC_FRAME_HEADER + off))))
			return err;
		off += len;
	}
	if ((err = p->head(p->arg, buf)))
		return err;
	return kvc_pwrite_all(d->fd, buf, KVC_FRAME_HEADER, (off_t)at);
}

static int write_frame(struct disk *d, const struct kvc_put *p, uint64_t at)
{
	uint8_t *buf = take_buffer(d);
	int err = buf ? write_pieces(d, p, at, buf) : -ENOMEM;

	give_buffer(d, buf);
	return err;
}

static int disk_put(struct kvc_tier *t, const struct kvc_put *p, struct kvc_where *out)
{
	struct disk *d = of(t);
	struct kvc_where w = { .len = KVC_FRAME_HEADER + kvc_round_up(p->stored_len, KVC_PAGE) };
	int err;

	pthread_mutex_lock(&d->lock);
	err = kvct_extents_take(d->free, w.len, &w.at);
	pthread_mutex_unlock(&d->lock);
	if (err)
		return err;
	err = write_frame(d, p, w.at);
	if (err) {
		disk_remove(t, &w);
		/* the file is preallocated: this is no lack of extents */
		return err == -ENOSPC ? -EIO : err;
	}
	*out = w;
	return 0;
}

static int disk_get(struct kvc_tier *t, const struct kvc_where *w, uint64_t off,
		    const struct iovec *iov, int n)
{
	struct disk *d = of(t);
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
			return -errno;
		if (!got)
			return -EBADMSG; /* the file is shorter than it was made */
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

static int disk_rehead(struct kvc_tier *t, const struct kvc_where *w,
		       const uint8_t page[KVC_FRAME_HEADER])
{
	struct disk *d = of(t);
	KVC_MEM uint8_t *buf = aligned_alloc(KVC_PAGE, KVC_FRAME_HEADER);

	if (!buf)
		return -ENOMEM;
	memcpy(buf, page, KVC_FRAME_HEADER);
	return valid(d, w) ? kvc_pwrite_all(d->fd, buf, KVC_FRAME_HEADER, (off_t)w->at) : -ENOENT;
}

static int disk_list(struct kvc_tier *t,
		     int (*fn)(void *arg, const struct kvc_where *w, const struct kvc_frame *f),
		     void *arg)
{
	struct disk *d = of(t);
	KVC_MEM uint8_t *buf = aligned_alloc(KVC_PAGE, PIECE);
	KVC_MEM struct kvc_frame *f = malloc(sizeof *f);
	uint64_t skip = 0;
	int err = 0;

	if (!buf || !f)
		return -ENOMEM;
	for (uint64_t at = 0; at < d->size && !err;) {
		size_t len = kvc_min(d->size - at, PIECE);

		if ((err = kvc_pread_all(d->fd, buf, len, (off_t)at)))
			break;
		for (uint64_t o = 0; o < len && !err; o += KVC_PAGE) {
			struct kvc_where w = { .at = at + o };

			if (at + o < skip || kvc_frame_decode(buf + o, f))
				continue;
			w.len = KVC_FRAME_HEADER + kvc_round_up(f->stored_len, KVC_PAGE);
			if (!valid(d, &w))
				continue;
			err = fn(arg, &w, f);
			if (err == 1) { /* taken: what lies inside it is its payload */
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
	return fdatasync(of(t)->fd) ? -errno : 0;
}

static void disk_usage(struct kvc_tier *t, struct kvc_tier_usage *u)
{
	struct disk *d = of(t);

	pthread_mutex_lock(&d->lock);
	u->total = d->size;
	u->used = d->size - kvct_extents_total_free(d->free);
	pthread_mutex_unlock(&d->lock);
}

static const struct kvc_tier_ops disk_ops = {
	.name = "disk",
	.caps = KVC_TIER_DURABLE | KVC_TIER_BOUNDED | KVC_TIER_MEDIA,
	.close = disk_close,
	.claim = disk_claim,
	.put = disk_put,
	.get = disk_get,
	.rehead = disk_rehead,
	.remove = disk_remove,
	.list = disk_list,
	.sync = disk_sync,
	.usage = disk_usage,
};

int kvct_disk_open(const struct kvc_store *s, struct kvc_tier **out, char *error)
{
	struct disk *d = calloc(1, sizeof *d);
	struct stat st;
	uint64_t size = 0;
	int err = 0;

	if (!d) {
		snprintf(error, 512, "out of memory");
		return -ENOMEM;
	}
	d->tier.ops = &disk_ops;
	snprintf(d->tier.id, sizeof d->tier.id, "disk");
	d->fd = open(s->data, O_RDWR | O_DIRECT | O_CLOEXEC | (s->device ? O_EXCL : 0));
	if (d->fd < 0 && errno == EINVAL) {
		d->fd = open(s->data, O_RDWR | O_CLOEXEC);
		if (d->fd >= 0)
			kvc_info(
				"%s takes no direct I/O: the disk tier goes through the page cache",
				s->data);
	}
	if (d->fd < 0 || fstat(d->fd, &st)) {
		err = -errno;
		snprintf(error, 512, "cannot open the disk tier %s: %s", s->data, strerror(errno));
	} else if (S_ISBLK(st.st_mode) ? ioctl(d->fd, BLKGETSIZE64, &size)
				       : (size = (uint64_t)st.st_size, 0)) {
		err = -errno;
		snprintf(error, 512, "cannot size the disk tier %s: %s", s->data, strerror(errno));
	} else if (size < s->data_size) {
		err = -EBADMSG;
		snprintf(error, 512,
			 "the disk tier %s is shorter than it was made; run fsck.kvcachefs",
			 s->data);
	}
	d->size = s->data_size / KVC_PAGE * KVC_PAGE;
	if (!err && !(d->free = kvct_extents_new(d->size))) {
		err = -ENOMEM;
		snprintf(error, 512, "out of memory");
	}
	if (err) {
		if (d->fd >= 0)
			close(d->fd);
		free(d);
		return err;
	}
	pthread_mutex_init(&d->lock, NULL);
	*out = &d->tier;
	return 0;
}
