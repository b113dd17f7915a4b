/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Frames for other nodes, made from objects in the pool; see serve.h. A frame in the disk tier
 * cannot be sent as it is stored: it is proven by the store's own secret, and it is not bound to
 * its path. So an object that only the disk has is loaded, as by a local open, and sent from the
 * pool.
 *
 * A peer first reads the header of a frame, and later accepts only a frame with the checksum in
 * that header. So the same object must give the same frame each time. A plain frame does. The nonce
 * of a sealed frame is therefore not random, but synthetic:
 *
 *   digest = a chain of GMACs over the whole payload, which stays secret (digest_object)
 *   nonce  = HMAC-SHA256(header key, header with the digest in the place of the checksum)
 *
 * Different payloads must never have the same nonce, because the frame key depends on nothing else
 * that is certain to change. The generation is not: a file that was changed through a mapping may
 * keep its generation and its times, and a copied store has the same generations. Nor is the
 * checksum XXH3: whoever chooses the contents can make two files with the same checksum. GMAC is a
 * universal hash. Without its key, nobody can find two payloads with the same digest, except with a
 * probability of 2^-114 for each STEP bytes. Nobody can learn anything about the key, since a
 * digest is used only as an input of the HMAC, whose output is random to everybody without its key.
 * Equal nonces only tell that two frames are equal. This is the construction of AES-GCM-SIV
 * (RFC 8452).
 *
 * The header of a frame has a checksum of the whole payload, so the server remembers the last SUMS
 * checksums and digests. Every open for writing gives the object a new epoch, so a remembered
 * digest is never one of other bytes.
 *
 * The open file (n->refs.opens) keeps the object in the pool. If a client opens it for writing, its
 * bytes may change, and the read ends with an error (n->segment.epoch tells).
 *
 * The server's threads run this code. struct kvc_server has a lock for its table; no other lock is
 * taken under it.
 */
#include "serve.h"

#include "cache.h"
#include "copy.h"
#include "file.h"
#include "folders.h"
#include "incomplete.h"
#include "ops.h"
#include "path.h"
#include "payload.h"
#include "proof.h"
#include "tier_queue.h"

#include <fcntl.h>
#include <string.h>
#include <xxhash.h>

#define SUMS 8192u               /* a power of 2 */
#define SPARSE_GAIN (256u << 10) /* files with holes of this many bytes are not served */
#define STEP (256u << 10)
#define AT_ONCE 64u /* paths that are looked up under one hold of the locks */

/* The bytes of an object, and the key that seals them. Has no padding. */
struct sum_id {
	uint64_t ino, gen, size, mtime_ns, epoch;
	uint32_t flags, key_id;
	struct kvc_sum key_model;
};

struct sum_row {
	struct sum_id id;
	struct kvc_sum raw; /* the checksum of the bytes, or with keys their digest */
	/* the checksum of the payload that was sealed with this nonce; zero: none */
	uint8_t nonce[16];
	struct kvc_sum stored;
};
_Static_assert(sizeof(struct sum_id) == 64, "no padding");

struct kvc_server {
	struct kvc *k;
	pthread_mutex_t lock;
	struct sum_row rows[SUMS];
};

struct kvc_served {
	struct kvc_server *v;
	struct kvc_node *n; /* with a reference, or NULL: a folder */
	bool opened;
	bool ready; /* page has the header */
	int fd;     /* of the segment, owned by the engine; valid while `opened` */
	uint64_t epoch;
	struct kvc_frame *f;
	struct sum_row sums;
	struct kvc_encoder *enc; /* a sealed payload that is being read */
	uint64_t at;             /* bytes of the payload that enc has given */
	char path[KVC_FRAME_PATH_MAX + 1];
	uint8_t page[KVC_FRAME_HEADER];
};

struct kvc_server *kvc_server_new(struct kvc *k)
{
	struct kvc_server *v = calloc(1, sizeof *v);

	if (v) {
		v->k = k;
		pthread_mutex_init(&v->lock, NULL);
	}
	return v;
}

void kvc_server_free(struct kvc_server *v)
{
	if (v)
		pthread_mutex_destroy(&v->lock);
	free(v);
}

static struct sum_row *sum_row_of(struct kvc_server *v, const struct sum_id *id)
{
	struct kvc_sum sum = kvc_sum_of(id, sizeof *id);
	uint64_t hash;

	memcpy(&hash, sum.b, sizeof hash);
	return &v->rows[hash % SUMS];
}

/* Fills s->sums with the checksums of these bytes if they are remembered. */
static bool sums_known(struct kvc_served *s)
{
	const struct kvc_frame *f = s->f;
	const struct sum_row *row;
	bool known;

	s->sums = (struct sum_row){ 0 };
	s->sums.id = (struct sum_id){
		.ino = f->ino,
		.gen = f->gen,
		.size = f->size,
		.mtime_ns = f->mtime_ns,
		.epoch = s->epoch,
		.flags = f->flags,
		.key_id = f->key_id,
		.key_model = kvc_sum_of(f->key_model, strlen(f->key_model)),
	};
	row = sum_row_of(s->v, &s->sums.id);
	pthread_mutex_lock(&s->v->lock);
	known = !memcmp(&row->id, &s->sums.id, sizeof row->id);
	if (known)
		s->sums = *row;
	pthread_mutex_unlock(&s->v->lock);
	return known;
}

/* Remembers the checksums. The object has not changed while they were computed. */
static void sums_remember(const struct kvc_served *s)
{
	pthread_mutex_lock(&s->v->lock);
	*sum_row_of(s->v, &s->sums.id) = s->sums;
	pthread_mutex_unlock(&s->v->lock);
}

/* ---- the frame ---- */

/* Fills in the frame of a published file, except for its checksums. */
static int frame_fill_both(struct kvc_served *s)
{
	struct kvc *k = s->v->k;
	struct kvc_node *n = s->n;
	struct kvc_frame *f = s->f;
	int err;

	memset(f, 0, sizeof *f);
	memcpy(f->store, k->shared ? k->shared_id : k->store->uuid, sizeof f->store);
	f->ino = n->row.ino;
	f->gen = n->object.gen;
	f->size = f->raw_len = f->stored_len = n->object.size;
	f->flags = KVC_FRAME_SHARED | (n->object.decoded ? KVC_FRAME_DECODED : 0);
	if (n->object.decoded)
		kvc_file_error_locked(k, n, &f->error_ppm, &f->worst_ppm);
	if ((err = kvc_path_frame_name_both(k, n, f)))
		return err;
	snprintf(f->path, sizeof f->path, "%s", s->path); /* a file may have several names */
	kvc_path_model_name(f->path, f->key_model);
	f->key_id = k->keys ? kvc_keys_for(k->keys, f->key_model) : 0;
	return k->keys && !f->key_id ? -ENOENT : 0;
}

static int segment_read(void *arg, void *buf, size_t len, uint64_t off)
{
	const struct kvc_served *s = arg;

	return len ? kvc_pread_all(s->fd, buf, len, (off_t)off) : 0;
}

/* Derives the key of digests from the header key of the object's model. */
static int digest_key(const struct kvc_served *s, uint8_t key[32])
{
	static const char info[] = "kvcachefs peer digest 1";
	uint8_t header[32];
	int err = kvc_keys_header_key(s->v->k->keys, s->f->key_id, s->f->key_model, header);

	err = err ?: kvc_keys_hkdf(header, sizeof header, "", 0, info, sizeof info - 1, key, 32);
	kvc_keys_wipe(header, sizeof header);
	return err;
}

/*
 * Computes the digest of the object's bytes: the last of the tags
 *
 *   tag i = GMAC(key, nonce i, tag i - 1 and the next STEP bytes)
 *
 * The nonces repeat from object to object. This does no harm, because the tags are secret.
 */
static int digest_object(struct kvc_served *s, struct kvc_sum *digest)
{
	KVC_MEM uint8_t *buf = malloc(sizeof digest->b + STEP);
	uint64_t off = 0, i = 0;
	uint8_t key[32];
	int err = buf ? digest_key(s, key) : -ENOMEM;

	*digest = (struct kvc_sum){ 0 };
	while (!err && off < s->f->size) {
		size_t len = kvc_min(STEP, s->f->size - off);

		memcpy(buf, digest->b, sizeof digest->b);
		err = kvc_pread_all(s->fd, buf + sizeof digest->b, len, (off_t)off);
		err = err
			      ?: kvc_keys_seal(key, i++, buf, sizeof digest->b + len, NULL, 0, NULL,
					       digest->b);
		off += len;
	}
	kvc_keys_wipe(key, sizeof key);
	return err;
}

/* Sets the checksum, or with keys the digest, of the object's bytes, which are in the pool. */
static int sum_object(struct kvc_served *s)
{
	int err = 0;

	if (!sums_known(s))
		err = s->v->k->keys ? digest_object(s, &s->sums.raw)
				    : kvc_copy_sum(s->fd, s->f->size, &s->sums.raw);
	s->f->raw_sum = s->sums.raw;
	return err;
}

/* Starts to make the sealed payload, from its first byte. */
static int seal_begin(struct kvc_served *s)
{
	struct kvc_recipe r = {
		.keys = s->v->k->keys,
		.key_id = s->f->key_id,
		.nonce = s->sums.nonce,
	};

	kvc_payload_encoder_free(s->enc);
	s->enc = NULL;
	s->at = 0;
	return kvc_payload_encoder_new(&s->enc, s->f, &r, segment_read, s);
}

/* Sums the sealed payload. Reads it to its end. */
static int seal_sum(struct kvc_served *s, struct kvc_sum *sum)
{
	KVC_MEM uint8_t *buf = malloc(STEP);
	XXH3_state_t *x = XXH3_createState();
	int err = buf && x ? 0 : -ENOMEM;

	if (x)
		XXH3_128bits_reset(x);
	while (!err && s->at < s->f->stored_len) {
		size_t len = kvc_min(STEP, s->f->stored_len - s->at);

		err = kvc_payload_encoder_read(s->enc, buf, len);
		if (!err)
			XXH3_128bits_update(x, buf, len);
		s->at += len;
	}
	if (!err)
		*sum = kvc_sum_digest(x);
	XXH3_freeState(x);
	return err;
}

/* Computes the nonce, which depends on all bytes of the frame, and seals the payload once. */
static int seal_frame(struct kvc_served *s)
{
	struct kvc_frame *f = s->f;
	uint8_t key[32], nonce[16];
	bool known;
	int err = kvc_keys_header_key(s->v->k->keys, f->key_id, f->key_model, key);

	kvc_frame_encode(f, s->page); /* with the digest as raw_sum */
	err = err ?: kvc_keys_mac(key, s->page, sizeof s->page, "peer nonce", 10, nonce);
	kvc_keys_wipe(key, sizeof key);
	if (err)
		return err;
	known = !memcmp(nonce, s->sums.nonce, sizeof nonce);
	memcpy(s->sums.nonce, nonce, sizeof nonce);
	f->raw_sum = (struct kvc_sum){ 0 };
	err = seal_begin(s);
	if (!err && !known)
		err = seal_sum(s, &s->sums.stored);
	f->stored_sum = s->sums.stored;
	return err;
}

static int frame_finish(struct kvc_served *s)
{
	int err = 0;

	if (s->v->k->keys)
		err = seal_frame(s);
	else
		s->f->stored_sum = s->f->raw_sum;
	err = err ?: kvc_proof_add(s->v->k, true, s->f);
	kvc_frame_encode(s->f, s->page);
	s->ready = !err;
	return err;
}

/* ---- finding ---- */

static int walk_component_both(struct kvc *k, const char *name, uint64_t *ino)
{
	struct kvc_node *folder;
	uint32_t kind;
	int err;

	if (!*name || !strcmp(name, ".") || !strcmp(name, "..") || strlen(name) > 255)
		return -ENOENT;
	err = kvc_node_get_both(k, *ino, &folder);
	if (err)
		return err;
	if (!S_ISDIR(folder->row.mode) || kvc_incomplete_hides_both(k, folder, name))
		err = -ENOENT;
	err = err ?: kvc_name_get(k->cat, *ino, name, ino, &kind);
	kvc_node_settle_locked(k, folder);
	return err;
}

static int serve_walk_both(struct kvc *k, const char *path, struct kvc_node **n)
{
	uint64_t ino = KVC_ROOT;
	char name[257];
	int err = 0;

	do {
		size_t len = strcspn(path, "/");

		snprintf(name, sizeof name, "%.*s", (int)kvc_min(len, 256), path);
		err = walk_component_both(k, name, &ino);
		path += len;
	} while (!err && *path++);
	return err ?: kvc_node_get_both(k, ino, n);
}

int kvc_serve_may_locked(struct kvc *k, const struct kvc_node *n)
{
	if (!S_ISREG(n->row.mode) || kvc_node_gone(n) || n->commit.lost ||
	    n->row.blocks * 512 + SPARSE_GAIN < n->object.size || n->state == KVC_OPEN)
		return -ENOENT;
	if (n->state == KVC_RESIDENT || n->state == KVC_BOTH)
		return 0;
	if (!k->tier[KVC_DISK].t || !kvc_file_placed_in(n, KVC_DISK))
		return -ENOENT;
	return kvc_tier_out_locked(k, KVC_DISK, KVC_CALL_READ) ? -EIO : 0;
}

/* Fills in the whole header from the catalog, if it is known without the object's bytes. */
static int frame_of_lower_both(struct kvc_served *s)
{
	const struct kvc_place *p = &s->n->in[KVC_DISK].place;
	struct kvc_sum sum;
	int err;

	if (s->n->state != KVC_LOWER || s->v->k->keys || kvc_place_lossy(p) ||
	    !kvc_place_raw(&s->n->object, p, &sum))
		return 0;
	err = frame_fill_both(s);
	s->f->raw_sum = s->f->stored_sum = sum;
	s->ready = !err;
	if (s->ready)
		kvc_frame_encode(s->f, s->page);
	return err;
}

static int find_both(struct kvc_served *s, bool head)
{
	struct kvc *k = s->v->k;
	struct kvc_node *n;
	int err = serve_walk_both(k, s->path, &n);

	if (err)
		return err;
	if (S_ISDIR(n->row.mode)) {
		s->f->ino = n->row.ino;
		err = kvc_path_frame_name_both(k, n, s->f);
	} else if (!(err = kvc_serve_may_locked(k, n))) {
		kvc_node_ref_locked(n);
		s->n = n;
		err = head ? frame_of_lower_both(s) : 0;
	}
	kvc_node_settle_locked(k, n);
	return err;
}

int kvc_serve_find(struct kvc_server *v, const char *path, bool head, struct kvc_served **out)
{
	struct kvc_served *s = strlen(path) <= KVC_FRAME_PATH_MAX ? calloc(1, sizeof *s) : NULL;
	int err;

	if (!s)
		return strlen(path) <= KVC_FRAME_PATH_MAX ? -ENOMEM : -ENOENT;
	s->v = v;
	s->fd = -1;
	snprintf(s->path, sizeof s->path, "%s", path);
	s->f = kvc_frame_new();
	err = s->f ? 0 : -ENOMEM;
	if (!err) {
		kvc_lock_both(v->k);
		err = find_both(s, head);
		kvc_unlock_both(v->k);
	}
	if (!err && !s->n) {
		err = strcmp(s->f->path, path) ? -ENOENT : kvc_folders_frame(v->k, s->f);
		err = err == -ENOKEY ? -ENOENT : err;
		if (!err)
			kvc_frame_encode(s->f, s->page);
		s->ready = !err;
	}
	if (err)
		kvc_serve_close(s);
	else
		*out = s;
	return err;
}

int kvc_serve_path(struct kvc *k, const char *path, uint64_t *ino)
{
	struct kvc_node *n;
	int err;

	*ino = KVC_ROOT;
	if (!strcmp(path, "."))
		return 0;
	if (strlen(path) > KVC_FRAME_PATH_MAX)
		return -ENOENT;
	kvc_lock_both(k);
	err = serve_walk_both(k, path, &n);
	if (!err) {
		*ino = n->row.ino;
		kvc_node_settle_locked(k, n);
	}
	kvc_unlock_both(k);
	return err;
}

bool kvc_serve_may_have_both(struct kvc *k, const char *path)
{
	struct kvc_node *n;
	int err;

	if (strlen(path) > KVC_FRAME_PATH_MAX || serve_walk_both(k, path, &n))
		return false;
	/* -EIO: the disk does not answer now, which a request for the object is told */
	err = S_ISDIR(n->row.mode) ? 0 : kvc_serve_may_locked(k, n);
	kvc_node_settle_locked(k, n);
	return err != -ENOENT;
}

void kvc_serve_have(struct kvc_server *v, const char *paths, size_t n, uint8_t *bits)
{
	memset(bits, 0, (n + 7) / 8);
	kvc_lock_both(v->k);
	for (size_t i = 0; i < n; i++, paths += strlen(paths) + 1) {
		if (kvc_serve_may_have_both(v->k, paths))
			bits[i / 8] |= (uint8_t)(1u << i % 8);
		if ((i + 1) % AT_ONCE == 0)
			kvc_pause_both(v->k);
	}
	kvc_unlock_both(v->k);
}

/* ---- reading ---- */

static bool is_unchanged(struct kvc_served *s)
{
	struct kvc *k = s->v->k;
	bool is;

	kvc_lock(k);
	is = (s->n->state == KVC_RESIDENT || s->n->state == KVC_BOTH) &&
	     s->n->segment.epoch == s->epoch && s->n->object.gen == s->f->gen;
	kvc_unlock(k);
	return is;
}

int kvc_serve_open(struct kvc_served *s, struct kvc_wait *w)
{
	struct kvc *k = s->v->k;
	struct kvc_opened opened;
	int err;

	if (s->ready)
		return 0;
	err = kvc_open_file(k, s->n->row.ino, O_RDONLY, &opened, w);
	if (err) /* a failed load is a miss for a local reader, but the object is not missing */
		return err == -ENOENT ? -EIO : err;
	s->opened = true;
	s->fd = kvc_open_fd(k, s->n->row.ino);
	if (s->fd < 0)
		return s->fd;
	kvc_lock_both(k);
	s->epoch = s->n->segment.epoch;
	err = s->n->state == KVC_RESIDENT || s->n->state == KVC_BOTH ? frame_fill_both(s) : -ENOENT;
	kvc_unlock_both(k);
	err = err ?: sum_object(s) ?: frame_finish(s);
	err = err ?: is_unchanged(s) ? 0 : -ENOENT;
	if (!err)
		sums_remember(s);
	return err;
}

uint64_t kvc_serve_length(const struct kvc_served *s)
{
	return KVC_FRAME_HEADER + kvc_round_up(s->f->stored_len, KVC_PAGE);
}

const uint8_t *kvc_serve_header(const struct kvc_served *s)
{
	return s->page;
}

/* Copies bytes of the sealed payload. Skips to `off`; starts again if the encoder is past it. */
static int read_sealed(struct kvc_served *s, uint64_t off, uint8_t *buf, size_t len)
{
	int err = !s->enc || s->at > off ? seal_begin(s) : 0;

	while (!err && s->at < off) {
		KVC_MEM uint8_t *skipped = malloc(STEP);
		size_t n = kvc_min(STEP, off - s->at);

		err = skipped ? kvc_payload_encoder_read(s->enc, skipped, n) : -ENOMEM;
		s->at += n;
	}
	err = err ?: kvc_payload_encoder_read(s->enc, buf, len);
	s->at += len;
	return err;
}

static int read_payload(struct kvc_served *s, uint64_t off, uint8_t *buf, size_t len)
{
	size_t n = off < s->f->stored_len ? kvc_min(len, s->f->stored_len - off) : 0;
	int err = 0;

	if (n && s->f->flags & KVC_FRAME_SEALED)
		err = read_sealed(s, off, buf, n);
	else if (n)
		err = kvc_pread_all(s->fd, buf, n, (off_t)off);
	memset(buf + n, 0, len - n);
	if (!err && !is_unchanged(s))
		err = -ESTALE;
	return err;
}

int kvc_serve_read(struct kvc_served *s, uint64_t off, void *buf, size_t len)
{
	uint8_t *p = buf;
	size_t n = off < KVC_FRAME_HEADER ? kvc_min(len, KVC_FRAME_HEADER - off) : 0;

	memcpy(p, s->page + (n ? off : 0), n);
	if (n == len)
		return 0;
	return s->opened ? read_payload(s, off + n - KVC_FRAME_HEADER, p + n, len - n) : -ESTALE;
}

void kvc_serve_close(struct kvc_served *s)
{
	struct kvc *k = s->v->k;

	kvc_payload_encoder_free(s->enc);
	if (s->opened) {
		kvc_open_fd_done(k);
		kvc_open_release(k, s->n->row.ino, O_RDONLY, 0);
	}
	if (s->n) {
		kvc_lock_both(k);
		kvc_node_unref_locked(s->n);
		kvc_node_settle_locked(k, s->n);
		kvc_unlock_both(k);
	}
	free(s->f);
	free(s);
}
