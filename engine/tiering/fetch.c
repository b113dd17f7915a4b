/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reads a frame into a segment. A plain frame is read into the segment's pages by the same call as
 * its header. A sealed frame without a codec is read likewise and decrypted in place. Coded and
 * sparse frames pass through a buffer of bounded size, piece by piece. If the tier has `load`
 * (tier.h), several threads read a large dense object, and each decodes the blocks that it reads.
 * Then the frame is checked: it must be the frame that the catalog describes, and its bytes must
 * have the recorded sum. The tiers' worker threads run this code; each fetch has its own struct.
 */
#include "fetch.h"

#include "keyring.h"
#include "payload.h"
#include "proof.h"

#include <endian.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <xxhash.h>

#define PIECE (2u << 20) /* bytes per read */
/* bytes per read from a shared tier, if the memory budget allows it */
#define PIECE_SHARED (8u << 20)
#define SLOWEST (4ull << 20)               /* bytes per second; sets the deadline of a fetch */
#define PIECES_MIN (4ull * KVC_TIER_PIECE) /* smallest object that several threads read */

/* The state of one fetch. */
struct fetch {
	struct kvc *k;
	struct kvc_tier *t;
	const struct kvc_fetch_want *w;
	struct kvc_frame *f;
	uint8_t *page; /* the header */
	uint8_t *map;  /* the segment, span bytes; NULL while not mapped */
	uint64_t span;
	int fd;
	bool summed; /* the sum in the catalog was compared */
};

static int fetch_get(const struct fetch *x, uint64_t off, const struct iovec *iov, int n)
{
	return kvc_tier_get(x->t, &x->w->place.where, x->w->path, off, iov, n);
}

/* Is this the frame that the catalog describes? Returns 0, -EBADMSG, -ESTALE or -ENOKEY. */
static int check_frame(const struct fetch *x)
{
	static const struct kvc_sum none;
	const struct kvc_fetch_want *w = x->w;
	struct kvc_frame *f = x->f;
	int err = kvc_frame_decode(x->page, f);

	if (err)
		return err;
	err = kvc_proof_placed(x->k, w->shared, f);
	if (err == -ENOKEY && w->shared && kvc_keyring_learn(x->k, f->key_id))
		err = kvc_proof_placed(x->k, true, f);
	if (err)
		return err;
	if (w->shared && w->place.key && f->flags & KVC_FRAME_SEALED && w->place.key != f->key_id)
		return -ESTALE; /* another node has sealed the object again */
	if (w->place.key != (f->flags & KVC_FRAME_SEALED ? f->key_id : 0))
		/* a clear frame in place of a sealed one, or the reverse, is not ours */
		return -EBADMSG;
	if (w->shared && memcmp(w->place.sum.b, none.b, 16) &&
	    memcmp(w->place.sum.b, f->stored_sum.b, 16))
		return -ESTALE; /* another node's version of the object */
	if (KVC_FRAME_HEADER + f->stored_len > w->place.where.len || (f->flags & KVC_FRAME_FOLDER))
		return -EBADMSG;
	if (!(f->flags & KVC_FRAME_CODED) &&
	    (f->raw_len != f->stored_len || f->codec != KVC_CODEC_NONE ||
	     (f->flags & KVC_FRAME_SEALED)))
		return -EBADMSG;
	if (!(f->flags & KVC_FRAME_SPARSE) && f->raw_len != f->size)
		return -EBADMSG;
	/*
	 * After a power failure, or with a restored older catalog, the placement may be older than
	 * the frame. A frame written after that state of the catalog may have the same generation
	 * and lie in the same extent, so the sum is compared too.
	 */
	if (memcmp(w->place.sum.b, none.b, 16) && memcmp(w->place.sum.b, f->stored_sum.b, 16))
		return -EBADMSG;
	if (w->has_sum && !(f->flags & (KVC_FRAME_SPARSE | KVC_FRAME_SEALED)) &&
	    memcmp(f->raw_sum.b, w->sum.b, 16))
		return w->shared ? -ESTALE : -EBADMSG;
	if (w->shared) {
		struct kvc_where named = kvc_frame_where_of(f->path);

		if (!(f->flags & KVC_FRAME_SHARED) || named.at != w->place.where.at ||
		    named.hi != w->place.where.hi)
			return -EBADMSG; /* the frame of another path under this name */
		return f->size != w->size ? -ESTALE : 0;
	}
	return memcmp(f->store, x->k->store->uuid, 16) || f->ino != w->ino ||
			       f->gen != w->place.gen || f->size != w->size ||
			       (f->flags & KVC_FRAME_SHARED)
		       ? -EBADMSG
		       : 0;
}

static int map_target(struct fetch *x)
{
	x->map = mmap(NULL, x->span, PROT_READ | PROT_WRITE, MAP_SHARED, x->fd, 0);
	if (x->map == MAP_FAILED) {
		x->map = NULL;
		return -errno;
	}
	return 0;
}

/* Allocates and maps the pages of the whole object. */
static int prepare_dense(struct fetch *x)
{
	if (!x->span)
		return 0;
	if (fallocate(x->fd, 0, 0, (off_t)x->w->size))
		return -errno;
	return x->map ? 0 : map_target(x);
}

static int sum_is(const void *p, uint64_t len, const struct kvc_sum *want)
{
	struct kvc_sum s = kvc_sum_of(p, len);

	return memcmp(s.b, want->b, 16) ? -EBADMSG : 0;
}

/* The parts of a large object, which the threads of a tier read and decode (tier.h: `load`). */
struct parts {
	struct fetch *x;
	struct kvc_decoder *d; /* NULL: a plain payload */
	uint64_t first;        /* offset of part 0 in the object; not used if there is a codec */
	uint64_t n;            /* number of parts */
	/* with a codec: offset of the next block in the payload, and the deadline or 0 */
	uint64_t at, until_ns;
	/* sums of the stored payload and of the object; NULL: not wanted */
	XXH3_state_t *stored, *raw;
};

static int sum_state(XXH3_state_t **s)
{
	*s = XXH3_createState();
	if (!*s)
		return -ENOMEM;
	XXH3_128bits_reset(*s);
	return 0;
}

static int sum_compare(const XXH3_state_t *s, const struct kvc_sum *want)
{
	struct kvc_sum sum = kvc_sum_digest(s);

	return memcmp(sum.b, want->b, 16) ? -EBADMSG : 0;
}

/* Loads the parts by several threads. */
static int load_parts(struct parts *s, int (*part)(void *arg, struct kvc_part *p),
		      int (*arrived)(void *arg, const struct kvc_part *p),
		      int (*ended)(void *arg, const struct kvc_part *p))
{
	struct kvc_tier *t = s->x->t;
	struct kvc_load load = { s->n, s, part, arrived, ended };

	return t->ops->load(t, &s->x->w->place.where, &load);
}

/* A part of a payload without codec is read into the segment. */
static int part_plain(void *arg, struct kvc_part *p)
{
	const struct parts *s = arg;
	uint64_t at = s->first + p->nr * KVC_TIER_PIECE;

	p->off = KVC_FRAME_HEADER + at;
	p->len = kvc_min(s->x->span - at, KVC_TIER_PIECE);
	p->p = s->x->map + at;
	return 0;
}

static int ended_plain(void *arg, const struct kvc_part *p)
{
	const struct parts *s = arg;
	uint64_t at = (uint64_t)(p->p - s->x->map), size = s->x->w->size;

	if (s->raw && at < size)
		XXH3_128bits_update(s->raw, p->p, kvc_min(p->len, size - at));
	return 0;
}

/* Reads the rest of a plain payload, whose first bytes are in the segment, and checks its sum. */
static int load_rest(struct fetch *x, uint64_t first)
{
	struct parts s = { .x = x, .first = first };
	int err = sum_state(&s.raw);

	s.n = (x->span - first + KVC_TIER_PIECE - 1) / KVC_TIER_PIECE;
	if (!err) {
		XXH3_128bits_update(s.raw, x->map, first);
		err = load_parts(&s, part_plain, NULL, ended_plain);
	}
	err = err ?: sum_compare(s.raw, &x->f->stored_sum);
	XXH3_freeState(s.raw);
	return err;
}

/* Is the object large enough to be read by several threads? */
static bool in_pieces(const struct fetch *x)
{
	return x->t->ops->load && x->span >= PIECES_MIN;
}

/*
 * The frame is expected to be dense and not coded: reads the header and the bytes in one call. The
 * bytes of a large object are read by several threads after the first piece.
 */
static int fetch_plain(struct fetch *x)
{
	uint64_t first = in_pieces(x) ? KVC_TIER_PIECE : x->span;
	struct iovec iov[2] = { { x->page, KVC_FRAME_HEADER }, { NULL, first } };
	int err = prepare_dense(x);

	iov[1].iov_base = x->map;
	err = err ?: fetch_get(x, 0, iov, x->span ? 2 : 1);
	err = err ?: check_frame(x);
	if (!err && !(x->f->flags & (KVC_FRAME_SPARSE | KVC_FRAME_CODED)))
		err = first < x->span ? load_rest(x, first)
				      : sum_is(x->map, x->w->size, &x->f->stored_sum);
	return err;
}

static int fetch_through(struct fetch *x, bool have_header);

/* Is the frame that was read sealed, dense and without codec? */
static bool only_sealed(const struct fetch *x)
{
	return (x->f->flags & (KVC_FRAME_SPARSE | KVC_FRAME_CODED)) == KVC_FRAME_CODED &&
	       x->f->codec == KVC_CODEC_NONE;
}

/* The sum of a sealed object, if it is known, is compared while its blocks are decoded. */
static int sum_known(struct parts *s)
{
	return s->d && s->x->w->has_sum && (s->x->f->flags & KVC_FRAME_SEALED) ? sum_state(&s->raw)
									       : 0;
}

static int sum_known_compare(struct parts *s)
{
	if (!s->raw)
		return 0;
	s->x->summed = true;
	return sum_compare(s->raw, &s->x->w->sum);
}

static int part_sealed(void *arg, struct kvc_part *p)
{
	const struct parts *s = arg;
	size_t stored, raw;
	int more = kvc_payload_decoder_next(s->d, &stored, &raw);

	return more <= 0 ? more ?: -EBADMSG : stored != raw ? -EBADMSG : part_plain(arg, p);
}

static int arrived_sealed(void *arg, const struct kvc_part *p)
{
	const struct parts *s = arg;

	return kvc_payload_decoder_block(s->d, p->nr, p->p, p->p);
}

/* Reads a large sealed payload: parts are decrypted while others are being read. */
static int load_sealed(struct fetch *x, const uint8_t *table)
{
	struct parts s = { .x = x, .n = x->span / KVC_TIER_PIECE + !!(x->span % KVC_TIER_PIECE) };
	int err = kvc_payload_decoder_new(&s.d, x->f, x->k->keys, table);

	_Static_assert(KVC_TIER_PIECE == KVC_BLOCK, "a piece is a block");
	err = err ?: sum_known(&s);
	err = err ?: load_parts(&s, part_sealed, arrived_sealed, ended_plain);
	err = err ?: kvc_payload_decoder_end(s.d);
	err = err ?: sum_known_compare(&s);
	XXH3_freeState(s.raw);
	kvc_payload_decoder_free(s.d);
	return err;
}

/*
 * The frame is expected to be sealed, dense and without codec: reads it into the segment's pages
 * and decrypts it there.
 */
static int fetch_sealed(struct fetch *x)
{
	uint64_t table_len = kvc_payload_table(x->w->size);
	bool pieces = in_pieces(x);
	KVC_BUFFER table = { 0 };
	struct iovec iov[3] = { { x->page, KVC_FRAME_HEADER },
				{ NULL, x->span },
				{ NULL, table_len } };
	int err = prepare_dense(x) ?: kvc_budget_buffer_wait(&table, KVC_BUDGET_LOAD, table_len);

	iov[1].iov_base = x->map;
	iov[2].iov_base = table.p;
	if (!x->span)
		iov[1] = iov[2];
	err = err ?: fetch_get(x, 0, iov, pieces ? 1 : x->span ? 3 : 2);
	err = err ?: check_frame(x);
	if (err)
		return err;
	if (!only_sealed(x)) {
		kvc_budget_buffer_free(&table);
		/* the frame is of another kind but as long as a dense one */
		return fetch_through(x, true);
	}
	if (!pieces)
		return kvc_payload_decode(x->f, x->k->keys, x->map, table.p, x->map);
	return fetch_get(x, KVC_FRAME_HEADER + x->span, &iov[2], 1) ?: load_sealed(x, table.p);
}

/* ---- piece by piece ---- */

/*
 * Reads the stored payload in order. Bytes that were read and not yet used lie directly before
 * offset `mid` of the buffer, followed by the next piece.
 */
struct source {
	struct fetch *x;
	struct kvc_buffer buf;
	size_t mid, piece;
	uint64_t off, end; /* payload bytes read so far, and the payload's length in whole pages */
	size_t at, left;   /* in buf: the unused bytes */
	uint64_t until_ns; /* 0: no deadline */
	XXH3_state_t *sum; /* sum of the stored_len bytes; NULL: not wanted */
};

/* Returns the time by which the payload must have been read; 0: no deadline. */
static uint64_t fetch_until(const struct fetch *x)
{
	uint64_t deadline_ms = x->k->opt.deadline_ms;

	return deadline_ms ? kvc_mono_ns() + deadline_ms * 1000000 +
				     x->f->stored_len / SLOWEST * 1000000000
			   : 0;
}

static int source_open(struct source *s, struct fetch *x)
{
	const struct kvc_frame *f = x->f;
	int err = -ENOMEM;

	s->x = x;
	s->end = kvc_round_up(f->stored_len, KVC_PAGE);
	s->mid = KVC_BLOCK;
	s->buf.use = KVC_BUDGET_LOAD;
	s->piece = kvc_min(s->end, PIECE_SHARED);
	if (x->w->shared)
		err = kvc_budget_buffer_grow(&s->buf, s->mid + s->piece);
	if (err) {
		s->piece = kvc_min(s->end, PIECE);
		err = kvc_budget_buffer_wait(&s->buf, KVC_BUDGET_LOAD, s->mid + s->piece);
	}
	s->until_ns = fetch_until(x);
	return err ?: f->flags & KVC_FRAME_SEALED ? 0 : sum_state(&s->sum);
}

static void source_close(struct source *s)
{
	XXH3_freeState(s->sum);
	kvc_budget_buffer_free(&s->buf);
}

/* Reads the next piece. The buffer has space for it if less than a block is unused. */
static int source_more(struct source *s)
{
	size_t len = (size_t)kvc_min(s->piece, s->end - s->off);
	struct iovec iov = { s->buf.p + s->mid, len };
	int err;

	if (!len)
		return -EBADMSG;
	if (s->until_ns && kvc_mono_ns() > s->until_ns)
		return -ETIMEDOUT;
	memmove(s->buf.p + s->mid - s->left, s->buf.p + s->at, s->left);
	s->at = s->mid - s->left;
	err = fetch_get(s->x, KVC_FRAME_HEADER + s->off, &iov, 1);
	if (err)
		return err;
	if (s->sum)
		XXH3_128bits_update(s->sum, iov.iov_base,
				    kvc_min(len, s->x->f->stored_len - s->off));
	s->off += len;
	s->left += len;
	return 0;
}

/* Sets *p to the next `len` bytes (at most one block), which are valid until the next call. */
static int source_next(struct source *s, size_t len, const uint8_t **p)
{
	int err = 0;

	while (!err && s->left < len)
		err = source_more(s);
	if (err)
		return err;
	*p = s->buf.p + s->at;
	s->at += len;
	s->left -= len;
	return 0;
}

/* Reads the rest of the payload for the sum, and compares the sum. */
static int source_end(struct source *s)
{
	int err = 0;

	while (s->sum && !err && s->off < s->end) {
		s->left = 0;
		err = source_more(s);
	}
	return err || !s->sum ? err : sum_compare(s->sum, &s->x->f->stored_sum);
}

/*
 * The state while the raw payload of a sparse object is written to the segment: first its table
 * arrives, then each range is written to its offset.
 */
struct spread {
	struct fetch *x;
	struct kvc_buffer table;
	size_t have, want; /* bytes of the table; want is 0 until its first page was read */
	struct kvc_range *r;
	size_t n, i;
	uint64_t at;      /* bytes of range i that were written */
	uint64_t charged; /* bytes of the budget, for r */
};

static void spread_close(struct spread *s)
{
	free(s->r);
	if (s->charged)
		kvc_budget_release(KVC_BUDGET_LOAD, s->charged);
	kvc_budget_buffer_free(&s->table);
}

/* The table is complete: decodes it and gives the segment its holes. */
static int spread_begin(struct spread *s)
{
	struct fetch *x = s->x;
	uint64_t all = s->want, n;
	int err;

	memcpy(&n, s->table.p, 8);
	n = le64toh(n) * sizeof *s->r;
	if ((err = kvc_budget_wait(KVC_BUDGET_LOAD, n)))
		return err;
	s->charged = n;
	if ((err = kvc_frame_ranges_decode(s->table.p, s->want, x->f->size, &s->r, &s->n)))
		return err;
	kvc_budget_buffer_free(&s->table);
	for (size_t i = 0; i < s->n; i++)
		all += s->r[i].len;
	if (all != x->f->raw_len)
		return -EBADMSG;
	/*
	 * If the row described a dense object, the segment has pages already. They are freed first.
	 */
	if (x->map) {
		munmap(x->map, x->span);
		x->map = NULL;
	}
	if (ftruncate(x->fd, 0) || ftruncate(x->fd, (off_t)x->f->size))
		return -errno;
	return x->span ? map_target(x) : 0;
}

/* Copies the table's part of p[len] to the table. Sets *took to its length. */
static int spread_table(struct spread *s, const uint8_t *p, size_t len, size_t *took)
{
	uint64_t n;
	int err;

	*took = kvc_min(len, (s->want ?: KVC_PAGE) - s->have);
	if ((err = kvc_budget_buffer_grow(&s->table, s->have + *took)))
		return err;
	memcpy(s->table.p + s->have, p, *took);
	s->have += *took;
	if (!s->want && s->have == KVC_PAGE) {
		memcpy(&n, s->table.p, 8);
		s->want = kvc_frame_ranges_size(le64toh(n));
		if (!s->want || s->want > s->x->f->raw_len)
			return -EBADMSG;
	}
	return s->have == s->want ? spread_begin(s) : 0;
}

static int spread_put(struct spread *s, const uint8_t *p, size_t len)
{
	int err = 0;

	while (len && !err) {
		size_t n;

		if (!s->want || s->have < s->want) {
			err = spread_table(s, p, len, &n);
		} else {
			const struct kvc_range *r = &s->r[s->i];

			if (s->i == s->n)
				return -EBADMSG;
			if (!s->at && fallocate(s->x->fd, 0, (off_t)r->off, (off_t)r->len))
				return -errno;
			n = kvc_min(len, r->len - s->at);
			memcpy(s->x->map + r->off + s->at, p, n);
			s->at += n;
			if (s->at == r->len) {
				s->i++;
				s->at = 0;
			}
		}
		p += n;
		len -= n;
	}
	return err;
}

static int spread_end(const struct spread *s)
{
	return s->want && s->have == s->want && s->i == s->n ? 0 : -EBADMSG;
}

/* Reads a sparse payload that is not coded. */
static int through_sparse(struct source *src, struct spread *to)
{
	uint64_t left = src->x->f->stored_len;
	int err = 0;

	while (left && !err) {
		const uint8_t *p;
		size_t n = (size_t)kvc_min(left, KVC_BLOCK);

		err = source_next(src, n, &p) ?: spread_put(to, p, n);
		left -= n;
	}
	return err;
}

/*
 * Decodes a coded payload. If `to` is NULL the object is dense and is decoded into the segment's
 * pages.
 */
static int through_decoder(struct source *src, struct kvc_decoder *d, struct spread *to)
{
	KVC_BUFFER raw = { 0 };
	uint8_t nothing[1];
	struct fetch *x = src->x;
	uint8_t *at = x->map ? x->map : nothing;
	size_t stored, len;
	int more, err = to ? kvc_budget_buffer_wait(&raw, KVC_BUDGET_LOAD, KVC_BLOCK) : 0;

	if (err)
		return err;
	for (uint64_t i = 0; (more = kvc_payload_decoder_next(d, &stored, &len)) == 1; i++) {
		uint8_t *block = to ? raw.p : at;
		const uint8_t *p;

		if ((err = source_next(src, stored, &p)) ||
		    (err = kvc_payload_decoder_block(d, i, p, block)))
			break;
		kvc_payload_decoder_sum(d, i, block);
		if (to && (err = spread_put(to, block, len)))
			break;
		at += to ? 0 : len;
	}
	if (to && x->f->flags & KVC_FRAME_SEALED)
		kvc_keys_wipe(raw.p, raw.len);
	return err ?: more < 0 ? more : kvc_payload_decoder_end(d);
}

/* Reads the table that follows the coded blocks, and makes a decoder. */
static int read_table(struct fetch *x, bool sparse, struct kvc_buffer *table,
		      struct kvc_decoder **d)
{
	uint64_t table_len = kvc_payload_table(x->f->raw_len);
	struct iovec iov = { NULL, table_len };
	int err;

	/* A sparse payload is at most as long as the file and the largest table. */
	if (x->f->stored_len < table_len || x->f->stored_len % KVC_PAGE ||
	    (sparse && x->f->raw_len > x->w->size + kvc_frame_ranges_size(KVC_RANGES_MAX)))
		return -EBADMSG;
	err = sparse ? 0 : prepare_dense(x);
	err = err ?: kvc_budget_buffer_wait(table, KVC_BUDGET_LOAD, table_len);
	iov.iov_base = table->p;
	err = err ?: fetch_get(x, KVC_FRAME_HEADER + x->f->stored_len - table_len, &iov, 1);
	return err ?: kvc_payload_decoder_new(d, x->f, x->k->keys, table->p);
}

static int through_coded(struct fetch *x, struct source *src, struct spread *to)
{
	KVC_BUFFER table = { 0 };
	struct kvc_decoder *d = NULL;
	int err = read_table(x, to, &table, &d);

	err = err ?: through_decoder(src, d, to);
	kvc_payload_decoder_free(d);
	return err;
}

/* ---- coded, by several threads ---- */

/* A part is a block, and the rest of the pages in which it begins and ends. */
static int part_coded(void *arg, struct kvc_part *p)
{
	struct parts *s = arg;
	size_t raw;
	int more = kvc_payload_decoder_next(s->d, &p->want, &raw);

	if (more <= 0)
		return more ?: -EBADMSG;
	if (s->until_ns && kvc_mono_ns() > s->until_ns)
		return -ETIMEDOUT;
	p->skip = s->at % KVC_PAGE;
	p->off = KVC_FRAME_HEADER + s->at - p->skip;
	p->len = kvc_round_up(p->skip + p->want, KVC_PAGE);
	s->at += p->want;
	return 0;
}

static int arrived_coded(void *arg, const struct kvc_part *p)
{
	const struct parts *s = arg;

	return kvc_payload_decoder_block(s->d, p->nr, p->p + p->skip,
					 s->x->map + p->nr * KVC_BLOCK);
}

static int ended_coded(void *arg, const struct kvc_part *p)
{
	struct parts *s = arg;
	const uint8_t *raw = s->x->map + p->nr * KVC_BLOCK;

	if (s->stored) /* including the padding after the last block */
		XXH3_128bits_update(s->stored, p->p + p->skip,
				    p->nr == s->n - 1 ? p->len - p->skip : p->want);
	if (s->raw)
		XXH3_128bits_update(s->raw, raw,
				    kvc_min(s->x->w->size - p->nr * KVC_BLOCK, KVC_BLOCK));
	kvc_payload_decoder_sum(s->d, p->nr, raw);
	return 0;
}

/* Reads and decodes a large dense object with a codec. */
static int load_coded(struct fetch *x)
{
	struct parts s = { .x = x, .until_ns = fetch_until(x) };
	KVC_BUFFER table = { 0 };
	int err = read_table(x, false, &table, &s.d);

	s.n = (x->f->raw_len + KVC_BLOCK - 1) / KVC_BLOCK;
	if (!err && !(x->f->flags & KVC_FRAME_SEALED))
		err = sum_state(&s.stored);
	err = err ?: sum_known(&s);
	err = err ?: load_parts(&s, part_coded, arrived_coded, ended_coded);
	err = err ?: kvc_payload_decoder_end(s.d);
	if (!err && s.stored) {
		XXH3_128bits_update(s.stored, table.p, table.len);
		err = sum_compare(s.stored, &x->f->stored_sum);
	}
	err = err ?: sum_known_compare(&s);
	XXH3_freeState(s.stored);
	XXH3_freeState(s.raw);
	kvc_payload_decoder_free(s.d);
	return err;
}

/* Reads any other frame: first the header, then the payload through a buffer. */
static int fetch_through(struct fetch *x, bool have_header)
{
	struct iovec iov = { x->page, KVC_FRAME_HEADER };
	struct spread spread = { .x = x, .table.use = KVC_BUDGET_LOAD };
	struct source src = { 0 };
	int err = 0;

	if (!have_header)
		err = fetch_get(x, 0, &iov, 1) ?: check_frame(x);
	if (err)
		return err;
	bool coded = x->f->flags & KVC_FRAME_CODED, sparse = x->f->flags & KVC_FRAME_SPARSE;

	if (!coded && !sparse)
		return fetch_plain(x);
	if (!sparse && in_pieces(x))
		return load_coded(x);
	err = source_open(&src, x);
	if (!err)
		err = coded ? through_coded(x, &src, sparse ? &spread : NULL)
			    : through_sparse(&src, &spread);
	if (!err && sparse)
		err = spread_end(&spread);
	err = err ?: source_end(&src);
	spread_close(&spread);
	source_close(&src);
	return err;
}

/*
 * The frame is not as long as the catalog says, or it is damaged. Another node may have replaced it
 * by a shorter one: returns -ESTALE or -ENOKEY if the header says so, and otherwise -EBADMSG.
 */
static int fetch_failed(struct fetch *x)
{
	struct iovec iov = { x->page, KVC_FRAME_HEADER };
	int err = x->w->shared && kvc_tier_takes(x->t) ? fetch_get(x, 0, &iov, 1) ?: check_frame(x)
						       : 0;

	return err == -ESTALE || err == -ENOKEY ? err : -EBADMSG;
}

int kvc_fetch(struct kvc *k, struct kvc_tier *t, const struct kvc_fetch_want *w, int fd)
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
	 * The row's block count does not tell whether the frame is sparse: with huge pages the
	 * segment of a sparse file may have all its blocks. The length of the frame tells: a dense
	 * frame is at least as long as the object.
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
	if (err == -EBADMSG)
		err = fetch_failed(&x);
	/*
	 * The header of a sealed frame has no sum of the raw bytes, so the sum from the catalog is
	 * compared.
	 */
	if (!err && w->has_sum && !x.summed && (f->flags & KVC_FRAME_SEALED) &&
	    !(f->flags & KVC_FRAME_SPARSE) && (x.map || !w->size))
		err = sum_is(x.map, w->size, &w->sum);
	/* No sum covers the tail of the last page, which a mapping shows. */
	if (!err && x.map && !(f->flags & KVC_FRAME_SPARSE))
		memset(x.map + w->size, 0, x.span - w->size);
	if (x.map)
		munmap(x.map, x.span);
	return err;
}

int kvc_fetch_coded(struct kvc *k, struct kvc_tier *t, const struct kvc_fetch_want *w,
		    struct kvc_frame *f, struct kvc_buffer *payload)
{
	KVC_MEM uint8_t *page = aligned_alloc(KVC_PAGE, KVC_FRAME_HEADER);
	struct fetch x = { .k = k, .t = t, .w = w, .f = f, .page = page, .fd = -1 };
	uint64_t deadline_ms = k->opt.deadline_ms, until_ns = kvc_mono_ns();
	struct iovec iov = { page, KVC_FRAME_HEADER };
	int err = page ? fetch_get(&x, 0, &iov, 1) : -ENOMEM;

	err = err ?: check_frame(&x);
	if (!err && ((f->flags & (KVC_FRAME_SPARSE | KVC_FRAME_CODED)) != KVC_FRAME_CODED ||
		     f->stored_len % KVC_PAGE))
		err = -EBADMSG;
	payload->use = KVC_BUDGET_COPY;
	err = err ?: kvc_budget_buffer_grow(payload, f->stored_len);
	until_ns += deadline_ms * 1000000 + f->stored_len / SLOWEST * 1000000000;
	for (uint64_t off = 0; !err && off < f->stored_len; off += iov.iov_len) {
		iov.iov_base = payload->p + off;
		iov.iov_len = kvc_min(f->stored_len - off, PIECE);
		err = deadline_ms && kvc_mono_ns() > until_ns ? -ETIMEDOUT : 0;
		err = err ?: fetch_get(&x, KVC_FRAME_HEADER + off, &iov, 1);
	}
	return err ?: sum_is(payload->p, f->stored_len, &f->stored_sum);
}
