/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tier URL [DEADLINE_MS [STORE]]: drives one shared tier by lines on standard input. The answer to
 * each is one line, "0" or the name of an errno:
 *   put NAME BYTES     get NAME BYTES     get-unknown NAME BYTES (as a lookup does)
 *   remove NAME        list (also prints the number of frames)
 *   start              starts its threads, with STORE as the store's folder
 */
#include "registry.h"

#include <stdio.h>
#include <string.h>

struct body {
	const uint8_t *data;
	struct kvc_frame f;
};

static uint8_t *bytes_of(const char *name, size_t len)
{
	uint8_t *p = aligned_alloc(KVC_PAGE, kvc_round_up(len + 1, KVC_PAGE));
	struct kvc_sum sum = kvc_sum_of(name, strlen(name));

	for (size_t i = 0; p && i < len; i++)
		p[i] = (uint8_t)(sum.b[i % 16] + i / 4096);
	return p;
}

static int body_read(void *arg, void *buf, size_t len, uint64_t off)
{
	memcpy(buf, ((struct body *)arg)->data + off, len);
	return 0;
}

static int body_head(void *arg, uint8_t page[KVC_FRAME_HEADER])
{
	kvc_frame_encode(&((struct body *)arg)->f, page);
	return 0;
}

static int put(struct kvc_tier *t, const char *name, size_t len)
{
	KVC_MEM struct body *b = calloc(1, sizeof *b);
	KVC_MEM uint8_t *data = bytes_of(name, len);
	struct kvc_put p = {
		.ino = 7,
		.gen = 1,
		.stored_len = len,
		.name = kvc_frame_where_of(name),
		.arg = b,
		.read = body_read,
		.head = body_head,
	};
	struct kvc_where w;

	if (!b || !data)
		return -ENOMEM;
	b->data = data;
	b->f.ino = 7;
	b->f.gen = 1;
	b->f.flags = KVC_FRAME_SHARED;
	b->f.size = b->f.raw_len = b->f.stored_len = len;
	b->f.stored_sum = b->f.raw_sum = kvc_sum_of(data, len);
	snprintf(b->f.path, sizeof b->f.path, "%s", name);
	return t->ops->put(t, &p, &w);
}

static int get(struct kvc_tier *t, const char *name, size_t len, bool known)
{
	size_t span = kvc_round_up(len, KVC_PAGE);
	KVC_MEM uint8_t *page = aligned_alloc(KVC_PAGE, KVC_FRAME_HEADER);
	KVC_MEM uint8_t *back = aligned_alloc(KVC_PAGE, span + KVC_PAGE);
	KVC_MEM uint8_t *want = bytes_of(name, len);
	struct iovec iov[2] = { { page, KVC_FRAME_HEADER }, { back, span } };
	struct kvc_where w = kvc_frame_where_of(name);
	int err;

	if (!page || !back || !want)
		return -ENOMEM;
	w.len = known ? KVC_FRAME_HEADER + span : 0;
	err = t->ops->get(t, &w, 0, iov, known && span ? 2 : 1);
	if (!err && known && memcmp(back, want, len))
		err = -EILSEQ;
	if (!err && known && span) { /* and its last page alone */
		struct iovec last = { back, KVC_PAGE };

		err = t->ops->get(t, &w, w.len - KVC_PAGE, &last, 1);
		if (!err && memcmp(back, want + span - KVC_PAGE, len - (span - KVC_PAGE)))
			err = -EILSEQ;
	}
	return err;
}

static int count(void *arg, const struct kvc_where *w, const struct kvc_frame *f)
{
	(void)w;
	(void)f;
	++*(unsigned *)arg;
	return 0;
}

static void answer(int err)
{
	puts(err ? strerrorname_np(-err) : "0");
	(void)fflush(stdout);
}

static void serve(struct kvc_tier *t)
{
	char line[512], verb[32], name[256];
	unsigned long long len;
	unsigned n;

	while (fgets(line, sizeof line, stdin)) {
		len = 0;
		*name = 0;
		if (sscanf(line, "%31s %255s %llu", verb, name, &len) < 1)
			continue;
		struct kvc_where w = kvc_frame_where_of(name);

		if (!strcmp(verb, "put")) {
			answer(put(t, name, len));
		} else if (!strcmp(verb, "get")) {
			answer(get(t, name, len, true));
		} else if (!strcmp(verb, "get-unknown")) {
			answer(get(t, name, len, false));
		} else if (!strcmp(verb, "remove")) {
			answer(t->ops->remove(t, &w));
		} else if (!strcmp(verb, "start")) {
			answer(t->ops->start ? t->ops->start(t) : 0);
		} else if (!strcmp(verb, "list")) {
			n = 0;
			int err = t->ops->list(t, count, &n);

			printf("%s %u\n", err ? strerrorname_np(-err) : "0", n);
			(void)fflush(stdout);
		} else {
			answer(-EINVAL);
		}
	}
}

int main(int argc, char **argv)
{
	KVC_MEM struct kvc_options *o = calloc(1, sizeof *o);
	KVC_MEM struct kvc_store *s = calloc(1, sizeof *s);
	struct kvc_tier *t[KVCT_MAX];
	char error[512], text[4000];
	unsigned n;

	if (argc < 2 || !o || !s)
		return 2;
	kvc_options_init(o);
	snprintf(text, sizeof text, "disk=off,deadline=%s,remote=%s", argc > 2 ? argv[2] : "5000",
		 argv[1]);
	snprintf(s->dir, sizeof s->dir, "%s", argc > 3 ? argv[3] : "");
	if (kvc_options_parse(o, text, error) ||
	    kvct_open_all(argc > 3 ? s : NULL, o, t, &n, error)) {
		puts(error);
		return 1;
	}
	answer(0);
	serve(t[0]);
	if (t[0]->ops->stop)
		t[0]->ops->stop(t[0]);
	kvct_close_all(t, n);
	return 0;
}
