/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The checks of fsck.kvcachefs. With -y the passes are repeated until a pass finds nothing, because
 * one repair may cause work for another check, and the message that all problems are repaired must
 * be true. See fsck.h.
 */
#include "fsck.h"

#include "registry.h"
#include "tool.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <xxhash.h>

#define PASSES 8
#define READS 3 /* reads before data counts as unreadable */

/* Copies of the placements of the disk tier, so that the catalog can be changed during the loop. */
struct placements {
	struct one {
		uint64_t ino;
		struct kvc_place p;
		bool bad;
		int unread;
	} *v;
	size_t n, capacity;
};

struct pass {
	struct kvc_store *s;
	struct kvc_catalog *c;
	struct kvc_tier *t;
	struct kvm_report *r;
	struct placements all; /* sorted by place */
	bool data, first;
	uint64_t drops; /* chunks whose drop was not finished when the daemon ended */
	/* of the scan */
	bool expected;
	unsigned orphans;
	/*
	 * Frames are inside of files: bytes of a user, or the writes that were to replace them were
	 * lost. They will be in free space when the files are deleted.
	 */
	bool inside;
};

static int add_placement(void *arg, uint64_t ino, const struct kvc_place *p)
{
	struct placements *all = arg;

	if (kvc_grow(&all->v, all->n, &all->capacity, sizeof *all->v))
		return -ENOMEM;
	all->v[all->n++] = (struct one){ .ino = ino, .p = *p };
	return 0;
}

static int by_place(const void *a, const void *b)
{
	const struct one *x = a, *y = b;

	return x->p.where.at < y->p.where.at ? -1 : x->p.where.at > y->p.where.at;
}

/* ---- paths of inodes ---- */

struct parent_name {
	uint64_t parent;
	char name[256];
};

static int first_name(void *arg, const struct kvc_name *n)
{
	struct parent_name *u = arg;

	u->parent = n->parent;
	snprintf(u->name, sizeof u->name, "%s", n->name);
	return 1;
}

/*
 * Returns the inode's path, as far as names exist. Broken names are reported by the catalog's
 * rules.
 */
static const char *path_of(struct kvc_catalog *c, uint64_t ino, char *buf, size_t capacity)
{
	struct parent_name u = { .parent = 0 };
	size_t at = capacity - 1;

	buf[at] = 0;
	for (int depth = 0; ino != KVC_ROOT && depth < 64; depth++, ino = u.parent) {
		size_t len;

		if (kvc_name_of(c, ino, first_name, &u) != 1 || (len = strlen(u.name)) + 1 > at)
			break;
		at -= len;
		memcpy(buf + at, u.name, len);
		buf[--at] = '/';
	}
	return buf + at + (buf[at] == '/');
}

/* ---- placements ---- */

/* Reads from a frame. Returns -EBADMSG for a damaged frame. Other errors are retried. */
static int read_frame(struct kvc_tier *t, const struct kvc_where *w, uint64_t off, void *buf,
		      size_t len)
{
	struct iovec iov = { buf, len };
	int err = -EIO;

	for (int i = 0; i < READS && err && err != -EBADMSG; i++)
		err = t->ops->get(t, w, off, &iov, 1);
	return err;
}

#define PIECE (1u << 20) /* bytes of a payload per read */

int kvm_check_payload(struct kvc_tier *t, const struct kvc_where *w, uint64_t stored_len,
		      const struct kvc_sum *want)
{
	KVC_MEM uint8_t *buf = aligned_alloc(KVC_PAGE, PIECE);
	XXH3_state_t *x = XXH3_createState();
	struct kvc_sum sum;
	int err = buf && x ? 0 : -ENOMEM;

	if (!err)
		XXH3_128bits_reset(x);
	for (uint64_t off = 0; off < stored_len && !err; off += PIECE) {
		uint64_t n = kvc_min(stored_len - off, PIECE);

		err = read_frame(t, w, KVC_FRAME_HEADER + off, buf, kvc_round_up(n, KVC_PAGE));
		if (!err)
			XXH3_128bits_update(x, buf, n);
	}
	if (!err) {
		sum = kvc_sum_digest(x);
		err = memcmp(sum.b, want->b, 16) ? -EBADMSG : 0;
	}
	XXH3_freeState(x);
	return err;
}

/*
 * Checks that the frame is the one that the catalog recorded and that a daemon of this store wrote
 * it. Returns 0, -EBADMSG if not, or another negative errno.
 */
static int check_identity(const struct kvc_store *s, const struct kvc_place *p,
			  const struct kvc_frame *f)
{
	static const struct kvc_sum none;
	enum kvc_proven proven = KVC_PROVEN_ALL;
	int err = 0;

	if (memcmp(p->sum.b, none.b, 16) && memcmp(p->sum.b, f->stored_sum.b, 16))
		return -EBADMSG;
	if (s->has_secret)
		err = kvc_frame_proven(f, s->secret, &proven);
	return err ?: proven == KVC_PROVEN_NOTHING ? -EBADMSG : 0;
}

/*
 * Returns 0 if the placement's frame is there, -EBADMSG if it is not, and another negative errno if
 * it cannot be read.
 */
static int check_frame(const struct pass *p, const struct one *o, uint8_t *page,
		       struct kvc_frame *f)
{
	int err = read_frame(p->t, &o->p.where, 0, page, KVC_FRAME_HEADER)
			  ?: kvc_frame_decode(page, f);

	if (err)
		return err;
	if (memcmp(f->store, p->s->uuid, 16) || f->ino != o->ino || f->gen != o->p.gen ||
	    KVC_FRAME_HEADER + f->stored_len > o->p.where.len)
		return -EBADMSG;
	if ((err = check_identity(p->s, &o->p, f)))
		return err;
	return p->data ? kvm_check_payload(p->t, &o->p.where, f->stored_len, &f->stored_sum) : 0;
}

/* Removes the placements in devices that are not part of the store any more. */
static int check_devices(struct pass *p)
{
	uint64_t n = 0;
	int err = 0;

	for (size_t i = 0; i < p->all.n && !err; i++) {
		struct one *o = &p->all.v[i];
		uint64_t nr = o->p.where.at >> KVC_DEVICE_BITS;

		if (nr >= KVC_DEVICES || p->s->dev[nr].kind)
			continue;
		o->bad = true;
		n++;
		err = p->r->mend ? kvc_check_unplace(p->c, o->ino, 0) : 0;
	}
	if (n)
		kvm_foundf(p->r, p->r->mend,
			   "%" PRIu64 " files have their data in a device that is not part of the "
			   "store",
			   n);
	return err;
}

static int check_frames(struct pass *p)
{
	KVC_MEM uint8_t *page = aligned_alloc(KVC_PAGE, KVC_FRAME_HEADER);
	KVC_MEM struct kvc_frame *f = malloc(sizeof *f);
	char path[4200];
	int err = page && f ? 0 : -ENOMEM;

	/*
	 * Placements without their frame are removed first, so that of two overlapping ones the
	 * correct one remains.
	 */
	for (size_t i = 0; i < p->all.n && !err; i++) {
		struct one *o = &p->all.v[i];

		if (o->bad)
			continue;
		err = check_frame(p, o, page, f);
		if (err == -EBADMSG) {
			kvm_foundf(p->r, p->r->mend,
				   "the placement of inode %" PRIu64 " at %" PRIu64 " points to %s",
				   o->ino, o->p.where.at,
				   p->data ? "no frame of the inode, or to a damaged frame"
					   : "no frame of the inode");
			o->bad = true;
			err = p->r->mend ? kvc_check_unplace(p->c, o->ino, 0) : 0;
		} else if (err && err != -ENOMEM) {
			if (p->first)
				kvm_unread(p->r, err,
					   "the frame of inode %" PRIu64 " (%s) at %" PRIu64,
					   o->ino, path_of(p->c, o->ino, path, sizeof path),
					   o->p.where.at);
			o->unread = err;
			err = 0;
		}
	}
	return err;
}

/*
 * Claims each extent in the tier. Extents whose frame is missing are claimed last, and their
 * conflicts are not reported again.
 */
static int check_extents(struct pass *p)
{
	int err = 0;

	for (int bad = 0; bad < 2 && !err; bad++)
		for (size_t i = 0; i < p->all.n && !err; i++) {
			const struct one *o = &p->all.v[i];
			int e = o->bad == (bad == 1) ? p->t->ops->claim(p->t, &o->p.where) : 0;

			if (!e || bad || e == -ENOMEM) {
				err = e == -ENOMEM ? e : 0;
				continue;
			}
			kvm_foundf(p->r, p->r->mend,
				   "the extent of inode %" PRIu64 " at %" PRIu64 " %s", o->ino,
				   o->p.where.at,
				   e == -EEXIST ? "overlaps another" : "lies outside of the tier");
			if (p->r->mend)
				err = kvc_check_unplace(p->c, o->ino, 0);
		}
	return err;
}

static int check_total(struct pass *p)
{
	char text[32] = "", right[32];
	uint64_t placed;
	int err = kvc_check_placed_bytes(p->c, 0, &placed);

	if (!err)
		err = kvc_meta_get(p->c, "clean", text, sizeof text);
	if (!err && !strcmp(text, "1"))
		err = kvc_meta_get(p->c, "disk_used_bytes", text, sizeof text);
	else
		return err == -ENOENT ? 0 : err; /* only a clean unmount writes the total */
	if (err)
		return err == -ENOENT ? 0 : err;
	snprintf(right, sizeof right, "%" PRIu64, placed);
	if (!strcmp(text, right))
		return 0;
	kvm_foundf(p->r, p->r->mend,
		   "the recorded usage is %s bytes, but the placements have %s bytes", text, right);
	return p->r->mend ? kvc_meta_set(p->c, "disk_used_bytes", right) : 0;
}

/* ---- the scan ---- */

/* Is the frame at the beginning of a placement's extent? */
static bool is_placed(const struct pass *p, const struct kvc_where *w)
{
	const struct one key = { .p.where = *w };

	return p->all.n && bsearch(&key, p->all.v, p->all.n, sizeof key, by_place);
}

/*
 * Handles a frame that the scan found. The extents of placements are already claimed, so that
 * another claim fails. Newer frames may have overwritten the end of an old frame, whose header is
 * still in free space. In a repair, the scan goes on inside of a frame that was removed, where
 * older frames may be.
 */
static int handle_orphan(void *arg, const struct kvc_where *w, const struct kvc_frame *f)
{
	struct kvc_where header = { .at = w->at, .len = KVC_FRAME_HEADER }, at = *w;
	enum kvc_proven proven = KVC_PROVEN_ALL;
	struct pass *p = arg;
	int err = 0;

	/*
	 * Data of a user may look like a frame. Only frames of this store with a valid proof count.
	 */
	if (!memcmp(f->store, p->s->uuid, 16) && p->s->has_secret)
		err = kvc_frame_proven(f, p->s->secret, &proven);
	if (err || memcmp(f->store, p->s->uuid, 16) || proven == KVC_PROVEN_NOTHING)
		return err;
	if (p->t->ops->claim(p->t, &at)) {
		if (is_placed(p, w))
			return 0;
		at = header;
		if (p->t->ops->claim(p->t, &at)) {
			p->inside = true;
			return 0;
		}
	}
	p->orphans++;
	if (!p->expected)
		kvm_foundf(p->r, p->r->mend,
			   "a frame of inode %" PRIu64 " (%s) at %" PRIu64 " has no placement",
			   f->ino, f->path, w->at);
	if (p->r->mend)
		p->t->ops->remove(p->t, &at); /* makes the frame unreadable */
	return !p->r->mend && at.len == w->len;
}

/* Reports unreadable ranges: parts of a file's data, or of free space, where no data is lost. */
static void report_holes(const struct pass *p, const struct kvm_holes *h)
{
	char path[4200];

	for (size_t i = 0; i < h->n && p->first; i++) {
		const struct kvm_hole *x = &h->v[i];
		bool any = false;

		for (size_t j = 0; j < p->all.n; j++) {
			const struct one *o = &p->all.v[j];

			if (o->bad || x->at + x->len <= o->p.where.at ||
			    x->at >= o->p.where.at + o->p.where.len)
				continue;
			any = true;
			if (!o->unread)
				kvm_unread(p->r, x->err,
					   "the data of inode %" PRIu64 " (%s) at %" PRIu64, o->ino,
					   path_of(p->c, o->ino, path, sizeof path), x->at);
		}
		if (!any)
			printf("note: %" PRIu64 " bytes of free space at %" PRIu64
			       " cannot be read: %s\n",
			       x->len, x->at, strerror(-x->err));
	}
}

static bool meta_is(struct pass *p, const char *key, const char *value, int *err)
{
	char text[32] = "";
	int got = kvc_meta_get(p->c, key, text, sizeof text);

	if (got && got != -ENOENT)
		*err = got;
	return !got && !strcmp(text, value);
}

static int check_orphans(struct pass *p)
{
	struct kvm_holes holes = { 0 };
	struct kvc_tier_usage u;
	int err = 0;

	/*
	 * After a kill, frames may exist that the catalog does not have yet. That is not a problem.
	 */
	p->expected = (p->r->mend && p->drops) || meta_is(p, "killed", "1", &err) ||
		      !meta_is(p, "clean", "1", &err);
	/* frames are cleared only after the commit of the catalog that does not name them */
	if (!err && p->r->mend)
		err = kvc_catalog_commit(p->c) ?: kvc_catalog_sync(p->c);
	if (err)
		return err;
	kvct_devices_unread(p->t, kvm_hole, &holes);
	err = p->t->ops->list(p->t, handle_orphan, p) ?: holes.err;
	if (!err && p->r->mend)
		err = (kvct_devices_clear(p->t), p->t->ops->sync(p->t));
	if (p->expected && p->orphans)
		printf("note: %u frames of a killed daemon are in free space%s\n", p->orphans,
		       p->r->mend ? " and are cleared" : "; -y clears them");
	if (!err)
		report_holes(p, &holes);
	p->t->ops->usage(p->t, &u);
	if (u.uncleared)
		kvm_unread(p->r, -EIO, "%" PRIu64 " bytes of frames that belong to no file",
			   u.uncleared);
	if (!err && p->r->mend && p->inside)
		err = kvc_meta_set(p->c, "killed", "1");
	else if (!err && p->r->mend && p->expected && !u.uncleared && !holes.n)
		err = kvc_meta_set(p->c, "killed", "0");
	free(holes.v);
	return err;
}

/* ---- all checks ---- */

static int run_checks(struct pass *p)
{
	int err = kvc_check_drops(p->c, p->r->mend, &p->drops);

	if (!err && p->drops && p->first)
		printf("note: %" PRIu64 " chunks were being dropped when the daemon ended%s\n",
		       p->drops,
		       p->r->mend ? "; completed" : "; the next mount or -y completes it");
	err = err ?: kvc_check_rules(p->c, p->r->mend, kvm_found, p->r);
	if (err)
		return err;
	p->all.n = 0;
	if ((err = kvc_place_each(p->c, 0, add_placement, &p->all)))
		return err;
	if (p->all.n)
		qsort(p->all.v, p->all.n, sizeof *p->all.v, by_place);
	err = check_devices(p) ?: check_frames(p) ?: check_extents(p);
	return err ?: check_total(p) ?: check_orphans(p);
}

/* Runs one pass. If it fails, its uncommitted changes are rolled back. */
static int one_pass(struct pass *p, const char *path)
{
	char error[512] = "";
	int err = kvct_devices_open(p->s, &p->t, error);

	if (err == -ENOENT && !p->r->mend)
		return 0; /* the missing data was already reported */
	if (err) {
		kvm_fail("%s", error);
		return err;
	}
	err = p->r->mend ? kvc_catalog_open(&p->c, path, error)
			 : kvc_catalog_open_read(&p->c, path, error);
	if (err) {
		kvm_fail("%s", error);
	} else {
		kvc_catalog_lock(p->c);
		err = run_checks(p);
		if (err)
			kvc_catalog_rollback(p->c);
		else if (p->r->mend)
			err = kvc_catalog_commit(p->c) ?: kvc_catalog_sync(p->c);
		kvc_catalog_unlock(p->c);
		err = kvc_catalog_close(p->c) ?: err;
	}
	p->t->ops->close(p->t);
	return err;
}

int kvm_check(struct kvc_store *s, bool data, struct kvm_report *r)
{
	struct pass p = { .s = s, .r = r, .data = data, .first = true };
	char path[1280];
	unsigned before = r->found, damaged;
	int err = kvc_check_pages(kvm_catalog(s, path), r->mend, kvm_found, r);

	if (err == -EBADMSG && r->mend) {
		printf("the catalog cannot be repaired: building a new catalog from the frames\n");
		damaged = r->found - before;
		err = kvm_rebuild(s, r);
		r->mended += err ? 0 : damaged;
	} else if (err == -EBADMSG) {
		return 0; /* already reported */
	} else if (!err && r->mend && s->no_proof) {
		printf("the secret that authenticates frames is lost: authenticating them with a "
		       "new secret\n");
		err = kvm_rebuild(s, r);
	}
	for (int i = 0; i < PASSES && !err; i++, p.first = false) {
		before = r->found;
		p.orphans = 0;
		p.inside = false;
		err = one_pass(&p, path);
		for (unsigned j = 0; j < KVC_DEVICES; j++)
			s->dev[j].lost_from = 0; /* this pass has handled the lost part */
		if (!r->mend || r->found == before)
			break;
	}
	if (!err && r->mend && r->found != before)
		r->mended = 0; /* the repairs do not converge: problems remain */
	free(p.all.v);
	return err;
}
