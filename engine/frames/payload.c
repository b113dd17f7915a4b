/* SPDX-License-Identifier: Apache-2.0 */
/* See payload.h. */
#include "payload.h"

#include <endian.h>
#include <string.h>

#define ENTRY 24

static uint64_t nblocks(uint64_t raw_len)
{
	return raw_len ? (raw_len + KVC_BLOCK - 1) / KVC_BLOCK : 1;
}

static size_t block_len(uint64_t raw_len, uint64_t i)
{
	return (size_t)kvc_min(raw_len - i * KVC_BLOCK, KVC_BLOCK);
}

uint64_t kvc_payload_table(uint64_t raw_len)
{
	return kvc_round_up(nblocks(raw_len) * ENTRY, KVC_PAGE);
}

/* The associated data: the frame's part once, the block's part at its end. */
struct aad {
	size_t len; /* of the frame's part */
	uint8_t b[160 + KVC_MODEL_NAME + KVC_FRAME_PATH_MAX + 64];
};

static void add(struct aad *a, const void *p, size_t len)
{
	memcpy(a->b + a->len, p, len);
	a->len += len;
}

static void add64(struct aad *a, uint64_t v)
{
	v = htole64(v);
	add(a, &v, 8);
}

static void aad_frame(struct aad *a, const struct kvc_frame *f)
{
	a->len = 0;
	add(a, "KVCAAD1", 8);
	add(a, f->store, 16);
	add64(a, f->ino);
	add64(a, f->gen);
	add64(a, f->size);
	add64(a, f->raw_len);
	add64(a, (uint64_t)f->codec << 32 | f->flags);
	add64(a, f->key_id);
	add(a, f->nonce, 12);
	add64(a, strlen(f->key_model));
	add(a, f->key_model, strlen(f->key_model));
	if (f->flags & KVC_FRAME_SHARED) {
		add64(a, (uint64_t)f->uid << 32 | f->gid);
		add64(a, f->mode);
		add64(a, f->mtime_ns);
		add64(a, f->btime_ns);
		add64(a, strlen(f->path));
		add(a, f->path, strlen(f->path));
	}
	add64(a, nblocks(f->raw_len));
}

static size_t aad_block(struct aad *a, uint64_t i, uint32_t kind, size_t stored)
{
	size_t keep = a->len, len;

	add64(a, i);
	add64(a, (uint64_t)kind << 32 | stored);
	len = a->len;
	a->len = keep;
	return len;
}

/*
 * Either all blocks are coded and held in buf, or they are made one by one as they are asked for;
 * then block 0 may be in buf already, because it was looked at to see whether coding pays.
 */
struct kvc_encoder {
	struct kvc_frame *f;
	int (*read)(void *arg, void *buf, size_t len, uint64_t off);
	void *arg;
	uint64_t n, next; /* blocks: all, and the first that is not made yet */
	uint8_t *table;
	size_t table_len;
	struct aad aad;
	uint8_t key[32];
	bool sealed, held, peeked;
	uint8_t *buf;
	size_t room, len, at;     /* what is in buf, and how much of it has been given */
	uint64_t data_len, given; /* of the stored payload */
	uint64_t table_at;        /* after the padding */
};

static void entry_put(struct kvc_encoder *e, uint64_t i, uint32_t kind, size_t stored,
		      const uint8_t tag[16])
{
	uint32_t w[2] = { htole32((uint32_t)stored), htole32(kind) };

	memcpy(e->table + i * ENTRY, w, 8);
	if (tag)
		memcpy(e->table + i * ENTRY + 8, tag, 16);
}

static int seal_block(struct kvc_encoder *e, uint64_t i, uint32_t kind, uint8_t *data,
		      size_t stored)
{
	uint8_t tag[16];
	int err = kvc_seal(e->key, i, e->aad.b, aad_block(&e->aad, i, kind, stored), data, stored,
			   data, tag);

	if (!err)
		entry_put(e, i, kind, stored, tag);
	return err;
}

static int buffer(struct kvc_encoder *e, size_t room)
{
	e->buf = malloc(e->room = room ? room : 1);
	return e->buf ? 0 : -ENOMEM;
}

/*
 * All blocks coded into e->buf; or only looked at block 0, where that does not pay. They are sealed
 * once the frame's fields are final.
 */
static int code_all(struct kvc_encoder *e, const struct kvc_recipe *r, struct kvc_work *w)
{
	uint8_t *in = kvc_work_in(w), *out = kvc_work_out(w);
	uint64_t raw = 0;
	int err = 0;

	for (uint64_t i = 0; i < e->n; i++) {
		size_t len = block_len(e->f->raw_len, i), stored;
		uint32_t kind;

		if ((err = e->read(e->arg, in, len, i * KVC_BLOCK)))
			return err;
		stored = kvc_block_encode(w, r->codec, r->level, in, len, out, &kind);
		if (!i) {
			if ((err = buffer(e, stored ? e->f->raw_len : len)))
				return err;
			if (!stored) { /* the rest will be like it */
				memcpy(e->buf, in, len);
				e->len = len;
				e->peeked = true;
				return 0;
			}
		}
		raw += stored == 0;
		memcpy(e->buf + e->len, stored ? out : in, stored ? stored : len);
		stored = stored ? stored : len;
		entry_put(e, i, kind, stored, NULL);
		e->len += stored;
	}
	e->held = true;
	e->f->codec = raw == e->n ? KVC_CODEC_NONE : r->codec;
	e->data_len = e->len;
	return 0;
}

static int seal_all(struct kvc_encoder *e)
{
	uint64_t at = 0;
	int err = 0;

	for (uint64_t i = 0; i < e->n && !err; i++) {
		uint32_t w[2];

		memcpy(w, e->table + i * ENTRY, 8);
		err = seal_block(e, i, le32toh(w[1]), e->buf + at, le32toh(w[0]));
		at += le32toh(w[0]);
	}
	return err;
}

static int compress(struct kvc_encoder *e, const struct kvc_recipe *r)
{
	struct kvc_work *w = kvc_work_take();
	int err = w ? code_all(e, r, w) : -ENOMEM;

	kvc_work_give(w, e->sealed);
	return err;
}

int kvc_encoder_new(struct kvc_encoder **out, struct kvc_frame *f, const struct kvc_recipe *r,
		    int (*read)(void *arg, void *buf, size_t len, uint64_t off), void *arg)
{
	bool coded = r->codec != KVC_CODEC_NONE && f->raw_len > KVC_PAGE &&
		     f->raw_len <= KVC_PAYLOAD_COMPRESS_MAX;
	struct kvc_encoder *e;
	int err = 0;

	*out = NULL;
	f->stored_len = f->raw_len;
	if (!coded && !(r->keys && r->key_id))
		return 0;
	e = calloc(1, sizeof *e);
	if (!e)
		return -ENOMEM;
	e->f = f;
	e->read = read;
	e->arg = arg;
	e->n = nblocks(f->raw_len);
	e->sealed = r->keys && r->key_id;
	e->table_len = kvc_payload_table(f->raw_len);
	e->table = calloc(1, e->table_len);
	f->flags |= KVC_FRAME_CODED | (e->sealed ? KVC_FRAME_SEALED : 0);
	e->data_len = f->raw_len;
	if (!e->table)
		err = -ENOMEM;
	if (!err && coded)
		err = compress(e, r);
	if (!err && e->sealed) {
		f->key_id = r->key_id;
		err = kvc_random(f->nonce, sizeof f->nonce);
		if (!err)
			err = kvc_frame_key(r->keys, f->key_id, f->key_model, f->nonce, f->ino,
					    f->gen, e->key);
		aad_frame(&e->aad, f);
		if (!err && e->held)
			err = seal_all(e);
	}
	e->table_at = kvc_round_up(e->data_len, KVC_PAGE);
	if (!e->sealed && f->codec == KVC_CODEC_NONE) { /* nothing gained: plain */
		f->flags &= ~(uint32_t)KVC_FRAME_CODED;
		e->table_at = e->data_len;
		e->table_len = 0;
	}
	f->stored_len = e->table_at + e->table_len;
	if (err)
		kvc_encoder_free(e);
	else
		*out = e;
	return err;
}

/* Not held: block i, as it is or sealed, into p. */
static int make_block(struct kvc_encoder *e, uint64_t i, uint8_t *p)
{
	size_t len = block_len(e->f->raw_len, i);
	int err = 0;

	if (!i && e->peeked) {
		if (p != e->buf)
			memcpy(p, e->buf, len);
	} else if (len) {
		err = e->read(e->arg, p, len, i * KVC_BLOCK);
	}
	return err || !e->sealed ? err : seal_block(e, i, KVC_KIND_RAW, p, len);
}

/* Not held: the next bytes of the data, straight to where they are wanted when a whole block is. */
static int make_some(struct kvc_encoder *e, uint8_t *p, size_t len, size_t *made)
{
	int err = 0;

	if (e->at < e->len && !(e->peeked && !e->next)) {
		*made = kvc_min(len, e->len - e->at);
		memcpy(p, e->buf + e->at, *made);
		e->at += *made;
		return 0;
	}
	*made = block_len(e->f->raw_len, e->next);
	if (len >= *made) {
		/* a block 0 that was looked at is given now: not once more from buf */
		e->at = e->len = 0;
		return make_block(e, e->next++, p);
	}
	if (!e->buf || e->room < *made) {
		free(e->buf);
		err = buffer(e, KVC_BLOCK);
	}
	err = err ?: make_block(e, e->next++, e->buf);
	e->len = *made;
	e->at = *made = 0;
	return err;
}

int kvc_encoder_read(struct kvc_encoder *e, void *to, size_t len)
{
	uint8_t *p = to;
	int err;

	while (len) {
		size_t n;

		if (e->given < e->data_len) {
			n = kvc_min(len, e->data_len - e->given);
			if (e->held)
				memcpy(p, e->buf + e->given, n);
			else if ((err = make_some(e, p, n, &n)))
				return err;
		} else if (e->given < e->table_at) {
			n = kvc_min(len, e->table_at - e->given);
			memset(p, 0, n);
		} else {
			if (!e->f->raw_len && !e->held && !e->next &&
			    (err = make_block(e, e->next++, p)))
				/* the one block of an empty object has no bytes but a tag */
				return err;
			n = kvc_min(len, e->table_at + e->table_len - e->given);
			if (!n)
				return -EIO;
			memcpy(p, e->table + (e->given - e->table_at), n);
		}
		p += n;
		len -= n;
		e->given += n;
	}
	return 0;
}

void kvc_encoder_free(struct kvc_encoder *e)
{
	if (!e)
		return;
	kvc_wipe(e->key, sizeof e->key);
	if (e->buf && e->sealed)
		kvc_wipe(e->buf, e->room);
	free(e->buf);
	free(e->table);
	free(e);
}

int kvc_payload_decode(const struct kvc_frame *f, const struct kvc_keys *keys, const uint8_t *data,
		       const uint8_t *table, uint8_t *raw)
{
	uint64_t n = nblocks(f->raw_len), table_len = kvc_payload_table(f->raw_len), at = 0, room;
	bool sealed = f->flags & KVC_FRAME_SEALED;
	KVC_MEM struct aad *aad = malloc(sizeof *aad);
	struct kvc_work *w = NULL;
	uint8_t key[32], nothing[1];
	int err = 0;

	if (!aad)
		return -ENOMEM;
	raw = raw ? raw : nothing; /* an empty object's, and it may be its data as well */
	data = data ? data : nothing;
	if (!(f->flags & KVC_FRAME_CODED) || f->stored_len < table_len || f->codec >= KVC_CODECS)
		return -EBADMSG;
	room = f->stored_len - table_len; /* what of data may be looked at */
	if (sealed) {
		if (!keys || !kvc_keys_has(keys, f->key_id))
			return -ENOKEY;
		if ((err = kvc_frame_key(keys, f->key_id, f->key_model, f->nonce, f->ino, f->gen,
					 key)))
			return err;
		aad_frame(aad, f);
	}
	if (f->codec != KVC_CODEC_NONE) {
		w = kvc_work_take();
		if (!w)
			err = -ENOMEM;
	}
	for (uint64_t i = 0; i < n && !err; i++) {
		const uint8_t *e = table + i * ENTRY, *in = data + at;
		size_t len = block_len(f->raw_len, i), stored;
		uint8_t *to = raw + i * KVC_BLOCK;
		uint32_t word[2];

		memcpy(word, e, 8);
		stored = le32toh(word[0]);
		uint32_t kind = le32toh(word[1]);

		if (stored > KVC_BLOCK || stored > room - at || kind >= KVC_KINDS ||
		    (kind == KVC_KIND_RAW && stored != len) ||
		    (kind != KVC_KIND_RAW && f->codec == KVC_CODEC_NONE)) {
			err = -EBADMSG;
			break;
		}
		if (sealed) {
			uint8_t *open = kind == KVC_KIND_RAW ? to : kvc_work_in(w);

			err = kvc_unseal(key, i, aad->b, aad_block(aad, i, kind, stored), in,
					 stored, open, e + 8);
			in = open;
		}
		if (!err && in != to)
			err = w ? kvc_block_decode(w, kind, in, stored, to, len)
				: (memmove(to, in, len), 0);
		at += stored;
	}
	kvc_work_give(w, sealed);
	kvc_wipe(key, sizeof key);
	if (!err && kvc_round_up(at, KVC_PAGE) != room)
		err = -EBADMSG;
	if (!err && !sealed) {
		struct kvc_sum s = kvc_sum_of(raw, f->raw_len);

		if (memcmp(s.b, f->raw_sum.b, 16))
			err = -EBADMSG;
	}
	return err;
}
