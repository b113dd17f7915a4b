/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One copy of an object into a tier. The segment is read through a separate descriptor and not
 * through a mapping, because a client may truncate the file at the same time. The checksum of the
 * bytes (the sum) is computed as they are read. They are then compressed and sealed if the recipe
 * says so (payload.h). The driver writes the header last. The tier's worker threads, and helpers of
 * the driver, run this code; every lock is taken and released inside.
 *
 * The bytes of a published object are not copied before they are written: the tier writes from the
 * pages of the segment. For this, the caller must know that no client has the file open for writing
 * or has a writable mapping of it, and must discard the copy if a client opens the file for writing
 * during the copy. A copy of a file that is open (a snapshot) goes through buffers, so that the sum
 * is always that of the stored bytes, even if a client changes them at the same time.
 */
#include "copy.h"

#include "clock.h"
#include "file.h"
#include "folders.h"
#include "log.h"
#include "model.h"
#include "node.h"
#include "path.h"
#include "proof.h"
#include "tier_queue.h"

#include <math.h>
#include <string.h>
#include <sys/mman.h>

#define SPARSE_GAIN (256u << 10) /* a range table pays off if the holes have this many bytes */
#define MORE_RANGES 64u
#define STEP (64u << 10)      /* bytes that are read, and summed while the CPU's cache has them */
#define MAPPED_MIN (4u << 20) /* for smaller objects a mapping costs more than it saves */

/*
 * Finds the next range of the file that holds data, starting at r->off + r->len. Returns 1 and sets
 * *r, 0 if there are no more ranges, or a negative errno.
 */
static int next_range(int fd, uint64_t size, struct kvc_range *r)
{
	off_t at = lseek(fd, (off_t)(r->off + r->len), SEEK_DATA), end;

	if (at < 0 && errno != ENXIO) /* ENXIO: no data follows */
		return -errno;
	if (at < 0 || (uint64_t)at >= size)
		return 0; /* or the file has grown since fstat */
	end = lseek(fd, at, SEEK_HOLE);
	if (end < 0)
		return -errno;
	*r = (struct kvc_range){ (uint64_t)at, kvc_min((uint64_t)end, size) - (uint64_t)at };
	return 1;
}

/*
 * Reads the file's data ranges and encodes their table. The first pass counts them, to reserve
 * memory from the budget. Returns -E2BIG if a frame cannot hold that many ranges.
 */
static int find_ranges(struct kvc_copy *c, uint64_t size)
{
	struct kvc_range r = { 0 };
	size_t n = 0;
	int err;

	while ((err = next_range(c->fd, size, &r)) == 1)
		if (!kvc_frame_ranges_size(++n))
			return -E2BIG;
	if (err)
		return err;
	n += n / 8 + MORE_RANGES; /* a writer may add some before the second pass */
	if ((err = kvc_budget_buffer_wait(&c->memory, KVC_BUDGET_COPY,
					  n * sizeof r +
						  kvc_round_up(n * sizeof r + KVC_PAGE, KVC_PAGE))))
		return err;
	c->ranges = (struct kvc_range *)c->memory.p;
	r = (struct kvc_range){ 0 };
	while (c->nranges < n && (err = next_range(c->fd, size, &r)) == 1)
		c->ranges[c->nranges++] = r;
	if (err < 0 || c->nranges == n)
		return err < 0 ? err : -ECANCELED;
	c->table_len = kvc_frame_ranges_size(c->nranges);
	if (!c->table_len)
		return -E2BIG;
	c->table = c->memory.p + n * sizeof r;
	kvc_frame_ranges_encode(c->ranges, c->nranges, c->table);
	return 0;
}

/*
 * Reads bytes of the segment and sums them, step by step. The bytes are written to `to` if keep is
 * true. Otherwise only STEP bytes of `to` are used.
 */
static int read_and_sum(struct kvc_copy *c, uint8_t *to, bool keep, size_t len, uint64_t off)
{
	for (size_t at = 0; at < len; at += STEP) {
		size_t n = kvc_min(len - at, STEP);
		uint8_t *p = keep ? to + at : to;
		int err = kvc_pread_all(c->fd, p, n, (off_t)(off + at));

		if (err)
			return err == -ENODATA ? -ECANCELED : err; /* truncated by a client */
		XXH3_128bits_update(c->sum, p, n);
	}
	return 0;
}

/* Gives the next bytes of the table and the ranges of a sparse object. */
static int read_sparse(struct kvc_copy *c, uint8_t *p, size_t len, uint64_t off)
{
	int err = 0;

	if (off < c->table_len) {
		size_t n = kvc_min(len, c->table_len - off);

		memcpy(p, c->table + off, n);
		XXH3_128bits_update(c->sum, p, n);
		p += n;
		len -= n;
	}
	while (len && !err) {
		struct kvc_range *r = &c->ranges[c->at];
		size_t n = kvc_min(len, r->len - c->at_off);

		err = read_and_sum(c, p, true, n, r->off + c->at_off);
		p += n;
		len -= n;
		c->at_off += n;
		if (c->at_off == r->len) {
			c->at++;
			c->at_off = 0;
		}
	}
	return err;
}

/*
 * Gives the raw payload in order: the bytes of a dense object, or the table and the ranges of a
 * sparse one.
 */
static int raw_read(void *arg, void *buf, size_t len, uint64_t off)
{
	struct kvc_copy *c = arg;

	if (!off) { /* the first call, or payload.h starts a second pass */
		XXH3_128bits_reset(c->sum);
		c->at = 0;
		c->at_off = 0;
	}
	return c->table ? read_sparse(c, buf, len, off) : read_and_sum(c, buf, true, len, off);
}

/*
 * Sums a piece and gives the segment's own pages. The sum is made of bytes that are read, because a
 * client that truncates the file would end a read through the mapping with SIGBUS.
 */
static int copy_bytes(void *arg, const void **p, size_t len, uint64_t off)
{
	struct kvc_copy *c = arg;

	*p = c->map + off;
	return read_and_sum(c, c->step, false, len, off);
}

/*
 * Maps the segment, so that the tier can write from its pages. Does nothing if the file has holes:
 * a write from a hole would allocate a page that nobody has reserved.
 */
static void map_segment(struct kvc_copy *c, uint64_t size, uint64_t blocks)
{
	if (!c->stable || c->shared || c->table || c->enc || size < MAPPED_MIN ||
	    blocks * 512 < kvc_round_up(size, KVC_PAGE) || !(c->step = malloc(STEP)))
		return;
	c->map_len = size;
	c->map = mmap(NULL, size, PROT_READ, MAP_SHARED, c->fd, 0);
	if (c->map == MAP_FAILED)
		c->map = NULL; /* it is copied through buffers */
}

static void unmap_segment(struct kvc_copy *c)
{
	if (c->map)
		munmap(c->map, c->map_len);
	c->map = NULL;
}

static int copy_read(void *arg, void *buf, size_t len, uint64_t off)
{
	struct kvc_copy *c = arg;
	int err;

	if (!c->enc)
		return raw_read(c, buf, len, off);
	err = kvc_payload_encoder_read(c->enc, buf, len);
	if (!err)
		XXH3_128bits_update(c->stored_sum, buf, len);
	return err;
}

static uint32_t ppm(double error)
{
	return (uint32_t)(fmin(error, 4000) * 1e6 + 0.5);
}

/* The payload is complete: records the error that its lossy coding caused. */
static void add_loss(struct kvc_copy *c)
{
	struct kvc_payload_loss loss;

	if (kvc_payload_encoder_loss(c->enc, &loss)) {
		c->f->raw_sum = loss.sum;
		c->f->error_ppm = ppm(loss.error);
		c->f->worst_ppm = ppm(loss.worst);
		kvc_count(&c->k->stats, lossy_copies);
	}
	kvc_count_by(&c->k->stats, lossy_refused_blocks, loss.refused);
}

static int copy_head(void *arg, uint8_t page[KVC_FRAME_HEADER])
{
	struct kvc_copy *c = arg;
	int err = 0;

	if (c->source < 0)
		c->raw = kvc_sum_digest(c->sum);
	c->f->raw_sum = c->raw;
	if (c->enc && c->source < 0)
		add_loss(c);
	c->back = c->f->raw_sum;
	c->f->stored_sum = c->enc ? kvc_sum_digest(c->stored_sum) : c->raw;
	if (c->f->flags & KVC_FRAME_SEALED)
		c->f->raw_sum = (struct kvc_sum){ 0 };
	if (!c->shared) {
		kvc_lock_both(c->k);
		err = kvc_path_frame_name_both(c->k, c->n, c->f);
		kvc_unlock_both(c->k);
	}
	err = err ?: kvc_proof_add(c->k, c->shared, c->f);
	kvc_frame_encode(c->f, page);
	return err;
}

/*
 * Counts a copy that is coded without loss because the lossy codec cannot be used. Logs the reason
 * once for each model.
 */
static void count_lossless_locked(struct kvc_copy *c, uint64_t model, const char *layout)
{
	struct kvc *k = c->k;
	const char *why = "user.kvcachefs.layout is not set on a folder above the file";
	char fit[KVC_KV_LAYOUT_TEXT + 80];

	if (c->table) {
		kvc_count(&k->stats, lossy_sparse);
		return;
	}
	if (layout) {
		kvc_count(&k->stats, lossy_no_fit);
		snprintf(fit, sizeof fit, "a file of %llu bytes does not fit the layout %s",
			 (unsigned long long)c->f->size, layout);
		why = fit;
	} else {
		kvc_count(&k->stats, lossy_no_layout);
	}
	if (kvc_model_lossless_locked(k, model))
		kvc_info("model %s: copies are coded without loss: %s", c->f->key_model, why);
}

/* A codec with loss was chosen for the written bytes: uses it if the file has a layout. */
static int recipe_kv_both(struct kvc_copy *c, struct kvc_recipe *r, uint64_t model)
{
	char layout[KVC_KV_LAYOUT_TEXT];
	int err;

	if (c->f->size <= KVC_PAGE)
		return 0; /* no codec would save anything */
	err = kvc_model_layout_of_both(c->k, c->n->row.parent, layout);
	if (err && err != -ENOENT)
		return err;
	if (!err && !kvc_kv_layout_parse(layout, &c->kv.layout, NULL) && !c->table &&
	    c->f->size <= KVC_PAYLOAD_COMPRESS_MAX &&
	    !kvc_kv_layout_locate(&c->kv.layout, c->first, sizeof c->first) &&
	    !kvc_kv_layout_fit(&c->kv.layout, c->f->size, &c->kv.vectors))
		r->kv = &c->kv;
	else
		count_lossless_locked(c, model, err ? NULL : layout);
	return 0;
}

/*
 * The object's bytes were decoded from a lossy copy, so they are not coded with loss again. Chooses
 * a copy whose coded blocks can be used instead: the one in this tier, or the first in the order of
 * the tiers.
 */
static void find_source_locked(struct kvc_copy *c)
{
	struct kvc *k = c->k;

	for (unsigned i = 0; i <= k->ntiers; i++) {
		unsigned t = i ? k->order[i - 1] : c->tier;
		const struct kvc_place *p = &c->n->in[t].place;

		if (!p->gen || p->gen != c->n->object.gen || !kvc_place_lossy(p) ||
		    kvc_file_differs_in(c->n, t) || kvc_tier_hangs_locked(k, t) ||
		    !kvc_tier_allowed_locked(k, t, KVC_CALL_READ))
			continue;
		c->source = (int)t;
		c->from = (struct kvc_fetch_want){
			.ino = c->f->ino,
			.size = c->f->size,
			.place = *p,
			.shared = k->tier[t].t->ops->caps & KVC_TIER_SHARED,
		};
		c->from.has_sum = kvc_place_raw(&c->n->object, p, &c->from.sum);
		/* an open file may have changed; only the sum can show whether it has */
		if (c->f->gen == c->n->object.gen || c->from.has_sum)
			return;
		c->source = -1;
		kvc_tier_uncalled_locked(k, t, KVC_CALL_READ);
	}
}

/* The codec that was chosen for copies in this tier, as an index of kvc_codec_names. */
static int codec_choice_both(const struct kvc_copy *c, uint64_t model, uint64_t *choice)
{
	struct kvc *k = c->k;
	int codec = -1, err = kvc_model_attr_both(k, model, KVC_MODEL_CODEC, &codec);

	*choice = codec >= 0                                      ? (uint64_t)codec
		  : k->tier[c->tier].t->codec < KVC_CODEC_CHOICES ? k->tier[c->tier].t->codec
								  : k->opt.compress;
	return err;
}

/*
 * Chooses the codec and the key for this object in this tier, and fills in the name part of the
 * frame. In a shared tier the name part also identifies the frame.
 */
static int recipe_both(struct kvc_copy *c, struct kvc_recipe *r)
{
	struct kvc *k = c->k;
	uint64_t model; /* the model now: the folder may have moved since the node was loaded */
	uint64_t choice = k->opt.compress;
	bool snapshot;
	int err = kvc_node_model_both(k, c->n->row.parent, &model);

	if (!err)
		err = codec_choice_both(c, model, &choice);
	err = err == -ENOENT ? 0 : err; /* the folder may have been removed */
	err = err ?: kvc_path_frame_name_both(k, c->n, c->f);

	if (err)
		return err;
	kvc_path_model_name(c->f->path, c->f->key_model);
	r->level = (int)k->opt.level;
	r->codec = kvc_codec_choice_lossy(choice) ? KVC_CODEC_BF16 : (enum kvc_codec)choice;
	c->kv.code = (enum kvc_kvq_code)(choice - KVC_CODECS);
	snapshot = c->f->gen != c->n->object.gen;
	c->decoded = snapshot ? kvc_file_open_decoded(c->n) : c->n->object.decoded;
	if (c->decoded) { /* the frame says so, and repeats the error that its bytes have */
		c->f->flags |= KVC_FRAME_DECODED;
		kvc_file_error_locked(k, c->n, &c->f->error_ppm, &c->f->worst_ppm);
	}
	if (kvc_codec_choice_lossy(choice) && !c->decoded && (err = recipe_kv_both(c, r, model)))
		return err;
	r->keys = k->keys;
	r->key_id = k->keys ? kvc_keys_for(k->keys, c->f->key_model) : 0;
	if (c->shared && !*c->f->path)
		return -ENAMETOOLONG;
	if (k->keys && !r->key_id)
		return -ENOKEY;
	if (kvc_codec_choice_lossy(choice) && c->decoded && !c->table)
		find_source_locked(c);
	return 0;
}

/*
 * Shared tier: claims the object's name there. Returns -EALREADY if another thread has claimed it.
 * The put may overwrite the object's current copy under this name even if the put fails. Therefore
 * the current copy is marked: it does not count until it is made again
 * (kvc_file_mark_old_name_both).
 */
static int claim_name_both(struct kvc_copy *c)
{
	const struct kvc_place *p = &c->n->in[c->tier].place;

	c->name = kvc_frame_where_of(c->f->path);
	c->f->flags |= KVC_FRAME_SHARED;
	if (!kvc_tier_name_lock_locked(&c->k->tier[c->tier], &c->name))
		return -EALREADY;
	c->has_name = true;
	if (p->gen && kvc_tier_same_name(&p->where, &c->name))
		kvc_file_mark_old_name_both(c->k, c->n, c->tier);
	return 0;
}

/* Fills in the identity of the frame, and decides which parts of the segment it carries. */
static int frame_begin(struct kvc_copy *c, uint64_t gen, uint64_t size, uint64_t blocks)
{
	int err = 0;

	c->source = -1;
	c->f = kvc_frame_new();
	c->sum = XXH3_createState();
	c->stored_sum = XXH3_createState();
	if (!c->f || !c->sum || !c->stored_sum)
		return -ENOMEM;
	XXH3_128bits_reset(c->sum);
	XXH3_128bits_reset(c->stored_sum);
	c->shared = c->k->tier[c->tier].t->ops->caps & KVC_TIER_SHARED;
	memcpy(c->f->store, c->shared ? c->k->shared_id : c->k->store->uuid, 16);
	c->f->ino = c->n->row.ino;
	c->f->gen = gen;
	c->f->size = c->f->raw_len = size;
	memset(c->first, 0, sizeof c->first);
	if (size >= sizeof c->first && (err = kvc_pread_all(c->fd, c->first, sizeof c->first, 0)))
		return err;
	if (blocks * 512 + SPARSE_GAIN < size) {
		err = find_ranges(c, size);
		if (!err) {
			c->f->flags = KVC_FRAME_SPARSE;
			c->f->raw_len = c->table_len;
			for (size_t i = 0; i < c->nranges; i++)
				c->f->raw_len += c->ranges[i].len;
		} else if (err == -E2BIG) {
			err = 0; /* too many holes: the object is copied as dense */
		}
	}
	return err;
}

/*
 * The remaining time to live of the copy in milliseconds; 0: unlimited. It is a duration because
 * the store's clock cannot be compared with a server's.
 */
static uint64_t ttl_ms_locked(const struct kvc_copy *c)
{
	uint64_t at = c->n->chunk ? c->n->chunk->expires_ns : 0, now = kvc_clock_ns(c->k);

	return !at ? 0 : at > now ? (at - now + 999999) / 1000000 : 1;
}

/* Frees the results of an attempt. */
static void copy_reset(struct kvc_copy *c)
{
	XXH3_freeState(c->sum);
	XXH3_freeState(c->stored_sum);
	kvc_payload_encoder_free(c->enc);
	free(c->f);
	free(c->step);
	kvc_budget_buffer_free(&c->memory);
	c->step = NULL;
	c->sum = c->stored_sum = NULL;
	c->enc = NULL;
	c->f = NULL;
	c->ranges = NULL;
	c->table = NULL;
	c->nranges = c->table_len = c->at = 0;
	c->at_off = 0;
}

/* The read of the source has ended, or none was made. */
static void source_result(struct kvc_copy *c, bool called, int err)
{
	unsigned t = (unsigned)c->source;

	kvc_lock(c->k);
	if (called)
		kvc_tier_result_locked(c->k, t, KVC_CALL_READ, c->f->ino, err);
	else
		kvc_tier_uncalled_locked(c->k, t, KVC_CALL_READ);
	kvc_unlock(c->k);
}

/*
 * Makes the payload from the blocks of the source, if the segment has the bytes that they decode
 * to. Returns 0 or an error. After an error the payload must be made from the segment.
 */
static int encode_source(struct kvc_copy *c, const struct kvc_recipe *r)
{
	KVC_MEM struct kvc_frame *f = kvc_frame_new();
	KVC_BUFFER payload = { .use = KVC_BUDGET_COPY };
	int err = f ? kvc_copy_sum(c->fd, c->f->size, &c->raw) : -ENOMEM;
	bool called;

	if (!err && c->from.has_sum && memcmp(c->raw.b, c->from.sum.b, sizeof c->raw.b) != 0)
		err = -ECANCELED;
	called = !err;
	err = err ?: kvc_fetch_coded(c->k, c->k->tier[c->source].t, &c->from, f, &payload);
	source_result(c, called, err);
	if (!err && !kvc_codec_lossy(f->codec))
		err = -EBADMSG;
	return err ?: kvc_payload_encoder_copy(&c->enc, c->f, r, f, c->k->keys, &payload);
}

/* Starts to make the payload. */
static int encode(struct kvc_copy *c, const struct kvc_recipe *r)
{
	const uint32_t flags = c->f->flags;

	if (c->source >= 0 && !encode_source(c, r)) {
		kvc_count(&c->k->stats, lossy_moved);
		return 0;
	}
	c->source = -1;
	c->f->flags = flags;
	c->f->codec = KVC_CODEC_NONE;
	return kvc_payload_encoder_new(&c->enc, c->f, r, raw_read, c);
}

static int write_once(struct kvc_copy *c, uint64_t gen, uint64_t size, uint64_t blocks,
		      struct kvc_where *where)
{
	struct kvc *k = c->k;
	struct kvc_tier *t = k->tier[c->tier].t;
	struct kvc_put put = {
		.ino = c->n->row.ino, .gen = gen, .arg = c, .read = copy_read, .head = copy_head
	};
	struct kvc_recipe r = { 0 };
	int err = frame_begin(c, gen, size, blocks);

	if (!err) {
		kvc_lock_both(k);
		err = recipe_both(c, &r);
		if (!err && c->shared)
			err = claim_name_both(c);
		put.ttl_ms = ttl_ms_locked(c);
		kvc_unlock_both(k);
	}
	if (!err && c->shared)
		err = kvc_folders_share(k, c->n, c->tier);
	if (!err)
		err = encode(c, &r);
	else if (c->source >= 0)
		source_result(c, false, 0);
	if (err)
		return err;
	put.name = c->name;
	put.stored_len = c->f->stored_len;
	map_segment(c, size, blocks);
	put.bytes = c->map ? copy_bytes : NULL;
	put.sync = c->sync;
	err = t->ops->put(t, &put, where);
	unmap_segment(c);
	if (!err && c->enc) {
		kvc_count_by(&k->stats, coded_bytes, c->f->raw_len);
		kvc_count_by(&k->stats, coded_stored_bytes, c->f->stored_len);
	}
	return err;
}

int kvc_copy_write(struct kvc_copy *c, uint64_t gen, uint64_t size, uint64_t blocks,
		   struct kvc_where *where)
{
	int err = write_once(c, gen, size, blocks, where);

	/* a device of the tier failed: another one gets the frame */
	for (unsigned i = 1; i < KVC_DEVICES && err == -ENODEV && !c->shared; i++) {
		copy_reset(c);
		err = write_once(c, gen, size, blocks, where);
	}
	return err;
}

bool kvc_copy_newest(const struct kvc_copy *c)
{
	const struct kvc *k = c->k;

	return !k->keys || c->f->key_id == kvc_keys_for(k->keys, c->f->key_model);
}

void kvc_copy_unname_locked(struct kvc_copy *c)
{
	if (c->has_name)
		kvc_tier_name_unlock_locked(&c->k->tier[c->tier], &c->name);
	c->has_name = false;
}

int kvc_copy_sum(int fd, uint64_t size, struct kvc_sum *sum)
{
	KVC_MEM uint8_t *buf = malloc(STEP);
	XXH3_state_t *x = XXH3_createState();
	uint64_t off = 0;
	int err = buf && x ? 0 : -ENOMEM;

	if (!err)
		XXH3_128bits_reset(x);
	while (!err && off < size) {
		size_t len = kvc_min(size - off, STEP);

		err = kvc_pread_all(fd, buf, len, (off_t)off);
		if (!err)
			XXH3_128bits_update(x, buf, len);
		off += len;
	}
	if (!err)
		*sum = kvc_sum_digest(x);
	XXH3_freeState(x);
	return err;
}

void kvc_copy_close(struct kvc_copy *c)
{
	if (c->fd >= 0)
		close(c->fd);
	c->fd = -1;
}

void kvc_copy_fini(struct kvc_copy *c)
{
	kvc_copy_close(c);
	copy_reset(c);
}
