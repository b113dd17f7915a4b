/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Codecs (codec.h). KV caches are 2-byte floats. The upper byte (sign and most of the exponent) has
 * few values, and the lower byte (mantissa) is noise. Neither has repeats, so the upper plane is
 * coded by zstd's Huffman stage alone (a large negative level with literal compression on), and the
 * lower plane is stored raw. Pages of zeros, which partly filled caches have, are the exception: a
 * plane with such pages is searched for matches, too. The entropy of a sample decides whether
 * planes, whole bytes (fp8) or nothing is tried. zstd proper, which also finds repeats, is the
 * codec "zstd".
 *
 * A block of kind PLANES has the stored length of the upper plane (u32) and of the lower plane
 * (u32), then both planes. A plane is raw if its stored length equals its length. If the block's
 * length is odd, its last byte follows, raw. Little endian.
 */
#pragma GCC optimize("O3") /* so that the byte loops below are vectorized */
#define ZSTD_STATIC_LINKING_ONLY
#include "codec.h"

#include "budget.h"
#include "library.h"

#include <endian.h>
#include <math.h>
#include <pthread.h>
#include <string.h>
#include <zstd.h>

#define FAST (-131072) /* level of zstd for a plane: searches for matches only at its start */
#define SPARSE (-64)   /* level for a plane with constant stretches: finds long matches */
#define SAMPLES 8192u  /* elements read for the decision */
#define RUNS 8u
#define LOSSY_GAIN 0.9 /* a lossy code must be shorter than this fraction of the lossless one */
#define GAIN 0.97      /* coding is tried if the estimate is below this fraction of the size */

const char *const kvc_codec_names[] = {
	"none", "zstd", "bf16+zstd", "kvq-high", "kvq-mid", "kvq-low", "fp8", NULL,
};
_Static_assert(sizeof kvc_codec_names / sizeof *kvc_codec_names == KVC_CODEC_CHOICES + 1,
	       "a name for each choice");

const char *kvc_codec_name(uint32_t codec)
{
	if (kvc_codec_lossy(codec))
		return kvc_codec_names[KVC_CODECS + codec - KVC_CODEC_KVQ];
	return codec < KVC_CODECS ? kvc_codec_names[codec] : "unknown";
}

struct kvc_codec_work {
	struct kvc_codec_work *next;
	uint64_t charged; /* bytes counted towards the budget */
	ZSTD_CCtx *c;
	ZSTD_DCtx *d;
	struct kvc_kvq *q; /* NULL: not used yet */
	uint8_t hi[KVC_BLOCK / 2], lo[KVC_BLOCK / 2], in[KVC_BLOCK], out[KVC_BLOCK_ROOM];
};

#define KEPT 16

_Static_assert(KVC_KVQ_BLOCK == KVC_BLOCK, "kvq codes the same blocks");

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct kvc_codec_work *kept;
static unsigned nkept;

static void work_free(struct kvc_codec_work *w)
{
	uint64_t charged = w->charged;

	ZSTD_freeCCtx(w->c);
	ZSTD_freeDCtx(w->d);
	kvc_kvq_free(w->q);
	free(w);
	kvc_budget_release(KVC_BUDGET_LOAD, charged);
}

static struct kvc_codec_work *take_kept(void)
{
	struct kvc_codec_work *w;

	pthread_mutex_lock(&lock);
	w = kept;
	if (w) {
		kept = w->next;
		nkept--;
	}
	pthread_mutex_unlock(&lock);
	return w;
}

/* The budget's hook: memory is short. */
static void release_kept(void)
{
	struct kvc_codec_work *w;

	while ((w = take_kept()))
		work_free(w);
}

/*
 * Allocates a codec context (struct kvc_codec_work), whose memory `reserve` takes from the budget.
 */
static struct kvc_codec_work *work_new(int (*reserve)(enum kvc_budget_use use, uint64_t bytes))
{
	struct kvc_codec_work *w;

	kvc_budget_on_short(release_kept);
	if (reserve(KVC_BUDGET_LOAD, sizeof *w))
		return NULL;
	if (!(w = malloc(sizeof *w))) {
		kvc_budget_release(KVC_BUDGET_LOAD, sizeof *w);
		return NULL;
	}
	w->charged = sizeof *w;
	w->q = NULL;
	w->c = ZSTD_createCCtx();
	w->d = ZSTD_createDCtx();
	if (!w->c || !w->d) {
		work_free(w);
		return NULL;
	}
	return w;
}

struct kvc_codec_work *kvc_codec_work_get(void)
{
	return take_kept() ?: work_new(kvc_budget_wait);
}

struct kvc_codec_work *kvc_codec_work_try(void)
{
	return take_kept() ?: work_new(kvc_budget_try);
}

/* The context grows with the level, and does not shrink. */
static void charge(struct kvc_codec_work *w)
{
	uint64_t now = sizeof *w + ZSTD_sizeof_CCtx(w->c) + ZSTD_sizeof_DCtx(w->d) +
		       (w->q ? kvc_kvq_memory() : 0);

	if (now > w->charged) {
		kvc_budget_force(KVC_BUDGET_LOAD, now - w->charged);
		w->charged = now;
	}
}

void kvc_codec_work_put(struct kvc_codec_work *w, bool wipe)
{
	bool keep;

	if (!w)
		return;
	if (wipe) {
		explicit_bzero(w->hi, sizeof w->hi);
		explicit_bzero(w->lo, sizeof w->lo);
		explicit_bzero(w->in, sizeof w->in);
		explicit_bzero(w->out, sizeof w->out);
		if (w->q)
			kvc_kvq_wipe(w->q);
	}
	charge(w);
	pthread_mutex_lock(&lock);
	keep = nkept < KEPT;
	if (keep) {
		w->next = kept;
		kept = w;
		nkept++;
	}
	pthread_mutex_unlock(&lock);
	if (!keep)
		work_free(w);
}

uint8_t *kvc_codec_work_in(struct kvc_codec_work *w)
{
	return w->in;
}

uint8_t *kvc_codec_work_out(struct kvc_codec_work *w)
{
	return w->out;
}

/* Compresses one stretch with zstd; returns 0 if that fails or does not make it shorter. */
static size_t squeeze(struct kvc_codec_work *w, int level, const uint8_t *in, size_t len,
		      uint8_t *out, size_t capacity)
{
	size_t n;

	ZSTD_CCtx_reset(w->c, ZSTD_reset_session_and_parameters);
	ZSTD_CCtx_setParameter(w->c, ZSTD_c_compressionLevel, level);
	ZSTD_CCtx_setParameter(w->c, ZSTD_c_checksumFlag, 0);
	if (level < 0)
		ZSTD_CCtx_setParameter(w->c, ZSTD_c_literalCompressionMode, ZSTD_lcm_huffman);
	n = ZSTD_compress2(w->c, out, capacity, in, len);
	return ZSTD_isError(n) || n >= len ? 0 : n;
}

static int stretch(struct kvc_codec_work *w, const uint8_t *in, size_t stored, uint8_t *out,
		   size_t len)
{
	/* the size that the frame states may be false; `len` bounds the output */
	return ZSTD_decompressDCtx(w->d, out, len, in, stored) == len ? 0 : -EBADMSG;
}

static double entropy(const uint32_t h[256], uint32_t n)
{
	double bits = 0;

	for (int i = 0; i < 256; i++)
		if (h[i])
			bits -= h[i] * log2((double)h[i] / n);
	return n ? bits / n / 8 : 1;
}

struct estimate {
	double hi, lo, all; /* estimated stored length per byte */
};

static struct estimate estimate_sizes(const uint8_t *in, size_t len)
{
	uint32_t hi[256] = { 0 }, lo[256] = { 0 }, all[256], n = 0;
	size_t elements = len / 2, run = SAMPLES / RUNS, step = elements / RUNS;

	for (size_t r = 0; r < RUNS && step; r++)
		for (size_t i = r * step; i < r * step + (run < step ? run : step); i++, n++) {
			lo[in[2 * i]]++;
			hi[in[2 * i + 1]]++;
		}
	for (int i = 0; i < 256; i++)
		all[i] = hi[i] + lo[i];
	return (struct estimate){ entropy(hi, n), entropy(lo, n), entropy(all, 2 * n) };
}

/* Probes each page for a stretch of one value, such as the padding of a partly filled cache. */
static int plane_level(const uint8_t *in, size_t len)
{
	for (size_t at = 0; at + 32 <= len; at += KVC_PAGE / 2)
		if (!memcmp(in + at, in + at + 1, 31))
			return SPARSE;
	return FAST;
}

static size_t plane(struct kvc_codec_work *w, double promise, const uint8_t *in, size_t len,
		    uint8_t *out, size_t capacity)
{
	size_t n = promise < GAIN ? squeeze(w, plane_level(in, len), in, len, out, capacity) : 0;

	if (!n) {
		memcpy(out, in, len);
		n = len;
	}
	return n;
}

static size_t split_planes(struct kvc_codec_work *w, const struct estimate *l, const uint8_t *in,
			   size_t len, uint8_t *out)
{
	size_t half = len / 2, at = 8, n;
	uint32_t stored[2];

	for (size_t i = 0; i < half; i++) {
		w->lo[i] = in[2 * i];
		w->hi[i] = in[2 * i + 1];
	}
	at += n = plane(w, l->hi, w->hi, half, out + at, KVC_BLOCK_ROOM - at);
	stored[0] = htole32((uint32_t)n);
	if (at + half + 8 > KVC_BLOCK_ROOM)
		return 0;
	at += n = plane(w, l->lo, w->lo, half, out + at, KVC_BLOCK_ROOM - at);
	stored[1] = htole32((uint32_t)n);
	if (len & 1)
		out[at++] = in[len - 1];
	memcpy(out, stored, 8);
	return at < len ? at : 0;
}

static int join(struct kvc_codec_work *w, const uint8_t *in, size_t stored, uint8_t *out,
		size_t len)
{
	size_t half = len / 2, n[2];
	uint32_t word[2];
	const uint8_t *from[2] = { in + 8, NULL };
	uint8_t *to[2] = { w->hi, w->lo };

	if (stored < 8)
		return -EBADMSG;
	memcpy(word, in, 8);
	n[0] = le32toh(word[0]);
	n[1] = le32toh(word[1]);
	if (n[0] > half || n[1] > half || 8 + n[0] + n[1] + (len & 1) != stored)
		return -EBADMSG;
	from[1] = from[0] + n[0];
	for (int p = 0; p < 2; p++) {
		if (n[p] == half)
			to[p] = NULL; /* raw: read in place */
		else if (stretch(w, from[p], n[p], to[p], half))
			return -EBADMSG;
	}
	const uint8_t *hi = to[0] ? to[0] : from[0], *lo = to[1] ? to[1] : from[1];

	for (size_t i = 0; i < half; i++) {
		out[2 * i] = lo[i];
		out[2 * i + 1] = hi[i];
	}
	if (len & 1)
		out[len - 1] = in[stored - 1];
	return 0;
}

static size_t encode_zstd(struct kvc_codec_work *w, int level, const uint8_t *in, size_t len,
			  uint8_t *out, uint32_t *kind)
{
	*kind = KVC_KIND_ZSTD;
	return squeeze(w, level, in, len, out, KVC_BLOCK_ROOM);
}

static size_t encode_bf16(struct kvc_codec_work *w, int level, const uint8_t *in, size_t len,
			  uint8_t *out, uint32_t *kind)
{
	struct estimate l = estimate_sizes(in, len);
	double planes = ((l.hi < GAIN ? l.hi : 1) + (l.lo < GAIN ? l.lo : 1)) / 2;

	(void)level;
	if (len >= 64 && planes < GAIN && planes <= l.all) {
		*kind = KVC_KIND_PLANES;
		return split_planes(w, &l, in, len, out);
	}
	*kind = KVC_KIND_ZSTD;
	return l.all < GAIN ? squeeze(w, plane_level(in, len), in, len, out, KVC_BLOCK_ROOM) : 0;
}

static size_t (*const encoders[KVC_CODECS])(struct kvc_codec_work *, int, const uint8_t *, size_t,
					    uint8_t *, uint32_t *) = {
	[KVC_CODEC_ZSTD] = encode_zstd,
	[KVC_CODEC_BF16] = encode_bf16,
};

static int decode_raw(struct kvc_codec_work *w, const uint8_t *in, size_t stored, uint8_t *out,
		      size_t len)
{
	(void)w;
	if (stored != len)
		return -EBADMSG;
	if (out != in)
		memcpy(out, in, len);
	return 0;
}

/* Returns the memory for kvq, or NULL. charge() counts it later, as it does contexts that grow. */
static struct kvc_kvq *work_kvq(struct kvc_codec_work *w)
{
	w->q = w->q ?: kvc_kvq_new();
	return w->q;
}

static int decode_kvq(struct kvc_codec_work *w, const uint8_t *in, size_t stored, uint8_t *out,
		      size_t len)
{
	const uint8_t *from;
	size_t n, from_len;
	uint8_t *sym;
	int err;

	if (!work_kvq(w))
		return -ENOMEM;
	err = kvc_kvq_open(w->q, in, stored, len, &sym, &n, &from, &from_len);
	if (err)
		return err;
	if (from_len == n)
		memcpy(sym, from, n);
	else if (stretch(w, from, from_len, sym, n))
		return -EBADMSG;
	return kvc_kvq_decode(w->q, out);
}

static int (*const decoders[KVC_KINDS])(struct kvc_codec_work *, const uint8_t *, size_t, uint8_t *,
					size_t) = {
	[KVC_KIND_RAW] = decode_raw,
	[KVC_KIND_ZSTD] = stretch,
	[KVC_KIND_PLANES] = join,
	[KVC_KIND_KVQ] = decode_kvq,
};

size_t kvc_codec_encode(struct kvc_codec_work *w, enum kvc_codec codec, int level,
			const uint8_t *in, size_t len, uint8_t *out, uint32_t *kind)
{
	size_t n = codec < KVC_CODECS && encoders[codec]
			   ? encoders[codec](w, level, in, len, out, kind)
			   : 0;

	/* tiers allocate pages, so saving less than a page is useless */
	if (n + (len > 2 * KVC_PAGE ? KVC_PAGE : 0) >= len)
		n = 0;
	if (!n)
		*kind = KVC_KIND_RAW;
	return n;
}

int kvc_codec_decode(struct kvc_codec_work *w, uint32_t kind, const uint8_t *in, size_t stored,
		     uint8_t *out, size_t len)
{
	if (kind >= KVC_KINDS || len > KVC_BLOCK || stored > KVC_BLOCK)
		return -EBADMSG;
	return decoders[kind](w, in, stored, out, len);
}

/*
 * Compresses the symbols of a block whose other parts have n bytes in out. Returns the length of
 * the block, or 0 if it is not below `limit`. fp8 is for speed, so its symbols are not compressed.
 */
static size_t append_symbols(struct kvc_codec_work *w, bool fp8, const uint8_t *sym, size_t nsym,
			     uint8_t *out, size_t n, size_t limit)
{
	size_t m = fp8 || n >= limit ? 0 : squeeze(w, FAST, sym, nsym, out + n, KVC_BLOCK_ROOM - n);

	m = m ? m : nsym;
	if (n + m >= limit)
		return 0;
	if (m == nsym)
		memcpy(out + n, sym, nsym);
	kvc_kvq_finish(w->q, out, m);
	return n + m;
}

/* Estimates, from a sample, the length that the block would have if it were coded without loss. */
static double lossless_len(const uint8_t *in, size_t len)
{
	struct estimate l = estimate_sizes(in, len);
	double planes = ((l.hi < GAIN ? l.hi : 1) + (l.lo < GAIN ? l.lo : 1)) / 2;

	return (double)len * (planes < l.all ? planes : l.all);
}

size_t kvc_codec_encode_kv(struct kvc_codec_work *w, const struct kvc_codec_kv *kv, uint64_t off,
			   const uint8_t *in, size_t len, uint8_t *out, uint32_t *kind,
			   uint8_t *back, struct kvc_kvq_loss *loss)
{
	size_t n, nsym, limit = (size_t)(LOSSY_GAIN * lossless_len(in, len));
	const uint8_t *sym;
	unsigned settings = 0;

	*loss = (struct kvc_kvq_loss){ 0 };
	if (len > 2 * KVC_PAGE)
		limit = kvc_min(limit, len - KVC_PAGE);
	if (work_kvq(w))
		settings = kvc_kvq_start(w->q, kv->code, &kv->layout, kv->vectors, off, in, len);
	*kind = KVC_KIND_KVQ;
	for (unsigned s = 0; s < settings; s++) {
		n = kvc_kvq_encode(w->q, s, out, KVC_BLOCK_ROOM, &sym, &nsym, back);
		if (!n)
			break; /* a finer setting would be longer */
		if (!kvc_kvq_judge(w->q, back, out, loss))
			continue;
		n = append_symbols(w, kv->code == KVC_KVQ_FP8, sym, nsym, out, n, limit);
		if (n)
			return n;
		break;
	}
	*loss = (struct kvc_kvq_loss){ 0 };
	return kvc_codec_encode(w, KVC_CODEC_BF16, 0, in, len, out, kind);
}

struct kvc_library kvc_codec_library(void)
{
	return (struct kvc_library){ "zstd", ZSTD_versionString(),
				     (const void *)ZSTD_versionString };
}
