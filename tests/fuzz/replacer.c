/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A policy's saved state, changed and with its sum repaired: it is refused, or the policy works
 * with it, and accepts the state that it saves then. Chunks are restored with any saved values.
 *
 * Input: a byte for the policy, one for the number of changes, the changes (three bytes for the
 * place, whose upper half is counted from the end; one for the kind; four for the value), eight
 * bytes of saved values for each chunk, and the rest for requests, two bytes each: the chunk, and
 * what the request does (REFUSES and so on; the upper half is the outlook, or the difference of the
 * ids).
 * Longest input: 512
 * Covers: engine/policy/state.c, engine/policy/replacer.c, engine/policy/prefix_save.c,
 * engine/policy/learn.c, engine/policy/learn_save.c, engine/policy/ghosts.c,
 * engine/policy/queues.c, engine/policy/ranked.c
 */
#include "fuzz.h"
#include "replacer.h"

#define POLICIES 9
#define ROOM 24
#define CHUNKS 64
#define HEAD 24 /* the magic number, and the sum of the bytes after it */
#define SPARE 64

static struct {
	uint8_t *v;
	size_t len;
} saved[POLICIES];

static struct kvc_replacer *opened(unsigned policy)
{
	struct kvc_replacer_conf conf = { policy, ROOM, 1 };
	struct kvc_replacer *k;

	fuzz_must(!kvc_replacer_open(&k, &conf));
	return k;
}

/* What a request does beside its accesses. */
enum { REFUSES = 1, TELLS = 2, RENAMES = 4, LOOSE = 8 };

/*
 * Makes the request of a prompt: the parent of a chunk has half its number, which is the lowest
 * byte of its id. With RENAMES a chunk that is not in the cache had another id before.
 */
static void ask(struct kvc_replacer *k, struct kvc_request *r, uint64_t end, unsigned how)
{
	kvc_replacer_begin(k, r, 0);
	r->loose = how & LOOSE;
	for (int shift = 6; shift >= 0; shift--) {
		uint64_t id = end >> shift, victim;

		if (id && (how & RENAMES))
			kvc_replacer_rename(k, id + CHUNKS * (how >> 4), id);
		if (!id || kvc_replacer_access(k, r, id))
			continue;
		if ((how & REFUSES) && kvc_replacer_chunks(k) >= ROOM) {
			bool refused = kvc_replacer_refuses(k, r, 4096 << id % 4);

			fuzz_must(r->refused == refused);
			if (refused)
				continue;
		}
		while (kvc_replacer_chunks(k) >= ROOM && (victim = kvc_replacer_victim(k)))
			kvc_replacer_del(k, victim, true);
		if (kvc_replacer_chunks(k) < ROOM)
			fuzz_must(!kvc_replacer_add(k, r, id, id / 2, 4096 << id % 4));
	}
	if (how & TELLS) /* an outlook above the largest is ignored */
		kvc_replacer_tell(k, end, (uint8_t)(how >> 4));
	kvc_replacer_end(k, r);
	if (how & TELLS)
		kvc_replacer_tell(k, end / 2, (uint8_t)(how >> 4));
}

int LLVMFuzzerInitialize(int *argc, char ***argv)
{
	(void)argc;
	(void)argv;
	for (unsigned p = 0; p < POLICIES; p++) {
		struct kvc_replacer *k = opened(p);
		struct kvc_request r = { 0 };

		for (unsigned i = 0; i < 200; i++)
			ask(k, &r, 1 + i * i % 59 % CHUNKS, i % 3 ? 0 : i % 256);
		fuzz_must(!kvc_replacer_save(k, (void **)&saved[p].v, &saved[p].len));
		kvc_replacer_request_free(&r);
		kvc_replacer_close(k);
	}
	return 0;
}

/* Returns a copy of the saved state, changed as the input says. */
static uint8_t *changed(struct fuzz_in *in, unsigned policy, size_t *len)
{
	uint8_t *v = malloc(saved[policy].len + SPARE * 256);
	struct kvc_sum sum;

	fuzz_must(v);
	*len = saved[policy].len;
	memcpy(v, saved[policy].v, *len);
	for (unsigned n = (unsigned)fuzz_number(in, 1); n && in->n; n--) {
		size_t where = fuzz_number(in, 3), rest;
		unsigned how = (unsigned)fuzz_number(in, 1);
		uint32_t what = (uint32_t)fuzz_number(in, 4);

		where = where < 1u << 23 ? where % *len : *len - 1 - (where - (1u << 23)) % *len;
		rest = *len - where;
		switch (how % 4) {
		case 0: memcpy(v + where, &what, kvc_min(sizeof what, rest)); break;
		case 1: v[where] = (uint8_t)what; break;
		case 2: *len = kvc_max(where, 1); break;
		case 3:
			memmove(v + where + what % SPARE, v + where, rest);
			*len += what % SPARE;
			break;
		}
	}
	if (*len > HEAD) {
		sum = kvc_sum_of(v + HEAD, *len - HEAD);
		memcpy(v + HEAD - sizeof sum.b, sum.b, sizeof sum.b);
	}
	return v;
}

static void again(const struct kvc_replacer *k, unsigned policy)
{
	struct kvc_replacer *other = opened(policy);
	void *blob;
	size_t len;

	fuzz_must(!kvc_replacer_save(k, &blob, &len));
	fuzz_must(!kvc_replacer_load(other, blob, len));
	free(blob);
	kvc_replacer_close(other);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct fuzz_in in = { data, size };
	unsigned policy = (unsigned)fuzz_number(&in, 1) % POLICIES;
	struct kvc_replacer *k = opened(policy);
	struct kvc_request r = { 0 };
	size_t len;
	uint8_t *blob = changed(&in, policy, &len);
	int err = kvc_replacer_load(k, blob, len);
	char text[4096];

	free(blob);
	fuzz_must(!err || (err == -EINVAL && !kvc_replacer_chunks(k)));
	if (!err)
		again(k, policy);
	for (uint64_t id = ROOM; id && in.n > 8; id--)
		fuzz_must(!kvc_replacer_restore(k, id, id / 2, 4096, fuzz_number(&in, 8)));
	for (uint64_t id = 1; id <= ROOM; id++)
		kvc_replacer_set_parent(k, id, id / 2);
	while (in.n) {
		uint64_t id = 1 + fuzz_number(&in, 1) % (CHUNKS - 1);

		ask(k, &r, id, (unsigned)fuzz_number(&in, 1));
		kvc_replacer_resize(k, id, id << in.n % 32);
	}
	for (uint64_t victim; (victim = kvc_replacer_victim(k));)
		kvc_replacer_del(k, victim, true);
	fuzz_must(!kvc_replacer_chunks(k));
	kvc_replacer_text(k, text, sizeof text);
	kvc_replacer_request_free(&r);
	kvc_replacer_close(k);
	return 0;
}
