/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kvcachectl codec: codes and decodes a sample of a file with each codec, and prints the ratio, the
 * speed and the error. The sample consists of whole blocks, as a mount would code them, but nothing
 * of a mount is used. Statistics of the sample can show that the layout is wrong.
 */
#include "ctl.h"

#include "codec.h"
#include "json.h"

#include <fcntl.h>
#include <inttypes.h>
#include <math.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/xattr.h>

#define BLOCKS 32u /* maximum number of blocks in the sample */
#define XATTR "user.kvcachefs.layout"
#define MARGIN 0.1 /* difference of shares that shows a wrong layout */

struct sample {
	const char *path;
	uint64_t size;
	unsigned n; /* blocks */
	uint64_t off[BLOCKS];
	size_t len[BLOCKS];
	uint8_t *data[BLOCKS];
	struct kvc_codec_kv kv; /* layout and vectors */
	bool has_layout;
};

struct outcome {
	const char *name;
	bool lossy;
	uint64_t raw, stored, lost; /* bytes; in blocks that were coded with loss */
	double error, energy, worst;
	uint64_t encode_ns, decode_ns;
};

static void blocks_free(struct sample *s)
{
	for (unsigned i = 0; i < s->n; i++)
		free(s->data[i]);
}

/* Reads blocks at equal distances. Returns 0, or 1 after a message. */
static int blocks_read(struct sample *s, int fd)
{
	uint64_t all = (s->size + KVC_BLOCK - 1) / KVC_BLOCK, n = kvc_min(all, BLOCKS);

	for (uint64_t i = 0; i < n; i++) {
		uint64_t off = i * all / n * KVC_BLOCK;
		size_t len = (size_t)kvc_min(s->size - off, KVC_BLOCK);
		int err;

		s->off[i] = off;
		s->len[i] = len;
		s->data[i] = malloc(len);
		if (!s->data[i])
			return kvm_fail("out of memory");
		s->n++;
		err = kvc_pread_all(fd, s->data[i], len, (off_t)off);
		if (err)
			return kvm_fail("%s: %s", s->path, kvc_why(-err));
	}
	return 0;
}

/* The CPU time of this thread, which does not grow while other programs have the CPU. */
static uint64_t thread_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
	return kvc_ns(t);
}

/* Codes the sample with a codec: lossless number `codec`, or lossy number `code` if codec < 0. */
static int try_codec(struct sample *s, struct kvc_codec_work *w, int codec, int code,
		     struct outcome *o)
{
	KVC_MEM uint8_t *out = malloc(KVC_BLOCK_ROOM), *back = malloc(KVC_BLOCK);
	KVC_MEM uint8_t *to = malloc(KVC_BLOCK);

	if (!out || !back || !to)
		return kvm_fail("out of memory");
	s->kv.code = (enum kvc_kvq_code)(code < 0 ? 0 : code);
	for (unsigned i = 0; i < s->n; i++) {
		struct kvc_kvq_loss loss = { 0 };
		const uint8_t *want = s->data[i];
		uint32_t kind;
		uint64_t at = thread_ns();
		size_t n = code < 0 ? kvc_codec_encode(w, (enum kvc_codec)codec, 1, s->data[i],
						       s->len[i], out, &kind)
				    : kvc_codec_encode_kv(w, &s->kv, s->off[i], s->data[i],
							  s->len[i], out, &kind, back, &loss);

		o->encode_ns += thread_ns() - at;
		at = thread_ns();
		if (kvc_codec_decode(w, kind, n ? out : s->data[i], n ? n : s->len[i], to,
				     s->len[i]))
			return kvm_fail("%s: block %u cannot be decoded", o->name, i);
		o->decode_ns += thread_ns() - at;
		if (kind == KVC_KIND_KVQ) {
			want = back;
			o->lost += s->len[i];
			o->error += (double)loss.error;
			o->energy += (double)loss.energy;
			if (loss.energy > 0)
				o->worst = fmax(o->worst,
						sqrt((double)loss.error / (double)loss.energy));
		}
		if (memcmp(to, want, s->len[i]) != 0)
			return kvm_fail("%s: block %u is decoded to other bytes", o->name, i);
		o->raw += s->len[i];
		o->stored += n ? n : s->len[i];
	}
	return 0;
}

/*
 * Returns the sum of the squares of the channels' means, divided by the sum of the squares of all
 * elements, for keys (values: 0) or values (1). See kvc_kvq_means.
 */
static double mean_share(const struct sample *s, struct kvc_kvq *q, const struct kvc_kv_layout *l,
			 int values)
{
	double mean[2] = { 0 }, all[2] = { 0 };
	uint64_t vectors;

	if (kvc_kv_layout_fit(l, s->size, &vectors))
		return 0;
	for (unsigned i = 0; i < s->n; i++)
		kvc_kvq_means(q, l, vectors, s->off[i], s->data[i], s->len[i], mean, all);
	return all[values] > 0 ? mean[values] / all[values] : 0;
}

static void set_axis(struct kvc_kv_layout *l, char name, char to, uint32_t size)
{
	for (int i = 0; i < l->naxes; i++)
		if (l->axis[i].name == name) {
			l->axis[i].name = to;
			l->axis[i].size = size;
			return;
		}
}

/*
 * Looks for layouts that fit the sample better than the given one. The keys of one head have large
 * means in most models. A wrong layout mixes keys of different heads, and mean_share gets smaller.
 * Returns a message or NULL.
 */
static const char *doubt(const struct sample *s, struct kvc_kvq *q, char text[256])
{
	const struct kvc_kv_layout *l = &s->kv.layout;
	double keys = mean_share(s, q, l, 0), values = mean_share(s, q, l, 1), best;
	uint32_t d = kvc_kv_layout_axis(l, 'd'), t = kvc_kv_layout_axis(l, 't');
	uint32_t h = kvc_kv_layout_axis(l, 'h');
	struct kvc_kv_layout other = *l;
	char layout[KVC_KV_LAYOUT_TEXT];

	if (values > keys + MARGIN)
		return "keys and values seem to be exchanged: values have larger means than keys";
	set_axis(&other, 't', '-', h);
	set_axis(&other, 'h', 't', t);
	set_axis(&other, '-', 'h', h);
	if (!kvc_kv_layout_check(&other, NULL) && mean_share(s, q, &other, 0) > keys + MARGIN) {
		kvc_kv_layout_print(&other, layout);
		snprintf(text, 256, "the axes t and h seem to be exchanged: try '%s'", layout);
		return text;
	}
	/* the best of other sizes: it must be better than the given one by the margin */
	best = keys + MARGIN;
	for (uint32_t size = 2 * d; size >= d / 2; size -= d / 2) {
		double share;

		other = *l;
		set_axis(&other, 'd', 'd', size);
		if (size == d || kvc_kv_layout_check(&other, NULL))
			continue;
		share = mean_share(s, q, &other, 0);
		if (share <= best)
			continue;
		best = share;
		kvc_kv_layout_print(&other, layout);
		snprintf(text, 256, "the size of a head seems to be wrong: try '%s'", layout);
	}
	return best > keys + MARGIN ? text : NULL;
}

/* Finds the layout: the option, or the attribute of the file or of a folder above it. */
static int find_layout(struct sample *s, int fd, const char *option)
{
	uint8_t first[KVC_KV_LAYOUT_FIRST] = { 0 };
	char error[KVC_KV_LAYOUT_ERROR], text[KVC_KV_LAYOUT_TEXT] = "", *slash;
	KVC_MEM char *path = NULL;
	ssize_t n = -1;

	if (!option) {
		path = realpath(s->path, NULL);
		while (path && *path) {
			n = getxattr(path, XATTR, text, sizeof text - 1);
			if (n >= 0 || !(slash = strrchr(path, '/')))
				break;
			*slash = 0;
		}
		if (n < 0)
			return 0; /* only codecs without loss */
		text[n] = 0;
		option = text;
	}
	if (kvc_kv_layout_parse(option, &s->kv.layout, error))
		return kvm_fail("the layout '%s' is wrong: %s", option, error);
	kvc_kv_layout_print(&s->kv.layout, text);
	if (pread(fd, first, sizeof first, 0) < 0)
		return kvm_fail("%s: %s", s->path, kvc_why(errno));
	if (kvc_kv_layout_locate(&s->kv.layout, first, sizeof first) ||
	    kvc_kv_layout_fit(&s->kv.layout, s->size, &s->kv.vectors))
		return kvm_fail("%s: a file of %" PRIu64 " bytes does not have the layout '%s'",
				s->path, s->size, text);
	s->has_layout = true;
	return 0;
}

static double speed(const struct outcome *o, uint64_t ns)
{
	return ns ? (double)o->raw / (double)ns : 0;
}

static double error_of(const struct outcome *o)
{
	return o->energy > 0 ? sqrt(o->error / o->energy) : 0;
}

static void print_text(const struct sample *s, const struct outcome *o, unsigned n,
		       const char *warning)
{
	char layout[KVC_KV_LAYOUT_TEXT] = "none (give --layout to try lossy codecs)";

	if (s->has_layout)
		kvc_kv_layout_print(&s->kv.layout, layout);
	printf("layout: %s\nsample: %u of %" PRIu64 " blocks of 1 MiB\n\n", layout, s->n,
	       (s->size + KVC_BLOCK - 1) / KVC_BLOCK);
	printf("%-10s %6s %7s %8s %8s %12s %12s\n", "codec", "ratio", "lossy", "error", "worst",
	       "encode GB/s", "decode GB/s");
	for (; n--; o++) {
		printf("%-10s %6.2f", o->name, (double)o->raw / (double)o->stored);
		if (o->lossy)
			printf(" %5.0f %% %8.4f %8.4f", 100.0 * (double)o->lost / (double)o->raw,
			       error_of(o), o->worst);
		else
			printf(" %7s %8s %8s", "-", "-", "-");
		printf(" %12.2f %12.2f\n", speed(o, o->encode_ns), speed(o, o->decode_ns));
	}
	if (warning)
		printf("\nWarning: %s.\n", warning);
}

static void print_json(const struct sample *s, const struct outcome *o, unsigned n,
		       const char *warning)
{
	struct kvm_json j = { stdout, false };
	char layout[KVC_KV_LAYOUT_TEXT];

	if (s->has_layout)
		kvc_kv_layout_print(&s->kv.layout, layout);
	kvm_json_begin(&j, NULL, '{');
	kvm_json_text(&j, "layout", s->has_layout ? layout : NULL);
	kvm_json_number(&j, "blocks", s->n);
	kvm_json_begin(&j, "codecs", '[');
	for (; n--; o++) {
		kvm_json_begin(&j, NULL, '{');
		kvm_json_text(&j, "codec", o->name);
		kvm_json_number(&j, "bytes", o->raw);
		kvm_json_number(&j, "stored_bytes", o->stored);
		kvm_json_number(&j, "lossy_bytes", o->lost);
		kvm_json_share(&j, "error", error_of(o));
		kvm_json_share(&j, "worst_error", o->worst);
		kvm_json_number(&j, "encode_ns", o->encode_ns);
		kvm_json_number(&j, "decode_ns", o->decode_ns);
		kvm_json_end(&j, '}');
	}
	kvm_json_end(&j, ']');
	kvm_json_text(&j, "warning", warning);
	kvm_json_end(&j, '}');
	putchar('\n');
}

/* Tries all codecs, and prints the table. Returns the exit status. */
static int try_all(struct sample *s, bool json)
{
	struct outcome o[KVC_CODECS + KVC_KVQ_CODES] = { 0 };
	struct kvc_codec_work *w = kvc_codec_work_get();
	struct kvc_kvq *q = kvc_kvq_new();
	char text[256];
	unsigned n = 0;
	int err = w && q ? 0 : kvm_fail("out of memory");

	for (int c = KVC_CODEC_ZSTD; !err && c < KVC_CODECS; c++) {
		o[n].name = kvc_codec_names[c];
		err = try_codec(s, w, c, -1, &o[n++]);
	}
	for (int c = 0; !err && s->has_layout && c < KVC_KVQ_CODES; c++) {
		o[n].name = kvc_kvq_names[c];
		o[n].lossy = true;
		err = try_codec(s, w, -1, c, &o[n++]);
	}
	if (!err)
		(json ? print_json : print_text)(s, o, n, s->has_layout ? doubt(s, q, text) : NULL);
	kvc_codec_work_put(w, false);
	kvc_kvq_free(q);
	return err;
}

int kvm_run_codec(int argc, char **argv)
{
	bool json = false;
	const char *layout = NULL;
	const struct kvm_option options[] = { { "json", &json, NULL },
					      { "layout", NULL, &layout },
					      { 0 } };
	struct sample s = { 0 };
	struct stat st;
	int err = kvm_options(&argc, argv, options), fd;

	if (err)
		return err;
	s.path = argv[0];
	fd = open(s.path, O_RDONLY | O_CLOEXEC);
	if (fd < 0 || fstat(fd, &st))
		err = kvm_fail("%s: %s", *s.path ? s.path : "''", kvc_why(errno));
	else if (!S_ISREG(st.st_mode) || !st.st_size)
		err = kvm_fail("%s: not a regular file with content", s.path);
	s.size = err ? 0 : (uint64_t)st.st_size;
	err = err ?: find_layout(&s, fd, layout) ?: blocks_read(&s, fd) ?: try_all(&s, json);
	if (fd >= 0)
		close(fd);
	blocks_free(&s);
	return err;
}
