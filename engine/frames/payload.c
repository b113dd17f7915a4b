/* SPDX-License-Identifier: Apache-2.0 */
/* The layout of coded payloads, and their decoder; see payload.h. */
#include "payload_priv.h"

#include "tier.h"

#include <endian.h>
#include <pthread.h>
#include <string.h>
#include <xxhash.h>

uint64_t kvc_payload_blocks(uint64_t raw_len)
{
	return raw_len ? (raw_len + KVC_BLOCK - 1) / KVC_BLOCK : 1;
}

size_t kvc_payload_block_len(uint64_t raw_len, uint64_t i)
{
	return (size_t)kvc_min(raw_len - i * KVC_BLOCK, KVC_BLOCK);
}

uint64_t kvc_payload_table(uint64_t raw_len)
{
	return kvc_round_up(kvc_payload_blocks(raw_len) * KVC_PAYLOAD_ENTRY, KVC_PAGE);
}

static void add(struct kvc_payload_aad *a, const void *p, size_t len)
{
	memcpy(a->b + a->len, p, len);
	a->len += len;
}

static void add64(struct kvc_payload_aad *a, uint64_t v)
{
	v = htole64(v);
	add(a, &v, 8);
}

void kvc_payload_aad_frame(struct kvc_payload_aad *a, const struct kvc_frame *f)
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
	add64(a, kvc_payload_blocks(f->raw_len));
}

size_t kvc_payload_aad_block(struct kvc_payload_aad *a, uint64_t i, uint32_t kind, size_t stored)
{
	size_t keep = a->len, len;

	add64(a, i);
	add64(a, (uint64_t)kind << 32 | stored);
	len = a->len;
	a->len = keep;
	return len;
}

uint32_t kvc_payload_block_kind(const uint8_t *entry, size_t *stored)
{
	uint32_t word[2];

	memcpy(word, entry, 8);
	*stored = le32toh(word[0]);
	return le32toh(word[1]);
}

struct kvc_decoder {
	const struct kvc_frame *f;
	const uint8_t *table;
	uint64_t n, next;      /* number of blocks, and the next one */
	uint64_t at, capacity; /* bytes of blocks so far, and their maximum */
	bool sealed;
	XXH3_state_t *sum; /* checksum of the raw payload; NULL: the payload is sealed */
	uint8_t key[32];
	struct kvc_payload_aad aad;
	/*
	 * With a codec, each thread that decodes a block uses one struct kvc_codec_work. The first
	 * one is made with the decoder, others when threads need them and memory is free.
	 */
	pthread_mutex_t lock; /* guards the members below */
	pthread_cond_t put;   /* one is free again */
	struct kvc_codec_work *free[1 + KVC_TIER_HELPERS];
	unsigned nfree, nworks; /* those in `free`, and all of them */
};

static int decoder_init(struct kvc_decoder *d, const struct kvc_keys *keys)
{
	const struct kvc_frame *f = d->f;
	int err = 0;

	if (d->sealed) {
		err = kvc_keys_frame_key(keys, f->key_id, f->key_model, f->nonce, f->ino, f->gen,
					 d->key);
		if (!err)
			kvc_payload_aad_frame(&d->aad, f);
	} else {
		d->sum = XXH3_createState();
		if (!d->sum)
			err = -ENOMEM;
		else
			XXH3_128bits_reset(d->sum);
	}
	if (!err && f->codec != KVC_CODEC_NONE) {
		if ((d->free[0] = kvc_codec_work_get()))
			d->nfree = d->nworks = 1;
		else
			err = -ENOMEM;
	}
	return err;
}

int kvc_payload_decoder_new(struct kvc_decoder **out, const struct kvc_frame *f,
			    const struct kvc_keys *keys, const uint8_t *table)
{
	uint64_t table_len = kvc_payload_table(f->raw_len);
	bool sealed = f->flags & KVC_FRAME_SEALED;
	struct kvc_decoder *d;
	int err;

	if (!(f->flags & KVC_FRAME_CODED) || f->stored_len < table_len ||
	    (f->codec >= KVC_CODECS && !kvc_codec_lossy(f->codec)))
		return -EBADMSG;
	if (sealed && (!keys || !kvc_keys_has(keys, f->key_id)))
		return -ENOKEY;
	d = calloc(1, sizeof *d);
	if (!d)
		return -ENOMEM;
	d->f = f;
	d->table = table;
	d->n = kvc_payload_blocks(f->raw_len);
	d->capacity = f->stored_len - table_len;
	d->sealed = sealed;
	pthread_mutex_init(&d->lock, NULL);
	pthread_cond_init(&d->put, NULL);
	err = decoder_init(d, keys);
	if (err)
		kvc_payload_decoder_free(d);
	else
		*out = d;
	return err;
}

int kvc_payload_decoder_next(struct kvc_decoder *d, size_t *stored, size_t *raw)
{
	uint32_t kind;

	if (d->next == d->n)
		return 0;
	kind = kvc_payload_block_kind(d->table + d->next * KVC_PAYLOAD_ENTRY, stored);
	*raw = kvc_payload_block_len(d->f->raw_len, d->next);
	if (*stored > KVC_BLOCK || *stored > d->capacity - d->at || kind >= KVC_KINDS ||
	    (kind == KVC_KIND_RAW && *stored != *raw) ||
	    (kind != KVC_KIND_RAW && d->f->codec == KVC_CODEC_NONE))
		return -EBADMSG;
	d->at += *stored;
	d->next++;
	return 1;
}

int kvc_payload_open_block(const struct kvc_decoder *d, uint64_t i, const uint8_t *in, uint8_t *to)
{
	const uint8_t *e = d->table + i * KVC_PAYLOAD_ENTRY;
	struct kvc_payload_aad aad;
	size_t stored;
	uint32_t kind = kvc_payload_block_kind(e, &stored);

	aad.len = d->aad.len;
	memcpy(aad.b, d->aad.b, aad.len);
	return kvc_keys_unseal(d->key, i, aad.b, kvc_payload_aad_block(&aad, i, kind, stored), in,
			       stored, to, e + 8);
}

/*
 * Returns a struct kvc_codec_work for one block; waits if all are in use and no memory is free for
 * another one.
 */
static struct kvc_codec_work *decoder_work_get(struct kvc_decoder *d)
{
	struct kvc_codec_work *w = NULL;
	bool more;

	pthread_mutex_lock(&d->lock);
	more = !d->nfree && d->nworks < 1 + KVC_TIER_HELPERS;
	d->nworks += more;
	pthread_mutex_unlock(&d->lock);
	if (more && (w = kvc_codec_work_try()))
		return w;
	pthread_mutex_lock(&d->lock);
	d->nworks -= more;
	while (!d->nfree)
		pthread_cond_wait(&d->put, &d->lock);
	w = d->free[--d->nfree];
	pthread_mutex_unlock(&d->lock);
	return w;
}

static void decoder_work_put(struct kvc_decoder *d, struct kvc_codec_work *w)
{
	pthread_mutex_lock(&d->lock);
	d->free[d->nfree++] = w;
	pthread_cond_signal(&d->put);
	pthread_mutex_unlock(&d->lock);
}

/* Decodes block i; w is NULL if the payload has no codec. */
static int decode_block(const struct kvc_decoder *d, struct kvc_codec_work *w, uint64_t i,
			const uint8_t *in, uint8_t *to)
{
	size_t stored, len = kvc_payload_block_len(d->f->raw_len, i);
	uint32_t kind = kvc_payload_block_kind(d->table + i * KVC_PAYLOAD_ENTRY, &stored);
	int err = 0;

	if (d->sealed) {
		uint8_t *open = kind == KVC_KIND_RAW ? to : kvc_codec_work_in(w);

		err = kvc_payload_open_block(d, i, in, open);
		in = open;
	}
	if (err || in == to)
		return err;
	if (w)
		return kvc_codec_decode(w, kind, in, stored, to, len);
	memmove(to, in, len);
	return 0;
}

int kvc_payload_decoder_block(struct kvc_decoder *d, uint64_t i, const uint8_t *in, uint8_t *to)
{
	struct kvc_codec_work *w = d->f->codec != KVC_CODEC_NONE ? decoder_work_get(d) : NULL;
	int err = decode_block(d, w, i, in, to);

	if (w)
		decoder_work_put(d, w);
	return err;
}

void kvc_payload_decoder_sum(struct kvc_decoder *d, uint64_t i, const uint8_t *raw)
{
	if (d->sum)
		XXH3_128bits_update(d->sum, raw, kvc_payload_block_len(d->f->raw_len, i));
}

int kvc_payload_decoder_end(struct kvc_decoder *d)
{
	struct kvc_sum s;

	if (d->next != d->n || kvc_round_up(d->at, KVC_PAGE) != d->capacity)
		return -EBADMSG;
	if (!d->sum)
		return 0;
	s = kvc_sum_digest(d->sum);
	return memcmp(s.b, d->f->raw_sum.b, 16) ? -EBADMSG : 0;
}

void kvc_payload_decoder_free(struct kvc_decoder *d)
{
	if (!d)
		return;
	while (d->nfree)
		kvc_codec_work_put(d->free[--d->nfree], d->sealed);
	pthread_cond_destroy(&d->put);
	pthread_mutex_destroy(&d->lock);
	XXH3_freeState(d->sum);
	kvc_keys_wipe(d->key, sizeof d->key);
	free(d);
}

int kvc_payload_decode(const struct kvc_frame *f, const struct kvc_keys *keys, const uint8_t *data,
		       const uint8_t *table, uint8_t *raw)
{
	uint8_t nothing[1]; /* buffer for an empty object, also for its data */
	struct kvc_decoder *d;
	size_t stored, len;
	int err = kvc_payload_decoder_new(&d, f, keys, table), more = 0;

	if (err)
		return err;
	raw = raw ? raw : nothing;
	data = data ? data : nothing;
	for (uint64_t i = 0; !err && (more = kvc_payload_decoder_next(d, &stored, &len)) == 1;
	     i++) {
		err = kvc_payload_decoder_block(d, i, data, raw);
		if (!err)
			kvc_payload_decoder_sum(d, i, raw);
		data += stored;
		raw += len;
	}
	err = err ?: more ?: kvc_payload_decoder_end(d);
	kvc_payload_decoder_free(d);
	return err;
}
