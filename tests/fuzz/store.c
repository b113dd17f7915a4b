/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A store from an untrusted source: its superblock, the catalog's line about it, and the walk over
 * its data file that a rebuild makes. A superblock that can be opened can be written, and then
 * opens as the same; so does an accepted line. Every frame that is found lies within the file. The
 * mutator repairs the superblock's sum and the sums of headers.
 *
 * Input: the superblock's page, then the data file; the line is everything up to the first zero.
 * Longest input: 24576
 * Covers: engine/base/store.c, engine/base/store_next.c, engine/base/super.c, tiers/disk.c,
 * tiers/extent.c
 */
#include "fuzz.h"
#include "registry.h"

#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>

/* A larger data file fails with ENOSPC, as on a small filesystem, since each byte is read twice. */
#define FILE_MOST (64u << 20)

static char dir[1000], other[1000];

int LLVMFuzzerInitialize(int *argc, char ***argv)
{
	(void)argc;
	(void)argv;
	snprintf(dir, sizeof dir, "%s/store", fuzz_folder());
	snprintf(other, sizeof other, "%s/other", fuzz_folder());
	fuzz_must(!mkdir(dir, 0700) && !mkdir(other, 0700));
	return 0;
}

size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t capacity, unsigned seed)
{
	size = LLVMFuzzerMutate(data, size, capacity);
	if (seed % 8)
		fuzz_mend(data, size, 0, KVC_PAGE - 16);
	for (size_t at = KVC_PAGE; at + KVC_PAGE <= size && seed % 4; at += KVC_PAGE)
		if (!memcmp(data + at, "KVCFRAME", 8))
			fuzz_mend_header(data + at, size - at);
	return size;
}

/* Checks a frame that the walk found: it can be claimed once, read as a whole, and removed. */
static int found(void *arg, const struct kvc_where *w, const struct kvc_frame *f)
{
	struct kvc_tier *t = arg;
	uint8_t *bytes = aligned_alloc(KVC_PAGE, w->len);
	struct iovec iov = { bytes, w->len };
	static struct kvc_frame again;
	int err = t->ops->claim(t, w);

	fuzz_must(bytes && w->len >= KVC_FRAME_HEADER + f->stored_len && (!err || err == -EEXIST));
	fuzz_must(!t->ops->get(t, w, 0, &iov, 1) && !kvc_frame_decode(bytes, &again));
	fuzz_must(again.ino == f->ino && again.stored_len == f->stored_len);
	free(bytes);
	return f->ino & 1; /* 1: accepted; anything inside is payload */
}

static int count(void *arg, const struct kvc_where *w, const struct kvc_frame *f)
{
	(void)w;
	(void)f;
	++*(unsigned *)arg;
	return 0;
}

static void walk(const struct kvc_store *s)
{
	struct kvc_tier_usage u;
	struct rlimit was, small;
	struct kvc_tier *t;
	unsigned n = 0;
	char error[512] = "";
	int err;

	signal(SIGXFSZ, SIG_IGN); /* libFuzzer has installed a handler */
	fuzz_must(!getrlimit(RLIMIT_FSIZE, &was));
	small = (struct rlimit){ FILE_MOST, was.rlim_max };
	fuzz_must(!setrlimit(RLIMIT_FSIZE, &small));
	err = kvct_devices_open(s, &t, error);
	fuzz_must(!setrlimit(RLIMIT_FSIZE, &was));
	if (err) {
		fuzz_must(*error);
		return;
	}
	fuzz_must(!t->ops->list(t, found, t));
	fuzz_must(!t->ops->list(t, count, &n));
	t->ops->usage(t, &u);
	fuzz_must(u.used <= u.total && u.total <= kvc_super_size(s) && (!u.used || n));
	t->ops->close(t);
}

static bool same_devices(const struct kvc_store *a, const struct kvc_store *b)
{
	for (unsigned i = 0; i < KVC_DEVICES; i++) {
		const struct kvc_device *x = &a->dev[i], *y = &b->dev[i];

		if (x->kind != y->kind || x->size != y->size || x->leaving != y->leaving)
			return false;
		if (x->kind > KVC_DEVICE_OWN && strcmp(x->path, y->path) != 0)
			return false;
	}
	return true;
}

static void again(const struct kvc_store *s)
{
	struct kvc_store made = { 0 }, back;
	char error[512];

	memcpy(made.dev, s->dev, sizeof made.dev);
	memcpy(made.uuid, s->uuid, 16);
	snprintf(made.dir, sizeof made.dir, "%s", other);
	fuzz_must(!kvc_super_create(&made));
	fuzz_must(!kvc_store_open(&back, other, error));
	fuzz_must(same_devices(&back, s));
	fuzz_must(!memcmp(back.uuid, made.uuid, 16));
	kvc_store_close(&back);
	fuzz_empty(other);
}

static void line(const uint8_t *data, size_t size)
{
	struct kvc_store s = { 0 }, back = { 0 };
	char *text = strndup((const char *)data, size), now[KVC_STORE_TEXT];
	int err = kvc_super_parse(&s, text);

	fuzz_must(!err || err == -EBADMSG);
	if (!err) {
		fuzz_must(strlen(kvc_super_text(&s, now)) < sizeof now);
		fuzz_must(!kvc_super_parse(&back, now) || strlen(now) == sizeof now - 1);
		fuzz_must(!memcmp(back.uuid, s.uuid, 16) && same_devices(&s, &back));
		fuzz_must(back.has_secret == s.has_secret &&
			  !memcmp(back.secret, s.secret, sizeof s.secret));
	}
	free(text);
}

/* Are all devices files in the store's folder? Others would be those of this machine. */
static bool is_own(const struct kvc_store *s)
{
	for (unsigned i = 0; i < KVC_DEVICES; i++)
		if (s->dev[i].kind > KVC_DEVICE_OWN)
			return false;
	return true;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct kvc_store s;
	size_t super = size < KVC_PAGE ? size : KVC_PAGE;
	char error[512] = "";

	line(data, size);
	fuzz_file("store/" KVC_STORE_SUPER, data, super);
	fuzz_file("store/" KVC_STORE_DATA, data + super, size - super);
	if (kvc_store_open(&s, dir, error)) {
		fuzz_must(*error && !strchr(error, '\n'));
	} else {
		if (is_own(&s))
			walk(&s);
		again(&s);
		kvc_store_close(&s);
	}
	fuzz_empty(dir);
	return 0;
}
