/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test-seeds DIR: writes the seeds of the fuzzers that are not text (tests/fuzz/seeds): frames of
 * every kind, coded and sealed, and answers of servers that have them. Run it again when the
 * formats change; the first comment of tests/fuzz/NAME.c describes the input.
 */
#include "payload.h"
#include "registry.h"

#include <endian.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

static const char *dir;

static void die(const char *what)
{
	perror(what);
	exit(1);
}

/* An input that is being built. */
struct seed {
	uint8_t b[1 << 16];
	size_t n;
};

static void bytes(struct seed *s, const void *p, size_t n)
{
	memcpy(s->b + s->n, p, n);
	s->n += n;
}

static void number(struct seed *s, uint64_t v, size_t n)
{
	v = htole64(v);
	bytes(s, &v, n);
}

/* Zeros at the end are left out, since a fuzzer reads missing bytes as zeros. */
static void save(struct seed *s, const char *fuzzer, const char *name)
{
	char path[1200];
	int fd;

	while (s->n > 1 && !s->b[s->n - 1])
		s->n--;
	snprintf(path, sizeof path, "%s/%s", dir, fuzzer);
	mkdir(path, 0755);
	snprintf(path, sizeof path, "%s/%s/%s", dir, fuzzer, name);
	fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
	if (fd < 0 || kvc_pwrite_all(fd, s->b, s->n, 0))
		die(path);
	close(fd);
	s->n = 0;
}

static uint8_t raw[40000];

static int give(void *arg, void *buf, size_t len, uint64_t off)
{
	(void)arg;
	memcpy(buf, raw + off, len);
	return 0;
}

static struct kvc_keys *keys_of(void)
{
	static const char text[] =
		"7 0101010101010101010101010101010101010101010101010101010101010101\n";
	struct kvc_keys *k;
	char path[1100], error[512];
	int fd;

	snprintf(path, sizeof path, "%s/keys", dir);
	fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
	if (fd < 0 || kvc_pwrite_all(fd, text, sizeof text - 1, 0) ||
	    kvc_keys_open(&k, path, error))
		die(path);
	close(fd);
	unlink(path);
	return k;
}

/* Writes a frame and its payload to page and out. Returns the payload's length. */
static size_t frame(struct kvc_frame *f, const struct kvc_recipe *r, uint8_t *page, uint8_t *out)
{
	struct kvc_encoder *e;

	f->raw_sum = kvc_sum_of(raw, f->raw_len);
	if (kvc_payload_encoder_new(&e, f, r, give, NULL) ||
	    (e ? kvc_payload_encoder_read(e, out, f->stored_len) : give(NULL, out, f->raw_len, 0)))
		die("a frame cannot be made");
	kvc_payload_encoder_free(e);
	f->stored_sum = kvc_sum_of(out, f->stored_len);
	if (f->flags & KVC_FRAME_SEALED)
		memset(&f->raw_sum, 0, sizeof f->raw_sum);
	kvc_frame_encode(f, page);
	return f->stored_len;
}

static struct kvc_frame *plain(uint64_t len)
{
	static struct kvc_frame f;

	memset(&f, 0, sizeof f);
	memset(f.store, 's', 16);
	f.ino = 17;
	f.gen = 3;
	f.size = f.raw_len = len;
	f.mode = S_IFREG | 0644;
	f.uid = f.gid = 1000;
	f.mtime_ns = f.btime_ns = 1700000000000000000;
	snprintf(f.key_model, sizeof f.key_model, "model");
	snprintf(f.path, sizeof f.path, "model/chunk/layer");
	return &f;
}

/* A sparse object: a table of two ranges before their bytes. */
static struct kvc_frame *sparse(void)
{
	const struct kvc_range r[] = { { 0, 100 }, { 8192, 50 } };
	struct kvc_frame *f = plain(16384);

	f->flags = KVC_FRAME_SPARSE;
	f->raw_len = kvc_frame_ranges_size(2) + 150;
	kvc_frame_ranges_encode(r, 2, raw);
	return f;
}

static void fetches(struct kvc_keys *keys)
{
	/* `how` is the first byte of tests/fuzz/fetch.c's input */
	static const struct {
		const char *name;
		unsigned how, codec, sealed, shared, sparse;
		uint64_t len;
	} kinds[] = {
		{ "plain", 2 | 16, KVC_CODEC_NONE, 0, 0, 0, 300 },
		{ "empty", 2, KVC_CODEC_NONE, 0, 0, 0, 0 },
		{ "shared", 1 | 2, KVC_CODEC_NONE, 0, 1, 0, 300 },
		{ "sparse", 0, KVC_CODEC_NONE, 0, 0, 1, 0 },
		{ "zstd", 8, KVC_CODEC_ZSTD, 0, 0, 0, 30000 },
		{ "bf16", 8 | 2, KVC_CODEC_BF16, 0, 0, 0, 10000 },
		{ "sealed", 2 | 4 | 32, KVC_CODEC_NONE, 1, 0, 0, 300 },
		{ "sealed-empty", 2 | 4 | 32, KVC_CODEC_NONE, 1, 0, 0, 0 },
		{ "sealed-sparse", 4 | 8 | 32, KVC_CODEC_ZSTD, 1, 1, 1, 0 },
	};
	static struct seed s;
	static uint8_t page[KVC_FRAME_HEADER] __attribute__((aligned(8))), out[1 << 16];

	for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
		struct kvc_recipe r = { .codec = kinds[i].codec, .level = 1 };
		struct kvc_frame *f;
		size_t n;

		for (size_t j = 0; j < sizeof raw; j++) /* like bf16 */
			raw[j] = j & 1 ? 0x3f : (uint8_t)(j * 2654435761u >> 13);
		f = kinds[i].sparse ? sparse() : plain(kinds[i].len);
		f->flags |= kinds[i].shared ? KVC_FRAME_SHARED : 0;
		if (kinds[i].sealed) {
			r.keys = keys;
			r.key_id = 7;
		}
		n = frame(f, &r, page, out);
		number(&s, kinds[i].how | (kinds[i].shared ? 1 : 0), 1);
		bytes(&s, page, sizeof page);
		bytes(&s, out, n);
		save(&s, "fetch", kinds[i].name);
	}
}

static void frames(void)
{
	const struct kvc_recipe none = { .codec = KVC_CODEC_NONE };
	static struct seed s;
	static uint8_t page[KVC_FRAME_HEADER] __attribute__((aligned(8))), out[1 << 16];
	struct kvc_frame *f = sparse();

	frame(f, &none, page, out);
	bytes(&s, page, sizeof page);
	number(&s, f->size, 8);
	bytes(&s, raw, kvc_frame_ranges_size(2));
	save(&s, "frame", "sparse");
}

/* Answers of tiers with one small frame. */
static void servers(void)
{
	const struct kvc_recipe none = { .codec = KVC_CODEC_NONE };
	static struct seed s;
	static uint8_t page[KVC_FRAME_HEADER] __attribute__((aligned(8))), out[1 << 16];
	static const char keys[] = "kvcachefs:{0123456789abcdeffedcba9876543210}",
			  xml[] = "<Key>prefix/01/0123456789abcdeffedcba9876543210</Key>"
				  "<NextContinuationToken>t</NextContinuationToken>",
			  slots[] = "127.0.0.1";
	struct kvc_frame *f = plain(200);

	f->flags = KVC_FRAME_SHARED;
	frame(f, &none, page, out);
	number(&s, 1 << 1, 1); /* get of a page and a page */
	for (int i = 0; i < 2; i++) {
		number(&s, 3, 1);
		number(&s, i ? 200 : sizeof page + 24, 2);
		if (!i) {
			bytes(&s, page, sizeof page);
			number(&s, 5, 8); /* struct trailer */
			number(&s, 200, 8);
			number(&s, 0, 8);
		} else {
			bytes(&s, out, 200);
		}
	}
	save(&s, "redis", "get");
	number(&s, 5 << 1, 1); /* list: an array of a cursor and one name, then the frame */
	number(&s, 2 | 2 << 3, 1);
	number(&s, 3, 1);
	number(&s, 1, 2);
	number(&s, '0', 1);
	number(&s, 2 | 1 << 3, 1);
	number(&s, 3, 1);
	number(&s, sizeof keys - 1, 2);
	bytes(&s, keys, sizeof keys - 1);
	save(&s, "redis", "list");
	number(&s, 1 | 6 << 1, 1); /* learn: one range of slots, one node */
	for (int i = 0; i < 2; i++)
		number(&s, 2 | (i ? 3 : 1) << 3, 1);
	for (int i = 0; i < 2; i++) {
		number(&s, 1, 1);
		number(&s, i ? 16383 : 0, 4);
	}
	number(&s, 2 | 2 << 3, 1);
	number(&s, 3, 1);
	number(&s, sizeof slots - 1, 2);
	bytes(&s, slots, sizeof slots - 1);
	number(&s, 1, 1);
	number(&s, 7000, 4);
	number(&s, 0 | 0 << 3, 1); /* and a redirection */
	save(&s, "redis", "learn");

	number(&s, 1, 1);
	number(&s, 0, 1);
	number(&s, 1, 1);
	number(&s, 0, 1);
	number(&s, sizeof page + 200, 2);
	bytes(&s, page, sizeof page);
	bytes(&s, out, 200);
	save(&s, "s3", "get");
	number(&s, 5, 1);
	for (int i = 0; i < 3; i++) { /* a listing, its only object, a listing */
		number(&s, 0, 1);
		number(&s, i == 1, 1);
		number(&s, 0, 1);
		number(&s, i == 1 ? sizeof page : sizeof xml - 1, 2);
		bytes(&s, i == 1 ? (const void *)page : xml, i == 1 ? sizeof page : sizeof xml - 1);
	}
	save(&s, "s3", "list");
	number(&s, 7, 1);
	for (int i = 0; i < 4; i++) { /* an upload in parts */
		static const char id[] = "<UploadId>u</UploadId>", tag[] = "ETag: \"e\"\r\n";

		number(&s, 0, 1);
		number(&s, 0, 1);
		number(&s, i ? 1 : 0, 1);
		if (i)
			bytes(&s, tag, sizeof tag - 1);
		number(&s, i ? 0 : sizeof id - 1, 2);
		if (!i)
			bytes(&s, id, sizeof id - 1);
	}
	number(&s, 1, 1);
	save(&s, "s3", "parts");
}

static void stores(void)
{
	const struct kvc_recipe none = { .codec = KVC_CODEC_NONE };
	static struct seed s;
	static struct kvc_store store;
	static uint8_t page[KVC_FRAME_HEADER] __attribute__((aligned(8))), out[1 << 16];
	char path[1280];
	int fd;

	snprintf(store.dir, sizeof store.dir, "%s", dir);
	kvc_super_own(&store, 4 * KVC_PAGE);
	if (kvc_super_create(&store))
		die(dir);
	fd = open(kvc_super_path(&store, KVC_STORE_SUPER, path), O_RDONLY | O_CLOEXEC);
	if (fd < 0 || kvc_pread_all(fd, page, sizeof page, 0))
		die(path);
	close(fd);
	unlink(path);
	bytes(&s, page, sizeof page);
	frame(plain(100), &none, page, out);
	bytes(&s, page, sizeof page);
	bytes(&s, raw, KVC_PAGE);
	bytes(&s, page, sizeof page);
	number(&s, 1, 1);
	memset(s.b + s.n, 0, KVC_PAGE);
	s.n += KVC_PAGE - 2;
	number(&s, 1, 1);
	save(&s, "store", "two");
}

int main(int argc, char **argv)
{
	if (argc != 2) {
		fprintf(stderr, "usage: test-seeds DIR\n");
		return 1;
	}
	dir = argv[1];
	struct kvc_keys *keys = keys_of();

	fetches(keys);
	frames();
	servers();
	stores();
	kvc_keys_close(keys);
	return 0;
}
