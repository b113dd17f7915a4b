/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fsck.kvcachefs [-n|-y] [--data] [--rebuild] STORE: checks a store that is not mounted. In order:
 * superblock, the database's pages, the catalog's rules, each placement against the frame that lies
 * there, extents against each other, the usage total, and frames that no placement names. Exit: 0
 * nothing wrong, 1 all mended, 4 something is left, 8 it could not be done.
 */
#include "fsck.h"

#include "registry.h"
#include "tool.h"

#include <getopt.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

static void usage(FILE *out)
{
	fprintf(out, "usage: fsck.kvcachefs [-n | -y] [--data] [--rebuild] STORE\n"
		     "Checks a kvcachefs store that is not mounted.\n\n"
		     "  -n, --no-change  only look (the default)\n"
		     "  -y, --yes        mend what can be mended\n"
		     "      --data       read every frame's payload and compare its checksum too\n"
		     "      --rebuild    make a new catalog from the frames alone\n"
		     "  -h, --help       this\n"
		     "  -V, --version    the version\n");
}

void kvm_found(void *report, bool mended, const char *what)
{
	struct kvm_report *r = report;

	r->found++;
	r->mended += mended;
	printf("%s%s\n", what, mended ? " (mended)" : "");
}

void kvm_foundf(struct kvm_report *r, bool mended, const char *format, ...)
{
	char text[512];
	va_list ap;

	va_start(ap, format);
	vsnprintf(text, sizeof text, format, ap);
	va_end(ap);
	kvm_found(r, mended, text);
}

/*
 * The placements of the disk tier, copied out, so that the catalog can be changed while walking
 * them.
 */
struct placements {
	struct one {
		uint64_t ino;
		struct kvc_place p;
		bool bad;
	} *v;
	size_t n, room;
};

static int take(void *arg, uint64_t ino, const struct kvc_place *p)
{
	struct placements *all = arg;

	if (kvc_grow(&all->v, all->n, &all->room, sizeof *all->v))
		return -ENOMEM;
	all->v[all->n++] = (struct one){ ino, *p, false };
	return 0;
}

static int by_place(const void *a, const void *b)
{
	const struct one *x = a, *y = b;

	return x->p.where.at < y->p.where.at ? -1 : x->p.where.at > y->p.where.at;
}

static bool payload_good(struct kvc_tier *t, const struct kvc_where *w, const struct kvc_frame *f)
{
	uint64_t len = kvc_round_up(f->stored_len, KVC_PAGE);
	KVC_MEM uint8_t *buf = aligned_alloc(KVC_PAGE, len ? len : KVC_PAGE);
	struct iovec iov = { buf, len };
	struct kvc_sum sum;

	if (!buf || (len && t->ops->get(t, w, KVC_FRAME_HEADER, &iov, 1)))
		return false;
	sum = kvc_sum_of(buf, f->stored_len);
	return !memcmp(sum.b, f->stored_sum.b, 16);
}

/* Is it the frame that the catalog speaks of, and made by a daemon of this store? */
static bool placed_so(const struct kvc_store *s, const struct kvc_place *p,
		      const struct kvc_frame *f)
{
	static const struct kvc_sum none;

	if (memcmp(p->sum.b, none.b, 16) && memcmp(p->sum.b, f->stored_sum.b, 16))
		return false;
	return f->version < 2 || !s->has_secret || kvc_frame_proven(f, s->secret);
}

/* Does the frame of this placement lie there? */
static bool frame_there(const struct kvc_store *s, struct kvc_tier *t, const struct one *o,
			uint8_t *page, struct kvc_frame *f, bool data)
{
	struct iovec iov = { page, KVC_FRAME_HEADER };

	return !t->ops->get(t, &o->p.where, 0, &iov, 1) && !kvc_frame_decode(page, f) &&
	       placed_so(s, &o->p, f) && !memcmp(f->store, s->uuid, 16) && f->ino == o->ino &&
	       f->gen == o->p.gen && KVC_FRAME_HEADER + f->stored_len <= o->p.where.len &&
	       (!data || payload_good(t, &o->p.where, f));
}

static int check_placements(const struct kvc_store *s, struct kvc_catalog *c, struct kvc_tier *t,
			    bool data, struct kvm_report *r)
{
	struct placements all = { 0 };
	KVC_MEM uint8_t *page = aligned_alloc(KVC_PAGE, KVC_FRAME_HEADER);
	KVC_MEM struct kvc_frame *f = malloc(sizeof *f);
	int err = page && f ? kvc_place_each(c, 0, take, &all) : -ENOMEM;

	if (all.n)
		qsort(all.v, all.n, sizeof *all.v, by_place);
	/* Those without their frame go first, so that of two that overlap the true one stays. */
	for (size_t i = 0; i < all.n && !err; i++)
		if (!frame_there(s, t, &all.v[i], page, f, data)) {
			kvm_foundf(r, r->mend,
				   "the placement of inode %" PRIu64 " at %" PRIu64 " points at %s",
				   all.v[i].ino, all.v[i].p.where.at,
				   data ? "no frame of it, or at damaged bytes" : "no frame of it");
			all.v[i].bad = true;
			if (r->mend)
				err = kvc_check_unplace(c, all.v[i].ino, 0);
		}
	for (int pass = 0; pass < 2 && !err; pass++)
		for (size_t i = 0; i < all.n && !err; i++) {
			if (all.v[i].bad != (pass == 1))
				continue;
			int e = t->ops->claim(t, &all.v[i].p.where);

			if (!e || pass == 1)
				/*
				 * a bad one that overlaps is told already, unless it is still there
				 */
				continue;
			kvm_foundf(r, r->mend, "the extent of inode %" PRIu64 " at %" PRIu64 " %s",
				   all.v[i].ino, all.v[i].p.where.at,
				   e == -EEXIST ? "overlaps another" : "lies outside of the tier");
			if (r->mend)
				err = kvc_check_unplace(c, all.v[i].ino, 0);
		}
	/* Overlaps with a bad one count too: it is not its frame that lies there. */
	free(all.v);
	return err;
}

static int check_total(struct kvc_catalog *c, struct kvm_report *r)
{
	char text[32] = "", right[32];
	uint64_t placed;
	int err = kvc_check_placed_bytes(c, 0, &placed);

	if (err || kvc_meta_get(c, "clean", text, sizeof text) || strcmp(text, "1") ||
	    kvc_meta_get(c, "disk_used_bytes", text, sizeof text))
		return err; /* written at a clean unmount only */
	snprintf(right, sizeof right, "%" PRIu64, placed);
	if (!strcmp(text, right))
		return 0;
	kvm_foundf(r, r->mend, "the usage total says %s bytes and the placements %s", text, right);
	return r->mend ? kvc_meta_set(c, "disk_used_bytes", right) : 0;
}

struct orphans {
	struct kvc_tier *t;
	const struct kvc_store *s;
	struct kvm_report *r;
	bool expected;
	unsigned n;
};

/* A frame: one that is placed is claimed already, so claiming it again fails. */
static int orphan(void *arg, const struct kvc_where *w, const struct kvc_frame *f)
{
	struct orphans *o = arg;

	/* What a user stored is no frame of ours; nor, here, is what cannot prove that it is. */
	if (memcmp(f->store, o->s->uuid, 16) ||
	    (o->s->has_secret && !kvc_frame_proven(f, o->s->secret)) || o->t->ops->claim(o->t, w))
		return 0;
	o->n++;
	if (!o->expected)
		kvm_foundf(o->r, o->r->mend,
			   "a frame of inode %" PRIu64 " (%s) at %" PRIu64 " belongs to nothing",
			   f->ino, f->path, w->at);
	if (o->r->mend)
		o->t->ops->remove(o->t, w); /* which makes it unreadable */
	return 1;
}

static int check_orphans(const struct kvc_store *s, struct kvc_catalog *c, struct kvc_tier *t,
			 bool dropped, struct kvm_report *r)
{
	struct orphans o = { t, s, r, dropped, 0 };
	char text[8] = "";
	int err;

	/* After a kill, frames that were not in the catalog yet may lie about: that is no fault. */
	o.expected |= !kvc_meta_get(c, "killed", text, sizeof text) && !strcmp(text, "1");
	if (!o.expected)
		o.expected = kvc_meta_get(c, "clean", text, sizeof text) || strcmp(text, "1");
	err = t->ops->list(t, orphan, &o);
	if (o.expected && o.n)
		printf("note: %u frames that a killed daemon left lie in free space%s\n", o.n,
		       r->mend ? " and are cleared" : "; -y clears them");
	if (!err && r->mend && o.expected)
		err = kvc_meta_set(c, "killed", "0");
	return err;
}

static int check(struct kvc_store *s, struct kvc_tier *t, bool data, struct kvm_report *r)
{
	char path[1280], error[512];
	struct kvc_catalog *c;
	uint64_t drops = 0;
	int err;

	kvc_store_path(s, KVC_STORE_CATALOG, path);
	err = kvc_check_pages(path, r->mend, kvm_found, r);
	if (err == -EBADMSG && r->mend) {
		printf("the catalog is damaged beyond mending: making a new one from the frames\n");
		err = kvm_rebuild(s, t);
		r->mended = err ? r->mended : r->found;
		return err;
	}
	if (err)
		return err == -EBADMSG ? 0 : err;
	if ((err = kvc_catalog_open(&c, path, error))) {
		kvm_found(r, false, error);
		return err;
	}
	kvc_catalog_lock(c);
	err = kvc_check_drops(c, r->mend, &drops);
	if (!err && drops)
		printf("note: %" PRIu64 " chunks were being dropped when the daemon ended%s\n",
		       drops, r->mend ? "; it is done" : "; the next mount, or -y, ends it");
	if (!err)
		err = kvc_check_rules(c, r->mend, kvm_found, r);
	if (!err)
		err = check_placements(s, c, t, data, r);
	if (!err)
		err = check_total(c, r);
	if (!err)
		err = check_orphans(s, c, t, r->mend && drops, r);
	kvc_catalog_unlock(c);
	if (kvc_catalog_close(c) && !err)
		err = -EIO;
	return err;
}

/* With rebuild also one whose superblock is damaged: what the frames say makes a new one. */
static int open_store(struct kvc_store *s, const char *path, bool rebuild, char *error)
{
	int err = kvc_store_open(s, path, error);
	struct kvc_tier *disk;
	struct stat st;

	if (err != -EBADMSG || !rebuild)
		return err;
	kvc_store_path(s, KVC_STORE_DATA, s->data);
	if (!stat(s->data, &st))
		s->data_size = (uint64_t)st.st_size;
	err = s->data_size ? kvct_disk_open(s, &disk, error) : -EBADMSG;
	if (!err) {
		err = kvm_find_uuid(disk, s->uuid);
		disk->ops->close(disk);
	}
	err = err ?: kvc_store_create(s);
	if (err)
		return err;
	printf("made a new superblock for store %s\n", s->uuid_text);
	return kvc_store_open(s, path, error);
}

int main(int argc, char **argv)
{
	enum { DATA = 256, REBUILD };
	static const struct option longs[] = {
		{ "no-change", 0, 0, 'n' },
		{ "yes", 0, 0, 'y' },
		{ "data", 0, 0, DATA },
		{ "rebuild", 0, 0, REBUILD },
		{ "help", 0, 0, 'h' },
		{ "version", 0, 0, 'V' },
		{ 0 },
	};
	struct kvm_report r = { 0 };
	struct kvc_store s;
	struct kvc_tier *disk;
	char error[512] = "";
	bool data = false, rebuild = false;
	int c, err;

	kvm_name = "fsck.kvcachefs";
	while ((c = getopt_long(argc, argv, "nyahVTM", longs, NULL)) != -1)
		switch (c) {
		case 'n': r.mend = false; break;
		case 'y':
		case 'a': r.mend = true; break;
		case DATA: data = true; break;
		case REBUILD: rebuild = true; break;
		case 'T':
		case 'M': break; /* what fsck(8) hands on */
		case 'h': usage(stdout); return 0;
		case 'V': printf("fsck.kvcachefs %s\n", KVC_VERSION); return 0;
		default:
			fprintf(stderr,
				"fsck.kvcachefs: fsck.kvcachefs --help shows what it takes\n");
			return 8;
		}
	if (argc - optind != 1) {
		kvm_fail("it takes one store; fsck.kvcachefs --help shows all");
		return 8;
	}
	err = open_store(&s, argv[optind], rebuild, error);
	if (err) {
		kvm_fail("%s", error);
		return err == -EBADMSG ? 4 : 8;
	}
	err = kvct_disk_open(&s, &disk, error);
	if (err) {
		kvm_fail("%s", error);
		kvc_store_close(&s);
		return err == -EBADMSG ? 4 : 8;
	}
	err = rebuild ? kvm_rebuild(&s, disk) : check(&s, disk, data, &r);
	disk->ops->close(disk);
	kvc_store_close(&s);
	if (err) {
		kvm_fail("%s: %s", argv[optind], strerror(-err));
		return 8;
	}
	if (!rebuild)
		printf("%s: %s\n", argv[optind],
		       !r.found              ? "nothing is wrong"
		       : r.mended == r.found ? "all is mended"
					     : "something is wrong; -y mends");
	return !r.found ? 0 : r.mended == r.found ? 1 : 4;
}
