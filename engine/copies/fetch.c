/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reading a frame into a segment. A plain one comes straight into the segment's pages in the same
 * call as its header; so does a sealed one without codec, and is opened in place; others pass
 * through memory of their stored size. Then it is checked: is it the frame that the catalog speaks
 * of, and are its bytes what was written?
 */
#include "fetch.h"

#include "payload.h"
#include "proof.h"

#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>

/* One fetch in hand. */
struct fetch {
	struct kvc *k;
	struct kvc_tier *t;
	const struct kvc_want *w;
	struct kvc_frame *f;
	uint8_t *page; /* the header */
	uint8_t *map;  /* the segment, span bytes; NULL while not mapped */
	uint64_t span;
	int fd;
};

/* Is this the frame that the catalog speaks of? */
static int check(const struct fetch *x)
{
	static const struct kvc_sum none;
	const struct kvc_want *w = x->w;
	struct kvc_frame *f = x->f;
	int err = kvc_frame_decode(x->page, f);

	if (err || (err = kvc_proof_placed(x->k, w->shared, f)))
		return err;
	if (w->place.key != (f->flags & KVC_FRAME_SEALED ? f->key_id : 0))
		return -EBADMSG; /* a clear frame where a sealed one was put is not ours */
	if (w->shared && memcmp(w->place.sum.b, none.b, 16) &&
	    memcmp(w->place.sum.b, f->stored_sum.b, 16))
		return -ESTALE; /* whatever it is */
	if (KVC_FRAME_HEADER + f->stored_len > w->place.where.len || (f->flags & KVC_FRAME_FOLDER))
		return -EBADMSG;
	if (!(f->flags & KVC_FRAME_CODED) &&
	    (f->raw_len != f->stored_len || f->codec != KVC_CODEC_NONE ||
	     (f->flags & KVC_FRAME_SEALED)))
		return -EBADMSG;
	if (!(f->flags & KVC_FRAME_SPARSE) && f->raw_len != f->size)
		return -EBADMSG;
	/*
	 * A power failure, or an older catalog put back, can be of before a frame was made, and
	 * what was made then is of the same generation, and may lie in the same extent.
	 */
	if (memcmp(w->place.sum.b, none.b, 16) && memcmp(w->place.sum.b, f->stored_sum.b, 16))
		return -EBADMSG;
	if (w->has_sum && !(f->flags & (KVC_FRAME_SPARSE | KVC_FRAME_SEALED)) &&
	    memcmp(f->raw_sum.b, w->sum.b, 16))
		return w->shared ? -ESTALE : -EBADMSG;
	if (w->shared) {
		struct kvc_where named = kvc_where_of(f->path);

		if (!(f->flags & KVC_FRAME_SHARED) || named.at != w->place.where.at ||
		    named.hi != w->place.where.hi)
			return -EBADMSG; /* another's frame under this name */
		return f->size != w->size ? -ESTALE : 0;
	}
	return memcmp(f->store, x->k->store->uuid, 16) || f->ino != w->ino ||
			       f->gen != w->place.gen || f->size != w->size ||
			       (f->flags & KVC_FRAME_SHARED)
		       ? -EBADMSG
		       : 0;
}

static int map_segment(struct fetch *x)
{
	x->map = mmap(NULL, x->span, PROT_READ | PROT_WRITE, MAP_SHARED, x->fd, 0);
	if (x->map == MAP_FAILED) {
		x->map = NULL;
		return -errno;
	}
	return 0;
}

/* Pages for all of it, mapped. */
static int prepare_dense(struct fetch *x)
{
	if (!x->span)
		return 0;
	if (fallocate(x->fd, 0, 0, (off_t)x->w->size))
		return -errno;
	return x->map ? 0 : map_segment(x);
}

/* The raw payload of a sparse object: each range to its place. */
static int spread(struct fetch *x, const uint8_t *raw, uint64_t len)
{
	KVC_MEM struct kvc_range *r = NULL;
	uint64_t at;
	size_t n;
	int err = kvc_ranges_decode(raw, len, x->f->size, &r, &n);

	if (err)
		return err;
	/* Should pages be there already (the row knew no better), they go back first. */
	if (x->map) {
		munmap(x->map, x->span);
		x->map = NULL;
	}
	if (ftruncate(x->fd, 0) || ftruncate(x->fd, (off_t)x->f->size))
		return -errno;
	if (x->span && (err = map_segment(x)))
		return err;
	at = kvc_ranges_size(n);
	for (size_t i = 0; i < n; i++) {
		if (r[i].len > len - at)
			return -EBADMSG;
		if (fallocate(x->fd, 0, (off_t)r[i].off, (off_t)r[i].len))
			return -errno;
		memcpy(x->map + r[i].off, raw + at, r[i].len);
		at += r[i].len;
	}
	return 0;
}

static int sum_is(const void *p, uint64_t len, const struct kvc_sum *want)
{
	struct kvc_sum s = kvc_sum_of(p, len);

	return memcmp(s.b, want->b, 16) ? -EBADMSG : 0;
}

/* Not coded, and not known to be sparse: header and bytes in one go. */
static int fetch_plain(struct fetch *x)
{
	struct iovec iov[2] = { { x->page, KVC_FRAME_HEADER }, { NULL, x->span } };
	int err = prepare_dense(x);

	iov[1].iov_base = x->map;
	err = err ?: x->t->ops->get(x->t, &x->w->place.where, 0, iov, x->span ? 2 : 1) ?: check(x);
	if (!err && !(x->f->flags & (KVC_FRAME_SPARSE | KVC_FRAME_CODED)))
		err = sum_is(x->map, x->w->size, &x->f->stored_sum);
	return err;
}

static int fetch_through(struct fetch *x, bool have_header);

/* Sealed, without codec, dense: into the pages and opened there. */
static int fetch_sealed(struct fetch *x)
{
	uint64_t table_len = kvc_payload_table(x->w->size);
	KVC_MEM uint8_t *table = aligned_alloc(KVC_PAGE, table_len);
	struct iovec iov[3] = { { x->page, KVC_FRAME_HEADER },
				{ NULL, x->span },
				{ table, table_len } };
	int err = table ? prepare_dense(x) : -ENOMEM;

	iov[1].iov_base = x->map;
	if (!x->span)
		iov[1] = iov[2];
	err = err ?: x->t->ops->get(x->t, &x->w->place.where, 0, iov, x->span ? 3 : 2) ?: check(x);
	if (err)
		return err;
	if ((x->f->flags & (KVC_FRAME_SPARSE | KVC_FRAME_CODED)) != KVC_FRAME_CODED ||
	    x->f->codec != KVC_CODEC_NONE)
		return fetch_through(x, true); /* it only was as long as a dense one */
	return kvc_payload_decode(x->f, x->k->keys, x->map, table, x->map);
}

/* All others: the header, then the payload into memory. */
static int fetch_through(struct fetch *x, bool have_header)
{
	KVC_MEM uint8_t *stored = NULL;
	KVC_MEM uint8_t *raw = NULL;
	struct iovec iov = { x->page, KVC_FRAME_HEADER };
	uint64_t len;
	int err = 0;

	if (!have_header)
		err = x->t->ops->get(x->t, &x->w->place.where, 0, &iov, 1) ?: check(x);
	if (err)
		return err;
	bool coded = x->f->flags & KVC_FRAME_CODED, sparse = x->f->flags & KVC_FRAME_SPARSE;

	if (!coded && !sparse)
		return fetch_plain(x);
	len = kvc_round_up(x->f->stored_len, KVC_PAGE);
	stored = aligned_alloc(KVC_PAGE, len ? len : KVC_PAGE);
	if (!stored)
		return -ENOMEM;
	iov = (struct iovec){ stored, len };
	if (len && (err = x->t->ops->get(x->t, &x->w->place.where, KVC_FRAME_HEADER, &iov, 1)))
		return err;
	if (!(x->f->flags & KVC_FRAME_SEALED) &&
	    (err = sum_is(stored, x->f->stored_len, &x->f->stored_sum)))
		return err;
	if (coded) {
		uint64_t table_len = kvc_payload_table(x->f->raw_len);

		if (x->f->stored_len < table_len ||
		    x->f->raw_len > 2 * (x->w->size + (16ull << 20)))
			return -EBADMSG;
		if (!sparse)
			err = prepare_dense(x);
		else if (!(raw = malloc(x->f->raw_len)))
			err = -ENOMEM;
		err = err
			      ?: kvc_payload_decode(x->f, x->k->keys, stored,
						    stored + x->f->stored_len - table_len,
						    sparse ? raw : x->map);
		if (x->f->flags & KVC_FRAME_SEALED && sparse && raw && err)
			kvc_wipe(raw, x->f->raw_len);
	}
	if (!err && sparse)
		err = spread(x, coded ? raw : stored, coded ? x->f->raw_len : x->f->stored_len);
	return err;
}

int kvc_fetch(struct kvc *k, struct kvc_tier *t, const struct kvc_want *w, int fd, bool *older)
{
	KVC_MEM uint8_t *page = aligned_alloc(KVC_PAGE, KVC_FRAME_HEADER);
	KVC_MEM struct kvc_frame *f = kvc_frame_new();
	struct fetch x = {
		.k = k,
		.t = t,
		.w = w,
		.f = f,
		.page = page,
		.span = kvc_round_up(w->size, KVC_PAGE),
		.fd = fd,
	};
	/*
	 * Not by the row's blocks: with huge pages a sparse file's segment may have them all. What
	 * lies in the tier tells: a dense one is at least as long as its bytes.
	 */
	bool dense = w->place.where.len >=
		     KVC_FRAME_HEADER + x.span +
			     (w->place.codec & KVC_PLACE_CODED ? kvc_payload_table(w->size) : 0);
	int err;

	if (!page || !f)
		return -ENOMEM;
	if (ftruncate(fd, 0) || ftruncate(fd, (off_t)w->size))
		return -errno;
	if (!dense || (w->place.codec & ~(KVC_PLACE_CODED | KVC_PLACE_LEFT)))
		err = fetch_through(&x, false);
	else if (w->place.codec & KVC_PLACE_CODED)
		err = fetch_sealed(&x);
	else if (!(err = fetch_plain(&x)) && (x.f->flags & (KVC_FRAME_SPARSE | KVC_FRAME_CODED)))
		err = fetch_through(&x, true);
	/* A sealed one does not tell the sum of what it holds. */
	if (!err && w->has_sum && (f->flags & KVC_FRAME_SEALED) && !(f->flags & KVC_FRAME_SPARSE) &&
	    (x.map || !w->size))
		err = sum_is(x.map, w->size, &w->sum);
	/* What came with the last page was summed by nobody, and a mapping shows it. */
	if (!err && x.map && !(f->flags & KVC_FRAME_SPARSE))
		memset(x.map + w->size, 0, x.span - w->size);
	if (x.map)
		munmap(x.map, x.span);
	if (!err)
		*older = f->version < KVC_FRAME_VERSION;
	return err;
}
