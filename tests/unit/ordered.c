/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sequences that several threads work on (base/ordered.h): the first and the last step of the items
 * are in order, the work overlaps, and the result is the first error. A payload that several
 * threads code has the bytes that one thread makes.
 */
#include "ordered.h"

#include "payload.h"

#include <errno.h>
#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

enum { ITEMS = 60, NEVER = 1000 };

struct items {
	uint64_t begun, finished;
	unsigned slots, slots_made, slots_most; /* slots_most: how many may be made */
	atomic_uint under_way, overlapped;
	/* the items of which a step fails, with the error -item */
	uint64_t bad_begin, bad_work, bad_finish;
};

static int begin(void *arg, void *slot, uint64_t i)
{
	struct items *t = arg;

	assert_int_equal(i, t->begun);
	t->begun++;
	*(uint64_t *)slot = i;
	return i == t->bad_begin ? -(int)i : 0;
}

static int work(void *arg, void *slot, uint64_t i)
{
	struct items *t = arg;

	if (atomic_fetch_add(&t->under_way, 1))
		atomic_store(&t->overlapped, 1);
	usleep((useconds_t)(i % 3 * 300)); /* items pass each other */
	assert_int_equal(*(uint64_t *)slot, i);
	atomic_fetch_sub(&t->under_way, 1);
	return i == t->bad_work ? -(int)i : 0;
}

static int finish(void *arg, void *slot, uint64_t i)
{
	struct items *t = arg;

	assert_int_equal(*(uint64_t *)slot, i);
	assert_int_equal(i, t->finished);
	t->finished++;
	return i == t->bad_finish ? -(int)i : 0;
}

static void *slot_new(void *arg)
{
	struct items *t = arg;

	if (t->slots_made == t->slots_most)
		return NULL;
	t->slots_made++;
	t->slots++;
	return malloc(sizeof(uint64_t));
}

static void slot_free(void *arg, void *slot)
{
	struct items *t = arg;

	t->slots--;
	free(slot);
}

static int run(struct items *t, unsigned threads)
{
	const struct kvc_ordered o = { ITEMS, t, begin, work, finish, slot_new, slot_free };
	uint64_t own;
	int err;

	t->begun = t->finished = 0;
	t->slots_made = 0;
	err = kvc_ordered_run(&o, &own, threads);
	assert_int_equal(t->slots, 0);
	return err;
}

static unsigned cpus(void)
{
	cpu_set_t set;

	assert_int_equal(sched_getaffinity(0, sizeof set, &set), 0);
	return (unsigned)CPU_COUNT(&set);
}

static void in_order(void **state)
{
	unsigned overlapped = 0;

	(void)state;
	for (unsigned threads = 1; threads <= KVC_ORDERED_MAX; threads++) {
		struct items t = {
			.slots_most = 100,
			.bad_begin = NEVER,
			.bad_work = NEVER,
			.bad_finish = NEVER,
		};

		assert_int_equal(run(&t, threads), 0);
		assert_int_equal(t.finished, ITEMS);
		/* this thread, and one for each other CPU */
		assert_int_equal(t.slots_made + 1, threads < cpus() ? threads : cpus());
		assert_true(t.slots_made || !atomic_load(&t.overlapped));
		overlapped += atomic_load(&t.overlapped);
	}
	assert_true(overlapped || cpus() == 1);
}

/* Without memory for more slots the work is done by fewer threads. */
static void few_slots(void **state)
{
	struct items t = {
		.slots_most = 0, .bad_begin = NEVER, .bad_work = NEVER, .bad_finish = NEVER
	};

	(void)state;
	assert_int_equal(run(&t, 4), 0);
	assert_int_equal(t.finished, ITEMS);
	assert_int_equal(atomic_load(&t.overlapped), 0);
}

/* The error of the first item that fails is returned, and no later item is finished. */
static void first_error(void **state)
{
	(void)state;
	for (unsigned threads = 1; threads <= 4; threads++)
		for (uint64_t i = 1; i < ITEMS; i += 9) {
			struct items t = {
				.slots_most = 100,
				.bad_begin = i,
				.bad_work = i + 1,
				.bad_finish = i + 2,
			};

			assert_int_equal(run(&t, threads), -(int)i);
			assert_int_equal(t.finished, i);
			t.bad_begin = NEVER;
			assert_int_equal(run(&t, threads), -(int)(i + 1));
			assert_int_equal(t.finished, i + 1);
			t.bad_work = NEVER;
			if (i + 2 < ITEMS)
				assert_int_equal(run(&t, threads), -(int)(i + 2));
		}
}

struct source {
	const uint8_t *p;
	uint64_t next;
};

/* Bytes are asked for in order, and again from the first one on: the caller sums them. */
static int give(void *arg, void *buf, size_t len, uint64_t off)
{
	struct source *s = arg;

	assert_true(off == s->next || !off);
	s->next = off + len;
	memcpy(buf, s->p + off, len);
	return 0;
}

/* Codes `len` bytes. Returns the stored payload, and sets *f and *loss. */
static uint8_t *code(uint8_t *p, size_t len, struct kvc_recipe *r, struct kvc_frame *f,
		     struct kvc_payload_loss *loss)
{
	struct source s = { p, 0 };
	struct kvc_encoder *e;
	uint8_t *stored;

	*f = (struct kvc_frame){ .ino = 5, .gen = 6, .size = len, .raw_len = len };
	strcpy(f->key_model, "model");
	assert_int_equal(kvc_payload_encoder_new(&e, f, r, give, &s), 0);
	stored = malloc(f->stored_len);
	if (e) {
		assert_int_equal(kvc_payload_encoder_read(e, stored, f->stored_len), 0);
		kvc_payload_encoder_loss(e, loss);
	} else {
		memcpy(stored, p, len);
		s.next = len;
	}
	assert_int_equal(s.next, len);
	kvc_payload_encoder_free(e);
	return stored;
}

/* 16-bit floats: `noise` bits of the lower byte are random; with 8, all bits are. */
static void fill(uint8_t *p, size_t len, unsigned noise)
{
	unsigned seed = 3;

	for (size_t i = 0; i + 1 < len; i += 2) {
		p[i] = (uint8_t)(rand_r(&seed) & ((1u << noise) - 1));
		p[i + 1] = (uint8_t)(noise == 8 ? rand_r(&seed) : 0x3c + rand_r(&seed) % 4);
	}
}

/* With one CPU, one thread codes; with all CPUs, several do. */
static void same_bytes(uint8_t *p, size_t len, struct kvc_recipe *r)
{
	struct kvc_payload_loss loss[2] = { 0 };
	struct kvc_frame f[2];
	uint8_t *stored[2];
	cpu_set_t all, one;

	stored[0] = code(p, len, r, &f[0], &loss[0]);
	assert_int_equal(sched_getaffinity(0, sizeof all, &all), 0);
	CPU_ZERO(&one);
	CPU_SET((size_t)sched_getcpu(), &one);
	assert_int_equal(sched_setaffinity(0, sizeof one, &one), 0);
	stored[1] = code(p, len, r, &f[1], &loss[1]);
	assert_int_equal(sched_setaffinity(0, sizeof all, &all), 0);
	assert_memory_equal(&f[0], &f[1], sizeof f[0]);
	assert_memory_equal(stored[0], stored[1], f[0].stored_len);
	assert_memory_equal(&loss[0], &loss[1], sizeof loss[0]);
	free(stored[0]);
	free(stored[1]);
}

static void payloads(void **state)
{
	static const size_t lens[] = { 5000, 1 << 20, (2 << 20) + 1, (7 << 20) - 4096, 9 << 20 };
	static const uint8_t nonce[12] = { 1 };
	char path[] = "/tmp/kvc-keys-XXXXXX", error[512];
	struct kvc_codec_kv kv = { .code = KVC_KVQ_MID };
	uint8_t *p = malloc(9 << 20);
	struct kvc_keys *keys;
	int fd = mkstemp(path);

	(void)state;
	assert_true(fd >= 0 && dprintf(fd, "1 %064d\n", 7) > 0);
	close(fd);
	assert_int_equal(kvc_keys_open(&keys, path, error), 0);
	unlink(path);
	assert_int_equal(kvc_kv_layout_parse("bf16 p* k2 t64 h2 d64", &kv.layout, NULL), 0);
	for (size_t i = 0; i < sizeof lens / sizeof lens[0]; i++)
		for (int how = 0; how < 16; how++) {
			/* incompressible in half of the cases */
			struct kvc_recipe r = {
				.codec = (enum kvc_codec)(how / 4 % 3),
				.level = 1,
				.keys = how & 1 ? keys : NULL,
				.key_id = how & 1,
				.nonce = nonce,
			};

			fill(p, lens[i], how & 2 ? 8 : 3);
			if (how >= 12 && !kvc_kv_layout_fit(&kv.layout, lens[i], &kv.vectors))
				r.kv = &kv;
			same_bytes(p, lens[i], &r);
		}
	kvc_keys_close(keys);
	free(p);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(in_order),
		cmocka_unit_test(few_slots),
		cmocka_unit_test(first_error),
		cmocka_unit_test(payloads),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
