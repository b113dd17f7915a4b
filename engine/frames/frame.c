/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Encoding and decoding of frame headers and range tables; see frame.h. The structs are the layout
 * on disk. All integers are little endian.
 */
#include "tier.h"

#include <endian.h>
#include <stdio.h>
#include <string.h>

static const char magic[] = "KVCFRAME";

/* Packed: a page may have any alignment. */
struct identity {
	char magic[8];
	uint32_t version, flags;
	uint8_t store[16];
	uint64_t ino, gen, size, raw_len, stored_len;
	uint32_t codec, key_id;
	uint8_t raw_sum[16], stored_sum[16];
	uint8_t nonce[12], pad[4];
	char key_model[KVC_MODEL_NAME + 1];
	uint8_t proof[16]; /* covers this part, with proof and sum as zero */
	uint32_t error_ppm, worst_ppm;
	uint8_t reserved[KVC_FRAME_IDENTITY - 128 - (KVC_MODEL_NAME + 1) - 32 - 8];
	uint8_t sum[16]; /* covers the preceding bytes of this part */
} __attribute__((packed));
_Static_assert(sizeof(struct identity) == KVC_FRAME_IDENTITY, "identity part");

struct name_part {
	uint32_t mode, uid, gid, path_len;
	uint64_t mtime_ns, btime_ns;
	char path[KVC_FRAME_PATH_MAX];
	/* covers the identity's proof, and this part up to the end of the path */
	uint8_t proof[16];
	uint8_t reserved[KVC_FRAME_HEADER - KVC_FRAME_IDENTITY - 32 - KVC_FRAME_PATH_MAX - 32];
	uint8_t sum[16];
} __attribute__((packed));
_Static_assert(sizeof(struct name_part) == KVC_FRAME_HEADER - KVC_FRAME_IDENTITY, "name part");

static void put_identity(const struct kvc_frame *f, struct identity *id)
{
	memset(id, 0, sizeof *id);
	memcpy(id->magic, magic, sizeof id->magic);
	id->version = htole32(KVC_FRAME_VERSION);
	id->flags = htole32(f->flags);
	memcpy(id->store, f->store, 16);
	id->ino = htole64(f->ino);
	id->gen = htole64(f->gen);
	id->size = htole64(f->size);
	id->raw_len = htole64(f->raw_len);
	id->stored_len = htole64(f->stored_len);
	id->codec = htole32(f->codec);
	id->key_id = htole32(f->key_id);
	id->error_ppm = htole32(f->error_ppm);
	id->worst_ppm = htole32(f->worst_ppm);
	memcpy(id->raw_sum, f->raw_sum.b, 16);
	memcpy(id->stored_sum, f->stored_sum.b, 16);
	memcpy(id->nonce, f->nonce, 12);
	memcpy(id->key_model, f->key_model, strlen(f->key_model));
}

/* Returns the number of bytes of the name part that its proof covers. */
static size_t put_name(const struct kvc_frame *f, struct name_part *np)
{
	size_t plen = strlen(f->path);

	memset(np, 0, sizeof *np);
	np->mode = htole32(f->mode);
	np->uid = htole32(f->uid);
	np->gid = htole32(f->gid);
	np->path_len = htole32((uint32_t)plen);
	np->mtime_ns = htole64(f->mtime_ns);
	np->btime_ns = htole64(f->btime_ns);
	memcpy(np->path, f->path, plen);
	return offsetof(struct name_part, path) + plen;
}

void kvc_frame_encode(const struct kvc_frame *f, uint8_t page[KVC_FRAME_HEADER])
{
	struct identity *id = (struct identity *)page;
	struct name_part *np = (struct name_part *)(page + KVC_FRAME_IDENTITY);
	struct kvc_sum s;

	put_identity(f, id);
	memcpy(id->proof, f->proof.b, 16);
	s = kvc_sum_of(id, offsetof(struct identity, sum));
	memcpy(id->sum, s.b, 16);
	put_name(f, np);
	memcpy(np->proof, f->name_proof.b, 16);
	s = kvc_sum_of(np, offsetof(struct name_part, sum));
	memcpy(np->sum, s.b, 16);
}

/*
 * Computes both proofs from the fields of f. Bytes of the page that are in no field do not matter.
 */
static int proofs(const struct kvc_frame *f, const uint8_t key[32], struct kvc_sum *of_identity,
		  struct kvc_sum *of_name)
{
	struct identity id;
	struct name_part np;
	size_t len = put_name(f, &np);
	int err;

	put_identity(f, &id);
	err = kvc_keys_mac(key, &id, sizeof id, "", 0, of_identity->b);
	return err ?: kvc_keys_mac(key, of_identity->b, 16, &np, len, of_name->b);
}

int kvc_frame_prove(struct kvc_frame *f, const uint8_t key[32])
{
	return proofs(f, key, &f->proof, &f->name_proof);
}

/* Compares in constant time. */
static bool same(const struct kvc_sum *a, const struct kvc_sum *b)
{
	unsigned diff = 0;

	for (int i = 0; i < 16; i++)
		diff |= a->b[i] ^ b->b[i];
	return !diff;
}

int kvc_frame_proven(const struct kvc_frame *f, const uint8_t key[32], enum kvc_proven *out)
{
	struct kvc_sum of_identity, of_name;
	int err = proofs(f, key, &of_identity, &of_name);

	if (err)
		return err;
	if (!same(&f->proof, &of_identity))
		*out = KVC_PROVEN_NOTHING;
	else
		*out = same(&f->name_proof, &of_name) ? KVC_PROVEN_ALL : KVC_PROVEN_IDENTITY;
	return 0;
}

void kvc_frame_unname(struct kvc_frame *f)
{
	f->mode = f->uid = f->gid = 0;
	f->mtime_ns = f->btime_ns = 0;
	memset(f->path, 0, sizeof f->path);
}

int kvc_frame_decode(const uint8_t page[KVC_FRAME_HEADER], struct kvc_frame *f)
{
	const struct identity *id = (const struct identity *)page;
	const struct name_part *np = (const struct name_part *)(page + KVC_FRAME_IDENTITY);
	struct kvc_sum s = kvc_sum_of(id, offsetof(struct identity, sum));

	if (memcmp(id->magic, magic, sizeof id->magic) || memcmp(s.b, id->sum, 16))
		return -EBADMSG;
	if (le32toh(id->version) != KVC_FRAME_VERSION)
		return -EPROTO;
	memset(f, 0, sizeof *f);
	memcpy(f->store, id->store, 16);
	f->flags = le32toh(id->flags);
	f->ino = le64toh(id->ino);
	f->gen = le64toh(id->gen);
	f->size = le64toh(id->size);
	f->raw_len = le64toh(id->raw_len);
	f->stored_len = le64toh(id->stored_len);
	f->codec = le32toh(id->codec);
	f->key_id = le32toh(id->key_id);
	f->error_ppm = le32toh(id->error_ppm);
	f->worst_ppm = le32toh(id->worst_ppm);
	memcpy(f->raw_sum.b, id->raw_sum, 16);
	memcpy(f->stored_sum.b, id->stored_sum, 16);
	memcpy(f->nonce, id->nonce, 12);
	memcpy(f->key_model, id->key_model, KVC_MODEL_NAME);
	memcpy(f->proof.b, id->proof, 16);
	if (f->size >> 62 || f->raw_len >> 62 || f->stored_len >> 62)
		return -EBADMSG;

	s = kvc_sum_of(np, offsetof(struct name_part, sum));
	if (!memcmp(s.b, np->sum, 16) && le32toh(np->path_len) <= KVC_FRAME_PATH_MAX) {
		f->mode = le32toh(np->mode);
		f->uid = le32toh(np->uid);
		f->gid = le32toh(np->gid);
		f->mtime_ns = le64toh(np->mtime_ns);
		f->btime_ns = le64toh(np->btime_ns);
		memcpy(f->path, np->path, le32toh(np->path_len));
		memcpy(f->name_proof.b, np->proof, 16);
	}
	return 0;
}

/* A range table: u64 count, then (offset, length) pairs, padded to a page. */

size_t kvc_frame_ranges_size(uint64_t n)
{
	return n > KVC_RANGES_MAX ? 0 : (size_t)kvc_round_up(8 + n * 16, KVC_PAGE);
}

void kvc_frame_ranges_encode(const struct kvc_range *r, size_t n, uint8_t *out)
{
	uint64_t *w = (uint64_t *)out;

	memset(out, 0, kvc_frame_ranges_size(n));
	*w++ = htole64(n);
	for (size_t i = 0; i < n; i++) {
		*w++ = htole64(r[i].off);
		*w++ = htole64(r[i].len);
	}
}

int kvc_frame_ranges_decode(const uint8_t *in, size_t len, uint64_t size, struct kvc_range **out,
			    size_t *n_out)
{
	const uint64_t *w = (const uint64_t *)in;
	uint64_t n, end = 0;
	KVC_MEM struct kvc_range *r = NULL;

	if (len < 8 || (n = le64toh(*w++)) > KVC_RANGES_MAX || kvc_frame_ranges_size(n) > len)
		return -EBADMSG;
	r = calloc(n ? n : 1, sizeof *r);
	if (!r)
		return -ENOMEM;
	for (uint64_t i = 0; i < n; i++) {
		r[i].off = le64toh(*w++);
		r[i].len = le64toh(*w++);
		/* no encoder writes an empty range, and fallocate of 0 bytes fails */
		if (!r[i].len || r[i].off < end || r[i].len > size || r[i].off > size - r[i].len)
			return -EBADMSG;
		end = r[i].off + r[i].len;
	}
	*out = r;
	r = NULL;
	*n_out = n;
	return 0;
}

struct kvc_where kvc_frame_where_of(const char *path)
{
	struct kvc_sum s = kvc_sum_of(path, strlen(path));
	struct kvc_where w = { 0 };

	memcpy(&w.at, s.b, 8);
	memcpy(&w.hi, s.b + 8, 8);
	w.at = be64toh(w.at);
	w.hi = be64toh(w.hi);
	return w;
}

const char *kvc_frame_where_text(const struct kvc_where *w, char *buf)
{
	snprintf(buf, 33, "%016llx%016llx", (unsigned long long)w->at, (unsigned long long)w->hi);
	return buf;
}

struct kvc_frame *kvc_frame_new(void)
{
	return calloc(1, sizeof(struct kvc_frame));
}
