/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Frames as a load reads them: a tier answers with the input's bytes, as the store's own tier or as
 * a shared one, for each way of fetching. A fetched file has the catalog's size and the frame's
 * sum. The mutator repairs the header's sums and proofs, and the sum of the stored payload.
 *
 * Input: a byte that says how the frame is requested, the header's page, the payload.
 * Longest input: 24576
 * Covers: engine/tiering/fetch.c, engine/frames/frame.c, engine/frames/payload.c
 */
#include "fuzz.h"
#include "fetch.h"
#include "payload.h"
#include "proof.h"

#include <sys/mman.h>
#include <sys/stat.h>

enum { SHARED = 1, CODED = 4, COMPRESSED = 8, SUMMED = 16, SEALED = 32 };

#define MOST (8u << 20) /* bytes of a file */

struct memory {
	struct kvc_tier tier;
	const uint8_t *p;
	size_t n; /* whole pages */
};

static struct kvc_store store;
static struct kvc k = { .store = &store };
static struct kvc_frame told; /* the header of the input */
static int fd;

int LLVMFuzzerInitialize(int *argc, char ***argv)
{
	static const char text[] =
		"7 0101010101010101010101010101010101010101010101010101010101010101\n";
	char error[512];

	(void)argc;
	(void)argv;
	fuzz_must(!kvc_keys_open(&k.keys, fuzz_file("keys", text, sizeof text - 1), error));
	fd = memfd_create("segment", MFD_CLOEXEC);
	fuzz_must(fd >= 0);
	return 0;
}

static int get(struct kvc_tier *t, const struct kvc_where *w, uint64_t off, const struct iovec *iov,
	       int n)
{
	struct memory *m = kvc_of(t, struct memory, tier);

	(void)w;
	for (int i = 0; i < n; i++) {
		if (off > m->n || iov[i].iov_len > m->n - off)
			return -EBADMSG;
		memcpy(iov[i].iov_base, m->p + off, iov[i].iov_len);
		off += iov[i].iov_len;
	}
	return 0;
}

/*
 * The catalog's description of the frame. It mostly agrees with the frame, since otherwise the
 * fetch ends at once.
 */
static struct kvc_fetch_want want_of(unsigned how, const uint8_t *page, size_t len)
{
	struct kvc_fetch_want w = { .shared = how & SHARED, .has_sum = how & SUMMED };

	if (kvc_frame_decode(page, &told))
		memset(&told, 0, sizeof told);
	memcpy(store.uuid, told.store, 16);
	w.ino = told.ino;
	w.size = told.size % MOST;
	w.sum = told.raw_sum;
	w.place.gen = told.gen;
	w.place.where = kvc_frame_where_of(told.path);
	w.place.where.len = len;
	w.place.sum = told.stored_sum;
	w.place.codec = (how & CODED ? KVC_PLACE_CODED : 0) | (how & COMPRESSED ? told.codec : 0);
	w.place.key = how & SEALED ? told.key_id : 0;
	return w;
}

size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t capacity, unsigned seed)
{
	static struct kvc_frame f;
	static uint8_t page[KVC_FRAME_HEADER] __attribute__((aligned(8)));

	size = LLVMFuzzerMutate(data, size, capacity);
	if (seed % 8 == 0 || size <= KVC_FRAME_HEADER)
		return size;
	fuzz_mend_header(data + 1, size - 1);
	memcpy(page, data + 1, sizeof page);
	if (kvc_frame_decode(page, &f) || seed % 8 == 1)
		return size;

	size_t have = size - 1 - KVC_FRAME_HEADER;

	if (seed % 8 == 2) /* lengths that fit the input */
		f.raw_len = f.stored_len = have;
	if (seed % 8 == 2 && !(f.flags & KVC_FRAME_SPARSE))
		f.size = have;
	if (f.stored_len <= have)
		f.stored_sum = kvc_sum_of(data + 1 + KVC_FRAME_HEADER, f.stored_len);
	kvc_proof_add(&k, data[0] & SHARED, &f);
	kvc_frame_encode(&f, page);
	memcpy(data + 1, page, sizeof page);
	return size;
}

static void is(const struct kvc_sum *want, uint64_t size)
{
	void *map = mmap(NULL, size, PROT_READ, MAP_SHARED, fd, 0);
	struct kvc_sum sum;

	fuzz_must(map != MAP_FAILED);
	sum = kvc_sum_of(map, size);
	fuzz_must(!memcmp(&sum, want, sizeof sum));
	munmap(map, size);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	static const struct kvc_tier_ops ops = { .name = "memory", .get = get };
	struct fuzz_in in = { data, size };
	unsigned how = (unsigned)fuzz_number(&in, 1);
	size_t len = kvc_round_up(in.n > KVC_FRAME_HEADER ? in.n : KVC_FRAME_HEADER, KVC_PAGE);
	uint8_t *bytes = fuzz_bytes(&in, len);
	struct kvc_fetch_want w = want_of(how, bytes, len);
	struct memory m = { { .ops = &ops }, bytes, len };
	struct stat st;
	int err = kvc_fetch(&k, &m.tier, &w, fd);

	/* -ENOMEM: the header asks for more memory than the limit */
	fuzz_must(!err || err == -EBADMSG || err == -ESTALE || err == -EPROTO || err == -ENOKEY ||
		  err == -ENOMEM);
	if (!err)
		fuzz_must(!fstat(fd, &st) && (uint64_t)st.st_size == w.size);
	/*
	 * A sealed frame has no sum of its content, and the sum of a sparse frame covers only its
	 * ranges.
	 */
	if (!err && w.size && !(told.flags & (KVC_FRAME_SPARSE | KVC_FRAME_SEALED)))
		is(told.flags & KVC_FRAME_CODED ? &told.raw_sum : &told.stored_sum, w.size);
	fuzz_must(!ftruncate(fd, 0));
	free(bytes);
	return 0;
}
