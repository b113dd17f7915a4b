/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Large objects that several threads load (engine/tiering/fetch.c): for each codec, with and
 * without a key, and for lengths around whole blocks, they get the same bytes, or the same error
 * after the same damage, as one thread does. Each read has memory of exactly its length, so that
 * the address sanitizer sees an access beyond it. If memory is short, the threads share one context
 * (struct kvc_codec_work).
 */
#include "budget.h"
#include "fetch.h"
#include "payload.h"
#include "proof.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

#include <cmocka.h>

#define KEY 7
#define MOST (9u << 20) /* bytes of the largest object */
#define THREADS 5

static struct kvc_store store;
static struct kvc_stats stats;
static struct kvc k = { .store = &store };
static struct kvc_keys *keys;
static struct kvc_frame frame;
static struct kvc_fetch_want want;
static uint8_t *bytes; /* of the tier: the frame */
static uint64_t capacity;
static int fd;
static _Atomic unsigned under_way, overlapped; /* calls of arrived, and their maximum */

static void copy(uint8_t *to, uint64_t off, size_t len)
{
	assert_true(off <= capacity && len <= capacity - off);
	memcpy(to, bytes + off, len);
}

static int get(struct kvc_tier *t, const struct kvc_where *w, uint64_t off, const struct iovec *iov,
	       int n)
{
	(void)t;
	(void)w;
	for (int i = 0; i < n; i++) {
		copy(iov[i].iov_base, off, iov[i].iov_len);
		off += iov[i].iov_len;
	}
	return 0;
}

/* A load by threads. */
struct run {
	const struct kvc_load *l;
	pthread_mutex_t lock;
	pthread_cond_t change;
	uint64_t next, ended;
	int err;
};

static int move_part(struct run *r, struct kvc_part *p)
{
	unsigned now, most = atomic_load(&overlapped);
	int err;

	copy(p->p, p->off, p->len);
	if (!r->l->arrived)
		return 0;
	now = atomic_fetch_add(&under_way, 1) + 1;
	while (now > most && !atomic_compare_exchange_weak(&overlapped, &most, now))
		;
	usleep((useconds_t)(p->nr % 3 * 200)); /* parts pass each other */
	err = r->l->arrived(r->l->arg, p);
	atomic_fetch_sub(&under_way, 1);
	return err;
}

static void *work(void *arg)
{
	struct run *r = arg;

	pthread_mutex_lock(&r->lock);
	while (!r->err && r->next < r->l->n) {
		struct kvc_part p = { .nr = r->next++ };
		uint8_t *own = NULL;
		int err = r->l->part(r->l->arg, &p);

		pthread_mutex_unlock(&r->lock);
		assert_true(err || (p.len <= KVC_TIER_PART && p.len % KVC_PAGE == 0));
		if (!p.p)
			p.p = own = malloc(p.len);
		err = err ?: move_part(r, &p);
		pthread_mutex_lock(&r->lock);
		r->err = r->err ?: err;
		while (r->ended != p.nr && !r->err)
			pthread_cond_wait(&r->change, &r->lock);
		if (!r->err)
			r->err = r->l->ended(r->l->arg, &p);
		r->ended++;
		pthread_cond_broadcast(&r->change);
		free(own);
	}
	pthread_mutex_unlock(&r->lock);
	return NULL;
}

static int load(struct kvc_tier *t, const struct kvc_where *w, const struct kvc_load *l)
{
	struct run r = { .l = l };
	pthread_t threads[THREADS];

	(void)t;
	(void)w;
	pthread_mutex_init(&r.lock, NULL);
	pthread_cond_init(&r.change, NULL);
	for (int i = 0; i < THREADS; i++)
		assert_int_equal(pthread_create(&threads[i], NULL, work, &r), 0);
	for (int i = 0; i < THREADS; i++)
		pthread_join(threads[i], NULL);
	pthread_cond_destroy(&r.change);
	pthread_mutex_destroy(&r.lock);
	return r.err;
}

static int give(void *arg, void *to, size_t len, uint64_t off)
{
	memcpy(to, (const uint8_t *)arg + off, len);
	return 0;
}

/* 2-byte floats as a cache has them: keys with means, and values. */
static void fill(uint8_t *p, size_t len, unsigned seed)
{
	for (size_t i = 0; i + 1 < len; i += 2) {
		float f = 0;
		uint32_t u;

		for (int n = 0; n < 3; n++)
			f += (float)(rand_r(&seed) & 0xffff) / 65536.0f - 0.5f;
		f += i / 16384 % 2 ? 0 : (float)(i / 2 % 64 % 7);
		memcpy(&u, &f, 4);
		p[i] = (uint8_t)(u >> 16);
		p[i + 1] = (uint8_t)(u >> 24);
	}
	if (len % 2)
		p[len - 1] = 77;
	/* one block is not coded */
	for (size_t i = 2u << 20; i < (3u << 20) && i < len; i++)
		p[i] = (uint8_t)rand_r(&seed);
}

/* Makes a frame, and the catalog's description. choice: a codec, as in compress=. */
static void make(const uint8_t *in, size_t len, unsigned choice, bool sealed)
{
	struct kvc_codec_kv kv = { .code = (enum kvc_kvq_code)(choice - KVC_CODECS) };
	struct kvc_recipe r = { .level = 1, .keys = keys, .key_id = sealed ? KEY : 0 };
	struct kvc_payload_loss loss;
	struct kvc_encoder *e;

	if (kvc_codec_choice_lossy(choice)) {
		assert_int_equal(kvc_kv_layout_parse("bf16 p* k2 t64 h2 d64", &kv.layout, NULL), 0);
		assert_int_equal(kvc_kv_layout_fit(&kv.layout, len, &kv.vectors), 0);
		r.kv = &kv;
	} else {
		r.codec = (enum kvc_codec)choice;
	}
	frame = (struct kvc_frame){ .ino = 42, .gen = 9, .size = len, .raw_len = len };
	memcpy(frame.store, store.uuid, sizeof frame.store);
	strcpy(frame.key_model, "model");
	assert_int_equal(kvc_payload_encoder_new(&e, &frame, &r, give, (void *)in), 0);
	assert_non_null(e);
	capacity = KVC_FRAME_HEADER + frame.stored_len;
	assert_int_equal(kvc_payload_encoder_read(e, bytes + KVC_FRAME_HEADER, frame.stored_len),
			 0);
	want = (struct kvc_fetch_want){ .ino = 42, .size = len };
	want.has_sum = !kvc_payload_encoder_loss(e, &loss);
	want.sum = want.has_sum ? kvc_sum_of(in, len) : loss.sum;
	want.has_sum = true;
	if (!sealed)
		frame.raw_sum = want.sum;
	kvc_payload_encoder_free(e);
	frame.stored_sum = kvc_sum_of(bytes + KVC_FRAME_HEADER, frame.stored_len);
	assert_int_equal(kvc_proof_add(&k, false, &frame), 0);
	kvc_frame_encode(&frame, bytes);
	want.place.gen = 9;
	want.place.where.len = capacity;
	want.place.codec = (uint32_t)(KVC_PLACE_CODED | frame.codec);
	want.place.key = sealed ? KEY : 0;
}

static int fetch(bool threads)
{
	static const struct kvc_tier_ops alone = { .name = "memory", .get = get }, together = {
		.name = "memory",
		.get = get,
		.load = load,
	};
	struct kvc_tier tier = { .ops = threads ? &together : &alone };

	assert_int_equal(ftruncate(fd, 0), 0);
	return kvc_fetch(&k, &tier, &want, fd);
}

/* Compares the object with `raw`, and the rest of its last page with zeros. */
static void same(const uint8_t *raw, size_t len)
{
	size_t whole = kvc_round_up(len, KVC_PAGE);
	uint8_t *map = mmap(NULL, whole, PROT_READ, MAP_SHARED, fd, 0);

	assert_ptr_not_equal(map, MAP_FAILED);
	assert_int_equal(lseek(fd, 0, SEEK_END), len);
	assert_memory_equal(map, raw, len);
	for (size_t i = len; i < whole; i++)
		assert_int_equal(map[i], 0);
	munmap(map, whole);
}

static void read_back(uint8_t *to, size_t len)
{
	assert_int_equal(pread(fd, to, len, 0), (ssize_t)len);
}

/* A changed byte at each of these places: both ways of loading refuse it. */
static void damage(size_t len)
{
	uint64_t table = capacity - kvc_payload_table(len);
	const uint64_t at[] = {
		KVC_FRAME_HEADER,     /* the first block */
		KVC_FRAME_HEADER + 3, /* a length in it, in some codecs */
		table / 2,
		table - KVC_PAGE, /* the last page of blocks */
		table,            /* the length of the first block */
		table + 4,        /* its kind */
		table + 24 + 2,   /* the length of the second block */
		table + 8,        /* a tag, or zeros */
		capacity - 1,     /* the padding of the table */
	};

	for (size_t i = 0; i < sizeof at / sizeof *at; i++) {
		int alone, together;

		bytes[at[i]] ^= 0x10;
		alone = fetch(false);
		together = fetch(true);
		if (alone != together)
			fail_msg("damage %zu: %d alone, %d together", i, alone, together);
		/* the padding of a sealed payload is not part of any sum or tag */
		if (!want.place.key || i < 7)
			assert_int_equal(together, -EBADMSG);
		bytes[at[i]] ^= 0x10;
	}
}

static void every_codec(void **state)
{
	static const size_t sizes[] = { 4u << 20, (4u << 20) + 1, (5u << 20) - 4096, MOST - 12345 };
	uint8_t *in = malloc(MOST), *out = malloc(MOST);

	(void)state;
	fill(in, MOST, 5);
	for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++)
		for (unsigned way = 0; way < 2 * KVC_CODEC_CHOICES; way++) {
			bool sealed = way & 1;

			if (!way)
				continue; /* neither coded nor sealed */
			make(in, sizes[s], way / 2, sealed);
			assert_int_equal(fetch(false), 0);
			read_back(out, sizes[s]);
			if (!kvc_codec_choice_lossy(way / 2))
				assert_memory_equal(out, in, sizes[s]);
			assert_int_equal(fetch(true), 0);
			same(out, sizes[s]);
			if (s == 1)
				damage(sizes[s]);
		}
	/* blocks were decoded at the same time */
	assert_in_range(overlapped, 2, THREADS);
	free(in);
	free(out);
}

/*
 * Leaves `most` bytes free for loads, after freeing unused contexts (struct kvc_codec_work).
 * Returns the number of other bytes, which the caller releases.
 */
static uint64_t leave(uint64_t most)
{
	uint64_t all;

	kvc_budget_start(0, 0, 10, &stats);
	all = kvc_budget_most(KVC_BUDGET_LOAD);
	assert_int_equal(kvc_budget_wait(KVC_BUDGET_LOAD, all), 0);
	kvc_budget_release(KVC_BUDGET_LOAD, most);
	return all - most;
}

/* Memory for one context only, or not even for one. */
static void little_memory(void **state)
{
	uint8_t *in = malloc(MOST);
	struct kvc_budget_state b;
	uint64_t others;

	(void)state;
	fill(in, MOST, 6);
	for (unsigned codec = KVC_CODEC_ZSTD; codec < KVC_CODECS; codec++) {
		make(in, MOST, codec, false);
		others = leave(5u << 20);
		assert_int_equal(fetch(true), 0);
		kvc_budget_state(&b);
		assert_in_range(b.peak, 1, kvc_budget_most(KVC_BUDGET_LOAD));
		same(in, MOST);
		kvc_budget_release(KVC_BUDGET_LOAD, others);
		kvc_budget_stop(&stats);
		others = leave(1u << 20);
		assert_int_equal(fetch(true), -ENOMEM);
		kvc_budget_release(KVC_BUDGET_LOAD, others);
		kvc_budget_stop(&stats);
	}
	free(in);
}

static int begin(void **state)
{
	static const char text[] =
		"7 0101010101010101010101010101010101010101010101010101010101010101\n";
	char path[] = "/tmp/kvc-fetch-XXXXXX", error[512] = "";
	int file = mkstemp(path), err;

	(void)state;
	if (file < 0 || write(file, text, sizeof text - 1) != (ssize_t)sizeof text - 1)
		return -1;
	close(file);
	err = kvc_keys_open(&keys, path, error);
	unlink(path);
	k.keys = keys;
	memset(store.uuid, 0xab, sizeof store.uuid);
	memset(store.secret, 5, sizeof store.secret);
	fd = memfd_create("segment", MFD_CLOEXEC);
	bytes = calloc(1, 2 * MOST);
	return err || fd < 0 || !bytes ? -1 : 0;
}

static int end(void **state)
{
	(void)state;
	kvc_keys_close(keys);
	close(fd);
	free(bytes);
	return 0;
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(every_codec),
		cmocka_unit_test(little_memory),
	};

	return cmocka_run_group_tests_name("fetch by threads", tests, begin, end);
}
