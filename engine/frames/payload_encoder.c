/* SPDX-License-Identifier: Apache-2.0 */
/* Encoder of coded payloads; see payload.h. */
#include "payload_priv.h"

#include "ordered.h"

#include <endian.h>
#include <math.h>
#include <string.h>
#include <xxhash.h>

#define THREADS 4 /* that code blocks of one payload */

/* The memory of a thread that codes, and the result of its last block. */
struct slot {
	struct kvc_codec_work *w;
	struct kvc_buffer back; /* with loss: the decoded block */
	size_t stored;          /* 0: coding saves nothing */
	uint32_t kind;
	struct kvc_kvq_loss loss;
};

/*
 * The encoder has two modes. Either all coded blocks are in `all`. Or each block is made when the
 * reader needs it, in the reader's buffer or in buf: raw, or coded again (`twice`), and then its
 * result must match the table. Block 0 may already be in buf, from the test whether coding saves
 * space.
 */
struct kvc_encoder {
	struct kvc_frame *f;
	int (*read)(void *arg, void *buf, size_t len, uint64_t off);
	void *arg;
	uint64_t n, next; /* number of blocks, and the first block that is not made yet */
	struct kvc_buffer table, all, buf;
	size_t table_len;
	enum kvc_codec codec; /* requested codec */
	int level;
	/* with loss: code and layout, and the checksum of all decoded blocks */
	bool lossy;
	struct kvc_codec_kv kv;
	XXH3_state_t *sum;
	double error, energy;
	struct kvc_payload_loss loss;
	struct slot slot; /* of the caller's thread; w is NULL when coding is done */
	uint64_t begun;   /* number of blocks that were read to be coded */
	uint64_t raw;     /* number of blocks for which coding saves nothing */
	struct kvc_payload_aad aad;
	uint8_t key[32];
	bool sealed, held, twice, peeked;
	size_t len, at; /* bytes in buf, and how many of them were returned */
	/* lengths of the stored payload: of the blocks, and returned so far */
	uint64_t data_len, given;
	uint64_t table_at; /* offset of the table, after the padding */
};

static void entry_put(struct kvc_encoder *e, uint64_t i, uint32_t kind, size_t stored,
		      const uint8_t tag[16])
{
	uint32_t w[2] = { htole32((uint32_t)stored), htole32(kind) };

	memcpy(e->table.p + i * KVC_PAYLOAD_ENTRY, w, 8);
	if (tag)
		memcpy(e->table.p + i * KVC_PAYLOAD_ENTRY + 8, tag, 16);
}

static int seal_block(struct kvc_encoder *e, uint64_t i, uint32_t kind, uint8_t *data,
		      size_t stored)
{
	uint8_t tag[16];
	int err = kvc_keys_seal(e->key, i, e->aad.b,
				kvc_payload_aad_block(&e->aad, i, kind, stored), data, stored, data,
				tag);

	if (!err)
		entry_put(e, i, kind, stored, tag);
	return err;
}

/* Codes block i, which is in the slot's buffer. */
static void code_block(const struct kvc_encoder *e, struct slot *s, uint64_t i)
{
	const uint8_t *in = kvc_codec_work_in(s->w);
	uint8_t *out = kvc_codec_work_out(s->w);
	size_t len = kvc_payload_block_len(e->f->raw_len, i);

	s->loss = (struct kvc_kvq_loss){ 0 };
	s->stored = e->lossy ? kvc_codec_encode_kv(s->w, &e->kv, i * KVC_BLOCK, in, len, out,
						   &s->kind, s->back.p, &s->loss)
			     : kvc_codec_encode(s->w, e->codec, e->level, in, len, out, &s->kind);
}

/* Adds the bytes that a decoder will return for block i to their checksum. */
static void sum_back(struct kvc_encoder *e, const struct slot *s, uint64_t i)
{
	if (!i)
		XXH3_128bits_reset(e->sum);
	XXH3_128bits_update(e->sum, s->kind == KVC_KIND_KVQ ? s->back.p : kvc_codec_work_in(s->w),
			    kvc_payload_block_len(e->f->raw_len, i));
	if (i == e->n - 1)
		e->loss.sum = kvc_sum_digest(e->sum);
}

/* Adds the error of a block that was coded with loss, or counts a block that was not. */
static void block_lost(struct kvc_encoder *e, size_t len, uint32_t kind,
		       const struct kvc_kvq_loss *loss)
{
	if (kind != KVC_KIND_KVQ) {
		e->loss.refused++;
		return;
	}
	e->loss.bytes += len;
	e->error += (double)loss->error;
	e->energy += (double)loss->energy;
	if (loss->energy > 0)
		e->loss.worst = fmax(e->loss.worst,
				     sqrt((double)loss->error / (double)loss->energy));
}

/* All blocks are coded: sets the codec of the frame. */
static void codec_final(struct kvc_encoder *e)
{
	e->f->codec = e->codec;
	if (e->lossy)
		e->f->codec = e->loss.bytes ? KVC_CODEC_KVQ + e->kv.code : KVC_CODEC_BF16;
	if (e->raw == e->n) { /* with loss only; the blocks are read again */
		e->f->codec = KVC_CODEC_NONE;
		kvc_budget_buffer_free(&e->all);
		e->held = false;
	}
	if (!e->lossy || !e->loss.bytes)
		return;
	e->f->flags |= KVC_FRAME_DECODED;
	e->loss.error = e->energy > 0 ? sqrt(e->error / e->energy) : 0;
}

static int read_block(void *arg, void *slot, uint64_t i)
{
	struct kvc_encoder *e = arg;
	const struct slot *s = slot;

	e->begun++;
	return e->read(e->arg, kvc_codec_work_in(s->w), kvc_payload_block_len(e->f->raw_len, i),
		       i * KVC_BLOCK);
}

static int code_one(void *arg, void *slot, uint64_t i)
{
	code_block(arg, slot, i);
	return 0;
}

/* Block 0 does not become smaller: keeps it raw, and ends the coding with an error. */
static int peek(struct kvc_encoder *e, const struct slot *s, size_t len)
{
	int err = kvc_budget_buffer_wait(&e->buf, KVC_BUDGET_COPY, KVC_BLOCK);

	if (err)
		return err;
	memcpy(e->buf.p, kvc_codec_work_in(s->w), len);
	e->len = len;
	e->peeked = true;
	return -ECANCELED;
}

static int store_block(void *arg, void *slot, uint64_t i)
{
	struct kvc_encoder *e = arg;
	const struct slot *s = slot;
	size_t len = kvc_payload_block_len(e->f->raw_len, i), stored = s->stored ? s->stored : len;

	if (e->lossy) {
		sum_back(e, s, i);
		block_lost(e, len, s->kind, &s->loss);
	}
	/* assume that the other blocks are alike; with loss, the first may be a header */
	if (!i && !s->stored && !e->lossy)
		return peek(e, s, len);
	e->raw += s->stored == 0;
	if (e->held)
		memcpy(e->all.p + e->data_len,
		       s->stored ? kvc_codec_work_out(s->w) : kvc_codec_work_in(s->w), stored);
	entry_put(e, i, s->kind, stored, NULL);
	e->data_len += stored;
	return 0;
}

static void slot_close(struct kvc_encoder *e, struct slot *s)
{
	if (s->back.p && e->sealed)
		kvc_keys_wipe(s->back.p, s->back.len);
	kvc_budget_buffer_free(&s->back);
	kvc_codec_work_put(s->w, e->sealed);
	s->w = NULL;
}

static void slot_free(void *arg, void *slot)
{
	slot_close(arg, slot);
	free(slot);
}

/* Makes a slot for another thread if there is memory without waiting. */
static void *slot_new(void *arg)
{
	struct kvc_encoder *e = arg;
	struct slot *s = calloc(1, sizeof *s);

	if (!s)
		return NULL;
	s->back.use = KVC_BUDGET_COPY;
	s->w = kvc_codec_work_try();
	if (s->w && (!e->lossy || !kvc_budget_buffer_grow(&s->back, KVC_BLOCK)))
		return s;
	slot_free(e, s);
	return NULL;
}

/*
 * Codes all blocks, into e->all if there is memory for it, otherwise only to learn their lengths.
 * Stops after block 0 if coding it saves nothing. Blocks are sealed later, when the frame's fields
 * are final.
 */
static int code_all(struct kvc_encoder *e)
{
	const struct kvc_ordered o = {
		.n = e->n,
		.arg = e,
		.begin = read_block,
		.work = code_one,
		.finish = store_block,
		.slot_new = slot_new,
		.slot_free = slot_free,
	};
	int err;

	e->held = !kvc_budget_buffer_grow(&e->all, e->f->raw_len);
	err = kvc_ordered_run(&o, &e->slot, THREADS);
	if (e->peeked) {
		kvc_budget_buffer_free(&e->all);
		e->held = false;
		/* other threads have read blocks: all are read again, from the first one on */
		if (e->begun > 1) {
			e->peeked = false;
			e->len = 0;
		}
		return 0;
	}
	if (err)
		return err;
	codec_final(e);
	e->twice = !e->held && e->f->codec != KVC_CODEC_NONE;
	return 0;
}

static int seal_all(struct kvc_encoder *e)
{
	uint64_t at = 0;
	int err = 0;

	for (uint64_t i = 0; i < e->n && !err; i++) {
		size_t stored;
		uint32_t kind = kvc_payload_block_kind(e->table.p + i * KVC_PAYLOAD_ENTRY, &stored);

		err = seal_block(e, i, kind, e->all.p + at, stored);
		at += stored;
	}
	return err;
}

static int compress(struct kvc_encoder *e)
{
	int err;

	e->data_len = 0;
	if (e->lossy) {
		err = kvc_budget_buffer_wait(&e->slot.back, KVC_BUDGET_COPY, KVC_BLOCK);
		if (err)
			return err;
		if (!(e->sum = XXH3_createState()))
			return -ENOMEM;
	}
	e->slot.w = kvc_codec_work_get();
	err = e->slot.w ? code_all(e) : -ENOMEM;
	if (err || !e->twice)
		slot_close(e, &e->slot);
	if (!err && e->f->codec == KVC_CODEC_NONE && !e->held)
		e->data_len = e->f->raw_len;
	return err;
}

/* With keys: prepares the sealing, and seals the blocks in e->all. */
static int seal(struct kvc_encoder *e, const struct kvc_recipe *r)
{
	struct kvc_frame *f = e->f;
	int err;

	f->key_id = r->key_id;
	if (r->nonce)
		memcpy(f->nonce, r->nonce, sizeof f->nonce);
	err = r->nonce ? 0 : kvc_keys_random(f->nonce, sizeof f->nonce);
	if (!err)
		err = kvc_keys_frame_key(r->keys, f->key_id, f->key_model, f->nonce, f->ino, f->gen,
					 e->key);
	kvc_payload_aad_frame(&e->aad, f);
	return !err && e->held ? seal_all(e) : err;
}

/* Makes an encoder. Returns NULL if out of memory. */
static struct kvc_encoder *encoder_alloc(struct kvc_frame *f, const struct kvc_recipe *r)
{
	struct kvc_encoder *e = calloc(1, sizeof *e);

	if (!e)
		return NULL;
	e->f = f;
	e->n = kvc_payload_blocks(f->raw_len);
	e->sealed = r->keys && r->key_id;
	e->all.use = e->buf.use = e->slot.back.use = KVC_BUDGET_COPY;
	e->table_len = kvc_payload_table(f->raw_len);
	if (kvc_budget_buffer_wait(&e->table, KVC_BUDGET_COPY, e->table_len)) {
		free(e);
		return NULL;
	}
	memset(e->table.p, 0, e->table.len);
	f->flags |= KVC_FRAME_CODED | (e->sealed ? KVC_FRAME_SEALED : 0);
	return e;
}

/* The blocks are coded, or their lengths are known: seals them, and sets the length. */
static int encoder_finish(struct kvc_encoder *e, const struct kvc_recipe *r)
{
	struct kvc_frame *f = e->f;
	int err = e->sealed ? seal(e, r) : 0;

	e->table_at = kvc_round_up(e->data_len, KVC_PAGE);
	/* coding saves nothing: the frame becomes plain */
	if (!e->sealed && f->codec == KVC_CODEC_NONE) {
		f->flags &= ~(uint32_t)KVC_FRAME_CODED;
		e->table_at = e->data_len;
		e->table_len = 0;
	}
	f->stored_len = e->table_at + e->table_len;
	return err;
}

int kvc_payload_encoder_new(struct kvc_encoder **out, struct kvc_frame *f,
			    const struct kvc_recipe *r,
			    int (*read)(void *arg, void *buf, size_t len, uint64_t off), void *arg)
{
	bool coded = (r->codec != KVC_CODEC_NONE || r->kv) && f->raw_len > KVC_PAGE &&
		     f->raw_len <= KVC_PAYLOAD_COMPRESS_MAX;
	struct kvc_encoder *e;
	int err;

	*out = NULL;
	f->stored_len = f->raw_len;
	if (!coded && !(r->keys && r->key_id))
		return 0;
	e = encoder_alloc(f, r);
	if (!e)
		return -ENOMEM;
	e->read = read;
	e->arg = arg;
	e->codec = r->codec;
	e->level = r->level;
	e->lossy = r->kv;
	if (r->kv)
		e->kv = *r->kv;
	e->data_len = f->raw_len;
	err = coded ? compress(e) : 0;
	err = err ?: encoder_finish(e, r);
	if (err)
		kvc_payload_encoder_free(e);
	else
		*out = e;
	return err;
}

/* Codes block i again and checks that the result is the same. */
static int code_again(struct kvc_encoder *e, uint64_t i, uint8_t *p, uint32_t *kind, size_t *stored)
{
	struct slot *s = &e->slot;
	size_t len = kvc_payload_block_len(e->f->raw_len, i), before;
	uint32_t was = kvc_payload_block_kind(e->table.p + i * KVC_PAYLOAD_ENTRY, &before);
	int err = read_block(e, s, i);

	if (err)
		return err;
	code_block(e, s, i);
	*kind = s->kind;
	*stored = s->stored ? s->stored : len;
	if (*stored != before || *kind != was)
		return -ECANCELED;
	/* a client may have changed an open file since: the sum is that of these bytes */
	if (e->lossy)
		sum_back(e, s, i);
	memcpy(p, s->stored ? kvc_codec_work_out(s->w) : kvc_codec_work_in(s->w), *stored);
	return 0;
}

/* Makes block i, coded and sealed as required, in p. For blocks that are not in e->all. */
static int make_block(struct kvc_encoder *e, uint64_t i, uint8_t *p)
{
	size_t len = kvc_payload_block_len(e->f->raw_len, i);
	uint32_t kind = KVC_KIND_RAW;
	int err = 0;

	if (e->twice) {
		err = code_again(e, i, p, &kind, &len);
	} else if (!i && e->peeked) {
		if (p != e->buf.p)
			memcpy(p, e->buf.p, len);
	} else if (len) {
		err = e->read(e->arg, p, len, i * KVC_BLOCK);
	}
	return err || !e->sealed ? err : seal_block(e, i, kind, p, len);
}

/*
 * Returns the next bytes of the blocks that are not in e->all. A whole block is made directly in
 * the caller's buffer.
 */
static int make_some(struct kvc_encoder *e, uint8_t *p, size_t len, size_t *made)
{
	int err = 0;

	if (e->at < e->len && !(e->peeked && !e->next)) {
		*made = kvc_min(len, e->len - e->at);
		memcpy(p, e->buf.p + e->at, *made);
		e->at += *made;
		return 0;
	}
	if (e->twice)
		kvc_payload_block_kind(e->table.p + e->next * KVC_PAYLOAD_ENTRY, made);
	else
		*made = kvc_payload_block_len(e->f->raw_len, e->next);
	if (len >= *made) {
		/* block 0 from the test is used up */
		e->at = e->len = 0;
		return make_block(e, e->next++, p);
	}
	if (!e->buf.p)
		err = kvc_budget_buffer_wait(&e->buf, KVC_BUDGET_COPY, KVC_BLOCK);
	err = err ?: make_block(e, e->next++, e->buf.p);
	e->len = *made;
	e->at = *made = 0;
	return err;
}

int kvc_payload_encoder_read(struct kvc_encoder *e, void *to, size_t len)
{
	uint8_t *p = to;
	int err;

	while (len) {
		size_t n;

		if (e->given < e->data_len) {
			n = kvc_min(len, e->data_len - e->given);
			if (e->held)
				memcpy(p, e->all.p + e->given, n);
			else if ((err = make_some(e, p, n, &n)))
				return err;
		} else if (e->given < e->table_at) {
			n = kvc_min(len, e->table_at - e->given);
			memset(p, 0, n);
		} else {
			if (!e->f->raw_len && !e->held && !e->next &&
			    (err = make_block(e, e->next++, p)))
				/* the only block of an empty object has a tag but no bytes */
				return err;
			n = kvc_min(len, e->table_at + e->table_len - e->given);
			if (!n)
				return -EIO;
			memcpy(p, e->table.p + (e->given - e->table_at), n);
		}
		p += n;
		len -= n;
		e->given += n;
	}
	return 0;
}

bool kvc_payload_encoder_loss(const struct kvc_encoder *e, struct kvc_payload_loss *loss)
{
	*loss = e->loss;
	return e->loss.bytes > 0;
}

void kvc_payload_encoder_free(struct kvc_encoder *e)
{
	if (!e)
		return;
	kvc_keys_wipe(e->key, sizeof e->key);
	XXH3_freeState(e->sum);
	if (e->buf.p && e->sealed)
		kvc_keys_wipe(e->buf.p, e->buf.len);
	if (e->all.p && e->sealed)
		kvc_keys_wipe(e->all.p, e->all.len);
	slot_close(e, &e->slot);
	kvc_budget_buffer_free(&e->all);
	kvc_budget_buffer_free(&e->buf);
	kvc_budget_buffer_free(&e->table);
	free(e);
}

/* Takes over the blocks of d's payload, which is in e->all. */
static int copy_blocks(struct kvc_encoder *e, struct kvc_decoder *d, const struct kvc_frame *from,
		       const uint8_t *table)
{
	uint64_t capacity = from->stored_len - kvc_payload_table(from->raw_len);
	uint8_t *p = e->all.p;
	size_t stored, len;
	int more, err = 0;

	for (uint64_t i = 0; !err && (more = kvc_payload_decoder_next(d, &stored, &len)) == 1;
	     i++) {
		if (from->flags & KVC_FRAME_SEALED)
			err = kvc_payload_open_block(d, i, p, p);
		entry_put(e, i, kvc_payload_block_kind(table + i * KVC_PAYLOAD_ENTRY, &len), stored,
			  NULL);
		p += stored;
	}
	e->data_len = (uint64_t)(p - e->all.p);
	err = err ?: more;
	return err ?: kvc_round_up(e->data_len, KVC_PAGE) != capacity ? -EBADMSG : 0;
}

int kvc_payload_encoder_copy(struct kvc_encoder **out, struct kvc_frame *f,
			     const struct kvc_recipe *r, const struct kvc_frame *from,
			     const struct kvc_keys *keys, struct kvc_buffer *payload)
{
	uint64_t table_len = kvc_payload_table(from->raw_len);
	struct kvc_decoder *d = NULL;
	struct kvc_encoder *e;
	const uint8_t *table;
	int err;

	*out = NULL;
	if (from->raw_len != f->raw_len || (from->flags & KVC_FRAME_SPARSE) ||
	    !(from->flags & KVC_FRAME_CODED) || from->stored_len < table_len ||
	    payload->len < from->stored_len || (from->codec == KVC_CODEC_NONE && !r->key_id))
		return -EBADMSG;
	if (!(e = encoder_alloc(f, r)))
		return -ENOMEM;
	table = payload->p + from->stored_len - table_len;
	err = kvc_payload_decoder_new(&d, from, keys, table);
	if (!err) {
		e->all = *payload;
		e->held = true;
		*payload = (struct kvc_buffer){ .use = KVC_BUDGET_COPY };
		f->codec = from->codec;
		f->flags |= from->flags & KVC_FRAME_DECODED;
		err = copy_blocks(e, d, from, table);
	}
	kvc_payload_decoder_free(d);
	err = err ?: encoder_finish(e, r);
	if (err)
		kvc_payload_encoder_free(e);
	else
		*out = e;
	return err;
}
