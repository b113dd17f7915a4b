/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Each comparison of a load (engine/tiering/fetch.c), one at a time. Each frame is correct except
 * for one value, where the catalog, the store, the header or the bytes disagree. Sums, proofs and
 * tags that depend on the wrong value are valid, so that no other comparison fails first.
 */
#include "fetch.h"
#include "payload.h"
#include "proof.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <cmocka.h>

#define SIZE 5000u           /* of a dense file: not a whole number of pages */
#define SPARSE_SIZE 0x10000u /* of a file with holes */
#define ROOM 0x20000u        /* of the tier: more than any frame */
#define KEY 7

enum kind { PLAIN, SPARSE, SEALED, KINDS };
static const char *const kinds[] = { "plain", "sparse", "sealed" };

static const struct kvc_range ranges[] = { { 4096, 100 }, { 12288, 5000 } };

static struct kvc_store store;
static struct kvc k = { .store = &store };
static struct kvc_frame frame;
static struct kvc_fetch_want want;
static struct memory {
	struct kvc_tier tier;
	uint8_t bytes[ROOM] __attribute__((aligned(4096)));
} memory;
static uint8_t file[SPARSE_SIZE]; /* the expected content */
static uint8_t raw[KVC_PAGE + SPARSE_SIZE];
static int fd;
static unsigned gets;

static int get(struct kvc_tier *t, const struct kvc_where *w, uint64_t off, const struct iovec *iov,
	       int n)
{
	(void)t;
	(void)w;
	gets++;
	for (int i = 0; i < n; i++) {
		assert_true(off + iov[i].iov_len <= ROOM);
		memcpy(iov[i].iov_base, memory.bytes + off, iov[i].iov_len);
		off += iov[i].iov_len;
	}
	return 0;
}

static int give(void *arg, void *to, size_t len, uint64_t off)
{
	memcpy(to, (const uint8_t *)arg + off, len);
	return 0;
}

/* Which part has the wrong value. */
enum where {
	NOWHERE,
	RAW,    /* the payload, before it is summed and coded */
	FRAME,  /* the header's members, before the proof is made */
	PROVED, /* after the proof, before the sum is made */
	STORED, /* the stored bytes */
	STORE,  /* the store that asks */
	WANT,   /* the catalog */
};

struct lie {
	const char *what;
	enum kind kind;
	bool shared;
	int err;
	struct {
		enum where where;
		size_t at;
		uint32_t flip;
	} in[3];
};

static void tell(const struct lie *l, enum where where, void *of)
{
	for (int i = 0; l && i < 3; i++) {
		uint32_t v;

		if (l->in[i].where != where)
			continue;
		memcpy(&v, (uint8_t *)of + l->in[i].at, sizeof v);
		v ^= l->in[i].flip;
		memcpy((uint8_t *)of + l->in[i].at, &v, sizeof v);
	}
}

static void make_file(enum kind kind)
{
	size_t at = kvc_frame_ranges_size(2);

	memset(file, 0, sizeof file);
	if (kind != SPARSE) {
		for (size_t i = 0; i < SIZE; i++)
			file[i] = (uint8_t)(i * 40503u >> 7);
		memcpy(raw, file, SIZE);
		return;
	}
	kvc_frame_ranges_encode(ranges, 2, raw);
	for (size_t r = 0; r < 2; r++)
		for (uint64_t i = 0; i < ranges[r].len; i++)
			raw[at++] = file[ranges[r].off + i] = (uint8_t)(i * 2654435761u >> 9);
}

/* Writes the payload after the header's page. */
static void put_payload(enum kind kind)
{
	uint8_t *to = memory.bytes + KVC_FRAME_HEADER;
	struct kvc_recipe r = { KVC_CODEC_NONE, 1, k.keys, KEY, NULL, NULL };
	struct kvc_encoder *e;

	if (kind == SEALED) {
		assert_int_equal(kvc_payload_encoder_new(&e, &frame, &r, give, raw), 0);
		assert_int_equal(kvc_payload_encoder_read(e, to, frame.stored_len), 0);
		kvc_payload_encoder_free(e);
	} else {
		frame.stored_len = frame.raw_len;
		frame.raw_sum = kvc_sum_of(raw, frame.raw_len);
		memcpy(to, raw, frame.raw_len);
	}
	frame.stored_sum = kvc_sum_of(to, frame.stored_len);
}

/* Makes a frame, its payload and the catalog's description, with the wrong value. */
static void make(enum kind kind, bool shared, const struct lie *l)
{
	memset(store.uuid, 0xab, sizeof store.uuid);
	memset(store.secret, 5, sizeof store.secret);
	memset(memory.bytes, 0xee, sizeof memory.bytes);
	make_file(kind);
	tell(l, RAW, raw);
	frame = (struct kvc_frame){
		.ino = 42,
		.gen = 9,
		.size = kind == SPARSE ? SPARSE_SIZE : SIZE,
		.flags = (shared ? KVC_FRAME_SHARED : 0) | (kind == SPARSE ? KVC_FRAME_SPARSE : 0),
		.raw_len = kind == SPARSE ? kvc_frame_ranges_size(2) + ranges[0].len + ranges[1].len
					  : SIZE,
		.mode = 0100644,
		.uid = 1000,
	};
	memcpy(frame.store, store.uuid, sizeof frame.store);
	strcpy(frame.path, "model/chunk/layer");
	strcpy(frame.key_model, "model");
	put_payload(kind);
	want = (struct kvc_fetch_want){
		.ino = frame.ino,
		.size = frame.size,
		.shared = shared,
		.has_sum = true,
		.sum = kvc_sum_of(file, frame.size),
	};
	want.place.gen = frame.gen;
	want.place.where = kvc_frame_where_of(frame.path);
	want.place.where.len = KVC_FRAME_HEADER + kvc_round_up(frame.stored_len, KVC_PAGE);
	want.place.codec = kind == SEALED ? KVC_PLACE_CODED : 0;
	want.place.key = kind == SEALED ? KEY : 0;
	tell(l, FRAME, &frame);
	/* a frame of a shared tier that is not sealed was made without a key file: no proof */
	if (!shared || kind == SEALED)
		assert_int_equal(kvc_proof_add(&k, shared, &frame), 0);
	tell(l, PROVED, &frame);
	kvc_frame_encode(&frame, memory.bytes);
	tell(l, STORED, memory.bytes);
	tell(l, STORE, &store);
	tell(l, WANT, &want);
}

static int fetch(void)
{
	static const struct kvc_tier_ops ops = { .name = "memory", .get = get };

	memory.tier.ops = &ops;
	assert_int_equal(ftruncate(fd, 0), 0);
	return kvc_fetch(&k, &memory.tier, &want, fd);
}

/* Correct frames are accepted, whether the catalog knows the frame's sum or not. */
static void truth(void **state)
{
	(void)state;
	for (int i = 0; i < 4 * KINDS; i++) {
		enum kind kind = (enum kind)(i / 4);
		uint8_t *map;

		make(kind, i & 1, NULL);
		if (i & 2)
			want.place.sum = frame.stored_sum;
		assert_int_equal(fetch(), 0);
		assert_int_equal(lseek(fd, 0, SEEK_END), frame.size);
		map = mmap(NULL, SPARSE_SIZE, PROT_READ, MAP_SHARED, fd, 0);
		assert_ptr_not_equal(map, MAP_FAILED);
		/* bytes past the end in the last page are not shown */
		assert_memory_equal(map, file, kvc_round_up(frame.size, KVC_PAGE));
		munmap(map, SPARSE_SIZE);
	}
}

#define IN_FRAME(field, flip) { FRAME, offsetof(struct kvc_frame, field), flip }
#define IN_WANT(field, flip) { WANT, offsetof(struct kvc_fetch_want, field), flip }
#define IN_STORE(field, flip) { STORE, offsetof(struct kvc_store, field), flip }

static const struct lie lies[] = {
	/* the owner */
	{ "another secret's proof", PLAIN, false, -EBADMSG, { IN_STORE(secret, 1) } },
	{ "another store's", PLAIN, false, -EBADMSG, { IN_STORE(uuid, 1) } },
	{ "another inode", PLAIN, false, -EBADMSG, { IN_WANT(ino, 1) } },
	{ "another generation", PLAIN, false, -EBADMSG, { IN_WANT(place.gen, 1) } },
	{ "another size", SPARSE, false, -EBADMSG, { IN_WANT(size, 1) } },
	{ "another size", SPARSE, true, -ESTALE, { IN_WANT(size, 1) } },
	{ "another name", PLAIN, true, -EBADMSG, { IN_WANT(place.where.at, 1) } },
	{ "another name's end", PLAIN, true, -EBADMSG, { IN_WANT(place.where.hi, 1) } },
	{ "a folder", PLAIN, false, -EBADMSG, { IN_FRAME(flags, KVC_FRAME_FOLDER) } },
	{ "a shared tier's", PLAIN, false, -EBADMSG, { IN_FRAME(flags, KVC_FRAME_SHARED) } },
	{ "no shared tier's", PLAIN, true, -EBADMSG, { IN_FRAME(flags, KVC_FRAME_SHARED) } },
	/* perhaps proved with another key of that number */
	{ "a sum that nobody proved",
	  SEALED,
	  true,
	  -ENOKEY,
	  { { PROVED, offsetof(struct kvc_frame, stored_sum), 1 } } },
	/* the catalog's knowledge of the bytes */
	{ "clear, and a sealed one was put", PLAIN, false, -EBADMSG, { IN_WANT(place.key, KEY) } },
	{ "sealed, and a clear one was put", SEALED, false, -EBADMSG, { IN_WANT(place.key, KEY) } },
	{ "by another key", SEALED, false, -EBADMSG, { IN_WANT(place.key, 1) } },
	{ "another frame's sum", PLAIN, false, -EBADMSG, { IN_WANT(place.sum, 1) } },
	{ "another frame's sum", PLAIN, true, -ESTALE, { IN_WANT(place.sum, 1) } },
	{ "another object's sum", PLAIN, false, -EBADMSG, { IN_WANT(sum, 1) } },
	{ "another object's sum", PLAIN, true, -ESTALE, { IN_WANT(sum, 1) } },
	{ "another object's sum", SEALED, false, -EBADMSG, { IN_WANT(sum, 1) } },
	/* impossible values */
	{ "longer than its place", PLAIN, false, -EBADMSG, { IN_WANT(place.where.len, 0x1000) } },
	{ "longer stored than raw", PLAIN, false, -EBADMSG, { IN_FRAME(stored_len, 1) } },
	{ "a codec without blocks", PLAIN, false, -EBADMSG, { IN_FRAME(codec, 1) } },
	{ "sealed without blocks",
	  PLAIN,
	  false,
	  -EBADMSG,
	  { IN_FRAME(flags, KVC_FRAME_SEALED), IN_FRAME(key_id, KEY), IN_WANT(place.key, KEY) } },
	{ "longer raw than the file",
	  PLAIN,
	  false,
	  -EBADMSG,
	  { IN_FRAME(raw_len, 1), IN_FRAME(stored_len, 1) } },
	/* damage */
	{ "a damaged header", PLAIN, false, -EBADMSG, { { STORED, 24, 1 } } },
	{ "a damaged byte", PLAIN, false, -EBADMSG, { { STORED, KVC_FRAME_HEADER, 1 } } },
	{ "a damaged byte", SPARSE, false, -EBADMSG, { { STORED, KVC_FRAME_HEADER + 4100, 1 } } },
	{ "a damaged byte", SEALED, false, -EBADMSG, { { STORED, KVC_FRAME_HEADER, 1 } } },
};

static void each_lie(void **state)
{
	(void)state;
	for (size_t i = 0; i < sizeof lies / sizeof lies[0]; i++) {
		const struct lie *l = &lies[i];
		int err;

		make(l->kind, l->shared, l);
		err = fetch();
		if (err != l->err)
			fail_msg("%s, %s%s: %d instead of %d", l->what, kinds[l->kind],
				 l->shared ? ", shared" : "", err, l->err);
	}
}

/* Ranges that do not make up the payload are refused before the segment gets pages. */
static void wrong_ranges(void **state)
{
	static const struct lie wrong[] = {
		{ "a longer range", SPARSE, false, -EBADMSG, { { RAW, 32, 0x4000 } } },
		{ "a shorter range", SPARSE, false, -EBADMSG, { { RAW, 32, 8 } } },
	};

	struct stat st;

	(void)state;
	for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
		make(SPARSE, false, &wrong[i]);
		assert_int_equal(fetch(), -EBADMSG);
		assert_int_equal(fstat(fd, &st), 0);
		assert_int_equal(st.st_blocks, 0);
	}
}

/*
 * A small file and a small frame, with a payload that would be far longer than both: it is refused
 * once its header has been read, before memory is allocated for its table.
 */
static void bomb(void **state)
{
	const size_t len = 40u << 20;
	uint8_t *zeros = calloc(1, len);
	struct kvc_recipe r = { KVC_CODEC_ZSTD, 1, NULL, 0, NULL, NULL };
	struct kvc_encoder *e;

	(void)state;
	assert_non_null(zeros);
	make(SPARSE, false, NULL);
	memcpy(zeros, raw, frame.raw_len);
	frame.raw_len = len;
	frame.raw_sum = kvc_sum_of(zeros, len);
	assert_int_equal(kvc_payload_encoder_new(&e, &frame, &r, give, zeros), 0);
	assert_true(KVC_FRAME_HEADER + frame.stored_len < ROOM);
	assert_int_equal(
		kvc_payload_encoder_read(e, memory.bytes + KVC_FRAME_HEADER, frame.stored_len), 0);
	kvc_payload_encoder_free(e);
	frame.stored_sum = kvc_sum_of(memory.bytes + KVC_FRAME_HEADER, frame.stored_len);
	assert_int_equal(kvc_proof_add(&k, false, &frame), 0);
	kvc_frame_encode(&frame, memory.bytes);
	want.place.where.len = KVC_FRAME_HEADER + kvc_round_up(frame.stored_len, KVC_PAGE);
	want.place.codec = KVC_PLACE_CODED | KVC_CODEC_ZSTD;
	gets = 0;
	assert_int_equal(fetch(), -EBADMSG);
	assert_int_equal(gets, 1);
	free(zeros);
}

/* A key of one model cannot make frames of files and folders of another model. */
static void other_models(void **state)
{
	static const struct {
		const char *path, *model;
		uint32_t key;
		bool folder;
		int err;
	} tries[] = {
		{ "llama/c/l", "llama", 9, false, 0 },
		{ "llama", "llama", 9, true, 0 },
		{ "llama/c", "llama", 9, true, 0 },
		{ "m/c/l", "m", KEY, false, 0 },
		{ "file", "", KEY, false, 0 },
		{ "m/c/l", "llama", 9, false, -EBADMSG },
		{ "m", "llama", 9, true, -EBADMSG },
		{ "m/c", "llama", 9, true, -EBADMSG },
		{ "llama", "llama", 9, false, -EBADMSG }, /* a file beside the models */
		{ "llama2/c/l", "llama", 9, false, -EBADMSG },
		{ "m/c/l", "n", KEY, false, -EBADMSG },
		{ "m/c/l", "m", 9, false, -ENOKEY },
	};

	(void)state;
	for (size_t i = 0; i < sizeof tries / sizeof tries[0]; i++) {
		struct kvc_frame *f = kvc_frame_new();
		int err;

		assert_non_null(f);
		f->flags = KVC_FRAME_SHARED |
			   (tries[i].folder ? KVC_FRAME_FOLDER
					    : KVC_FRAME_SEALED | KVC_FRAME_CODED);
		f->key_id = tries[i].key;
		snprintf(f->path, sizeof f->path, "%s", tries[i].path);
		snprintf(f->key_model, sizeof f->key_model, "%s", tries[i].model);
		err = kvc_proof_add(&k, true, f);
		assert_int_equal(err, tries[i].err == -ENOKEY ? -ENOKEY : 0);
		assert_int_equal(kvc_proof_found(&k, f), tries[i].err);
		if (!tries[i].folder)
			assert_int_equal(kvc_proof_placed(&k, true, f), tries[i].err);
		free(f);
	}
}

static int begin(void **state)
{
	static const char text[] =
		"7 0101010101010101010101010101010101010101010101010101010101010101\n"
		"9 0202020202020202020202020202020202020202020202020202020202020202 llama\n";
	char path[] = "/tmp/kvc-fetch-XXXXXX", error[512] = "";
	int keys = mkstemp(path), err;

	(void)state;
	if (keys < 0 || write(keys, text, sizeof text - 1) != (ssize_t)sizeof text - 1)
		return -1;
	close(keys);
	err = kvc_keys_open(&k.keys, path, error);
	unlink(path);
	fd = memfd_create("segment", MFD_CLOEXEC);
	return err || fd < 0 ? -1 : 0;
}

static int end(void **state)
{
	(void)state;
	kvc_keys_close(k.keys);
	close(fd);
	return 0;
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(truth),        cmocka_unit_test(each_lie),
		cmocka_unit_test(wrong_ranges), cmocka_unit_test(bomb),
		cmocka_unit_test(other_models),
	};

	return cmocka_run_group_tests_name("fetch", tests, begin, end);
}
